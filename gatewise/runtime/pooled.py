"""Mean, maximum and sum over time in a chain: one vector for a sequence, whatever its length."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from torch import fx

from gatewise.runtime.masked import MaskedWalk
from gatewise.runtime.steps import Size, Step, Value, WithUnitAxis, axis_at, listed

REDUCTIONS = {"mean": "mean", "amax": "max", "max": "max", "sum": "sum"}
ADAPTIVE = {"adaptive_avg_pool1d": "mean", "adaptive_max_pool1d": "max"}
MODULE_ADAPTIVE = {"AdaptiveAvgPool1d": "mean", "AdaptiveMaxPool1d": "max"}
# How each is written over the steps of a sequence alone, whatever else is in the batch.
OWN_STEPS = {
    "mean": "Divide a sum by lengths: (out * mask).sum(1) / mask.sum(1), packed out.sum(1) / lengths.unsqueeze(1).",
    "max": 'Before a maximum write masked_fill(~mask, float("-inf")), packed padding_value=float("-inf").',
    "sum": "Sum out * mask, or what pad_packed_sequence() gives, with zeros, before another layer reads it.",
}


class Maximum(NamedTuple):
    """What x.max(dim) gives; where the maxima lie leads to no answer."""

    values: Value
    indices: None = None


class PooledWalk(MaskedWalk):
    """The part of a walk that knows how the time axis goes."""

    def reduced(
        self, node: fx.Node, name: str, x: Value, args: list[Any], kwargs: dict[str, Any]
    ) -> Value | Maximum:
        """x.mean(1), x.amax(1), x.max(1), x.sum(1)"""
        given = dict(zip(("dim", "keepdim"), args)) | kwargs
        given.pop("input", None)
        dims = listed((given.pop("axis", given.pop("dim", None)),))
        if len(dims) != 1 or any(given.values()) or axis_at(x, dims[0]) != self.time:
            raise self.refuse(node, f"{name}() over anything but time, or that keeps the axis")
        pooled = self.pooled(node, REDUCTIONS[name], x)
        return Maximum(pooled) if name == "max" else pooled

    def adaptive(
        self, node: fx.Node | str, pool: str, x: Value, size: Any, indices: Any = False
    ) -> WithUnitAxis:
        """adaptive_max_pool1d(x, 1), x (B, C, T)"""
        if len(x.axes) != 3 or x.axes[-1] != self.time or listed((size,)) != (1,) or indices:
            raise self.refuse(
                node, "it pools over anything but time, the last axis, or to more than one step"
            )
        return WithUnitAxis(self.pooled(node, pool, x))

    def without_unit_axis(self, node: fx.Node, name: str, x: WithUnitAxis, args: list[Any]) -> Value:
        """x.squeeze(-1), x.flatten(1)"""
        if (name, *args) not in (("squeeze", -1), ("squeeze", 2), ("flatten", 1)):
            raise self.refuse(node, f"{name}() of a pooled step, whose axis of length 1 must go first")
        return x.value

    def pooled(self, node: fx.Node | str, pool: str, x: Value) -> Value:
        if all(step.kind != "recurrent" for step in x.steps):
            raise self.refuse(node, f"the {pool} is not over steps of a recurrent layer")
        why = f"the {pool} is over the padding behind sequences, too"
        if x.padding is None:
            self.reads_padding(node, why, OWN_STEPS[pool])
        elif not skips_padding(pool, x):
            raise self.refuse(node, why, OWN_STEPS[pool])
        axes = tuple(axis for axis in x.axes if axis != self.time)
        return Value((*x.steps, Step(pool)), axes, squeezed=x.squeezed)

    def divided(self, node: fx.Node, name: str, x: Value) -> Value:
        """x.sum(1) / lengths.unsqueeze(1), without packing x.sum(1) / x.size(1): the mean"""
        if x.steps[-1:] != (Step("sum"),):
            raise self.refuse(node, f"{name}() is not a link of a chain")
        by = node.args[1] if len(node.args) == 2 and not node.kwargs else None
        if self.lengths is None:
            if self.value(by) != Size(self.time):
                why = "it divides a sum over time by anything but how many steps there are"
                raise self.refuse(node, why, OWN_STEPS["mean"])
        elif (t := self.of_lengths(by)) is None or t.holds != "lengths" or not self.fits(t, x):
            way = "Divide by mask.sum(1), by those of pad_packed_sequence(), or of forward(): lengths.unsqueeze(1)."
            raise self.refuse(node, "it divides a sum by anything but the lengths in a column (B, 1)", way)
        return replace(x, steps=(*x.steps[:-1], Step("mean")))


def skips_padding(pool: str, x: Value) -> bool:
    """Whether a pool is the same without padding: a sum of zeros, a maximum of -inf, or of zeros behind relu()."""
    if pool == "max" and x.steps[-1] != Step("pointwise", "relu"):
        return x.padding == -math.inf
    return pool != "mean" and x.padding == 0
