"""CUDA tensors go to the fused Triton kernels where Triton is present, all others to the plain torch twins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from torch import Tensor

from gatewise.sparsify import matrices as twins
from gatewise.sparsify import posterior
from gatewise.sparsify.posterior import KLForm


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def fused(tensors: Sequence[Tensor]) -> bool:
    """Whether the CUDA kernels serve these tensors: all on one GPU, float32 and contiguous."""
    plain = all(
        t.is_cuda and t.dtype.is_floating_point and t.element_size() == 4 and t.is_contiguous()
        for t in tensors
    )
    return plain and len({t.device for t in tensors}) == 1 and has_triton()


def matrix_stats(matrices: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor]:
    return twins.matrix_stats(matrices)


def lasso_grad(
    matrices: Sequence[Tensor],
    l1: Sequence[float],
    row_slopes: Sequence[Tensor],
    column_slopes: Sequence[Tensor],
    scale: Tensor,
) -> list[Tensor]:
    return twins.lasso_grad(matrices, l1, row_slopes, column_slopes, scale)


def threshold_(matrices: Sequence[Tensor], threshold: float) -> None:
    twins.threshold_(matrices, threshold)


def sample_and_kl(
    means: Sequence[Tensor], log_sigmas: Sequence[Tensor], form: KLForm
) -> tuple[list[Tensor], Tensor]:
    return posterior.sample_and_kl(means, log_sigmas, form)
