"""Averaged weights: what a run is judged by, and gives, in the last epochs of a part.

    m_n = m_{n-1} + (w_n - m_{n-1}) / n        after every update n of those epochs
    result = m_n where w_n != 0, else 0        so it has the structure that the last update left

While a penalty pulls, weights near zero come and go. Their means would be small, and hardly one of them zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Average:
    def __init__(self, model: nn.Module) -> None:
        self.weights = [p.detach() for p in model.parameters() if p.requires_grad]
        self.means = [w.clone() for w in self.weights]
        self.n = 0

    def add(self) -> None:
        self.n += 1
        torch._foreach_lerp_(self.means, self.weights, 1 / self.n)

    def take(self) -> None:
        """The mean becomes the network."""
        if self.n:
            result = [mean.masked_fill(w == 0, 0) for w, mean in zip(self.weights, self.means)]
            torch._foreach_copy_(self.weights, result)

    @contextmanager
    def judged(self) -> Iterator[None]:
        """The network is the mean, for a while; in its own memory, which a captured graph reads."""
        own = [w.clone() for w in self.weights]
        self.take()
        try:
            yield
        finally:
            torch._foreach_copy_(self.weights, own)

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n, "means": self.means}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.n = int(state["n"])
        torch._foreach_copy_(
            self.means, [mean.to(own) for mean, own in zip(state["means"], self.means, strict=True)]
        )
