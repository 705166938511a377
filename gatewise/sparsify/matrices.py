"""Passes over many matrices at once, in plain torch: the twins of the CUDA kernels in `triton_lasso`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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


def lasso_grad(
    matrices: Sequence[Tensor],
    l1: Sequence[float],
    row_slopes: Sequence[Tensor],
    column_slopes: Sequence[Tensor],
    scale: Tensor,
    l1_factor: Tensor | None = None,
) -> list[Tensor]:
    """scale * (l1 l1_factor sign(w) + w (row_slope_i + column_slope_j)) for every matrix."""
    sign_scale = scale if l1_factor is None else scale * l1_factor
    grads = []
    for matrix, slope, rows, columns in zip(matrices, l1, row_slopes, column_slopes):
        w = widened(matrix)
        height = block_height(w)
        grad = torch.empty_like(w)
        rows, columns = (rows * scale)[:, None], columns * scale
        in_no_row_group = not w.is_cuda and not rows.any()  # the softmax: its rows are no gates
        for part, down, out in zip(w.split(height), rows.split(height), grad.split(height)):
            if in_no_row_group:
                torch.mul(part, columns, out=out)
            else:
                torch.add(down, columns, out=out).mul_(part)
            if slope:
                out.addcmul_(torch.sign(part), sign_scale, value=slope)
        grads.append(grad.to(matrix.dtype))
    return grads


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
