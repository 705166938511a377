"""pack_padded_sequence() and pad_packed_sequence() in a chain: both hand on what they are given.

Engine and exports end every recurrent layer at the length of its sequence and give zeros behind it. That is what a
forward() computes that packs with its lengths. A layer that reads padding, too, gives the same for the steps of each
sequence, if it runs forward; nothing else of it may reach the answer. They pool over the steps of each sequence, so
padding must change nothing: zeros in a sum, -inf in a maximum.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

from torch import fx
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatewise.readers.names import KEEPS_ZERO
from gatewise.runtime.lengths import LengthsWalk
from gatewise.runtime.steps import NO_PACKS, ChainError, Lengths, Packed, Size, Step, Value


class PackedWalk(LengthsWalk):
    """The part of a walk that knows what is behind the ends of sequences."""

    padded: ChainError | None  # what reads padding, of which the answer must be free where there are lengths

    def reads_padding(self, node: fx.Node | str, why: str, way: str = NO_PACKS) -> None:
        """If forward() knows where sequences end, here it does not heed that."""
        self.padded = self.padded or self.refuse(node, why, way)

    def take_batch(self, node: fx.Node | str, axis: Any) -> None:
        if self.batch_axis not in (None, axis):
            raise self.refuse(node, "it takes for time what another layer takes for the batch")
        self.batch_axis = axis

    def pack(self, node: fx.Node) -> Packed:
        given = arguments(pack_padded_sequence, node)
        x = self.value(given["input"])
        if not isinstance(x, Value) or len(x.axes) != 3 or x.axes[-1] != "C":
            raise self.refuse_packs(node, "what it packs is no sequence of channels")
        if not all(isinstance(given[flag], bool) for flag in ("batch_first", "enforce_sorted")):
            raise self.refuse_packs(node, "batch_first or enforce_sorted is computed by forward()")
        self.take_batch(node, x.axes[0 if given["batch_first"] else 1])
        if not self.holds(given["lengths"], "lengths"):
            raise self.refuse_packs(node, "its lengths are not an argument of forward(), as it was given")
        return Packed(x.steps)

    def pad(self, node: fx.Node) -> tuple[Value, Lengths]:
        given = arguments(pad_packed_sequence, node)
        x, total, filler = self.value(given["sequence"]), given["total_length"], given["padding_value"]
        if not isinstance(x, Packed) or self.batch_axis is None:
            raise self.refuse_packs(node, "what it pads was not packed")
        if not x.steps or x.steps[-1].kind != "recurrent":
            # In the chain only a recurrent layer gives zeros behind the end; a linear one gives its bias.
            raise self.refuse_packs(node, "what it pads does not come from a recurrent layer")
        if not isinstance(given["batch_first"], bool):
            raise self.refuse_packs(node, "batch_first is computed by forward()")
        if not isinstance(filler, int | float) or filler not in (0, -math.inf):
            raise self.refuse_packs(node, f"it pads with {filler} and not with zeros, or -inf for a maximum")
        frame = (self.batch_axis, self.time)
        if total is not None and self.value(total) != Size(self.time):
            raise self.refuse_packs(node, "total_length is not the length of the input")
        axes = (*(frame if given["batch_first"] else frame[::-1]), "C")
        return Value(x.steps, axes, padding=float(filler), alike=filler == 0, cut=total is None), Lengths()

    def then(self, node: fx.Node | str, x: Value, step: Step) -> Value:
        """x and one link more, which works on padding, too."""
        self.refuse_unlike(node, x)
        stays = x.padding is None or (step.kind == "pointwise" and step.name in KEEPS_ZERO)
        return replace(x, steps=(*x.steps, step), padding=x.padding if stays else math.nan)

    def refuse_unlike(self, node: fx.Node | str, x: Value) -> None:
        """In the chain there are zeros behind the ends, or what layers make of them."""
        if not x.alike:
            what = "-inf" if x.padding == -math.inf else "what a mask put there"
            way = f"Take the {'maximum' if x.padding == -math.inf else 'sum'} over time before anything else."
            raise self.refuse(node, f"behind the ends of sequences there is {what}", way)


def arguments(function: Any, node: fx.Node) -> dict[str, Any]:
    """What a call gives, by the names of the function's parameters."""
    bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.arguments
