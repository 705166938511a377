"""Runs forward() once on stand-ins for tensors, and writes down what it does as a program.

    node = operation(nodes)        for every call of torch in which a stand-in, a model's tensor or a size takes part

A stand-in (`Recorded`) is a tensor without values: it knows its node, and with it its shape, in which some sizes are
letters. What forward() asks of values, or of sizes in a way that calls answer differently, is refused.
Writes in place give the stand-in another node; what shares its memory is out of date from then on, and refused.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gatewise.program.graph import BOOL, FLOAT, INT, Node, leaves
from gatewise.program.lines import current_line
from gatewise.program.operations import (
    Constant,
    Expand,
    Extent,
    Input,
    Opaque,
    Operation,
    Parameter,
    Permute,
    Reshape,
    Slice,
)
from gatewise.program.sizes import (
    Size,
    Undecided,
    letter,
    replaced,
    same,
    same_shape,
    settled,
    terms_of,
    whole,
)

KINDS = {torch.bool: BOOL} | dict.fromkeys(
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), INT
)
VIEWS = (Permute, Reshape, Expand, Slice)
LOOSE = "#"  # assumed where nothing else fits: that the batch or time is as large as a layer is wide
BINDABLE = ("C", "L", "S")  # what letters begin with that may turn out to be another size


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
    collected: int  # of how many steps, for what a loop put into a list

    @staticmethod
    def of(node: Node, memory: Memory | None = None) -> Recorded:
        made = torch.empty((), device="meta").as_subclass(Recorded)
        made.node, made.memory = node, memory or Memory()
        made.version = made.memory.version
        return made

    @staticmethod
    def given(argument: str) -> Recorded:
        """An argument without a shape."""
        made = torch.empty((), device="meta").as_subclass(Recorded)
        made.argument = argument
        return made

    @property
    def is_shaped(self) -> bool:
        return "node" in vars(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (recorder := Recorder.running()) is not None:
            return recorder.call(func, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        recorder = Recorder.current()
        if not self.is_shaped:
            raise NeedsShape(self.argument, *parts_asked_for(sys._getframe(1), self.argument))
        if not self.node.rank:
            raise recorder.refuse(Refused("it takes a number apart"))
        if not isinstance(recorder.node(self).shape[0], Size):
            return iter([self[k] for k in range(self.node.shape[0])])
        steps: Iterator[Any] = recorder.rules["iter"](self, 0, sys._getframe(1))
        return steps

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        raise Recorder.current().refuse(
            Refused("an `if` or `while` asks for a value, which only a call knows")
        )

    def __index__(self) -> int:
        why = "a loop runs as often, or an index is as large, as an input says"
        raise Recorder.current().refuse(Refused(why))

    __int__ = __float__ = __complex__ = __index__

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Recorded({self.node})" if self.is_shaped else f"Recorded({self.argument})"

    def __deepcopy__(self, memo: Any) -> Recorded:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Refused("it copies or stores a tensor of the call")


class RecordedNumber(Recorded):
    """The number of a step, which isinstance() takes for one."""

    __class__ = int  # type: ignore[assignment]

    @staticmethod
    def of(node: Node, memory: Memory | None = None) -> RecordedNumber:
        made = torch.empty((), device="meta").as_subclass(RecordedNumber)
        made.node, made.memory, made.version = node, memory or Memory(), 0
        return made


class Recorder(TorchFunctionMode):
    """Records one call of a model."""

    _here = threading.local()

    def __init__(
        self,
        model: nn.Module,
        rules: dict[str, Callable[..., Any]],
        shapes: Mapping[str, Any],
        letters: Mapping[str, int],
        lenient: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.rules = model, rules
        self.shapes, self.letters = shapes, letters  # what is assumed
        self.lenient = lenient  # what a program cannot say is Opaque, rather than refused
        self.opaque: list[Node] = []
        self.called: set[str] = set()  # layers
        self.asked: set[str] = set()  # parameters of which forward() asks where they are, or the like
        self.loops: list[Any] = []
        self.carried: list[
            tuple[Node, Node]
        ] = []  # what names meant before the last step of a loop, and after it
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        self.names = {id(tensor): name for name, tensor in reversed(named)}
        self.modules = {id(module): name for name, module in model.named_modules()}
        self.parameters: dict[str, Node] = {}
        self.lengths: dict[Node, str] = {}  # the letter of the longest, for every node of lengths
        self.assumed: list[str] = []  # what holds in all calls but odd ones
        self.refused: Exception | None = None

    @classmethod
    def running(cls) -> Recorder | None:
        """The one that records in this thread."""
        return getattr(cls._here, "recorder", None)

    @classmethod
    def current(cls) -> Recorder:
        found = cls.running()
        if found is None:
            raise Refused("a tensor of a recorded call is used after it")
        return found

    def __enter__(self) -> Recorder:
        self._here.recorder = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._here.recorder = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function of torch gives: recorded if it takes part in the call, else as it is."""
        name = name_of(func)
        given = [*leaves(list(args)), *leaves(kwargs)]
        if not any(isinstance(a, Recorded | Size) or id(a) in self.names for a in given):
            return func(*args, **kwargs)
        if name in ASKED and not any(isinstance(a, Recorded) for a in given):
            self.asked |= {self.names[id(a)] for a in given if id(a) in self.names}
            return func(*args, **kwargs)
        try:
            return self.apply(name, args, kwargs)
        except Refused as error:
            if not self.lenient or name in ANSWERED:
                raise self.refuse(error)  # noqa: B904
            return self.unknown(f"{name}() may mix its channels", [args, kwargs])
        except Undecided as error:
            raise self.refuse(error)  # noqa: B904

    def unknown(self, what: str, values: Any) -> Any:
        """What something gives that a program cannot say: its shape is asked for when it is used."""
        seen = [v for v in leaves(values) if isinstance(v, Tensor) and not is_unshaped(v)]
        self.opaque.append(self.new(Opaque(what), tuple(map(self.node, seen)), ()))
        return self.stand_in(f"@{len(self.opaque)}", self.opaque[-1])

    def stand_in(self, name: str, source: Node | None = None) -> Any:
        """What stands for an argument, or for something unknown, as far as its shape is known."""
        if name not in self.shapes:
            return Recorded.given(name)
        candidate, kind = self.shapes[name]
        if is_shape(candidate):
            return self.shaped(name, candidate, kind, source)
        parts = [(f"{name}.{k}", part) for k, part in enumerate(candidate)]
        return tuple(
            self.stand_in(own, source) if part is None else self.shaped(own, part, kind, source)
            for own, part in parts
        )

    def shaped(self, name: str, candidate: Any, kind: str | None, source: Node | None) -> Recorded:
        time = {"T": letter(self.time_of(name))}
        shape = tuple(settled(replaced(n, time), self.letters) for n in candidate)
        if source is None:
            return Recorded.of(Node(Input(name), (), shape, kind))  # type: ignore[arg-type]
        return Recorded.of(self.new(source.op, (source,), shape, kind))

    def time_of(self, name: str) -> str:
        """T for the first that is a sequence; another one may be of another length: S, S2, ..."""
        sequences = [
            other
            for other, (candidate, _) in self.shapes.items()
            if is_shape(candidate) and any("T" in n.letters for n in candidate if isinstance(n, Size))
        ]
        at = sequences.index(name) if name in sequences else 0
        return "T" if at == 0 else "S" if at == 1 else f"S{at}"

    def refuse(self, error: Exception) -> Exception:
        """Kept: forward() may catch it and go on."""
        self.refused = self.refused or error
        return error

    def bound(self, size: int) -> int:
        """A size, with letters that turned out to be others."""
        return settled(size, self.letters)

    def apply(self, name: str, args: Any, kwargs: Any) -> Any:
        tensors = [v for v in (*leaves(list(args)), *leaves(kwargs)) if isinstance(v, Tensor)]
        if tensors and name not in ANSWERED and all(is_unshaped(v, "@") for v in tensors):
            return self.unknown(f"{name}()", [])
        for value in tensors:
            if isinstance(value, Recorded) and is_unshaped(value) and name not in ("device", "requires_grad"):
                raise NeedsShape(value.argument, usual_shapes(value.argument), guessed=True)
        kwargs = dict(kwargs)
        for place, word in enumerate(("input", "other")):  # operands by name
            if word in kwargs and len(args) == place:
                args = (*args, kwargs.pop(word))
        writes = name.endswith("_") and not name.endswith("__")
        base = name[:-1] if writes and name not in self.rules else name
        if base.startswith("i") and base[1:] in AUGMENTED and base not in self.rules:
            base, writes = base[1:], True
        if kwargs.get("out") is not None:
            raise Refused(f"{name}(..., out=) writes into another tensor")
        rule = self.rules.get(base)
        if rule is None:
            raise Refused(f"{name}() is not an operation that a program has")
        in_place = writes or bool(kwargs.pop("inplace", False))
        try:
            result = rule(self, *args, **kwargs)
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise Refused(f"{name}() is called in a way that a program cannot say ({error})") from error
        return self.write(args[0], result) if in_place else result

    def write(self, target: Any, value: Any) -> Any:
        """target := value, in place; other names of its memory are out of date from now on."""
        if not isinstance(target, Recorded):
            raise Refused("it writes into a tensor of the model")
        memory = target.memory
        memory.version += 1
        node = self.node(value)
        if not same_shape(node.shape, target.node.shape):
            raise Impossible
        memory.written = (*memory.written, target.node, node)
        target.node, target.version = node, memory.version
        return target

    def node(self, value: Any) -> Node:
        """The node of whatever forward() computes with."""
        if isinstance(value, Recorded):
            return value.node if value.version == value.memory.version else self.stale(value)
        if isinstance(value, Node):
            return value
        if id(value) in self.names and isinstance(value, Tensor):
            return self.parameter(self.names[id(value)], value)
        if isinstance(value, Size):
            return self.new(Extent(value), (), (), INT)
        if isinstance(value, Tensor):
            return self.new(
                Constant(value.detach().cpu().numpy()), (), tuple(value.shape), kind_of(value.dtype)
            )
        if isinstance(value, bool | int | float | np.ndarray | np.generic):
            numbers = np.asarray(value)
            kind = {"b": BOOL, "i": INT, "u": INT}.get(numbers.dtype.kind, FLOAT)
            return self.new(Constant(numbers), (), numbers.shape, kind)
        if value is None:
            raise NoCall("it computes with None")
        raise Refused(f"it computes with a {type(value).__name__}")

    def choice(self, question: str, options: list[tuple[int, ...]]) -> tuple[int, ...]:
        """One of several answers that calls give; an analysis takes each."""
        if question not in self.shapes:
            raise NeedsShape(question, options)
        chosen: tuple[int, ...] = self.shapes[question][0]
        return chosen

    def stale(self, value: Recorded) -> Node:
        why = "it writes into a tensor, and uses another view of it later"
        if not self.lenient:
            raise Refused(why)
        seen = (value.node, *value.memory.written)
        self.opaque.append(self.new(Opaque(why), seen, value.node.shape, value.node.kind))
        return self.opaque[-1]

    def parameter(self, name: str, tensor: Tensor) -> Node:
        if name not in self.parameters:
            self.parameters[name] = self.new(Parameter(name), (), tuple(tensor.shape), kind_of(tensor.dtype))
        return self.parameters[name]

    def new(
        self, op: Operation, inputs: tuple[Node, ...], shape: tuple[int, ...], kind: str | None = FLOAT
    ) -> Node:
        return Node(op, inputs, tuple(shape), kind, current_line())  # type: ignore[arg-type]

    def made(
        self, op: Operation, inputs: Any, shape: Any, kind: str | None = FLOAT, view_of: Any = None
    ) -> Recorded:
        """A stand-in for what an operation gives; what only moves values may share memory with its input."""
        nodes = tuple(self.node(value) for value in inputs)
        source = view_of if view_of is not None else inputs[0] if isinstance(op, VIEWS) else None
        memory = source.memory if isinstance(source, Recorded) else None
        return Recorded.of(self.new(op, nodes, tuple(shape), kind), memory)


ASKED = frozenset(
    "shape size dim ndim ndimension numel device dtype is_floating_point layout requires_grad is_cuda is_cpu grad_fn "
    "stride is_contiguous data_ptr is_leaf grad is_meta is_sparse is_quantized type names _version is_nested "
    "is_mkldnn".split()
)
# What has an answer that Python goes by, rather than a tensor.
ANSWERED = ASKED | frozenset("len item tolist numpy bool int float index contains format repr data=".split())
AUGMENTED = frozenset("add sub mul truediv floordiv mod pow and or xor matmul".split())


def name_of(func: Any) -> str:
    """relu for torch.relu, F.relu and the method; shape for its getter; add for +."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = getattr(func.__self__, "__name__", name) + ("" if name == "__get__" else "=")
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def kind_of(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        raise Refused("it computes with complex numbers")
    return KINDS.get(dtype, FLOAT)


def decide(node: Node, kind: str) -> None:
    """An argument's kind shows only where it is used; so does that of what was computed of it."""
    if node.kind is None:
        node.kind = kind
        for source in node.inputs:
            decide(source, kind)


def unified(one: int, other: int) -> int:
    """The size that two equal ones have; letters that were free until now turn out to be the other."""
    if same(one, other):
        return one
    found = solved(one - other)
    raise Impossible if found is None else Assume(*found)


def matched(size: int, width: int) -> None:
    """A layer's width is no accident: neither the batch nor time is as large because it would fit."""
    if not same(size, width):
        loose = Recorder.current().shapes.get(LOOSE) is not None
        found = solved(size - width, () if loose else BINDABLE)
        raise Impossible if found is None else Assume(*found)


def solved(difference: int, names: tuple[str, ...] = ()) -> tuple[str, int] | None:
    """A letter that may be chosen such that the difference is zero: rest + number * letter = 0.

    The batch and time only if forward() writes a number for them.
    """
    terms = difference.terms if isinstance(difference, Size) else {}
    for term, number in sorted(terms.items(), key=lambda item: (not is_bindable(item[0]), str(item[0]))):
        name = term[0] if len(term) == 1 else None
        if not isinstance(name, str) or not (is_bindable(term) or (not names and name in ("B", "T"))):
            continue
        rest = whole({t: n for t, n in terms.items() if t != term})
        alone = not isinstance(rest, Size) or (name not in rest.letters and is_bindable(term))
        if alone and all(n % number == 0 for n in terms_of(rest).values()):
            value = whole({t: -n // number for t, n in terms_of(rest).items()})
            if isinstance(value, Size) or value > 0:
                return name, value
    return None


def is_bindable(term: Any) -> bool:
    return len(term) == 1 and isinstance(term[0], str) and term[0].startswith(BINDABLE)


def is_one(size: int) -> bool:
    return not isinstance(size, Size) and size == 1


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of several, axes of size 1 and missing ones in front repeated."""
    rank = max(map(len, shapes))
    result: list[int] = []
    for axis in range(rank):
        size: int = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            if at >= 0 and not is_one(shape[at]):
                size = shape[at] if is_one(size) else unified(size, shape[at])
        result.append(size)
    return tuple(result)


def within(axis: Any, rank: int) -> int:
    if isinstance(axis, Size):
        raise Refused("it goes along an axis that only a call knows")
    if isinstance(axis, Recorded) or not isinstance(axis, int) or not -rank <= axis < max(rank, 1):
        raise Impossible
    return axis % rank if rank else 0


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
