"""Passes over many matrices at once, in plain torch: the twins of the CUDA kernels in `triton_lasso`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def matrix_stats(matrices: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Row sums of squares (rows,), column sums of squares (columns,), and sum |w| of every matrix."""
    norm = torch.linalg.vector_norm
    rows = [norm(w, dim=1).square() for w in matrices]
    columns = [norm(w, dim=0).square() for w in matrices]
    return rows, columns, torch.stack([norm(w, ord=1) for w in matrices])


def lasso_grad(
    matrices: Sequence[Tensor],
    l1: Sequence[float],
    row_slopes: Sequence[Tensor],
    column_slopes: Sequence[Tensor],
    scale: Tensor,
) -> list[Tensor]:
    """scale * (l1 sign(w) + w (row_slope_i + column_slope_j)) for every matrix."""
    grads = []
    for w, slope, rows, columns in zip(matrices, l1, row_slopes, column_slopes):
        grad = torch.sign(w).mul_(slope * scale) if slope else torch.zeros_like(w)
        grads.append(grad.addcmul_(w, rows[:, None] * scale).addcmul_(w, columns * scale))
    return grads


def threshold_(matrices: Sequence[Tensor], threshold: float) -> None:
    """w = 0 where |w| < threshold, in place."""
    for w in matrices:
        # hardshrink keeps |w| > bound; a weight of exactly the threshold is to stay.
        bound = torch.nextafter(torch.tensor(threshold, dtype=w.dtype), torch.zeros((), dtype=w.dtype))
        torch.hardshrink(w, bound.item(), out=w)
