"""Passes over many matrices at once, in plain torch: the twins of the CUDA kernels in `triton_lasso`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gatewise.sparsify.plan import EPS, Plan

BLOCK = 1 << 16  # elements worked on at a time: what several passes touch stays in the cache


def matrix_stats(matrices: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Row sums of squares (rows,), column sums of squares (columns,), and sum |w| of every matrix."""
    rows, columns, absolute = [], [], []
    for w in map(widened, matrices):
        height = block_height(w)
        buffer = torch.empty_like(w[:height])
        across, down, total = w.new_empty(len(w)), w.new_zeros(w.shape[1]), w.new_zeros(())
        for part, sums in zip(w.split(height), across.split(height)):
            work = torch.mul(part, part, out=buffer[: len(part)])
            torch.sum(work, 1, out=sums)
            down += work.sum(0)
            total += torch.abs(part, out=work).sum()
        rows.append(across)
        columns.append(down)
        absolute.append(total)
    return rows, columns, torch.stack(absolute)


def value_and_slopes(plan: Plan, matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:  # (), (groups + 1,)
    """l1 sum|w| + sum_g lambda_g n_g with n_g = sqrt(sum w^2 + eps), and lambda_g / n_g; the last is 0: no group."""
    rows, columns, absolute = matrix_stats(matrices)
    plan = plan.on(absolute.device, absolute.dtype)
    norms = (plan.summed(rows, columns) + EPS).sqrt()
    lambdas = plan.group * plan.factors.to(norms.dtype)
    value = plan.l1_factor.to(norms.dtype) * torch.dot(absolute, plan.weights) + torch.dot(lambdas, norms)
    return value, torch.cat([lambdas / norms, norms.new_zeros(1)])


def gradient(
    plan: Plan, k: int, matrix: Tensor, slopes: Tensor, scale: Tensor | None, added_to: Tensor | None
) -> Tensor:
    """scale * (l1 sign(w) + w (slopes of the row's groups + those of the column's)) of matrix k, new or in place."""
    w, l1 = widened(matrix), plan.weights[k] * plan.l1_factor
    of_lines = slopes[plan.members[plan.lines[k]]].sum(1)
    if scale is not None:
        l1, of_lines = l1 * scale, of_lines * scale
    rows, columns = of_lines.split(list(w.shape))
    height = block_height(w)
    grad, buffer = torch.empty_like(w) if added_to is None else added_to, torch.empty_like(w[:height])
    for part, across, out in zip(w.split(height), rows[:, None].split(height), grad.split(height)):
        work = buffer[: len(part)]
        slope = torch.add(across, columns, out=work) if plan.has_rows[k] else columns
        if added_to is None:
            torch.mul(part, slope, out=out)
        else:
            out.addcmul_(part, slope)
        if plan.l1[k]:
            out.addcmul_(torch.sign(part, out=work), l1)
    return grad.to(matrix.dtype)


def widened(w: Tensor) -> Tensor:
    """16-bit weights in float32, others as they are: in float16 a sum ends at 65504, and the eps of a norm is 0."""
    return w.float() if w.dtype.itemsize == 2 else w


def block_height(w: Tensor) -> int:
    """Rows that are worked on at a time; all of them on a GPU, where launches cost more."""
    return max(len(w) if w.is_cuda else BLOCK // max(w.shape[1], 1), 1)


def threshold_(matrices: Sequence[Tensor], threshold: float) -> None:
    """w = 0 where |w| < threshold, in place."""
    for w in matrices:
        # hardshrink keeps |w| > bound; a weight of exactly the threshold is to stay.
        bound = torch.nextafter(torch.tensor(threshold, dtype=w.dtype), torch.zeros((), dtype=w.dtype))
        torch.hardshrink(w, bound.item(), out=w)
