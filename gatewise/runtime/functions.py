"""Functions of a program in NumPy: of one value, of two, and along axes. Types are those of what goes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def erf(x: Array) -> Array:
    """torch has it, NumPy has not."""
    whole = torch.from_numpy(np.array(x, order="C"))
    values: Array = torch.erf(whole).numpy()
    return values


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)


def gelu(x: Array) -> Any:
    return 0.5 * x * (1 + erf(x * 2**-0.5))


def gelu_tanh(x: Array) -> Any:
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def shrunk(x: Array, by: float = 0.5) -> Array:
    return np.where(np.abs(x) > by, x, 0)


def softly_shrunk(x: Array, by: float = 0.5) -> Array:
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


def rounded(x: Array, decimals: float = 0) -> Array:
    return np.round(x, int(decimals))


# Of one value, and its settings.
MAPPED: dict[str, Callable[..., Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "elu": elu,
    "selu": lambda x: SELU_SCALE * elu(x, SELU_ALPHA),
    "celu": lambda x, alpha=1.0: np.where(x > 0, x, elu(x / alpha, alpha)),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
    "hardshrink": shrunk,
    "softshrink": softly_shrunk,
    "asin": np.arcsin,
    "atan": np.arctan,
    "erf": erf,
    "neg": np.negative,
    "round": rounded,
    "sigmoid": sigmoid,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "acos": np.arccos,
    "softplus": softplus,
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "clamp": lambda x, low, high: np.clip(x, low, high),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "threshold": lambda x, threshold, value: np.where(x > threshold, x, value),
    "not": np.logical_not,
    **{
        name: getattr(np, name)
        for name in "tanh sin tan sinh abs square sqrt sign floor ceil trunc expm1 log1p exp exp2 log log2 log10 cos "
        "cosh isnan isinf".split()
    },
}

# Of two values.
COMBINED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floordiv": np.floor_divide,
    "remainder": np.remainder,
    "atan2": np.arctan2,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def argument(find: Callable[..., Any]) -> Callable[..., Any]:
    """The place of the largest or smallest: along one axis, or in everything, row by row."""

    def found(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
        if len(axis) == 1:
            return find(x, axis=axis[0], keepdims=keepdims)
        return np.reshape(find(x), (1,) * x.ndim if keepdims else ())

    return found


def median(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    """The lower one of the two in the middle."""
    ordered = np.sort(x if len(axis) == 1 else x.reshape(-1), axis=axis[0] if len(axis) == 1 else 0)
    along = axis[0] if len(axis) == 1 else 0
    value = np.take(ordered, [(ordered.shape[along] - 1) // 2], axis=along)
    whole = value if len(axis) == 1 else value.reshape((1,) * x.ndim)
    return whole if keepdims else np.squeeze(whole, axis)


def log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis)


def norm(x: Array, axis: tuple[int, ...], keepdims: bool, p: float = 2.0) -> Any:
    size = np.abs(x)
    if np.isinf(p):
        return (size.max if p > 0 else size.min)(axis=axis, keepdims=keepdims)
    if p == 0:
        return (size != 0).sum(axis=axis, keepdims=keepdims, dtype=x.dtype)
    return (size**p).sum(axis=axis, keepdims=keepdims) ** (1 / p)


# Along axes: f(x, axis=, keepdims=), then settings.
REDUCED: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "any": np.any,
    "all": np.all,
    "argmax": argument(np.argmax),
    "argmin": argument(np.argmin),
    "logsumexp": log_sum_exp,
    "std": lambda x, correction=1, **how: np.std(x, ddof=correction, **how),
    "var": lambda x, correction=1, **how: np.var(x, ddof=correction, **how),
    "norm": lambda x, p=2.0, **how: norm(x, p=p, **how),
    "median": median,
}


def softmax(x: Array, axis: int, log: bool) -> Any:
    shifted = x - x.max(axis=axis, keepdims=True)
    if log:
        return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    weights = np.exp(shifted)
    return weights / weights.sum(axis=axis, keepdims=True)


def layer_norm(x: Array, axes: int, eps: float) -> Any:
    over = tuple(range(x.ndim - axes, x.ndim))
    centred = x - x.mean(axis=over, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=over, keepdims=True) + eps)


def windows(x: Array, size: int, stride: int, dilation: int) -> Array:  # (..., T) -> (..., size, T')
    """What every place of a window sees, in turn."""
    reach = dilation * (size - 1)
    steps = (x.shape[-1] - reach - 1) // stride + 1
    places = [x[..., k * dilation : k * dilation + stride * (steps - 1) + 1 : stride] for k in range(size)]
    return np.stack(places, axis=-2)


def padded(x: Array, axis: int, before: int, after: int, value: Any = 0) -> Array:
    around = [(0, 0)] * x.ndim
    around[axis] = (before, after)
    return np.pad(x, around, constant_values=value) if before or after else x


def convolved(
    x: Array, weight: Array, stride: int, dilation: int, groups: int, padding: tuple[int, int]
) -> Array:
    """(B, C, T), (O, C / groups, K) -> (B, O, T'): one matrix product of the weights and what their windows see."""
    seen = windows(padded(x, 2, *padding), weight.shape[2], stride, dilation)  # (B, C, K, T')
    batch, _, size, steps = seen.shape
    seen = seen.reshape(batch, groups, -1, steps)
    matrix = weight.reshape(groups, len(weight) // groups, weight.shape[1] * size)
    product: Array = matrix @ seen
    return product.reshape(batch, len(weight), steps)


def pooled(
    x: Array, function: str, size: int, stride: int, dilation: int, padding: tuple[int, int], counts: bool
) -> Any:  # (..., T) -> (..., T')
    last = x.ndim - 1
    if function == "max":
        return windows(padded(x, last, *padding, -np.inf), size, stride, dilation).max(axis=-2)
    total = windows(padded(x, last, *padding), size, stride, dilation).sum(axis=-2)
    if counts:
        return total / size
    there = windows(padded(np.ones_like(x), last, *padding), size, stride, dilation).sum(axis=-2)
    return total / there
