"""What torch's functions mean that multiply matrices, and norms."""

from __future__ import annotations

import math
from typing import Any

import torch

from gatewise.program.along import reduced
from gatewise.program.arithmetic import RULES, invert, pointwise, rule
from gatewise.program.creation import counted
from gatewise.program.fits import broadcast, matched, require, unified
from gatewise.program.graph import BOOL, FLOAT
from gatewise.program.operations import LayerNorm, Matmul
from gatewise.program.recorder import made, node_of, tensor_of
from gatewise.program.shapes import permute, reshape, transpose
from gatewise.program.stand_ins import Recorded, Refused, current

# Deviations from zero beyond which a mean is taken away first: in one sum with the shift it would cost digits.
FAR = 8.0

# Products.


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(a: Recorded, b: Recorded) -> Recorded:
    one, other = a.node.shape, b.node.shape
    require(one and other)
    if len(one) == 1:
        row = matmul(reshape(a, (1, *one)), b)
        return reshape(row, (*row.node.shape[:-2], row.node.shape[-1]) if len(other) > 1 else ())
    if len(other) == 1:
        column = matmul(a, reshape(b, (*other, 1)))
        return reshape(column, column.node.shape[:-1])
    unified(one[-1], other[-2])
    return made(Matmul(), [a, b], (*broadcast(one[:-2], other[:-2]), one[-2], other[-1]), FLOAT)


RULES["rmatmul"] = lambda a, b: matmul(b, a)


@rule("linear")
def linear(x: Recorded, weight: Recorded, bias: Any = None) -> Any:
    result = matmul(x, transpose(weight, 0, 1))
    return result if bias is None else result + bias


@rule("baddbmm", "addmm")
def addmm(x: Recorded, a: Recorded, b: Recorded, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if (beta, alpha) != (1, 1):
        raise Refused("addmm() with beta or alpha")
    return x + matmul(a, b)


@rule("einsum")
def einsum(equation: str, *operands: Any) -> Recorded:
    """Two tensors: (batch, left, summed) x (batch, summed, right), each group of letters as one axis."""
    parts = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    sides, arrow, out = equation.replace(" ", "").partition("->")
    terms = sides.split(",")
    twice = any(len(set(term)) != len(term) for term in (*terms, out))
    if "." in equation or not arrow or twice or len(terms) != len(parts):
        raise Refused(f"einsum({equation!r})")
    result, term = parts[0], terms[0]
    for k in range(1, len(parts)):
        later = set(out).union(*terms[k + 1 :])
        result, term = contracted(result, term, parts[k], terms[k], later)
    if gone := [term.index(axis) for axis in term if axis not in out]:
        result, term = reduced("sum", result, gone), "".join(axis for axis in term if axis in out)
    return permute(result, [term.index(axis) for axis in out])


def contracted(a: Recorded, first: str, b: Recorded, second: str, later: set[str]) -> tuple[Recorded, str]:
    sizes: dict[str, int] = {}
    for value, term in ((a, first), (b, second)):
        require(value.node.rank == len(term))
        for axis, size in zip(term, value.node.shape):
            sizes[axis] = unified(sizes[axis], size) if axis in sizes else size
    batch = [x for x in first if x in second and x in later]
    summed = [x for x in first if x in second and x not in later]
    left, right = [x for x in first if x not in second], [x for x in second if x not in first]

    def grouped(value: Recorded, term: str, *groups: list[str]) -> Recorded:
        moved = permute(value, [term.index(x) for group in groups for x in group])
        return reshape(moved, [math.prod(sizes[x] for x in group) for group in groups])

    answer = matmul(grouped(a, first, batch, left, summed), grouped(b, second, batch, summed, right))
    order = [*batch, *left, *right]
    return reshape(answer, [sizes[x] for x in order]), "".join(order)


@rule("scaled_dot_product_attention")
def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(q k^T / sqrt(d) + mask) v."""
    if enable_gqa:
        raise Refused("attention with groups of queries")
    steps, width = query.node.shape[-2:]
    scores = query @ transpose(key, -2, -1) * (1 / math.sqrt(width) if scale is None else scale)
    if is_causal:
        ahead = counted(key.node.shape[-2]) > counted(steps).unsqueeze(1)
        scores = scores.masked_fill(ahead, -math.inf)
    if attn_mask is not None and attn_mask.node.kind == BOOL:
        scores = scores.masked_fill(invert(attn_mask), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


# Norms.


@rule("layer_norm")
def layer_norm(
    x: Recorded, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Recorded:
    shape, sizes = x.node.shape, tuple(normalized_shape)
    require(len(sizes) <= len(shape))
    for own, asked in zip(shape[-len(sizes) :], sizes):
        matched(own, asked)
    extra = [v for v in (weight, bias) if v is not None]
    op = LayerNorm(len(sizes), eps, weight is not None, bias is not None)
    return made(op, [x, *extra], shape, FLOAT)


@rule("batch_norm")
def batch_norm(
    x: Recorded, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: Any = 0.1, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias, channel by channel of axis 1."""
    if (training or running_mean is None) and not current().lenient:
        raise Refused("batch norm takes its mean from the batch in evaluation, too")
    require(x.node.rank >= 2)
    if running_mean is None:
        return pointwise(pointwise(x, "sigmoid"), "neg")  # any function that moves zero
    matched(x.node.shape[1], running_mean.node.shape[0])
    with torch.no_grad():
        mean, var = values(running_mean), values(running_var)
        scale = torch.rsqrt(var + eps) * (1 if weight is None else values(weight))
        shift = torch.zeros_like(mean) if bias is None else values(bias)
        far = bool(((mean * scale).abs() > FAR).any())
    form = (-1, *[1] * (x.node.rank - 2))

    def along_channels(numbers: torch.Tensor) -> Recorded:
        return Recorded.of(node_of(numbers.reshape(form)))

    if far:
        x = x - along_channels(mean)  # type: ignore[assignment]
    offset = shift if far else shift - mean * scale
    return x * along_channels(scale) + along_channels(offset)


def values(x: Recorded) -> torch.Tensor:
    """Of a tensor of the model."""
    found = tensor_of(x)
    if found is None:
        raise Refused("batch norm with numbers that are computed")
    return found.double()
