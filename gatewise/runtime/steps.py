"""What a chain is made of: its steps, the values between them, and why a model is none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gatewise.nn.lookup import cell_of, is_single_step

POOLS = ("mean", "max", "sum")  # over time
WAY_OUT = "gatewise.accelerate(model) speeds up the recurrent layers of any model."
NO_PACKS = (
    "Load the saved model into a class whose forward() leaves packing out; then "
    "engine(x, lengths=...) and to_onnx(..., lengths=True) take the lengths, and C a sequence as long as it is."
)
NO_LOOPS = (
    "Cells in any loop but a plain one over time (docs/export.md) run in torch alone; nn.LSTM and nn.GRU also run in "
    "C and ONNX."
)
NO_LAYER = (
    "There is no LSTM or GRU layer that can leave torch (nn.RNN and proj_size cannot), so the model is not a chain "
    "of layers."
)


def way_out(model: nn.Module) -> str:
    """accelerate() leaves cells as they are."""
    return NO_LOOPS if any(map(is_single_step, model.modules())) else WAY_OUT


class ChainError(ValueError):
    """The model is not a chain of layers."""


@dataclass(frozen=True)
class Step:
    """One link of the chain.

    kind: "embedding", "recurrent", "linear", "batch_norm", "layer_norm": the layer `module`; "one_hot": of `classes`
    words; "pointwise": the function `name`; "softmax" and "log_softmax" over the channels; "mean", "max" and "sum"
    over time; "last_step": the last position; "last_state": the last h of the recurrent layer before it, every
    direction (they differ in the backward direction, whose last h is at the first position).
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
    output_axes: str  # "TBC", "BTC", "BC" (one for a sequence), "RC" (rows: time and batch flattened)
    rows_time_first: bool  # order of the rows of "RC"
    squeezed: bool  # the last axis, of width 1, is dropped
    returns_state: bool  # forward() returns (y, state) rather than y
    lengths: str = ""  # the argument of forward() that says how long its sequences are
    needs_lengths: bool = False  # forward() cannot be called without it
    pad: int | None = None  # a word: sequences end before it
    least: int = 0  # steps that a sequence must have
    cut: bool = False  # the answer ends with the longest sequence, wherever x ends
    # An argument of forward() that the chain does not go by, whatever forward() does with it.
    unread: str = field(default="", compare=False)

    @property
    def words(self) -> bool:
        return self.steps[0].kind in ("embedding", "one_hot")

    @property
    def without_lengths(self) -> Chain:
        """The chain of sequences that are all as long as x."""
        return replace(self, lengths="", needs_lengths=False, least=0, cut=False)

    @property
    def no_lengths(self) -> str:
        """Why forward() has no lengths that a caller could give; empty where it takes some, or none of its arguments
        may be them: then sequences are padded beside forward()."""
        if self.pad is not None:
            return f"forward() ends a text at its padding, {self.pad}"
        if self.unread and not self.lengths:
            return f"forward() has an argument {self.unread!r} that is no length in its chain (leave it out there)"
        return ""

    def texts(self, ids: Any) -> Any:
        """Word ids, with another word for padding."""
        return ids if self.pad is None else ids + (-1 if self.pad else 1) * (ids == self.pad)

    def whole(self, steps: int, batch: int) -> dict[str, torch.Tensor]:
        """What forward() takes beside x when no sequence is padded."""
        return {self.lengths: torch.full((batch,), steps)} if self.lengths else {}


@dataclass(frozen=True)
class Value:
    """A value on the path: the steps behind it, and its axes: 0 and 1 are the input's, "C" the channels, "R" rows."""

    steps: tuple[Step, ...]
    axes: tuple[Any, ...]
    squeezed: bool = False
    # Behind the ends of sequences; NaN: whatever a layer made of zeros; None: anything.
    padding: float | None = None
    alike: bool = True  # the chain has the same there
    cut: bool = False  # its time ends with the longest sequence
    at: tuple[int, int] | None = None  # the loop and its step that it is of: it has no time of its own

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(Size(axis, self.cut and axis != "C") for axis in self.axes)


@dataclass(frozen=True)
class Packed:
    """Sequences in a PackedSequence, in the caller's order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Lengths:
    """The lengths that pad_packed_sequence() gives: those that were packed with."""


@dataclass(frozen=True)
class LastStates:
    """h_n or c_n of the recurrent layer that ends `steps`."""

    steps: tuple[Step, ...]
    cell: bool
    packed: bool = False


@dataclass(frozen=True)
class HalfState:
    """The last h of one direction of a bidirectional layer."""

    steps: tuple[Step, ...]
    direction: int


@dataclass(frozen=True)
class WithUnitAxis:
    """A value over time that was pooled to one step, whose axis (B, C, 1) is still there."""

    value: Value


@dataclass(frozen=True)
class Size:
    """The length of an axis, as forward() asks for it."""

    axis: Any
    cut: bool = False  # time up to the longest sequence


@dataclass(frozen=True)
class Number:
    """The number of a step, in a loop over an axis of the input."""

    axis: int
    loop: int
    k: int


@dataclass(frozen=True)
class Unbound:
    """x.unbind(1): all steps of a value, whose first axis is time."""

    value: Value


@dataclass(frozen=True)
class CellState:
    """c of a cell after one step of a loop."""

    steps: tuple[Step, ...]
    at: tuple[int, int]


@dataclass(frozen=True)
class OneStep:
    """A value of one step, of a loop or the last one, with a time axis of length 1."""

    value: Value
    axis: int


@dataclass(frozen=True)
class Collected:
    """What step k of a loop added to a list of all steps."""

    value: Any
    loop: int
    k: int


OnPath = Value | Packed | LastStates | HalfState | WithUnitAxis | Unbound | CellState | OneStep | Collected


def with_last_step(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The last position of what the steps give, taken right behind the last recurrent layer: what follows that works
    on every position by itself."""
    behind = max((k + 1 for k, step in enumerate(steps) if step.kind == "recurrent"), default=len(steps))
    return (*steps[:behind], Step("last_step"), *steps[behind:])


def axis_at(x: Value, dim: Any) -> Any:
    """The axis that a dimension, counted from either end, stands for."""
    return x.axes[dim] if isinstance(dim, int) and -len(x.axes) <= dim < len(x.axes) else None


def part(values: Any, at: Any) -> Any:
    """x.shape[1], x.shape[:2], rnn(x)[0]; None where there is no such part, or it is not known which."""
    if not isinstance(values, tuple):
        return None
    known = all_constant(at) if isinstance(at, slice) else at in range(-len(values), len(values))
    return values[at] if known else None


def width_of(steps: tuple[Step, ...]) -> int | None:
    """The number of channels after the steps, where a layer says it."""
    module = next((step.module for step in reversed(steps) if step.module is not None), None)
    return None if module is None else channels_of(module)[1]


def channels_of(module: nn.Module) -> tuple[int, int]:
    """How many channels a layer takes, and how many it gives; an embedding takes none."""
    if cell_of(module) is not None:
        directions = 2 if getattr(module, "bidirectional", False) else 1
        return int(module.input_size), int(module.hidden_size) * directions  # type: ignore[arg-type]
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, nn.BatchNorm1d):
        return module.num_features, module.num_features
    if isinstance(module, nn.LayerNorm):
        return module.normalized_shape[0], module.normalized_shape[0]
    return 0, int(module.embedding_dim)  # type: ignore[arg-type]


def listed(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """view(2, 3) and view((2, 3)) alike."""
    single = len(arguments) == 1 and isinstance(arguments[0], tuple | list)
    return tuple(arguments[0]) if single else arguments


def all_constant(index: slice) -> bool:
    return all(part is None or isinstance(part, int) for part in (index.start, index.stop, index.step))
