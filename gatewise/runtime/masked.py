"""Masks and last steps of sequences that were not packed, in a chain.

    out * mask    out.masked_fill(~mask, -inf)    out[torch.arange(B), lengths - 1]

A layer that runs forward has read no padding where a sequence ends, so steps up to there are those of packed
sequences. A mask puts zeros, or -inf, behind them, as pad_packed_sequence() does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from gatewise.readers.names import KEEPS_ZERO
from gatewise.runtime.packed import PackedWalk
from gatewise.runtime.steps import OneStep, Step, Value, axis_at, with_last_step

MULTIPLIES = ("mul", "imul", "mul_")
MASKS = (*MULTIPLIES, "masked_fill", "masked_fill_", "where")
HOW = (
    "With lengths from the arguments of forward() write mask = (torch.arange(out.size(1)) < lengths[:, None])"
    ".unsqueeze(-1), or of words mask = (x != pad).unsqueeze(-1), and out * mask before a sum, "
    'out.masked_fill(~mask, float("-inf")) before a maximum.'
)
NOT_YET = (
    "There the engine knows masks of words alone, emb(x) * (x != pad).unsqueeze(-1). Leave other masks out: a layer "
    "that runs forward has read no padding where a sequence ends."
)
BELOW_ALL = float(torch.finfo(torch.float32).min)
LOW = -1e4  # below all that a recurrent layer or a function with a lower bound gives
BOUNDED = ("relu", "tanh", "sigmoid")


class MaskedWalk(PackedWalk):
    """The part of a walk that knows which steps are of a sequence."""

    def masked(self, node: fx.Node, name: str, args: list[Any]) -> Value:
        """out * mask, out.masked_fill(~mask, number), torch.where(mask, out, number)"""
        given = (*node.args, *node.kwargs.values())
        at = next(k for k, value in enumerate(args) if isinstance(value, Value))
        x: Value = args[at]
        if x.at is not None:
            way = "A mask goes behind the loop: torch.stack(outs, 1) * mask."
            raise self.refuse(node, f"{name}() of one step of a loop", way)
        mask = self.of_lengths(given[1 - at]) if at < 2 else None
        wanted = "outside" if name.startswith("masked_fill") else "inside"
        fits = mask is not None and mask.holds == wanted and self.fits(mask, x) and x.steps
        if not fits or len(given) != (2 if name in MULTIPLIES else 3):
            if self.time is None:
                raise self.refuse(node, f"{name}() before the first recurrent layer", NOT_YET)
            raise self.refuse(node, f"{name}() by anything but a mask of the lengths", HOW)
        filler = 0 if name in MULTIPLIES else given[2]
        if not isinstance(filler, int | float) or (filler != 0 and not is_lowest(filler, x)):
            raise self.refuse(
                node, f"a mask puts {filler} behind sequences, not 0, or -inf for a maximum", HOW
            )
        self.refuse_unlike(node, x)
        self.least = 1
        return replace(x, padding=-math.inf if filler else 0.0, alike=not filler and gives_zeros(x.steps))

    def last_of_each(self, node: fx.Node, x: Value) -> Value | None:
        """out[arange(B), lengths - 1]: the last step of every sequence."""
        index = node.args[1]
        if len(x.axes) != 3 or x.axes[-1] != "C" or not isinstance(index, tuple):
            return None
        items = dict(zip(x.axes, index))
        rest = all(item in (slice(None), Ellipsis) for item in index[2:])
        batch, time = items.get(self.batch_axis), items.get(self.time)
        if not rest or not self.holds(batch, "batch") or not self.holds(time, "last"):
            return None
        return self.ends(x)

    def gathered(self, node: fx.Node, x: Value) -> OneStep:
        """out.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.size(2)))"""
        given = dict(zip(("input", "dim", "index"), node.args)) | node.kwargs
        dim, t = given.get("dim"), self.of_lengths(given.get("index")) if len(given) == 3 else None
        same = t is not None and t.holds == "last" and len(t.axes) == len(x.axes) and self.fits(t, x)
        # An axis of length 1 takes the first only: of channels, that would not be all.
        single = [axis for axis, size in zip(x.axes, t.axes) if size == 1] if t is not None and same else []
        if single != [self.time] or axis_at(x, dim) != self.time:
            way = "Write out[torch.arange(out.size(0)), lengths - 1]."
            raise self.refuse(node, "gather() of anything but the last step of each sequence", way)
        return OneStep(self.ends(x), x.axes.index(self.time))

    def ends(self, x: Value) -> Value:
        """The last step of every sequence; without one, forward() would take that of the padding."""
        self.least = 1 if x.padding is None else self.least
        axes = tuple(axis for axis in x.axes if axis != self.time)
        return Value(with_last_step(x.steps), axes, squeezed=x.squeezed)


def is_lowest(filler: float, x: Value) -> bool:
    """Whether no step of x is below a number, so that it changes no maximum."""
    last = x.steps[-1]
    bounded = last.kind == "recurrent" or (last.kind == "pointwise" and last.name in BOUNDED)
    return filler <= (LOW if bounded else BELOW_ALL)


def gives_zeros(steps: tuple[Step, ...]) -> bool:
    """Whether a chain has zeros behind the ends: after a recurrent layer, and after functions with f(0) = 0."""
    behind = next((k for k, step in enumerate(reversed(steps)) if step.kind == "recurrent"), None)
    return behind is not None and all(
        step.kind == "pointwise" and step.name in KEEPS_ZERO for step in steps[len(steps) - behind :]
    )
