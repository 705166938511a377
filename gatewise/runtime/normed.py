"""Normalisations in a chain: BatchNorm1d, in evaluation y = scale * x + shift for every channel, and LayerNorm over
the channels of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from gatewise.runtime.pooled import PooledWalk
from gatewise.runtime.steps import Size, Step, Value, width_of

NORMS = ("BatchNorm1d", "LayerNorm")


class NormedWalk(PooledWalk):
    """The part of a walk that knows on which axis a normalisation finds the channels."""

    def normed(self, name: str, module: nn.Module, x: Value) -> Value:
        """bn(x), x (B, C), rows (B * T, C) or (B, C, T); ln(x), x (..., C)"""
        if isinstance(module, nn.LayerNorm):
            if len(module.normalized_shape) != 1 or x.axes[-1] != "C":
                raise self.refuse(name, "LayerNorm normalises anything but the channels, the last axis")
            return self.then(name, x, Step("layer_norm", name, module))
        assert isinstance(module, nn.BatchNorm1d)
        if module.running_mean is None or module.running_var is None:
            way = "Train it with track_running_stats=True."
            raise self.refuse(name, "it takes the statistics of each batch, in evaluation, too", way)
        if len(x.axes) < 2 or x.axes[1] != "C":
            way = "Write bn(x.transpose(1, 2)).transpose(1, 2) for an x (B, T, C)."
            raise self.refuse(name, "BatchNorm1d normalises axis 1, where the channels are not", way)
        return self.then(name, x, Step("batch_norm", name, module))

    def as_sequences(self, name: str, x: Value, sizes: tuple[Any, ...]) -> Value | None:
        """rows.view(B, T, C): rows as the sequences that they were flattened from"""
        rows = x.axes[0] if len(x.axes) == 2 else None
        if (
            name not in ("view", "reshape")
            or not isinstance(rows, tuple)
            or len(sizes) != 3
            or sizes.count(-1) > 1
        ):
            return None
        frame = all(given == -1 or self.is_length(x, axis, given) for axis, given in zip(rows[1:], sizes))
        whole = frame and sizes[2] in (-1, Size("C"), width_of(x.steps))
        return replace(x, axes=(*rows[1:], "C")) if whole else None

    def is_length(self, x: Value, axis: Any, size: Any) -> bool:
        """Whether a size is that of an axis; time may have been cut to the longest sequence, the batch never is."""
        return isinstance(size, Size) and size.axis == axis and (axis == self.batch_axis or size.cut == x.cut)
