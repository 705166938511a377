"""A padded batch as the packed sequences that it holds, so that no step of padding is computed.

    mask[:, b] = 0 ... 0 1 ... 1 0 ... 0        one stretch of real steps in every sequence
    packed step s of sequence b = padded step first[b] + s

A layer copies its state over padding. From a zero state its output there is zero on the side where it begins, and its
last state on the side where it ends. A GPU takes a batch as it is, because its graphs have one shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stretches:
    """Where the real steps of a batch are, the longest sequence first."""

    first: Tensor  # (B,)
    order: Tensor  # (B,)
    undo: Tensor  # (B,)
    sizes: Tensor  # (longest,) how many sequences have packed step s
    places: Tensor  # (N,) of the packed steps, in a padded batch with time and sequences as one axis

    @property
    def at_the_front(self) -> bool:
        """Whether every sequence begins with the first step."""
        return not self.first.any()

    def pack(self, x: Tensor) -> Tensor:  # (T, B, I) -> (N, I)
        return x.flatten(0, 1).index_select(0, self.places)

    def pad(self, output: Tensor, last: Tensor, steps: int) -> Tensor:  # (N, D*H), (D, B, H) -> (T, B, D*H)
        """`last` is the h that each direction ends with, in the caller's order of sequences."""
        zero = torch.zeros_like(last[0])
        before = torch.cat([zero, *last[1:]], dim=-1)
        after = torch.cat([last[0], *(zero for _ in last[1:])], dim=-1)
        step = torch.arange(steps, device=self.first.device)[:, None, None]
        around = torch.where(step < self.first[:, None], before, after)
        return around.flatten(0, 1).index_copy(0, self.places, output).view(around.shape)


def stretches_of(mask: Tensor) -> Stretches | None:  # (T, B) bool
    """None where sequences have gaps or no step at all, and where lengths must not decide what is computed."""
    if not mask.is_cpu or type(mask) is not Tensor or one_way_for_all():  # a fake tensor has no values
        return None
    lengths, first = mask.sum(0), mask.int().argmax(0)
    step = torch.arange(len(mask), device=mask.device)[:, None]
    whole = mask == ((step >= first) & (step < first + lengths))
    if not bool(whole.all() & lengths.all()) or not lengths.numel():
        return None
    lengths, order = lengths.sort(descending=True, stable=True)
    step = step[: int(lengths[0])]
    real = step < lengths  # (longest, B)
    places = ((first[order] + step) * len(order) + order)[real]
    return Stretches(first, order, order.argsort(), real.sum(1), places)


def one_way_for_all() -> bool:
    """Whether what runs now stands for other calls: compiled, traced, or mapped over by torch.func."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    traced = traced or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    return traced or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
