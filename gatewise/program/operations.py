"""The closed set of operations that a program is made of. Every spelling of torch is folded into one of these.

Each class says once what it computes, what it does to channels (`apart`: every channel by itself; `moved`: the same
values in other places; `mixed`: an answer reads several), whether zero stays zero, and how it runs on a sequence that
arrives in pieces. Axes are counted from the front, sizes are those of the node that carries the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, dataclass_transform

import numpy as np

# Functions of one value, by whether f(0) = 0.
KEEPS_ZERO = frozenset(
    "relu relu6 tanh gelu gelu_tanh silu elu selu celu leaky_relu hardswish mish softsign tanhshrink hardshrink "
    "softshrink sin tan asin atan sinh erf abs neg square sqrt sign floor ceil round trunc expm1 log1p".split()
)
MOVES_ZERO = frozenset(
    "sigmoid hardsigmoid exp exp2 log log2 log10 cos cosh acos softplus logsigmoid clamp reciprocal rsqrt "
    "threshold not isnan isinf".split()
)
# Functions of two values.
ARITHMETIC = frozenset("add sub mul div pow maximum minimum floordiv remainder atan2".split())
COMPARISONS = frozenset("eq ne lt le gt ge and or xor".split())
REDUCTIONS = frozenset("sum mean max min prod any all argmax argmin logsumexp std var norm median".split())


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Operation:
    """What a node computes of its inputs: a frozen dataclass, without saying so each time."""

    channels: ClassVar[str]  # apart, moved, mixed
    streams: ClassVar[str]

    def __init_subclass__(
        cls, channels: str = "mixed", streams: str = "whole sequences only", eq: bool = True
    ) -> None:
        cls.channels, cls.streams = channels, streams
        dataclass(frozen=True, eq=eq)(cls)

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def keeps_zero(self) -> bool:
        """Of channels that stay apart or move: whether one that is always zero is zero in the answer, too."""
        return True


# What needs no input.


class Input(Operation, streams="yes"):
    """An argument of forward(), or a part of one: `x`, `state.0`."""

    argument: str


class Parameter(Operation, streams="yes"):
    """A parameter or buffer of the model, by its name, used past any layer."""

    tensor: str


class Constant(Operation, streams="yes", eq=False):
    """Numbers that forward() wrote down."""

    values: np.ndarray


class Extent(Operation):
    """A size as a number: () int."""

    size: int


class Count(Operation):
    """start, start + step, ...: as many as the node is long."""

    start: int = 0
    step: int = 1


class Full(Operation, streams="yes"):
    """One number everywhere, in the node's shape."""

    value: float


# Layers, by the name of their module. Widths are the original ones, also of compact layers.


class Embed(Operation, streams="yes"):
    """ids (...) -> vectors (..., E)."""

    module: str


class Linear(Operation, streams="yes"):
    """x (..., I) W^T + b -> (..., O)."""

    module: str


class Recurrent(Operation, streams="yes, with its states; one direction"):
    """x (B, T, I) [, lengths (B,)] [, h (L*D, B, H) [, c]] -> y (B, T, D*H); LastState reads its last states.

    Batch first, whatever the module says. With lengths, every sequence ends at its own, and y is zero behind. A
    single-step cell is a layer over one step: T = 1.
    """

    module: str
    lengths: bool = False  # whether inputs[1] has them
    states: int = 0  # how many of the inputs, the last ones, are first states; without, they are zero


class LastState(Operation, channels="moved", streams="yes"):
    """h or c (L*D, B, H) of the Recurrent that is the input; with `place`, of one layer and direction: (1, B, H)."""

    part: str
    place: int | None = None


class LayerNorm(Operation, streams="yes"):
    """(x - mean) / sqrt(var + eps) [* inputs[1]] [+ the next], over the last `axes` axes."""

    axes: int
    eps: float
    scaled: bool = False
    shifted: bool = False


class Convolve(Operation, streams="yes, with the last inputs, where it looks back only and its stride is 1"):
    """x (B, C, T) * weight (O, C / groups, K) [+ bias] -> (B, O, T'), zeros before and after as `padding` says."""

    stride: int = 1
    dilation: int = 1
    groups: int = 1
    padding: tuple[int, int] = (0, 0)
    biased: bool = False


class Pool(Operation, channels="apart"):
    """max or mean of windows over the last axis (B, C, T) -> (B, C, T'); a mean counts `padding` only if asked to."""

    function: str
    kernel: int
    stride: int
    dilation: int = 1
    padding: tuple[int, int] = (0, 0)
    counts_padding: bool = True


# Every value by itself.


class Map(Operation, channels="apart", streams="yes"):
    """f(x), with the settings of f: elu(alpha), leaky_relu(slope), softplus(beta, threshold), clamp(low, high)."""

    function: str
    settings: tuple[float, ...] = ()

    @property
    def keeps_zero(self) -> bool:
        if self.function == "clamp":
            return self.settings[0] <= 0 <= self.settings[1]
        return self.function in KEEPS_ZERO


class Combine(Operation, channels="apart", streams="yes"):
    """f(a, b), with axes of size 1 and missing ones in front repeated."""

    function: str


class Choose(Operation, channels="apart", streams="yes"):
    """b where a, else c."""


class Cast(Operation, channels="apart", streams="yes"):
    """The same values as the node's kind: float, int, bool."""


# The same values in other places.


class Permute(Operation, channels="moved", streams="yes"):
    """Axis k of the answer is axis order[k] of x."""

    order: tuple[int, ...]


class Reshape(Operation, channels="moved", streams="yes, where time stays an axis"):
    """The same values, row by row, in the node's shape."""


class Expand(Operation, channels="moved", streams="yes"):
    """Axes of size 1, and missing ones in front, repeated to the node's shape."""


class Slice(Operation, channels="moved", streams="yes, of channels; the last steps too"):
    """Every `step`-th from start to before stop, along one axis; stop is a size, none is negative."""

    axis: int
    start: int
    stop: int
    step: int = 1


class Concat(Operation, channels="moved", streams="yes, of channels"):
    """The inputs one after another along an axis."""

    axis: int


class Flip(Operation, channels="moved", streams="yes, of channels"):
    """Backwards along axes."""

    axes: tuple[int, ...]


class Pad(Operation, channels="moved", streams="yes, of channels; of time in front, once"):
    """`before` and `after` entries of one value around an axis."""

    axis: int
    before: int
    after: int
    value: float = 0.0

    @property
    def keeps_zero(self) -> bool:
        return self.value == 0


class Index(Operation, channels="moved"):
    """x at whole numbers: inputs[1:] index the axes from `axis` on, as many as there are, and take their place.

    Negative numbers count from the end.
    """

    axis: int


class Gather(Operation, channels="moved"):
    """answer[..., k, ...] = x[..., index[..., k, ...], ...] along one axis; others are cut to the index's size."""

    axis: int


# What looks along axes.


class Reduce(Operation, streams="yes: sum, mean, max, min over time with a running answer; over channels"):
    """sum, mean, max, ... over axes, kept with size 1 if `keep`. std, var: settings = (correction,); norm: (p,)."""

    function: str
    axes: tuple[int, ...]
    keep: bool = False
    settings: tuple[float, ...] = ()

    @property
    def keeps_zero(self) -> bool:
        return self.function in ("sum", "mean", "max", "min", "any", "norm", "median")


class Softmax(Operation, streams="yes, over channels"):
    """exp(x) / sum exp(x) along an axis, or its logarithm."""

    axis: int
    log: bool = False

    @property
    def keeps_zero(self) -> bool:
        return False


class Cumulate(Operation, streams="yes, with the sum so far"):
    """Running sum along an axis."""

    axis: int


class Matmul(Operation, streams="yes, where time is not what is summed over"):
    """a (..., n, k) b (..., k, m), axes in front repeated as needed."""


class Unpack(Operation, channels="apart"):
    """y (B, T, C), lengths (B,) -> (B, L, C): `value` behind every end, cut after the longest unless L is given.

    L, the second size of the node, is a letter of its own where it is the longest length.
    """

    value: float = 0.0

    @property
    def keeps_zero(self) -> bool:
        return self.value == 0


# Of loops over time, which an analysis follows and back ends do not run.


class Turn(Operation):
    """The number of a step of a loop: that of step k here, of any elsewhere."""

    loop: int
    k: int
    count: int  # of its steps


class Collect(Operation, channels="moved"):
    """What every step of a loop gave, along a new axis; the inputs are those of three steps, which stand for all."""

    axis: int


class Opaque(Operation):
    """What this set cannot say; only an analysis may meet it."""

    what: str
