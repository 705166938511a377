"""Channels on their way through a chain, and the normalisations that the matrix behind them takes in.

    channel c  =  scale[c] * x[c] + shift[c]

where x is what the last link hands over. Nothing hands over a removed channel: it is the constant shift[c]. A matrix
that reads them is  W (scale * x + shift) + b  =  (W scale) x + (W shift + b),  which needs neither kernel nor node of
its own; computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Channels:
    """Which channels travel, and what is still to be done to them."""

    kept: Ints  # (K,) original numbers of those that a link hands over, in order
    scale: Doubles  # (C,)
    shift: Doubles  # (C,)

    @classmethod
    def plain(cls, kept: Ints, width: int) -> Channels:
        return cls(kept, np.ones(width), np.zeros(width))

    @property
    def width(self) -> int:
        return len(self.scale)

    @property
    def constants(self) -> Doubles:
        """What the removed channels are worth."""
        return np.delete(self.shift, self.kept)

    @property
    def settled(self) -> bool:
        """Whether the kept channels are what the last link hands over."""
        return bool((self.scale[self.kept] == 1).all()) and not self.shift[self.kept].any()

    def then(self, scale: Doubles, shift: Doubles) -> Channels:  # (C,), (C,)
        return replace(self, scale=self.scale * scale, shift=self.shift * scale + shift)

    def mapped(self, function: Callable[[Doubles], Doubles]) -> Channels:
        """After a function that a link applies to the kept channels: what it makes of the removed ones."""
        constant = Channels.plain(self.kept, self.width)
        shift = function(self.shift)
        shift[self.kept] = 0
        return replace(constant, shift=shift)

    def read(self, weight: Floats, inputs: Ints) -> tuple[Floats, Ints, Doubles]:
        """Columns that read kept channels, where those stand, and what is to be added to the bias."""
        at = np.searchsorted(self.kept, inputs).clip(max=max(len(self.kept) - 1, 0))
        present = self.kept[at] == inputs if len(self.kept) else np.zeros(len(inputs), bool)
        own, scale, shift = weight[:, present], self.scale[inputs[present]], self.shift[inputs]
        constant = weight.astype(np.float64) @ shift if shift.any() else np.zeros(len(weight))
        columns = own if (scale == 1).all() else (own * scale).astype(np.float32)
        return np.ascontiguousarray(columns), at[present], constant


def doubles(tensor: Tensor) -> Doubles:
    array: Doubles = tensor.detach().cpu().numpy().astype(np.float64)
    return array
