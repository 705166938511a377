"""Held: weights that are zero and stay it, whatever an optimizer does to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Held(dict[str, Tensor]):
    """By parameter, True where it stays zero: frozen or not, since whoever decided it counts on it."""

    def on(self, name: str, device: torch.device) -> Tensor:
        if self[name].device != device:  # once, after the model has moved
            self[name] = self[name].to(device)
        return self[name]

    @torch.no_grad()
    def apply(self, parameter: Callable[[str], Tensor]) -> None:
        """w = 0 where it is held; `parameter` finds one by its name."""
        for name in self:
            own = parameter(name)
            own.masked_fill_(self.on(name, own.device), 0)
