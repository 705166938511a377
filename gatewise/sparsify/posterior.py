"""Factorised normal posterior, log alpha, KL to the log-uniform prior."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG_ALPHA_BOUND = 8.0  # log alpha is clipped to +-8 in the KL, whose gradient is exactly zero outside
CHUNK = 1 << 16  # elements per pass on the CPU: what one pass touches stays in the cache


# KL(log alpha) = 0.5 log(1 + 1/alpha) - K1 sigmoid(K2 + K3 log alpha) + CONSTANT, of the code behind the paper's
# Bayesian rows. What Molchanov et al. published is larger by 0.67, and its slopes are within 1.3 % of these.
K1, K2, K3, CONSTANT = 0.64, 1.5 * 1.3, 1.5, -0.03


def log_alpha(mean: Tensor, log_sigma: Tensor) -> Tensor:
    """log alpha = log(sigma^2 / m^2) = 2 log sigma - log m^2, infinite where m = 0."""
    return 2 * log_sigma - mean.square().log()


def kept(mean: Tensor, log_sigma: Tensor, snr_threshold: float) -> Tensor:
    """Whether the signal-to-noise ratio m^2 / sigma^2 = 1 / alpha exceeds the threshold."""
    if mean.dtype == torch.float16:  # whose smallest number is the square of 0.008
        mean, log_sigma = mean.float(), log_sigma.float()
    # Paper: SNR below 0.05. The authors' code tests log alpha > 3, an SNR of 0.0498. We follow the paper.
    return log_alpha(mean, log_sigma) < -math.log(snr_threshold)


def kl(log_alpha: Tensor) -> Tensor:
    """The approximate KL from a normal with this log alpha to the log-uniform prior, element by element."""
    clipped = log_alpha.clamp(-LOG_ALPHA_BOUND, LOG_ALPHA_BOUND)
    return 0.5 * F.softplus(-clipped) - K1 * torch.sigmoid(K2 + K3 * clipped) + CONSTANT


def kl_of(mean: Tensor, log_sigma: Tensor) -> Tensor:
    """`kl`, element by element, with a gradient of zero where the mean is zero."""
    squares = mean.square().clamp_min(torch.finfo(mean.dtype).tiny)
    return kl(2 * log_sigma - squares.log())


def kl_sum_(log_alpha: Tensor) -> Tensor:
    """The sum of `kl` in few passes, with softplus(-x) as -log sigmoid(x); overwrites its argument."""
    log_alpha.clamp_(-LOG_ALPHA_BOUND, LOG_ALPHA_BOUND)
    second = (log_alpha * K3).add_(K2).sigmoid_().sum()
    first = log_alpha.sigmoid_().log_().sum()
    return CONSTANT * log_alpha.numel() - 0.5 * first - K1 * second


def kl_slope(log_alpha: Tensor) -> Tensor:
    """d KL / d log alpha = -0.5 sigmoid(-log alpha) - k1 k3 s (1 - s), and 0 where log alpha is clipped."""
    s = (log_alpha * K3).add_(K2).sigmoid_()
    slope = (s * s).sub_(s).mul_(K1 * K3).sub_(torch.sigmoid(-log_alpha), alpha=0.5)
    # The gradient of clipping: what came in, where the bound was not reached.
    result = torch.ops.aten.hardtanh_backward(slope, log_alpha, -LOG_ALPHA_BOUND, LOG_ALPHA_BOUND)
    assert isinstance(result, Tensor)
    return result


def keep(ctx: Any, *tensors: Tensor) -> None:
    """As save_for_backward, for a way back that may be taken twice: for the loss and for the KL, each by itself."""
    ctx.kept, ctx.versions = tensors, versions_of(tensors)


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """How often each was changed in place; inference mode does not count, nor is there a way back from it."""
    return [0 if t.is_inference() else t._version for t in tensors]


def kept_tensors(ctx: Any) -> tuple[Tensor, ...]:
    if versions_of(ctx.kept) != ctx.versions:
        raise RuntimeError(
            "A parameter was changed in place between forward() and backward(): its gradient would be wrong. Call "
            "backward() on loss and penalty before the optimizer's step."
        )
    kept: tuple[Tensor, ...] = ctx.kept
    return kept


class SampleAndKL(torch.autograd.Function):
    """w = m + sigma eps, eps ~ N(0, 1), for every tensor, and the sum of all their KL terms.

        dm         = dw           - (2 / m) KL'(log alpha) dKL
        dlog_sigma = dw (w - m)   + 2 KL'(log alpha) dKL

    One function for both, so that means and log sigmas are read once. Nothing but w and m is needed to go back
    through the sample: sigma eps is w - m.
    """

    @staticmethod
    def forward(ctx: Any, n: int, draw: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        means, log_sigmas = tensors[:n], tensors[n:]
        samples = [torch.empty_like(m, memory_format=torch.contiguous_format) if draw else m for m in means]
        total = means[0].new_zeros(
            (), dtype=torch.float64 if means[0].dtype == torch.float64 else torch.float32
        )
        for m, ls, w in zip(means, log_sigmas, samples):
            for part_m, part_ls, part_w in chunks(m, ls, w):
                if draw:
                    part_w.normal_().mul_(part_ls.exp()).add_(part_m)
                total += kl_sum_(log_alpha(part_m, part_ls))
        ctx.set_materialize_grads(False)
        ctx.n = n
        # Detached: an output that knows its function, which knows the output, would never be freed.
        keep(ctx, *means, *log_sigmas, *(w.detach() for w in samples))
        return (*samples, total) if draw else (total,)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *sample_grads, kl_grad = grads if len(grads) > 1 else (*[None] * ctx.n, grads[0])
        means, log_sigmas, samples = (kept_tensors(ctx)[k * ctx.n : (k + 1) * ctx.n] for k in range(3))
        mean_grads = [torch.empty_like(m, memory_format=torch.contiguous_format) for m in means]
        sigma_grads = [torch.empty_like(m, memory_format=torch.contiguous_format) for m in means]
        for k, grad in enumerate(sample_grads):
            given = samples[k] if grad is None else grad.contiguous()
            parts = chunks(means[k], log_sigmas[k], samples[k], given, mean_grads[k], sigma_grads[k])
            for m, ls, w, g, dm, dls in parts:
                if grad is None:
                    dm.zero_()
                    dls.zero_()
                else:
                    dm.copy_(g)
                    torch.sub(w, m, out=dls).mul_(g)
                if kl_grad is not None:
                    pull = kl_slope(log_alpha(m, ls)).mul_(2 * kl_grad)
                    dls += pull
                    # 1 / m as m / m^2: a mean of zero has an infinite log alpha, which is clipped, so that its pull
                    # is zero; the bound keeps 0 / 0 out of it.
                    dm.addcmul_(pull, m / (m * m).clamp_min_(torch.finfo(m.dtype).tiny), value=-1)
        return (None, None, *mean_grads, *sigma_grads)


def chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The tensors cut alike into flat pieces that fit the cache; whole on a GPU, where launches cost more."""
    flat = [t.reshape(-1) for t in tensors]
    size = flat[0].numel() if flat[0].is_cuda else CHUNK
    return list(zip(*(t.split(max(size, 1)) for t in flat)))


def sample_and_kl(means: Sequence[Tensor], log_sigmas: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """One sample of every tensor, and the sum of their KL terms; gradients flow to means and log sigmas."""
    *samples, total = SampleAndKL.apply(len(means), True, *means, *log_sigmas)  # type: ignore[no-untyped-call]
    return samples, total


def total_kl(means: Sequence[Tensor], log_sigmas: Sequence[Tensor]) -> Tensor:
    """The sum of the KL terms alone, for when no sample is drawn."""
    (total,) = SampleAndKL.apply(len(means), False, *means, *log_sigmas)  # type: ignore[no-untyped-call]
    assert isinstance(total, Tensor)
    return total
