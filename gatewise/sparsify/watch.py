"""Layers of which nothing is left, noticed while they train: what noise hides, evaluation would show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import ending, places_of
from gatewise.readers.graph import block_name
from gatewise.sparsify.layers import LOG_SIGMA, RecurrentPosterior
from gatewise.sparsify.posterior import kept

EVERY = 100  # updates from one question to the next
IN_A_ROW = 5  # answers: a layer may sink and come back


class Watch:
    """empty(layer) = no m^2 / sigma^2 of its w_ih, or none of its z_h, is above the threshold, in any direction

    Such a layer says the same to every input. Every 100th update asks, and hears what was asked 100 updates before: a
    byte per layer, copied while the device goes on, so that no update waits for it. Five such answers in a row count.
    The first question comes before training, because wide layers or a large log sigma may begin below the threshold:
    only what was there can go.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.updates, self.told = model, 0, False
        self.empty_for: dict[str, int] = {}  # answers since there was something left, of layers that ever had
        self.asked: tuple[list[str], Tensor, torch.cuda.Event | None] | None = None
        self.ask()

    def update(self) -> list[str]:
        """Count an update; the layers that have become and stayed empty, once."""
        self.updates += 1
        if self.told or self.updates % EVERY or is_capturing() or self.must_wait():
            return []
        empty = self.hear()
        self.told = bool(empty)
        self.ask()
        return empty

    def must_wait(self) -> bool:
        """Whether the answer is still on its way; then it is heard 100 updates later."""
        copied = self.asked and self.asked[2]
        return copied is not None and not copied.query()

    def hear(self) -> list[str]:
        if self.asked is None:
            return []
        names, answer, _ = self.asked
        for name, some in zip(names, answer.tolist()):
            if some or name in self.empty_for:
                self.empty_for[name] = 0 if some else self.empty_for[name] + 1
        return [name for name, answers in self.empty_for.items() if answers >= IN_A_ROW]

    @torch.no_grad()
    def ask(self) -> None:
        left: dict[str, Tensor] = {}
        for path, module in self.model.named_modules():
            for layer, direction in places_of(module) if isinstance(module, RecurrentPosterior) else ():
                name, here = block_name(module, path, layer, 0), anything_left(module, layer, direction)
                left[name] = left[name] | here if name in left else here
        if not left:
            return
        answer = torch.stack(list(left.values()))
        copy = answer.to("cpu", non_blocking=answer.is_cuda)  # into pinned memory
        copied = torch.cuda.current_stream(answer.device).record_event() if answer.is_cuda else None
        self.asked = list(left), copy, copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "asked": None}  # an event belongs to its process


def is_capturing() -> bool:
    """A CUDA graph that is being captured must not read the host; replays call nothing here."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def anything_left(module: nn.Module, layer: int, direction: int) -> Tensor:  # () bool
    end = ending(module, layer, direction)
    found = []
    for name in ("weight_ih" + end, "neuron_scale" + end):
        mean, log_sigma = getattr(module, name, None), getattr(module, name + LOG_SIGMA, None)
        if mean is not None and log_sigma is not None:
            some = kept(mean, log_sigma, module.snr_threshold).any()  # type: ignore[arg-type]
            found.append(some | ~(mean.sum() + log_sigma.sum()).isfinite())  # NaN is another trouble
    return torch.stack(found).all()
