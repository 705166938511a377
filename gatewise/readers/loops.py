"""Loops of forward() that run as often as an input is long: `for t in range(x.size(1))`, `for step in x.unbind(1)`.

Let s_k be what the variables of forward() hold before step k, of each tensor the units that it carries. Then

    s_{k+1} = step(s_k),   so   s_3 = s_2   implies   s_k = s_2 for every k > 2:

all later steps do what the third did. So a loop is recorded for 1, 2 and 3 steps, and has to be steady by then. Its
length, and the number of a step, are unknown to forward() meanwhile: an `if` that asks for them gets no answer.
"""

from __future__ import annotations

import builtins
import dis
import operator
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from gatewise.readers.graph import joined

RUNS = (3, 2, 1)  # steps for which a loop is recorded, the most first
NUMBERS = (int, float, complex, str, bytes, type(None))
UNCHANGING = (
    nn.Module,
    type,
    slice,
    range,
    torch.dtype,
    torch.device,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)
PLAIN_MODULE = set(vars(nn.Module())) - {"_buffers"}
builtin_range, builtin_len, builtin_enumerate = range, len, enumerate

At = tuple[fx.Node, fx.Node]  # a value, as it is when the first of the two nodes is reached


class NotFollowed(Exception):
    """A loop whose later steps may do something else than those that were recorded."""


def step_number() -> int:
    """Stands in a graph for the number of a step, or for another number that only a call knows."""
    raise NotImplementedError


@dataclass
class Loop:
    """One loop while it is recorded: before every step, and after the last, what variables hold."""

    frame: types.FrameType
    place: int  # of the instruction that asks for the next step
    steps: int
    numbers: list[fx.Proxy] = field(default_factory=list)
    held: list[dict[str, Any]] = field(default_factory=list)


class RecordedRange:
    """range() of a recorded number."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops

    def __iter__(self) -> Iterator[fx.Proxy]:
        return self.loops.steps()

    __reversed__ = __iter__


class Loops:
    """The loops of one recording; the k-th that starts runs `runs[k]` times, those after these as often as any."""

    def __init__(self, tracer: fx.Tracer, model: nn.Module, runs: tuple[int, ...]) -> None:
        self.tracer, self.model, self.runs = tracer, model, runs
        self.started = 0
        self.open: Loop | None = None
        self.asked = 0  # how often a step was asked for
        self.steady: list[tuple[At, At]] = []  # what must carry the same for later steps to be like these
        self.outside: types.FrameType | None = None

    def number(self) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", step_number, (), {})

    def over(self, value: fx.Proxy) -> Iterator[Any]:
        """`for item in value`; not f(*value), where the number of items says what is called."""
        frame = asking()
        name = dis.opname[frame.f_code.co_code[instruction(frame)]]
        called = "CALL" in name and name != "CALL_FUNCTION_EX"
        if not (called or name == "GET_ITER") or is_shape(value.node):
            raise NotFollowed("it unpacks what it does not know the number of")
        return (value[number] for number in self.steps())  # type: ignore[index]

    def steps(self) -> Iterator[fx.Proxy]:
        """The numbers of the steps of the loop that asks."""
        k = 0
        while (number := self.before(k, asking())) is not None:
            yield number
            k += 1

    def before(self, k: int, frame: types.FrameType) -> fx.Proxy | None:
        """The number of step k, or None after the last. zip() asks several times at the same place."""
        self.asked += 1
        if self.open is None:
            if k > 0:
                return None
            steps = self.runs[self.started] if self.started < builtin_len(self.runs) else RUNS[0]
            self.open = Loop(frame, instruction(frame), steps)
            self.started += 1
        loop = self.open
        if (loop.frame, loop.place) != (frame, instruction(frame)):
            raise NotFollowed(
                "a loop that runs as often as an input says is inside another, or left before its end"
            )
        if builtin_len(loop.numbers) == k:
            loop.held.append(self.variables(frame))
            loop.numbers.append(self.number())
        if k < loop.steps:
            return loop.numbers[k]
        self.open = None
        if loop.steps == RUNS[0]:
            marks = [number.node for number in loop.numbers[-2:]]
            pairs = Comparison(marks[0], marks[1])
            for name, new in loop.held[-1].items():
                pairs.compare(loop.held[-2].get(name), new, name)
            self.steady += pairs.found
        return None

    def variables(self, frame: types.FrameType | None) -> dict[str, Any]:
        """What a step can see: variables of the functions that are at work, and attributes of the modules."""
        found: dict[str, Any] = {}
        depth = 0
        while frame is not None and frame is not self.outside:
            if is_users(frame):
                depth += 1
                own = ((name, value) for name, value in frame.f_locals.items() if name[0] != ".")
                found |= {name + "'" * (depth - 1): frozen(value) for name, value in own}
            frame = frame.f_back
        for name, module in self.model.named_modules():
            for key, value in vars(module).items():
                if key not in PLAIN_MODULE and isinstance(value, (fx.Proxy, Tensor, *NUMBERS)):
                    found[joined(name, key)] = frozen(value)
                elif key not in PLAIN_MODULE and isinstance(value, list | tuple | dict | deque):
                    # A vocabulary need not be copied.
                    found[joined(name, key)] = frozen(value) if holds_recorded(value) else builtin_len(value)
        return found

    # What forward() calls by these names while it is recorded.

    def count(self, what: Any, items: Iterator[Any], start: int) -> Iterator[tuple[Any, Any]]:
        """enumerate(), with unknown numbers where what it counts is a loop of ours, or was filled by one."""
        filled = self.is_filled(what)
        before = self.asked
        for k, item in builtin_enumerate(items, start):
            if self.asked != before and self.open is not None:
                yield self.open.numbers[-1], item
            else:
                yield self.number() if filled else k, item
            before = self.asked

    def is_filled(self, value: Any) -> bool:
        """Whether a list may be as long as a loop made it."""
        return self.started > 0 and isinstance(value, list | tuple) and holds_recorded(value)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """range(), len() and enumerate() of what is recorded."""
        loops = self
        self.outside = sys._getframe(2)

        class AnyRange(type):
            def __instancecheck__(cls, value: Any) -> bool:
                return isinstance(value, builtin_range)

            def __call__(cls, *args: Any) -> Any:
                unknown = any(isinstance(a, fx.Proxy) for a in args)
                return RecordedRange(loops) if unknown else builtin_range(*args)

        class Range(metaclass=AnyRange):
            pass

        def length(value: Any, /) -> Any:
            unknown = isinstance(value, fx.Proxy | RecordedRange) or loops.is_filled(value)
            return loops.number() if unknown and is_users(sys._getframe(1)) else builtin_len(value)

        def counted(iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[Any, Any]]:
            own = is_users(sys._getframe(1)) and not isinstance(start, fx.Proxy)
            return loops.count(iterable, iter(iterable), start) if own else builtin_enumerate(iterable, start)

        vars(builtins).update(range=Range, len=length, enumerate=counted)
        try:
            yield
        finally:
            vars(builtins).update(range=builtin_range, len=builtin_len, enumerate=builtin_enumerate)
            self.outside = None
        if self.open is not None:
            raise NotFollowed("a loop that runs as often as an input says is left before its end")


@dataclass
class Comparison:
    """What variables held before the last step and hold after it: nodes that have to carry the same, or a refusal."""

    before: fx.Node
    after: fx.Node
    found: list[tuple[At, At]] = field(default_factory=list)

    def compare(self, old: Any, new: Any, name: str) -> None:
        if isinstance(old, fx.Node) and isinstance(new, fx.Node):
            self.found.append(((self.before, old), (self.after, new)))
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            for one, other in zip(old, new):
                self.compare(one, other, name)
        elif isinstance(old, list) and isinstance(new, list) and 0 < len(old) < len(new):
            # It grows by what a step adds. Whatever is taken out of it later has to be the same: so all in it are.
            self.compare(old[0], new[0], name)
            alike = Comparison(self.after, self.after)
            for other in new[1:]:
                alike.compare(new[0], other, name)
            self.found += alike.found
        elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
            for key, value in new.items():
                self.compare(old[key], value, name)
        elif not (type(old) is type(new) and is_constant(old) and (old is new or old == new)):
            name = name.rstrip("'")
            raise NotFollowed(f"{name!r} may hold something else at every step of a loop over an input")


def frozen(value: Any) -> Any:
    """A value as it is now: containers copied, a node for what is recorded."""
    if isinstance(value, fx.Proxy):
        return value.node
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, Tensor):
        return Written(id(value), 0 if value.is_inference() else value._version)
    return value


@dataclass(frozen=True)
class Written:
    """A tensor that is no input: which, and how often it was written into."""

    tensor: int
    times: int


def is_constant(value: Any) -> bool:
    """Whether a value has no insides that a step could change."""
    return isinstance(value, (*NUMBERS, *UNCHANGING, Written))


def holds_recorded(value: Any) -> bool:
    """Whether a container, or one directly in it, holds something recorded."""
    inside = value.values() if isinstance(value, dict) else value
    return any(
        isinstance(item, fx.Proxy) or (isinstance(item, list | tuple) and holds_recorded(item))
        for item in inside
    )


def is_shape(node: fx.Node) -> bool:
    """Whether a node is a shape or a part of one: how many sizes it has says how many axes a tensor gets."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def is_users(frame: types.FrameType) -> bool:
    """Whether a function is neither torch's nor of this package's recording."""
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] != "torch" and not name.startswith("gatewise.readers.")


def instruction(frame: types.FrameType) -> int:
    """Where a function is; what Python keeps behind an instruction, for its own use, belongs to it."""
    at = frame.f_lasti
    while dis.opname[frame.f_code.co_code[at]] == "CACHE":
        at -= 2
    return at


def asking() -> types.FrameType:
    """The function of the user's that asks for a step; torch's own cannot be told what it gets."""
    frame = sys._getframe(1)
    while frame.f_globals is globals() or frame.f_globals.get("__name__") in (
        fx.proxy.__name__,
        "gatewise.readers.record",
    ):
        assert frame.f_back is not None
        frame = frame.f_back
    if not is_users(frame):
        raise NotFollowed(
            f"{frame.f_code.co_name}() of torch runs as often, or is as large, as an input says"
        )
    return frame
