"""A model as a chain: embedding or one-hot, recurrent layers, pointwise functions, linear layers, in this order.

The engine, ONNX and C all run chains. The chain is found by following forward(), whatever class it is written in;
a model that is not one raises and says where it leaves the path.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn.functional import one_hot

from gatewise.nn.lookup import cell_of, is_single_step
from gatewise.readers.names import PACKS, name_of
from gatewise.readers.record import (
    Recording,
    first_line,
    is_hooked,
    is_written,
    origin,
    recordings,
    rewritten,
)
from gatewise.readers.values import leaves, listed

DROPOUTS = ("dropout", "feature_dropout", "dropout1d")
IDENTITY = ("contiguous", "detach", "clone", "float", "to", *DROPOUTS)
POINTWISE = {"relu": "relu", "relu_": "relu", "tanh": "tanh", "tanh_": "tanh", "sigmoid": "sigmoid"}
MODULE_POINTWISE = {
    "ReLU": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Dropout": "",
    "Identity": "",
    "Dropout1d": "",
}
ZEROS = ("zeros", "new_zeros", "zeros_like")
SCORES = ("softmax", "log_softmax")
MODULE_SCORES = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
LAYOUTS = ("TBC", "BTC", "BC", "RC")


class ChainError(ValueError):
    """The model is not a chain of layers."""


@dataclass(frozen=True)
class Step:
    """One link of the chain.

    kind: "embedding", "recurrent", "linear": the layer `module`; "one_hot": of `classes` words; "pointwise": the
    function `name`; "softmax" and "log_softmax" over the channels; "last_step": the last position; "last_state": the
    last h of the recurrent layer before it, every direction (they differ in the backward direction, whose last h is
    at the first position).
    """

    kind: str
    name: str = ""  # of the layer in the model, or of the function
    module: nn.Module | None = None
    classes: int = 0


@dataclass(frozen=True)
class Chain:
    """The steps, and how the caller's tensors are laid out."""

    steps: tuple[Step, ...]
    batch_axis: int  # of the input
    output_axes: str  # "TBC", "BTC", "BC" (last step), "RC" (rows: time and batch flattened)
    rows_time_first: bool  # order of the rows of "RC"
    squeezed: bool  # the last axis, of width 1, is dropped
    returns_state: bool  # forward() returns (y, state) rather than y

    @property
    def words(self) -> bool:
        return self.steps[0].kind in ("embedding", "one_hot")


@dataclass(frozen=True)
class Value:
    """A value on the path: the steps behind it, and its axes: 0 and 1 are the input's, "C" the channels, "R" rows."""

    steps: tuple[Step, ...]
    axes: tuple[Any, ...]
    squeezed: bool = False


@dataclass(frozen=True)
class LastStates:
    """h_n or c_n of the recurrent layer that ends `steps`."""

    steps: tuple[Step, ...]
    cell: bool


@dataclass(frozen=True)
class HalfState:
    """The last h of one direction of a bidirectional layer."""

    steps: tuple[Step, ...]
    direction: int


@dataclass(frozen=True)
class Size:
    """The length of an axis, as forward() asks for it."""

    axis: Any


def axis_at(x: Value, dim: Any) -> Any:
    """The axis that a dimension, counted from either end, stands for."""
    return x.axes[dim] if isinstance(dim, int) and -len(x.axes) <= dim < len(x.axes) else None


def width_of(steps: tuple[Step, ...]) -> int | None:
    """The number of channels after the steps, where a layer says it."""
    module = next((step.module for step in reversed(steps) if step.module is not None), None)
    if module is None:
        return None
    if cell_of(module) is not None:
        return int(module.hidden_size) * (2 if module.bidirectional else 1)  # type: ignore[arg-type]
    return int(module.out_features if isinstance(module, nn.Linear) else module.embedding_dim)  # type: ignore[arg-type]


def find_chain(model: nn.Module) -> Chain:
    """The chain a model computes.

    Raises:
        ChainError: forward() cannot be followed, or does something a chain cannot.
    """
    if cell_of(model) is not None and not is_single_step(model):
        step = Step("recurrent", "", model)
        axis = 0 if model.batch_first else 1
        axes = "BTC" if model.batch_first else "TBC"
        return Chain((step,), axis, axes, True, squeezed=False, returns_state=True)
    try:
        made, _ = recordings(model, inference=True)
    except Exception as error:  # forward() is the user's code: anything may be raised by tracing it
        way_out = NO_LOOPS if any(map(is_single_step, model.modules())) else WAY_OUT
        raise ChainError(f"forward() could not be traced: {first_line(error)}. {way_out}") from error
    if drawn := next((way.drawn[0] for way in made if way.drawn), None):
        raise ChainError(f"forward() draws random numbers ({drawn}), which a chain cannot. {WAY_OUT}")
    chain, *others = (Walk(model, takes_no_state(way)).through(way.graph) for way in made)
    for way, other in zip(made[1:], others):
        if other != chain:
            missing = ", ".join(sorted(way.absent))
            raise ChainError(f"forward() is another function when it is called without {missing}. {WAY_OUT}")
    return chain


WAY_OUT = "gatewise.accelerate(model) speeds up the recurrent layers of any model."
NO_PACKS = (
    "Load the saved model into a class whose forward() leaves packing out; then "
    "engine(x, lengths=...) and to_onnx(..., lengths=True) take the lengths, and C a sequence as long as it is."
)
NO_LOOPS = "Cells in a loop run in torch alone; nn.LSTM and nn.GRU also run in C and ONNX."


class Walk:
    """Follows the one path from the input to the output."""

    def __init__(self, model: nn.Module, starts_itself: bool) -> None:
        self.model = model
        self.starts_itself = starts_itself  # nobody gives a state, so forward() may make one of zeros
        self.values: dict[fx.Node, Any] = {}
        self.batch_axis: int | None = None

    def through(self, graph: fx.Graph) -> Chain:
        layers = [self.model.get_submodule(str(n.target)) for n in graph.nodes if n.op == "call_module"]
        words = any(isinstance(layer, nn.Embedding) for layer in layers) or any(
            node.target is one_hot for node in graph.nodes
        )
        first = True
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = Value((), (0, 1) if words else (0, 1, "C")) if first else None
                first = False
            elif node.op == "output":
                return self.finish(node.args[0])
            else:
                args, kwargs = (fx.map_arg(given, self.values.get) for given in (node.args, node.kwargs))
                self.values[node] = self.follow(node, list(args), dict(kwargs))
                self.overwrite(node)
        raise ChainError(f"forward() returns nothing. {WAY_OUT}")

    def overwrite(self, node: fx.Node) -> None:
        """After x.relu_() the name x stands for the result."""
        if (found := rewritten(node, self.model, self.values)) is not None:
            base, seen_elsewhere = found
            if seen_elsewhere:
                raise self.refuse(node, "it overwrites a tensor of which another view is used later")
            self.values[base] = self.values[node]

    def follow(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a node makes of values on the path; None for what leads to no answer."""
        if any(isinstance(leaf, Value | LastStates | HalfState) for leaf in leaves([args, kwargs])):
            return self.visit(node, args, kwargs)
        of_sizes = node.target is operator.getitem and isinstance(args[0], tuple) and isinstance(args[1], int)
        return args[0][args[1]] if of_sizes else None

    def refuse(self, node: fx.Node | str, why: str, way_out: str = WAY_OUT) -> ChainError:
        return ChainError(f"{node}: {why}, so the model is not a chain of layers. {way_out}")

    def visit(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_module":
            return self.layer(node, args, kwargs)
        target = node.target
        name = name_of(target)
        if target is getattr and args[1] in ("shape", "device", "dtype", "ndim"):
            return (
                tuple(map(Size, args[0].axes)) if args[1] == "shape" and isinstance(args[0], Value) else None
            )
        if name in ZEROS:
            return None
        if name in ("size", "dim"):
            sizes = tuple(map(Size, args[0].axes)) if name == "size" and isinstance(args[0], Value) else None
            return sizes[args[1]] if sizes and len(args) > 1 else sizes
        x = args[0] if args else kwargs.get("input")
        if any(isinstance(leaf, Value | LastStates) for leaf in leaves([args[1:], kwargs.get("out")])):
            raise self.refuse(node, f"{name}() of two values")
        if isinstance(x, tuple | list) and name in ("cat", "concat"):
            return self.joined_states(node, list(x), args[1:], kwargs)
        if target is operator.getitem:
            return self.item(node, x, args[1])
        if not isinstance(x, Value):
            raise self.refuse(node, f"{name}() on a state")
        if target is one_hot:
            return self.one_hot(node, x, kwargs.get("num_classes", args[1] if len(args) > 1 else -1))
        if name in DROPOUTS and kwargs.get(
            "training", kwargs.get("train", args[2] if len(args) > 2 else True)
        ):
            raise self.refuse(node, f"{name}() is active in evaluation, too, without training=self.training")
        if name in ("to", *SCORES):
            self.refuse_cast(node, x)
        if name in IDENTITY:
            return x
        if name in POINTWISE:
            return replace(x, steps=(*x.steps, Step("pointwise", POINTWISE[name])))
        if name in SCORES and axis_at(x, kwargs.get("dim", args[1] if len(args) > 1 else None)) == "C":
            return replace(x, steps=(*x.steps, Step(name)))
        return self.reshaped(node, name, x, args[1:])

    def refuse_cast(self, node: fx.Node, x: Value) -> None:
        """Numbers stay float32, words whole numbers: another type would change them."""
        words = "C" not in x.axes
        for given in (*node.args[1:], *node.kwargs.values()):
            if isinstance(given, fx.Node) and given.target is getattr and given.args[1] == "dtype":
                source = fx.map_arg(given.args[0], self.values.get)
                same = isinstance(source, Value) and ("C" not in source.axes) == words
            else:
                allowed = (torch.int64, torch.int32) if words else (torch.float32,)
                same = not isinstance(given, torch.dtype) or given in allowed
            if not same:
                raise self.refuse(node, f"a cast to {given} changes what it is given")

    def one_hot(self, node: fx.Node, x: Value, classes: Any) -> Value:
        if x.steps or not isinstance(classes, int) or classes < 1:
            raise self.refuse(node, "one_hot() of anything but the input, or of no stated number of classes")
        return Value((Step("one_hot", classes=classes),), (*x.axes, "C"))

    def reshaped(self, node: fx.Node, name: str, x: Value, args: list[Any]) -> Value:
        if name in ("transpose", "swapaxes") and len(args) == 2:
            axes = list(x.axes)
            a, b = args[0] % len(axes), args[1] % len(axes)
            axes[a], axes[b] = axes[b], axes[a]
            return replace(x, axes=tuple(axes))
        if name == "permute":
            return replace(x, axes=tuple(x.axes[d] for d in listed(tuple(args))))
        channels_last = len(x.axes) == 3 and x.axes[-1] == "C"
        sizes = listed(tuple(args))
        rows = name in ("view", "reshape") and sizes in ((-1, width_of(x.steps)), (-1, Size("C")))
        if channels_last and (rows or (name == "flatten" and tuple(args) in ((0, 1), (0, -2)))):
            return replace(x, axes=(("R", *x.axes[:2]), "C"))
        if name == "squeeze" and args and x.axes[-1] == "C" == axis_at(x, args[0]) and width_of(x.steps) == 1:
            return replace(x, axes=x.axes[:-1], squeezed=True)
        way_out = f"{NO_PACKS} {WAY_OUT}" if name in PACKS else WAY_OUT
        raise self.refuse(node, f"{name}() is not a link of a chain", way_out)

    def layer(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        name = str(node.target)
        module = self.model.get_submodule(name)
        x = args[0] if args else kwargs.get("input")
        if is_hooked(module):
            raise self.refuse(name, "a hook may change what it takes or gives")
        if not isinstance(x, Value):
            raise self.refuse(name, "it reads a state")
        kind = type(module).__name__
        if cell_of(module) is not None:
            return self.recurrent(node, name, module, x)
        if isinstance(module, nn.Embedding) and not x.steps:
            return Value((Step("embedding", name, module),), (*x.axes, "C"))
        if isinstance(module, nn.Linear) and x.axes[-1] == "C":
            return replace(x, steps=(*x.steps, Step("linear", name, module)))
        if kind in MODULE_POINTWISE:
            function = MODULE_POINTWISE[kind]
            return replace(x, steps=(*x.steps, Step("pointwise", function))) if function else x
        if kind in MODULE_SCORES and axis_at(x, module.dim) == "C":
            return replace(x, steps=(*x.steps, Step(MODULE_SCORES[kind])))
        raise self.refuse(name, f"{kind} is not a link of a chain")

    def recurrent(self, node: fx.Node, name: str, module: nn.Module, x: Value) -> Any:
        if is_single_step(module):
            raise self.refuse(name, "a single-step cell leaves the loop over time to forward()", NO_LOOPS)
        hx = node.args[1] if len(node.args) > 1 else node.kwargs.get("hx")
        mask = node.kwargs.get("mask")
        for given, what in ((hx, "initial state"), (mask, "mask")):
            zeros = self.starts_itself and given is hx
            for leaf in () if given is None else leaves(given):
                if not comes_from_argument(leaf, zeros) or is_written(
                    origin(leaf)[0], self.model, self.values
                ):
                    raise self.refuse(name, f"its {what} is computed by forward()")
        axes = x.axes
        if len(axes) != 3 or axes[-1] != "C":
            raise self.refuse(name, "it does not read sequences of channels")
        batch = axes[0] if module.batch_first else axes[1]
        if self.batch_axis not in (None, batch):
            raise self.refuse(name, "it takes for time what another layer takes for the batch")
        self.batch_axis = batch
        steps = (*x.steps, Step("recurrent", name, module))
        h, c = LastStates(steps, cell=False), LastStates(steps, cell=True)
        cell = cell_of(module)
        assert cell is not None
        return Value(steps, axes), (h, c) if cell.n_states == 2 else h

    def item(self, node: fx.Node, x: Any, index: Any) -> Any:
        if isinstance(x, tuple):
            return x[index]
        if isinstance(x, LastStates):
            return self.last_state(node, x, index)
        if not isinstance(x, Value):
            raise self.refuse(node, f"the index {index} of a state")
        time = next((k for k, axis in enumerate(x.axes) if axis == 1 - (self.batch_axis or 0)), None)
        items = list(index) if isinstance(index, tuple) else [index]
        wanted = [slice(None)] * (time or 0) + [-1]
        plain = items[: len(wanted)] == wanted and all(
            i in (slice(None), Ellipsis) for i in items[len(wanted) :]
        )
        if self.batch_axis is None or time is None or not plain:
            raise self.refuse(node, f"the index {index} is not the last time step")
        return replace(
            x, steps=(*x.steps, Step("last_step")), axes=tuple(a for k, a in enumerate(x.axes) if k != time)
        )

    def last_state(self, node: fx.Node, x: LastStates, index: Any) -> Value | HalfState:
        module = x.steps[-1].module
        assert module is not None
        directions = 2 if module.bidirectional else 1
        if isinstance(index, int) and index >= 0:
            index -= directions * int(module.num_layers)  # type: ignore[arg-type]
        if x.cell or index not in range(-directions, 0):
            raise self.refuse(
                node, "of a state, only the last layer's h can be read: h_n[-1], or h_n[-2] and h_n[-1]"
            )
        if directions == 2:
            return HalfState(x.steps, index + 2)
        return Value((*x.steps, Step("last_state")), (self.batch_axis, "C"))

    def joined_states(
        self, node: fx.Node, parts: list[Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Value:
        both = [part.direction for part in parts if isinstance(part, HalfState)] == [0, 1] and len(parts) == 2
        if (
            not both
            or parts[0].steps != parts[1].steps
            or kwargs.get("dim", args[0] if args else 0) not in (1, -1)
        ):
            raise self.refuse(node, "cat() joins anything but the last states of both directions")
        return Value((*parts[0].steps, Step("last_state")), (self.batch_axis, "C"))

    def finish(self, output: Any) -> Chain:
        returned = fx.map_arg(output, self.values.get)
        values = [leaf for leaf in leaves(returned) if isinstance(leaf, Value)]
        if len(values) != 1 or not values[0].steps or self.batch_axis is None:
            raise ChainError(f"forward() must return one answer of a chain with a recurrent layer. {WAY_OUT}")
        value = values[0]
        names = {self.batch_axis: "B", 1 - self.batch_axis: "T", "C": "C"}
        axes = (*value.axes, "C") if value.squeezed else value.axes
        rows = next((axis for axis in axes if isinstance(axis, tuple)), None)
        layout = "RC" if rows else "".join(names[axis] for axis in axes)
        if layout not in LAYOUTS:
            raise ChainError(
                f"forward() returns its answer with the axes {layout}, not {', '.join(LAYOUTS)}. {WAY_OUT}"
            )
        return Chain(
            value.steps,
            self.batch_axis,
            layout,
            rows_time_first=rows is None or names[rows[1]] == "T",
            squeezed=value.squeezed,
            returns_state=isinstance(returned, tuple | list),
        )


def takes_no_state(way: Recording) -> bool:
    """Whether forward() was recorded without some argument, or has none but the input."""
    return bool(way.absent) or sum(node.op == "placeholder" for node in way.graph.nodes) == 1


def comes_from_argument(node: Any, zeros: bool) -> bool:
    """Whether a node is an argument of forward(), or a part of one, perhaps detached; or zeros, which layers start
    from anyway."""
    source, _ = origin(node)
    if not isinstance(source, fx.Node):
        return False
    return source.op == "placeholder" or (zeros and name_of(source.target) in ZEROS)
