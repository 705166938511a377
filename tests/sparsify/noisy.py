"""Converted models with noise large enough to see, and the KL summed one parameter at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gatewise as gw
from gatewise.sparsify.posterior import kl, log_alpha

close = torch.testing.assert_close


def noisy(model: nn.Module, **options: Any) -> Any:
    """A converted model with scales away from 1 and noise large enough to see."""
    sparsifier = gw.Variational(model, **{"n_train": 10, "log_sigma": -1.0} | options)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "scale" in name and "log_sigma" not in name:
                p.copy_(torch.randn_like(p))
    return sparsifier


def naive_kl(model: nn.Module) -> Tensor:
    """Every mean that has a log sigma, each parameter once."""
    total, seen = torch.zeros(()), set()
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            log_sigma = getattr(module, name + "_log_sigma", None)
            if log_sigma is not None and id(p) not in seen:
                seen.add(id(p))
                total = total + kl(log_alpha(p, log_sigma)).sum()
    return total


def gradients(step: Callable[[Any, Any], Any], **options: Any) -> dict[str, Tensor | None]:
    """After step(model, sparsifier), from the same weights and with the same noise every time."""
    torch.manual_seed(0)
    model = Checkpointed()
    sparsifier = noisy(model, **options)
    torch.manual_seed(1)
    step(model, sparsifier)
    return {name: p.grad for name, p in model.named_parameters()}


class Checkpointed(nn.Module):
    """Layers that are computed again on the way back, if asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.mid, self.fc = nn.LSTM(3, 4, 2, dropout=0.5), nn.Linear(4, 4), nn.Linear(4, 2)
        self.again: tuple[str, ...] = ()
        self.reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.run("rnn", x)
        return self.fc(self.run("mid", out))

    def run(self, name: str, x: Tensor) -> Any:
        layer = self.get_submodule(name)
        return checkpoint(layer, x, use_reentrant=self.reentrant) if name in self.again else layer(x)
