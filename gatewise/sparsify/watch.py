"""Layers of which nothing is left, noticed while they train: what noise hides, evaluation would show."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import ending, places_of
from gatewise.readers.graph import block_name
from gatewise.sparsify.layers import LOG_SIGMA, RecurrentPosterior
from gatewise.sparsify.posterior import kept

EVERY = 100  # updates from one look to the next, so that the device is waited for once in so many
IN_A_ROW = 5  # looks: a layer may sink and come back


class Watch:
    """empty(layer) = no m^2 / sigma^2 of its w_ih, or none of its z_h, is above the threshold, in any direction

    Such a layer says the same to every input. The first look is before training, because wide layers or a large log
    sigma may begin below the threshold: only what was there can go.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.updates, self.told = model, 0, False
        self.empty_for: dict[str, int] = {}  # looks since there was something left, of layers that ever had
        self.look()

    def update(self) -> list[str]:
        """Count an update; the layers that have become and stayed empty, once."""
        self.updates += 1
        if self.told or self.updates % EVERY or is_capturing():
            return []
        self.look()
        empty = [name for name, looks in self.empty_for.items() if looks >= IN_A_ROW]
        self.told = bool(empty)
        return empty

    def look(self) -> None:
        left: dict[str, bool] = {}
        for path, module in self.model.named_modules():
            for layer, direction in places_of(module) if isinstance(module, RecurrentPosterior) else ():
                name = block_name(module, path, layer, 0)
                left[name] = left.get(name, False) or anything_left(module, layer, direction)
        for name, some in left.items():
            if some or name in self.empty_for:
                self.empty_for[name] = 0 if some else self.empty_for[name] + 1


def never_moved(log_sigmas: Sequence[Tensor]) -> bool:
    """Whether all have gradients and are still as they were made, one number each: no optimizer has them."""
    return all(p.grad is not None and bool((p == p.flatten()[:1]).all()) for p in log_sigmas)


def is_capturing() -> bool:
    """A CUDA graph that is being captured must not read the host; replays call nothing here."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@torch.no_grad()
def anything_left(module: nn.Module, layer: int, direction: int) -> bool:
    end = ending(module, layer, direction)
    for name in ("weight_ih" + end, "neuron_scale" + end):
        mean, log_sigma = getattr(module, name, None), getattr(module, name + LOG_SIGMA, None)
        if mean is None or log_sigma is None:
            continue
        finite = (mean.sum() + log_sigma.sum()).isfinite()  # NaN is another trouble
        if finite and not kept(mean, log_sigma, module.snr_threshold).any():  # type: ignore[arg-type]
            return False
    return True
