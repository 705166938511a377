"""What torch's functions mean that look along axes: sums, largest values, softmax, convolutions, pools."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from gatewise.program.arithmetic import RULES, cast, combine, number, rule
from gatewise.program.fits import matched, require, within
from gatewise.program.graph import BOOL, FLOAT, INT
from gatewise.program.operations import Convolve, Cumulate, Pool, Reduce, Softmax
from gatewise.program.recorder import kind_of, made
from gatewise.program.shapes import maybe, unsqueeze, with_axes
from gatewise.program.sizes import Size, same
from gatewise.program.stand_ins import Recorded, Refused

# The kind of what a reduction gives, where it is not that of its input.
KINDS = {"any": BOOL, "all": BOOL, "argmax": INT, "argmin": INT, "mean": FLOAT, "std": FLOAT, "var": FLOAT,
         "logsumexp": FLOAT, "norm": FLOAT}  # fmt: skip


def axes_of(dim: Any, rank: int) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(rank))
    listed = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(sorted(within(axis, rank) for axis in listed))


def reduced(
    function: str, x: Recorded, dim: Any = None, keep: bool = False, settings: tuple[float, ...] = ()
) -> Recorded:
    node = x.node
    axes = axes_of(dim, node.rank)
    shape = [1 if k in axes else n for k, n in enumerate(node.shape) if keep or k not in axes]
    kind = INT if function == "sum" and node.kind == BOOL else KINDS.get(function, node.kind)
    return made(Reduce(function, axes, bool(keep), settings), [x], shape, kind)


def reduction(
    function: str, x: Recorded, *dims: Any, dim: Any = None, axis: Any = None, keepdim: Any = False,
    dtype: Any = None,
) -> Recorded:  # fmt: skip
    if dims and isinstance(dims[-1], bool):
        dims, keepdim = dims[:-1], dims[-1]
    given = dims if len(dims) > 1 else dims[0] if dims else dim if dim is not None else axis
    return reduced(function, x if dtype is None else cast(x, kind_of(dtype)), given, keepdim)


for _name in ("sum", "mean", "any", "all", "logsumexp", "prod"):
    RULES[_name] = partial(reduction, _name)
RULES["amax"], RULES["amin"] = partial(reduction, "max"), partial(reduction, "min")


class Extremes(NamedTuple):
    """As torch.return_types.max has them."""

    values: Recorded
    indices: Recorded


def extreme(function: str, x: Recorded, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """max and min: of all values, along an axis with where they were, or of two tensors."""
    other = dim if isinstance(dim, torch.Tensor) else other
    if other is not None:
        return combine(f"{function}imum", x, other)
    values = reduced(function, x, dim, keepdim)
    return values if dim is None else Extremes(values, located(f"arg{function}", x, dim, keepdim))


def located(function: str, x: Recorded, dim: Any = None, keepdim: bool = False) -> Recorded:
    if dim is None:
        raise Refused(f"{function}() over all axes at once")
    return reduced(function, x, dim, keepdim)


for _name in ("max", "min"):
    RULES[_name], RULES[f"arg{_name}"] = partial(extreme, _name), partial(located, f"arg{_name}")


def spread(
    function: str, x: Recorded, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = 1
) -> Recorded:  # fmt: skip
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    settled = correction if unbiased is None else int(unbiased)
    return reduced(function, x, dim, keepdim, (number(settled),))


RULES["std"], RULES["var"] = partial(spread, "std"), partial(spread, "var")


@rule("norm", "vector_norm", "linalg_vector_norm")
def norm(
    x: Recorded, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, ord: Any = None
) -> Recorded:
    order = p if ord is None else ord
    return reduced("norm", x, dim, keepdim, (2.0 if order in ("fro", None) else number(order),))


@rule("normalize")
def normalize(x: Recorded, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    return x / norm(x, p, dim, True).clamp(eps)


def softmaxed(log: bool, x: Recorded, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None) -> Recorded:
    if dim is None:
        raise Refused("softmax() without dim=")
    return made(Softmax(within(dim, x.node.rank), log), [x], x.node.shape, FLOAT)


RULES["softmax"], RULES["log_softmax"] = partial(softmaxed, False), partial(softmaxed, True)


@rule("cumsum")
def cumsum(x: Recorded, dim: int, dtype: Any = None) -> Recorded:
    kind = INT if x.node.kind == BOOL else x.node.kind
    return made(Cumulate(within(dim, x.node.rank)), [x], x.node.shape, kind)


# Windows over time: convolutions and pools.


def single(value: Any) -> int:
    found = value[0] if isinstance(value, tuple | list) else value
    if isinstance(found, Size):
        raise Refused("a convolution as wide as only a call knows")
    return int(found)


@rule("conv1d")
def conv1d(
    x: Recorded, weight: Recorded, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Recorded:  # fmt: skip
    if x.node.rank == 2:
        return with_axes(conv1d(unsqueeze(x, 0), weight, bias, stride, padding, dilation, groups), 0, 1, ())
    require(x.node.rank == 3)
    (batch, channels, steps), (wide, per_group, taps) = x.node.shape, weight.node.shape
    matched(channels, per_group * groups)
    reach = single(dilation) * (taps - 1)
    if padding == "same":
        around = (reach // 2, reach - reach // 2)
    else:
        around = (0, 0) if padding == "valid" else (single(padding), single(padding))
    op = Convolve(single(stride), single(dilation), groups, around, bias is not None)
    length = (steps + sum(around) - reach - 1) // op.stride + 1
    return made(op, [x, weight, *([] if bias is None else [bias])], (batch, wide, length))


@rule("max_pool1d")
def max_pool(
    x: Recorded, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Recorded:  # fmt: skip
    return pooled("max", x, kernel_size, stride, padding, dilation, ceil_mode or return_indices)


@rule("avg_pool1d")
def mean_pool(
    x: Recorded, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Recorded:  # fmt: skip
    return pooled("mean", x, kernel_size, stride, padding, 1, ceil_mode, bool(count_include_pad))


def pooled(
    function: str, x: Recorded, kernel_size: Any, stride: Any, padding: Any, dilation: Any, unusual: bool,
    counts_padding: bool = True,
) -> Recorded:  # fmt: skip
    if unusual:
        raise Refused("pooling with ceil_mode or return_indices")
    *front, steps = x.node.shape
    require(len(front) in (1, 2))
    if isinstance(kernel_size, Size) and same(kernel_size, steps):
        return reduced(function, x, -1, True)
    kernel, around = single(kernel_size), single(padding)
    by = kernel if stride is None or stride == () else single(stride)
    maybe(steps, kernel)
    op = Pool(function, kernel, by, single(dilation), (around, around), counts_padding)
    return made(op, [x], (*front, (steps + 2 * around - op.dilation * (kernel - 1) - 1) // by + 1))


def pooled_away(function: str, x: Recorded, output_size: Any, **_: Any) -> Recorded:
    if single(output_size) != 1:
        raise Refused("adaptive pooling to more than one step")
    return reduced(function, x, -1, True)


RULES["adaptive_max_pool1d"] = partial(pooled_away, "max")
RULES["adaptive_avg_pool1d"] = partial(pooled_away, "mean")
