"""Weight samples, their KL divergence and both gradients, in one pass over all parameters at once."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gatewise.sparsify.posterior import CONSTANT, K1, K2, K3, keep, kept_tensors

QUARTER = 256
CHUNK = 4 * QUARTER  # numbers of one program; Philox gives four at a time
# Of a row of the table: address of mean, of log sigma, numbers in the chunk, place in the flat buffer.
WORDS = 4
# Every tensor begins at a multiple of so many numbers: a matrix that begins elsewhere, as behind a vocabulary of odd
# size, gets a kernel of cuBLAS that loads single numbers.
ALIGNED = 32


@triton.jit
def chunk_of(table):
    """One row of the table: the means, the log sigmas, how many, and where they lie in the flat buffer."""
    row = table + tl.program_id(0) * 4
    mean = tl.load(row).to(tl.pointer_type(tl.float32))
    log_sigma = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    return mean, log_sigma, tl.load(row + 2), tl.load(row + 3)


@triton.jit
def clipped_log_alpha(m, log_sigma):
    """log alpha = 2 log sigma - log m^2, clipped to [-8, 8], and whether it lay inside. m = 0 gives 8."""
    raw = 2 * (log_sigma - tl.log(tl.abs(m)))
    inside = (raw >= -8) & (raw <= 8)
    return tl.where(raw > 8, 8.0, tl.where(raw < -8, -8.0, raw)), inside


@triton.jit
def sample_kernel(table, seed, flat, partial, k1, k2, k3, constant, QUARTER: tl.constexpr):
    """w = m + sigma eps,   KL = 0.5 log(1 + 1/alpha) - k1 sigmoid(k2 + k3 log alpha) + constant."""
    mean, log_sigma, length, place = chunk_of(table)
    lane = tl.arange(0, QUARTER)
    noise = tl.randn4x(tl.load(seed), tl.program_id(0) * QUARTER + lane)
    total = tl.zeros((QUARTER,), dtype=tl.float32)
    for quarter in tl.static_range(4):
        at = quarter * QUARTER + lane
        ok = at < length
        m = tl.load(mean + at, mask=ok, other=1.0)
        ls = tl.load(log_sigma + at, mask=ok, other=0.0)
        tl.store(flat + place + at, m + tl.exp(ls) * noise[quarter], mask=ok)
        la, _ = clipped_log_alpha(m, ls)
        kl = 0.5 * tl.log(1 + tl.exp(-la)) - k1 * tl.sigmoid(k2 + k3 * la) + constant
        total += tl.where(ok, kl, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def gradient_kernel(table, seed, d_flat, d_kl, d_mean, d_log_sigma, k1, k2, k3, QUARTER: tl.constexpr):
    """dm = dw + dKL/dm,   dlog sigma = dw sigma eps + dKL/dlog sigma,   with the noise drawn again."""
    mean, log_sigma, length, place = chunk_of(table)
    lane = tl.arange(0, QUARTER)
    noise = tl.randn4x(tl.load(seed), tl.program_id(0) * QUARTER + lane)
    weight = tl.load(d_kl)
    for quarter in tl.static_range(4):
        at = quarter * QUARTER + lane
        ok = at < length
        m = tl.load(mean + at, mask=ok, other=1.0)
        ls = tl.load(log_sigma + at, mask=ok, other=0.0)
        dw = tl.load(d_flat + place + at, mask=ok, other=0.0)
        la, inside = clipped_log_alpha(m, ls)
        x = k2 + k3 * la
        slope = weight * (-0.5 * tl.sigmoid(-la) - k1 * k3 * tl.sigmoid(x) * tl.sigmoid(-x))
        dm = tl.where(inside, -2 * slope / m, 0.0)
        dls = tl.where(inside, 2 * slope, 0.0)
        tl.store(d_mean + place + at, dw + dm, mask=ok)
        tl.store(d_log_sigma + place + at, dw * tl.exp(ls) * noise[quarter] + dls, mask=ok)


@functools.cache  # never dropped: a captured graph may still read it
def chunk_table(places: tuple[tuple[int, int, int], ...], device: torch.device) -> Tensor:
    """(chunks, WORDS) int64, from (address of the means, of the log sigmas, numbers) of every tensor."""
    rows, place = [], 0
    for mean, log_sigma, size in places:
        for start in range(0, size, CHUNK):
            rows.append((mean + 4 * start, log_sigma + 4 * start, min(CHUNK, size - start), place + start))
        place += size + gap(size)
    return torch.tensor(rows, dtype=torch.int64).view(-1, WORDS).to(device)


def gap(size: int) -> int:
    """Unused numbers behind a tensor of this size in a flat buffer."""
    return -size % ALIGNED


def table_of(means: Sequence[Tensor], log_sigmas: Sequence[Tensor]) -> Tensor:
    for tensor in (*means, *log_sigmas):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(
                f"sample_and_kl needs contiguous float32 tensors, got {tensor.dtype} {tuple(tensor.shape)} with "
                f"strides {tensor.stride()}. Use .contiguous() or gatewise.sparsify.posterior."
            )
    places = ((m.data_ptr(), ls.data_ptr(), m.numel()) for m, ls in zip(means, log_sigmas, strict=True))
    return chunk_table(tuple(places), means[0].device)


class SampleAndKL(torch.autograd.Function):
    """All samples as one flat tensor, and the sum of all KL divergences."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        means, log_sigmas = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        table = table_of(means, log_sigmas)
        # Drawn on the device by torch's generator: torch.manual_seed governs it, and a graph draws anew.
        seed = torch.randint(2**62, (1,), device=table.device)
        flat = means[0].new_empty(sum(laid_out(means)))
        partial = flat.new_empty(len(table))
        sample_kernel[(len(table),)](table, seed, flat, partial, K1, K2, K3, CONSTANT, QUARTER=QUARTER)
        keep(ctx, seed, *parameters)
        ctx.table = table
        return flat, partial.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_flat: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:
        seed, *parameters = kept_tensors(ctx)
        table = ctx.table
        d_mean, d_log_sigma = torch.empty_like(d_flat), torch.empty_like(d_flat)
        gradient_kernel[(len(table),)](
            table, seed, d_flat.contiguous(), d_kl, d_mean, d_log_sigma, K1, K2, K3, QUARTER=QUARTER
        )
        means = parameters[: len(parameters) // 2]
        return *cut(d_mean, means), *cut(d_log_sigma, means)


def laid_out(tensors: Sequence[Tensor]) -> list[int]:
    """Of a flat buffer: the numbers of every tensor, and the gap behind it."""
    return [size for m in tensors for size in (m.numel(), gap(m.numel()))]


def cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat tensor with the given shapes, one after the other. The gaps, too, are split off: of a slice
    the gradient would be copied once more."""
    return [part.view(m.shape) for part, m in zip(flat.split(laid_out(like))[::2], like)]


def sample_and_kl(
    means: Sequence[Tensor], log_sigmas: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:  # samples, shaped as the means; sum of KL, ()
    """w = m + sigma eps for all weights, and sum KL(alpha) with log alpha = 2 log sigma - log m^2 in [-8, 8].

        KL = 0.5 log(1 + 1/alpha) - K1 sigmoid(K2 + K3 log alpha) + CONSTANT

    The fused twin of `posterior.sample_and_kl`. Outside the range, and at m = 0, the KL has no gradient.
    """
    flat, kl = SampleAndKL.apply(*means, *log_sigmas)  # type: ignore[no-untyped-call]
    return cut(flat, means), kl
