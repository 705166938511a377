"""CUDA tensors go to the fused Triton kernels where Triton is present, all others to the plain torch twins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from gatewise.sparsify import matrices, posterior
from gatewise.sparsify.plan import Plan


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


def value_and_slopes(plan: Plan, mats: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The penalty, and the slope of every group; the last one is 0, of no group."""
    if not fusible(mats):
        return matrices.value_and_slopes(plan, mats)
    from gatewise.sparsify import triton_lasso

    return triton_lasso.value_and_slopes(plan.on(mats[0].device, mats[0].dtype), mats)


def gradient(
    plan: Plan,
    k: int,
    w: Tensor,
    slopes: Tensor,
    scale: Tensor | None = None,
    added_to: Tensor | None = None,
) -> Tensor:
    """scale * d penalty / d w of matrix k, plus `added_to`: in place, where that is as plain as the matrix."""
    plain = added_to is not None and added_to.layout == torch.strided and added_to.dtype == w.dtype
    in_place = plain and w.dtype.itemsize > 2
    into = added_to if in_place else None
    if fusible([w, slopes, *([into] if into is not None else [])]):
        from gatewise.sparsify import triton_lasso

        new = triton_lasso.gradient(plan, k, w, slopes, scale, into)
    else:
        new = matrices.gradient(plan, k, w, slopes, scale, into)
    return new if added_to is None or in_place else new.add_(added_to)


def threshold_(mats: Sequence[Tensor], threshold: float) -> None:
    """w = 0 where |w| < threshold, in place."""
    if not fusible(mats):
        return matrices.threshold_(mats, threshold)
    from gatewise.sparsify import triton_lasso

    return triton_lasso.threshold_(mats, threshold)


def sample_and_kl(means: Sequence[Tensor], log_sigmas: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """One sample of every tensor, and the sum of their KL terms."""
    if not fusible([*means, *log_sigmas]):
        return posterior.sample_and_kl(means, log_sigmas)
    from gatewise.sparsify import triton_posterior

    return triton_posterior.sample_and_kl(means, log_sigmas)
