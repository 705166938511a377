"""CUDA tensors go to the fused Triton kernels where Triton is present, all others to the plain torch twins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from gatewise.sparsify import matrices, posterior
from gatewise.sparsify.posterior import KLForm


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def fusible(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels serve these tensors: on one GPU, float32, contiguous."""
    served = all(t.is_cuda and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    return served and len({t.device for t in tensors}) == 1 and has_triton()


def matrix_stats(mats: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Row sums of squares, column sums of squares, and sum |w| of every matrix."""
    if not fusible(mats):
        return matrices.matrix_stats(mats)
    from gatewise.sparsify import triton_lasso

    return triton_lasso.matrix_stats(mats)


def lasso_grad(
    mats: Sequence[Tensor],
    l1: Sequence[float],
    rows: Sequence[Tensor],
    columns: Sequence[Tensor],
    scale: Tensor,
    l1_factor: Tensor | None = None,
) -> list[Tensor]:
    """scale * (l1 l1_factor sign(w) + w (row_i + column_j)) for every matrix."""
    if not fusible(mats):
        return matrices.lasso_grad(mats, l1, rows, columns, scale, l1_factor)
    from gatewise.sparsify import triton_lasso

    slopes = triton_lasso.constants(tuple(l1), mats[0].device)
    return triton_lasso.lasso_grad(
        mats, slopes if l1_factor is None else slopes * l1_factor, rows, columns, scale
    )


def threshold_(mats: Sequence[Tensor], threshold: float) -> None:
    """w = 0 where |w| < threshold, in place."""
    if not fusible(mats):
        return matrices.threshold_(mats, threshold)
    from gatewise.sparsify import triton_lasso

    return triton_lasso.threshold_(mats, threshold)


def sample_and_kl(
    means: Sequence[Tensor], log_sigmas: Sequence[Tensor], form: KLForm
) -> tuple[list[Tensor], Tensor]:
    """One sample of every tensor, and the sum of their KL terms."""
    if not fusible([*means, *log_sigmas]):
        return posterior.sample_and_kl(means, log_sigmas, form)
    from gatewise.sparsify import triton_posterior

    return triton_posterior.sample_and_kl(means, log_sigmas, *form)
