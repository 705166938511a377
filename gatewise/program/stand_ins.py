"""Stand-ins for tensors while forward() is recorded, and what is raised where one cannot stand for a tensor."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self
from weakref import ref

import torch
from torch import Tensor

from gatewise.program.graph import Node
from gatewise.program.sizes import Size, letter

ANY_PARTS = (Ellipsis,)  # a candidate: a list, however long
HERE = threading.local()  # .recorder: the one that records in this thread


def running() -> Any:
    """The recorder of this thread, or None."""
    return getattr(HERE, "recorder", None)


def current() -> Any:
    if (found := running()) is None:
        raise Refused("a tensor of a recorded call is used after it")
    return found


class Refused(ValueError):
    """forward() does what a program cannot say."""


class NoCall(TypeError):
    """torch would raise, whatever the tensors are: nobody calls forward() like this."""


class Impossible(Exception):
    """What is assumed about the shape of an argument cannot be."""


class Assume(Exception):
    """A letter turns out to be another size: record again with it."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"{name} = {size}")
        self.name, self.size = name, size


class NeedsShape(Exception):
    """An argument is used whose shape nobody has said yet; `candidates` lists what it may be, the likeliest first.

    A candidate is a shape, or a tuple of candidates where the argument is a tuple; None in it is asked for later.
    `guessed`: so little is known that what a program cannot say may be a wrong guess.
    """

    def __init__(
        self, argument: str, candidates: list[Any], kind: str | None = None, guessed: bool = False
    ) -> None:
        super().__init__(argument)
        self.argument, self.candidates, self.kind, self.guessed = argument, candidates, kind, guessed


@dataclass(eq=False)
class Memory:
    """What stand-ins share that are views of each other."""

    version: int = 0
    written: tuple[Node, ...] = ()


class Recorded(Tensor):
    """A tensor of which only the node is known."""

    node: Node
    memory: Memory
    version: int
    argument: str  # of forward(), while its shape is not known
    collected: tuple[int, int]  # of which step of how many, for what a loop put into a list

    @classmethod
    def of(cls, node: Node, memory: Memory | None = None) -> Self:
        made = torch.empty((), device="meta").as_subclass(cls)
        made.node, made.memory = node, memory or Memory()
        made.version = made.memory.version
        if (recorder := running()) is not None:
            recorder.alive.append(ref(made))
        return made

    @staticmethod
    def given(argument: str) -> Recorded:
        """An argument without a shape."""
        made = torch.empty((), device="meta").as_subclass(Recorded)
        made.argument = argument
        return made

    def alias(self) -> Recorded:
        """Another stand-in for the same tensor, or for a view of it that looks alike."""
        return Recorded.of(self.node, self.memory)

    @property
    def is_shaped(self) -> bool:
        return "node" in vars(self)

    @property
    def is_fresh(self) -> bool:
        """Whether nobody has written into another view of it since."""
        return self.version == self.memory.version

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (recorder := running()) is not None:
            return recorder.call(func, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        recorder = current()
        if not self.is_shaped:
            raise NeedsShape(self.argument, *parts_asked_for(sys._getframe(1), self.argument))
        if not self.node.rank:
            raise recorder.refuse(Refused("it takes a number apart"))
        if not isinstance(recorder.node(self).shape[0], Size):
            return iter([self[k] for k in range(self.node.shape[0])])
        steps: Iterator[Any] = recorder.rules["iter"](self, 0, sys._getframe(1))
        return steps

    def __getitem__(self, index: Any) -> Any:
        items = [number_of(item) for item in (index if isinstance(index, tuple) else (index,))]
        return super().__getitem__(tuple(items) if isinstance(index, tuple) else items[0])

    def __hash__(self) -> int:
        if self.is_number_of_loop:
            raise current().refuse(Refused("it looks for the number of a step in a set or dict"))
        return id(self)

    @property
    def is_number_of_loop(self) -> bool:
        """Whether this is computed of the number of a step: another one in every step, which Python must not see."""
        return self.is_shaped and self.node.turn is not None and self.node.rank == 0

    def __bool__(self) -> bool:
        why = "an `if` or `while` asks for a value, which only a call knows"
        end = "of a decoder that stops at an end symbol one step is exported, see gatewise.nn.greedy_decode()"
        raise current().refuse(Refused(f"{why}; {end}"))

    def __index__(self) -> int:
        why = "a loop runs as often, or an index is as large, as an input says"
        raise current().refuse(Refused(why))

    __int__ = __float__ = __complex__ = __index__

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self.is_number_of_loop and running() is not None:
            raise current().refuse(Refused("it makes text of the number of a step"))
        return f"Recorded({self.node})" if self.is_shaped else f"Recorded({self.argument})"

    def __deepcopy__(self, memo: Any) -> Recorded:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Refused("it copies or stores a tensor of the call")


class Parts:
    """A list of which nobody has said how long it is: a part is there once it is asked for, `states[k]`."""

    def __init__(self, argument: str) -> None:
        self.argument, self.parts = argument, list[Any]()

    def __getitem__(self, k: Any) -> Any:
        if not isinstance(k, int) or not 0 <= k <= len(self.parts):
            raise current().refuse(Refused(f"it takes {self.argument}[{k}] before the parts that come first"))
        if k == len(self.parts):
            self.parts.append(current().stand_in(f"{self.argument}.{k}"))
        return self.parts[k]

    def __len__(self) -> int:
        raise current().refuse(Refused(f"it asks how long {self.argument} is, which only a call knows"))

    __iter__ = __bool__ = __len__

    @staticmethod
    def taken(value: Any) -> Any:
        """As lists, of an argument that was recorded."""
        return [Parts.taken(part) for part in value.parts] if isinstance(value, Parts) else value


class RecordedNumber(Recorded):
    """The number of a step, which isinstance() takes for one."""

    __class__ = int  # type: ignore[assignment]


def number_of(item: Any) -> Any:
    """range(len(x)) as an index: a tensor of its numbers."""
    numbers = getattr(item, "numbers", None)
    return item if numbers is None else numbers()


def usual_shapes(argument: str) -> list[Any]:
    """What an argument may look like of which nothing is known but that it is a tensor; T is its own length."""
    batch, time, width = letter("B"), letter("T"), letter(f"C.{argument}")
    other = letter(f"C2.{argument}")
    usual = [(batch, time, width), (batch, time), (batch, width), (batch,)]
    if "len" in argument:  # what is called lengths seldom is a sequence
        usual.reverse()
    time_first = [(time, batch, width), (time, batch)]
    return [*usual, *time_first, (batch, width, time), (batch, time, width, other), ()]


def parts_asked_for(frame: FrameType, argument: str) -> tuple[list[Any], None, bool]:
    """What an argument may be that is taken apart: `h, c = state` says into how many, a loop goes over a tensor."""
    at = next(i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti)
    if at.opname == "UNPACK_SEQUENCE":
        return [(None,) * (at.arg or 2)], None, False
    return (usual_shapes(argument) if at.opname == "GET_ITER" else [(None, None)]), None, True


def is_shape(candidate: Any) -> bool:
    """Rather than a tuple of candidates."""
    return all(isinstance(n, int) for n in candidate)


def is_unshaped(value: Any, prefix: str = "") -> bool:
    """An argument, or with "@" what something unknown gave, while nobody has asked for its shape."""
    return isinstance(value, Recorded) and not value.is_shaped and value.argument.startswith(prefix)
