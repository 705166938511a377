"""A model as a chain: embedding or one-hot, recurrent and linear layers, normalisations, pointwise functions, with an
answer for every step, for the last one, or of a mean, maximum or sum over time.

The engine, ONNX and C all run chains. The chain is found by following forward(), whatever class it is written in;
a model that is not one raises and says where it leaves the path.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatewise.compact import CompactCell
from gatewise.nn.lookup import cell_of, is_single_step
from gatewise.program.graph import leaves
from gatewise.program.layers import is_hooked
from gatewise.readers.lines import why_not
from gatewise.readers.names import DIVISIONS, PACKS, name_of
from gatewise.readers.record import (
    Recording,
    recordings,
    rewritten,
)
from gatewise.readers.trace import unwrapped
from gatewise.runtime.lengths import COMPARISONS, Pad
from gatewise.runtime.looped import SAME, ZEROS
from gatewise.runtime.masked import MASKS
from gatewise.runtime.normed import NORMS
from gatewise.runtime.pooled import ADAPTIVE, MODULE_ADAPTIVE, REDUCTIONS, Maximum
from gatewise.runtime.recurrent import RecurrentWalk
from gatewise.runtime.steps import (
    NO_LAYER,
    NO_PACKS,
    POOLS,
    WAY_OUT,
    CellState,
    Chain,
    ChainError,
    LastStates,
    OneStep,
    OnPath,
    Packed,
    Size,
    Step,
    Value,
    WithUnitAxis,
    axis_at,
    listed,
    part,
    way_out,
    width_of,
)

DROPOUTS = ("dropout", "feature_dropout", "dropout1d")
IDENTITY = (*SAME, "float", "to", *DROPOUTS)
POINTWISE = {"relu": "relu", "relu_": "relu", "tanh": "tanh", "tanh_": "tanh", "sigmoid": "sigmoid"}
MODULE_POINTWISE = {
    "ReLU": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Dropout": "",
    "Identity": "",
    "Dropout1d": "",
}
SCORES = ("softmax", "log_softmax")
MODULE_SCORES = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
UNREADABLE = {
    Packed: "packed sequences",
    WithUnitAxis: "a pooled step, whose axis of length 1 must go first",
    OneStep: "a step with a time axis of its own",
    fx.Node: "what does not come from the input alone",
}
LAYOUTS = ("TBC", "BTC", "BC", "RC")


def find_chain(model: nn.Module) -> Chain:
    """The chain a model computes.

    Raises:
        ChainError: forward() cannot be followed, or does something a chain cannot.
    """
    _, model = unwrapped(model)
    if cell_of(model) is not None and not is_single_step(model):
        step = Step("recurrent", "", model)
        axis = 0 if model.batch_first else 1
        axes = "BTC" if model.batch_first else "TBC"
        return Chain((step,), axis, axes, True, squeezed=False, returns_state=True)
    if all(cell_of(module) is None for module in model.modules()):
        raise ChainError(NO_LAYER)
    if is_hooked(model):
        kind = type(model).__name__
        raise ChainError(
            f"a hook on the model ({kind}) may see or change what goes in or comes out. {WAY_OUT}"
        )
    if "forward" in vars(model):
        raise ChainError(
            f"forward() was set on the instance, and a chain follows that of the class. {WAY_OUT}"
        )
    try:
        made, _ = recordings(model, inference=True)
    except Exception as error:  # forward() is the user's code: anything may be raised by tracing it
        raise ChainError(f"forward() could not be traced: {why_not(error)}. {way_out(model)}") from error
    if drawn := next((way.drawn[0] for way in made if way.drawn), None):
        raise ChainError(f"forward() draws random numbers ({drawn}), which a chain cannot. {WAY_OUT}")
    if stored := next((name for way in made for name in way.stored.values()), None):
        raise ChainError(
            f"forward() keeps {stored} for its next call, which a chain cannot. A state that it takes as an argument "
            f"and returns is carried from call to call. {WAY_OUT}"
        )
    chain, *others = (Walk(model, way).through(way.graph) for way in made)
    for way, other in zip(made[1:], others):
        if other != (chain.without_lengths if chain.lengths in way.absent else chain):
            missing = ", ".join(sorted(way.absent))
            raise ChainError(f"forward() is another function when it is called without {missing}. {WAY_OUT}")
    optional = any(chain.lengths in way.absent for way in made)
    # With these forward() could not be traced.
    never_given = sorted(frozenset.intersection(*(way.absent for way in made)))
    return replace(
        chain,
        steps=tuple(map(over_time, chain.steps)),
        needs_lengths=bool(chain.lengths) and not optional,
        unread=next(iter(never_given), chain.unread),
    )


def over_time(step: Step) -> Step:
    """A cell in a loop is a layer."""
    return replace(step, module=step.module.as_layer()) if isinstance(step.module, CompactCell) else step


class Walk(RecurrentWalk):
    """Follows the one path from the input to the output."""

    def __init__(self, model: nn.Module, way: Recording) -> None:
        self.model, self.way = model, way
        self.values, self.given = {}, set()
        self.batch_axis = self.lengths = self.padded = None
        self.least = 0

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
                args, kwargs = (fx.map_arg(given, self.current) for given in (node.args, node.kwargs))
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
        if (made := self.of_loop(node, args)) is not NotImplemented:
            return made
        args = [self.settled(node, self.of_list(given)) for given in args]
        cell = node.op == "call_module" and is_single_step(self.model.get_submodule(str(node.target)))
        if cell or any(isinstance(leaf, OnPath) for leaf in leaves([args, kwargs])):
            return self.visit(node, args, kwargs)
        return part(*args) if node.target is operator.getitem else None

    def visit(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_module":
            return self.layer(node, args, kwargs)
        target = node.target
        if target is pack_padded_sequence:
            return self.pack(node)
        if target is pad_packed_sequence:
            return self.pad(node)
        name = name_of(target)
        if target is getattr and args[1] in ("shape", "device", "dtype", "ndim"):
            return args[0].sizes if args[1] == "shape" and isinstance(args[0], Value) else None
        if target is getattr and isinstance(args[0], Maximum) and args[1] in Maximum._fields:
            return getattr(args[0], args[1])
        if name in ZEROS:
            return None
        if name in ("size", "dim"):
            sizes = args[0].sizes if name == "size" and isinstance(args[0], Value) else None
            at = args[1] if len(args) > 1 else kwargs.get("dim")
            return sizes if at is None else part(sizes, at)
        x = args[0] if args else kwargs.get("input")
        if name in ("expand_as", "type_as", "to") and not isinstance(x, OnPath):
            return None  # of a mask
        if name in MASKS and [type(given) for given in args if isinstance(given, OnPath)] == [Value]:
            return self.masked(node, name, args)
        if any(
            isinstance(leaf, Value | Packed | LastStates | WithUnitAxis | OneStep | CellState)
            for leaf in leaves([args[1:], kwargs.get("out")])
        ):
            raise self.refuse(node, f"{name}() of two values")
        if (
            made := self.of_steps(node, name, x, kwargs.get("dim", args[1] if len(args) > 1 else 0))
        ) is not None:
            return made
        if isinstance(x, tuple | list) and name in ("cat", "concat"):
            return self.joined_states(node, list(x), args[1:], kwargs)
        if isinstance(x, Packed):
            raise self.refuse_packs(node, f"{name}() of packed sequences")
        if target is operator.getitem:
            return self.item(node, x, args[1])
        if isinstance(x, WithUnitAxis):
            return self.without_unit_axis(node, name, x, args[1:])
        if (
            isinstance(x, OneStep)
            and name == "squeeze"
            and args[1:] in ([x.axis], [x.axis - len(x.value.axes) - 1])
        ):
            return x.value
        if not isinstance(x, Value):
            raise self.refuse(node, f"{name}() on {UNREADABLE.get(type(x), 'a state')}")
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
            return self.then(node, x, Step("pointwise", POINTWISE[name]))
        if name in SCORES and axis_at(x, kwargs.get("dim", args[1] if len(args) > 1 else None)) == "C":
            return self.then(node, x, Step(name))
        if name in REDUCTIONS:
            return self.reduced(node, name, x, args[1:], kwargs)
        if name in DIVISIONS:
            return self.divided(node, name, x)
        if name == "gather":
            return self.gathered(node, x)
        if name in COMPARISONS and not x.steps:
            return None
        if name in ADAPTIVE:
            given = dict(zip(("output_size", "return_indices"), args[1:])) | kwargs
            return self.adaptive(
                node, ADAPTIVE[name], x, given.get("output_size"), given.get("return_indices")
            )
        return self.reshaped(node, name, x, args[1:])

    def refuse_cast(self, node: fx.Node, x: Value) -> None:
        """Numbers stay float32, words whole numbers: another type would change them."""
        words = "C" not in x.axes
        for given in (*node.args[1:], *node.kwargs.values()):
            if isinstance(given, fx.Node):  # y, y.dtype or y.device
                asked = given.args[1] if given.target is getattr else None
                like = self.values.get(given.args[0] if asked else given)  # type: ignore[arg-type]
                same = asked == "device" or (isinstance(like, Value) and ("C" not in like.axes) == words)
            else:
                allowed = (torch.int64, torch.int32) if words else (torch.float32,)
                same = not isinstance(given, torch.dtype) or given in allowed
            if not same:
                raise self.refuse(node, f"a cast to {given} changes what it is given")

    def one_hot(self, node: fx.Node, x: Value, classes: Any) -> Value:
        if x.steps or not isinstance(classes, int) or classes < 1:
            raise self.refuse(node, "one_hot() of anything but the input, or of no stated number of classes")
        return replace(x, steps=(Step("one_hot", classes=classes),), axes=(*x.axes, "C"))

    def reshaped(self, node: fx.Node, name: str, x: Value, args: list[Any]) -> Value:
        dims = listed(tuple(args))
        known = all(isinstance(d, int) and -len(x.axes) <= d < len(x.axes) for d in dims)
        if name in ("transpose", "swapaxes") and len(args) == 2 and known:
            axes = list(x.axes)
            a, b = args[0] % len(axes), args[1] % len(axes)
            axes[a], axes[b] = axes[b], axes[a]
            return replace(x, axes=tuple(axes))
        if name == "permute" and known:
            return replace(x, axes=tuple(x.axes[d] for d in dims))
        channels_last = len(x.axes) == 3 and x.axes[-1] == "C"
        rows = name in ("view", "reshape") and dims in ((-1, width_of(x.steps)), (-1, Size("C")))
        if channels_last and (rows or (name == "flatten" and tuple(args) in ((0, 1), (0, -2)))):
            return replace(x, axes=(("R", *x.axes[:2]), "C"))
        if (sequences := self.as_sequences(name, x, dims)) is not None:
            return sequences
        if name == "squeeze" and args and x.axes[-1] == "C" == axis_at(x, args[0]) and width_of(x.steps) == 1:
            return replace(x, axes=x.axes[:-1], squeezed=True)
        raise self.refuse(node, f"{name}() is not a link of a chain", NO_PACKS if name in PACKS else "")

    def layer(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        name = str(node.target)
        module = self.model.get_submodule(name)
        x = args[0] if args else kwargs.get("input")
        if is_hooked(module):
            raise self.refuse(name, "a hook may change what it takes or gives")
        kind = type(module).__name__
        if isinstance(x, Value | Packed) and cell_of(module) is not None:
            return self.recurrent(node, name, module, x)
        if not isinstance(x, Value):
            raise self.refuse(name, f"it reads {UNREADABLE.get(type(x), 'a state')}")
        if isinstance(module, nn.Embedding) and not x.steps:
            return replace(x, steps=(Step("embedding", name, module),), axes=(*x.axes, "C"))
        if isinstance(module, nn.Linear) and x.axes[-1] == "C":
            return self.then(name, x, Step("linear", name, module))
        if kind in MODULE_POINTWISE:
            function = MODULE_POINTWISE[kind]
            return self.then(name, x, Step("pointwise", function)) if function else x
        if kind in MODULE_SCORES and axis_at(x, module.dim) == "C":
            return self.then(name, x, Step(MODULE_SCORES[kind]))
        if kind in NORMS:
            return self.normed(name, module, x)
        if kind in MODULE_ADAPTIVE:
            indices = getattr(module, "return_indices", False)
            return self.adaptive(name, MODULE_ADAPTIVE[kind], x, module.output_size, indices)
        raise self.refuse(name, f"{kind} is not a link of a chain")

    def finish(self, output: Any) -> Chain:
        returned = fx.map_arg(output, self.answer)
        values = [leaf for leaf in leaves(returned) if isinstance(leaf, Value | Packed)]
        if (
            len(values) != 1
            or all(step.kind != "recurrent" for step in values[0].steps)
            or self.batch_axis is None
            or isinstance(values[0], Packed)
        ):
            raise ChainError(f"forward() must return one answer of a chain with a recurrent layer. {WAY_OUT}")
        others = [leaf for leaf in leaves(output) if isinstance(leaf, fx.Node) and leaf is not self.lengths]
        if any(self.values.get(leaf) is None for leaf in others):
            raise ChainError(f"forward() returns more than the answer of a chain and its state. {WAY_OUT}")
        value = values[0]
        self.refuse_unlike("forward()", value)
        names = {self.batch_axis: "B", self.time: "T", "C": "C"}
        axes = (*value.axes, "C") if value.squeezed else value.axes
        rows = next((axis for axis in axes if isinstance(axis, tuple)), None)
        layout = "RC" if rows else "".join(names[axis] for axis in axes)
        if layout not in LAYOUTS:
            raise ChainError(
                f"forward() returns its answer with the axes {layout}, not {', '.join(LAYOUTS)}. {WAY_OUT}"
            )
        states = [leaf for leaf in leaves(returned) if isinstance(leaf, LastStates)]
        if layout != "BC" and value.padding is None:
            self.reads_padding("forward()", "its answer has steps for the padding behind sequences, too")
        if not all(state.packed for state in states):
            self.reads_padding("forward()", "the state that it returns is that behind the padding")
        if self.lengths is not None and self.padded is not None:
            raise self.padded
        returns_state = isinstance(returned, tuple | list) and bool(states)
        if states and not returns_state:
            raise ChainError(f"forward() returns a state by name, beside its answer. {WAY_OUT}")
        if returns_state and any(step.kind in POOLS for step in value.steps):
            # forward() would pool every piece of a sequence by itself, engine and C all of them together.
            raise ChainError(
                "forward() returns its state beside an answer that is pooled over time, and the state does not say "
                f"what was pooled before; return the answer alone. {WAY_OUT}"
            )
        return Chain(
            value.steps,
            self.batch_axis,
            layout,
            rows_time_first=rows is None or names[rows[1]] == "T",
            squeezed=value.squeezed,
            returns_state=returns_state,
            lengths=str(self.lengths.target) if isinstance(self.lengths, fx.Node) else "",
            pad=self.lengths.word if isinstance(self.lengths, Pad) else None,
            least=self.least,
            cut=value.cut,
            unread=self.unread(),
        )

    def unread(self) -> str:
        """An argument that is no input, length, state or mask of a layer; empty if there is none."""
        _, *others = (node for node in self.way.graph.nodes if node.op == "placeholder")
        # What is left out is recorded by another name than its own.
        named = inspect.signature(self.model.forward).parameters
        known = {self.lengths, *self.given}
        return next((str(n.target) for n in others if n not in known and n.target in named), "")
