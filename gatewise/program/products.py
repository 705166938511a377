"""What torch's functions mean that multiply matrices, and norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from gatewise.program.along import reduced
from gatewise.program.arithmetic import RULES, combine, compare, invert, masked_fill, pointwise, rule
from gatewise.program.creation import counted
from gatewise.program.fits import broadcast, matched, unified
from gatewise.program.graph import BOOL, FLOAT
from gatewise.program.operations import Constant, LayerNorm, Matmul
from gatewise.program.recorder import Recorder
from gatewise.program.stand_ins import Impossible, Recorded, Refused

# Deviations from zero beyond which a mean is taken away first: in one sum with the shift it would cost digits.
FAR = 8.0

# Products.


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(recorder: Recorder, a: Any, b: Any) -> Any:
    one, other = recorder.node(a), recorder.node(b)
    if not one.rank or not other.rank:
        raise Impossible
    unified(one.shape[-1], other.shape[-2] if other.rank > 1 else other.shape[-1])
    left = one.shape if one.rank > 1 else (1, *one.shape)
    right = other.shape if other.rank > 1 else (*other.shape, 1)
    shape = (
        (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
        if len(left) + len(right) > 4
        else (left[-2], right[-1])
    )
    reshape = RULES["reshape"]
    first = a if one.rank > 1 else reshape(recorder, a, left)
    second = b if other.rank > 1 else reshape(recorder, b, right)
    result = recorder.made(Matmul(), [first, second], shape, FLOAT)
    if one.rank > 1 and other.rank > 1:
        return result
    rows, columns = shape[-2:-1] if one.rank > 1 else (), shape[-1:] if other.rank > 1 else ()
    return reshape(recorder, result, (*shape[:-2], *rows, *columns))


RULES["rmatmul"] = lambda recorder, a, b: matmul(recorder, b, a)


@rule("linear")
def linear(recorder: Recorder, x: Any, weight: Any, bias: Any = None) -> Recorded:
    result = matmul(recorder, x, RULES["transpose"](recorder, weight, 0, 1))
    return result if bias is None else combine(recorder, "add", result, bias)


@rule("baddbmm", "addmm")
def addmm(recorder: Recorder, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Recorded:
    if (beta, alpha) != (1, 1):
        raise Refused("addmm() with beta or alpha")
    return combine(recorder, "add", x, matmul(recorder, a, b))


@rule("einsum")
def einsum(recorder: Recorder, equation: str, *operands: Any) -> Recorded:
    """Two tensors: (batch, left, summed) x (batch, summed, right), each group of letters as one axis."""
    parts = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    sides, _, out = equation.replace(" ", "").partition("->")
    terms = sides.split(",")
    if (
        "." in equation
        or "->" not in equation
        or len(terms) != len(parts)
        or any(len(set(t)) != len(t) for t in (*terms, out))
    ):
        raise Refused(f"einsum({equation!r})")
    result, term = parts[0], terms[0]
    for k in range(1, len(parts)):
        later = set(out).union(*terms[k + 1 :])
        result, term = contracted(recorder, result, term, parts[k], terms[k], later)
    if gone := [term.index(axis) for axis in term if axis not in out]:
        result, term = reduced(recorder, "sum", result, gone), "".join(axis for axis in term if axis in out)
    return RULES["permute"](recorder, result, [term.index(axis) for axis in out])  # type: ignore[no-any-return]


def contracted(
    recorder: Recorder, a: Any, first: str, b: Any, second: str, later: set[str]
) -> tuple[Any, str]:
    permute, reshape = RULES["permute"], RULES["reshape"]
    sizes: dict[str, int] = {}
    for value, term in ((a, first), (b, second)):
        node = recorder.node(value)
        if node.rank != len(term):
            raise Impossible
        for axis, size in zip(term, node.shape):
            sizes[axis] = unified(sizes[axis], size) if axis in sizes else size
    batch = [x for x in first if x in second and x in later]
    summed = [x for x in first if x in second and x not in later]
    left, right = [x for x in first if x not in second], [x for x in second if x not in first]

    def grouped(value: Any, term: str, *groups: list[str]) -> Any:
        moved = permute(recorder, value, [term.index(x) for group in groups for x in group])
        return reshape(recorder, moved, [math.prod(sizes[x] for x in group) for group in groups])

    answer = matmul(
        recorder, grouped(a, first, batch, left, summed), grouped(b, second, batch, summed, right)
    )
    order = [*batch, *left, *right]
    return reshape(recorder, answer, [sizes[x] for x in order]), "".join(order)


@rule("scaled_dot_product_attention")
def attention(
    recorder: Recorder, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(q k^T / sqrt(d) + mask) v."""
    if enable_gqa:
        raise Refused("attention with groups of queries")
    width, steps = recorder.node(query).shape[-1], recorder.node(query).shape[-2]
    factor = 1 / math.sqrt(width) if scale is None else scale
    scores = combine(
        recorder, "mul", matmul(recorder, query, RULES["transpose"](recorder, key, -2, -1)), factor
    )
    if is_causal:
        ahead = compare(recorder, "gt", counted(recorder, recorder.node(key).shape[-2]),
                        RULES["unsqueeze"](recorder, counted(recorder, steps), 1))  # fmt: skip
        scores = masked_fill(recorder, scores, ahead, -math.inf)
    if attn_mask is not None:
        asked = recorder.node(attn_mask)
        scores = (
            masked_fill(recorder, scores, invert(recorder, attn_mask), -math.inf)
            if asked.kind == BOOL
            else combine(recorder, "add", scores, attn_mask)
        )
    return matmul(recorder, RULES["softmax"](recorder, scores, -1), value)


@rule("layer_norm")
def layer_norm(
    recorder: Recorder,
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Recorded:
    node, sizes = recorder.node(x), tuple(normalized_shape)
    if len(sizes) > node.rank:
        raise Impossible
    for own, asked in zip(node.shape[-len(sizes) :], sizes):
        matched(own, asked)
    extra = [v for v in (weight, bias) if v is not None]
    op = LayerNorm(len(sizes), eps, weight is not None, bias is not None)
    return recorder.made(op, [x, *extra], node.shape, FLOAT)


@rule("batch_norm")
def batch_norm(
    recorder: Recorder, x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: Any = 0.1, eps: float = 1e-5, *_: Any,
) -> Recorded:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias, channel by channel of axis 1."""
    if (training or running_mean is None) and not recorder.lenient:
        raise Refused("batch norm takes its mean from the batch in evaluation, too")
    node = recorder.node(x)
    if node.rank < 2:
        raise Impossible
    if running_mean is None:
        return pointwise(recorder, pointwise(recorder, x, "sigmoid"), "neg")  # any function that moves zero
    matched(node.shape[1], running_mean.shape[0])
    with torch.no_grad():
        mean, scale = running_mean.double(), torch.rsqrt(running_var.double() + eps)
        scale = scale if weight is None else scale * weight.double()
        shift = torch.zeros_like(mean) if bias is None else bias.double()
        far = bool(((mean * scale).abs() > FAR).any())
    form = (-1, *[1] * (node.rank - 2))

    def numbers(values: torch.Tensor) -> Recorded:
        return constant(recorder, values.cpu().reshape(form).numpy())

    if far:
        x = combine(recorder, "sub", x, numbers(mean))
    offset = shift if far else shift - mean * scale
    return combine(recorder, "add", combine(recorder, "mul", x, numbers(scale)), numbers(offset))


def constant(recorder: Recorder, values: np.ndarray) -> Recorded:
    return recorder.made(Constant(values), [], values.shape, FLOAT)
