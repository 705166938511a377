"""Runs forward() once on stand-ins for tensors, and writes down what it does as a program.

    node = operation(nodes)        for every call of torch in which a stand-in, a model's tensor or a size takes part

A stand-in (`Recorded`) is a tensor without values: it knows its node, and with it its shape, in which some sizes are
letters. What forward() asks of values, or of sizes in a way that calls answer differently, is refused.
Writes in place give the stand-in another node; what shares its memory is out of date from then on, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gatewise.program.fits import require
from gatewise.program.graph import BOOL, FLOAT, INT, Node, leaves, mapped
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
from gatewise.program.sizes import Size, Undecided, letter, replaced, same_shape, settled
from gatewise.program.source import current_line
from gatewise.program.stand_ins import (
    ANY_PARTS,
    HERE,
    NeedsShape,
    NoCall,
    Parts,
    Recorded,
    Refused,
    current,
    is_shape,
    is_unshaped,
    usual_shapes,
)

KINDS = {torch.bool: BOOL} | dict.fromkeys(
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), INT
)
MOST_TENSORS = 4_000  # of one call: [x] * n has more where n stands for a size
VIEWS = (Permute, Reshape, Expand, Slice)


class Recorder(TorchFunctionMode):
    """Records one call of a model."""

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
        self.alive: list[
            ref[Recorded]
        ] = []  # every stand-in: who lives on when forward() is done, somebody has
        self.called: set[str] = set()  # layers
        self.sized: set[str] = set()  # parameters of which forward() asks how large they are
        self.loops: list[Any] = []
        # What names meant before the last step of a loop, and after it.
        self.carried: list[tuple[Node, Node]] = []
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        self.tensors = dict(named)
        self.names = {id(tensor): name for name, tensor in reversed(named)}
        self.modules = {id(module): name for name, module in model.named_modules()}
        self.parameters: dict[str, Node] = {}
        self.lengths: dict[Node, str] = {}  # the letter of the longest, for every node of lengths
        self.refused: Exception | None = None

    def __enter__(self) -> Recorder:
        HERE.recorder = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        HERE.recorder = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function of torch gives: recorded if it takes part in the call, else as it is."""
        name = name_of(func)
        given = [*leaves(list(args)), *leaves(kwargs)]
        if not any(isinstance(a, Recorded | Size) or id(a) in self.names for a in given):
            return func(*args, **kwargs)
        if name in ASKED and not any(isinstance(a, Recorded) for a in given):
            if name in SIZES:
                self.sized |= {self.names[id(a)] for a in given if id(a) in self.names}
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
        seen = {id(v): v for v in leaves(values) if isinstance(v, Tensor) and not is_unshaped(v)}.values()
        self.opaque.append(self.new(Opaque(what), tuple(map(self.node, seen)), ()))
        return self.stand_in(f"@{len(self.opaque)}", self.opaque[-1])

    def stand_in(self, name: str, source: Node | None = None) -> Any:
        """What stands for an argument, or for something unknown, as far as its shape is known."""
        if name not in self.shapes:
            return Recorded.given(name)
        candidate, kind = self.shapes[name]
        if candidate == ANY_PARTS:
            return Parts(name)
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
        if len(tensors) > MOST_TENSORS:
            raise Refused(f"{name}() takes a list as long as an input says")
        if tensors and name not in ANSWERED and all(is_unshaped(v, "@") for v in tensors):
            return self.unknown(f"{name}()", [])
        for value in tensors:
            if isinstance(value, Recorded) and is_unshaped(value) and name not in SHAPELESS:
                parts = [ANY_PARTS] if name == "getitem" and isinstance(args[1], int) else []
                raise NeedsShape(value.argument, [*usual_shapes(value.argument), *parts], guessed=True)
        kwargs = dict(kwargs)
        for place, word in enumerate(("input", "other")):  # operands by name
            if word in kwargs and len(args) == place:
                args = (*args, kwargs.pop(word))
        writes = name.endswith("_") and not name.endswith("__")
        base = name[:-1] if writes and name not in self.rules else name
        if base.startswith("i") and base[1:] in AUGMENTED and base not in self.rules:
            base, writes = base[1:], True
        if kwargs.pop("out", None) is not None:
            raise Refused(f"{name}(..., out=) writes into another tensor")
        rule = self.rules.get(base)
        if rule is None:
            raise Refused(f"{name}() is not an operation that a program has")
        in_place = writes or name == "setitem" or bool(kwargs.pop("inplace", False))
        try:
            result = rule(*self.as_stand_ins(args), **self.as_stand_ins(kwargs))
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise Refused(f"{name}() is called in a way that a program cannot say ({error})") from error
        except AttributeError as error:
            if error.name != "node" or isinstance(error.obj, Tensor):
                raise
            raise NoCall(f"{name}() takes a tensor, not {error.obj!r}") from error
        return self.write(args[0], result) if in_place else result

    def as_stand_ins(self, values: Any) -> Any:
        """What a rule takes: a stand-in that is up to date for every tensor, whoever made it."""
        return mapped(lambda leaf: as_recorded(leaf) if isinstance(leaf, Tensor) else leaf, values)

    def write(self, target: Any, value: Any) -> Any:
        """target := value, in place; other names of its memory are out of date from now on."""
        if not isinstance(target, Recorded):
            raise Refused("it writes into a tensor of the model")
        memory = target.memory
        memory.version += 1
        node = self.node(value)
        require(same_shape(node.shape, target.node.shape))
        memory.written = (*memory.written, target.node, node)
        target.node, target.version = node, memory.version
        return target

    def node(self, value: Any) -> Node:
        """The node of whatever forward() computes with."""
        if isinstance(value, Recorded):
            return value.node if value.is_fresh else self.stale(value)
        if isinstance(value, Node):
            return value
        if id(value) in self.names and isinstance(value, Tensor):
            return self.parameter(self.names[id(value)], value)
        if isinstance(value, Size):
            return self.new(Extent(value), (), (), INT)
        if isinstance(value, Tensor):
            values = value.detach().cpu().numpy()
            return self.new(Constant(values), (), values.shape, kind_of(value.dtype))
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
        turn = self.loops[-1].turn if self.loops else None
        return Node(op, inputs, tuple(shape), kind, current_line(), turn)  # type: ignore[arg-type]

    def made(self, op: Operation, inputs: Any, shape: Any, kind: str | None = FLOAT) -> Recorded:
        """A stand-in for what an operation gives; what only moves values may share memory with its input."""
        nodes = tuple(self.node(value) for value in inputs)
        memory = inputs[0].memory if isinstance(op, VIEWS) and isinstance(inputs[0], Recorded) else None
        return Recorded.of(self.new(op, nodes, tuple(shape), kind), memory)


ASKED = frozenset(
    "shape size dim ndim ndimension numel device dtype is_floating_point layout requires_grad is_cuda is_cpu grad_fn "
    "stride is_contiguous data_ptr is_leaf grad is_meta is_sparse is_quantized type names _version is_nested "
    "is_mkldnn len _cudnn_rnn_flatten_weight".split()  # the last moves parameters to where cuDNN wants them
)
SIZES = frozenset("shape size numel stride len".split())
# What has an answer that Python goes by, rather than a tensor.
ANSWERED = ASKED | frozenset("len item tolist numpy bool int float index contains format repr data=".split())
# What needs no shape, or knows better than others which one it must be.
SHAPELESS = frozenset("device requires_grad greedy_decode".split())
AUGMENTED = frozenset("add sub mul truediv floordiv mod pow and or xor matmul".split())


def node_of(value: Any) -> Node:
    """The node of whatever the call that is recorded computes with."""
    node: Node = current().node(value)
    return node


def as_recorded(value: Any) -> Recorded:
    """A stand-in that is up to date."""
    if isinstance(value, Recorded) and (not value.is_shaped or value.is_fresh):
        return value
    return Recorded.of(node_of(value), getattr(value, "memory", None))


def made(op: Operation, inputs: Any, shape: Any, kind: str | None = FLOAT) -> Recorded:
    stand_in: Recorded = current().made(op, inputs, shape, kind)
    return stand_in


def tensor_of(x: Recorded) -> Tensor | None:
    """The tensor itself, where it is one of the model or forward() wrote it down."""
    op = x.node.op
    if isinstance(op, Constant):
        return torch.from_numpy(op.values)
    found: Tensor | None = current().tensors[op.tensor] if isinstance(op, Parameter) else None
    return found


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
