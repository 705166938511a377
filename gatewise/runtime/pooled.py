"""Mean and maximum over time in a chain: one vector for a sequence, whatever its length."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import fx

from gatewise.readers.values import listed
from gatewise.runtime.packed import PackedWalk
from gatewise.runtime.steps import Step, Value, WithUnitAxis, axis_at

REDUCTIONS = {"mean": "mean", "amax": "max", "max": "max"}
ADAPTIVE = {"adaptive_avg_pool1d": "mean", "adaptive_max_pool1d": "max"}
MODULE_ADAPTIVE = {"AdaptiveAvgPool1d": "mean", "AdaptiveMaxPool1d": "max"}


class Maximum(NamedTuple):
    """What x.max(dim) gives; where the maxima lie leads to no answer."""

    values: Value
    indices: None = None


class PooledWalk(PackedWalk):
    """The part of a walk that knows how the time axis goes."""

    def reduced(
        self, node: fx.Node, name: str, x: Value, args: list[Any], kwargs: dict[str, Any]
    ) -> Value | Maximum:
        """x.mean(1), x.amax(1), x.max(1)"""
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
        if x.padded:
            raise self.refuse_packs(node, f"the {pool} is over the padding behind the sequences, too")
        axes = tuple(axis for axis in x.axes if axis != self.time)
        return Value((*x.steps, Step(pool)), axes, squeezed=x.squeezed)
