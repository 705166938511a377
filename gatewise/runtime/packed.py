"""pack_padded_sequence() and pad_packed_sequence() in a chain: both hand on what they are given.

Engine and exports end every recurrent layer at the length of its sequence and give zeros behind it. That is what a
forward() computes that packs with an argument of its own, if every recurrent layer reads packed sequences. They pool
over the steps of each sequence, so padding must change nothing: zeros in a sum, -inf in a maximum.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatewise.readers.names import KEEPS_ZERO, PACKS, name_of
from gatewise.readers.record import is_written
from gatewise.readers.values import listed
from gatewise.runtime.steps import (
    NO_PACKS,
    ChainError,
    Lengths,
    Packed,
    Size,
    Step,
    Value,
    way_out,
    with_last_step,
)

# Methods that may leave lengths what they are, and types that hold them all.
SAME_NUMBERS = ("cpu", "cuda", "long", "int", "float", "detach", "to", "tolist")
TYPES = (torch.int64, torch.int32, torch.float32)


class PackedWalk:
    """The part of a walk that knows the lengths."""

    model: nn.Module
    values: dict[fx.Node, Any]
    batch_axis: int | None
    lengths: fx.Node | None  # the argument that forward() packs with
    unpacked: str  # a recurrent layer that reads every position, padding too

    def refuse(self, node: fx.Node | str, why: str, first: str = "") -> ChainError:
        ways = f"{first} {way_out(self.model)}".strip()
        return ChainError(f"{node}: {why}, so the model is not a chain of layers. {ways}")

    def refuse_packs(self, node: fx.Node | str, why: str) -> ChainError:
        return self.refuse(node, why, NO_PACKS)

    @property
    def time(self) -> int | None:
        """The axis of the input that a recurrent layer took for time."""
        return None if self.batch_axis is None else 1 - self.batch_axis

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
        if not self.is_lengths(given["lengths"]):
            raise self.refuse_packs(node, "its lengths are not an argument of forward(), as it was given")
        self.take_batch(node, x.axes[0 if given["batch_first"] else 1])
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
        return Value(x.steps, axes, padding=float(filler), cut=total is None), Lengths()

    def then(self, node: fx.Node | str, x: Value, step: Step) -> Value:
        """x and one link more, which works on padding, too."""
        self.refuse_lowest(node, x)
        stays = x.padding is None or (step.kind == "pointwise" and step.name in KEEPS_ZERO)
        return replace(x, steps=(*x.steps, step), padding=x.padding if stays else math.nan)

    def refuse_lowest(self, node: fx.Node | str, x: Value) -> None:
        """In the chain there are zeros behind the ends."""
        if x.padding == -math.inf:
            way = "Take the maximum over time before anything else."
            raise self.refuse(node, "behind the ends of sequences there is -inf", way)

    def value(self, node: Any) -> Any:
        return self.values.get(node) if isinstance(node, fx.Node) else None

    def is_lengths(self, node: Any) -> bool:
        """Whether a node is the argument that forward() packs with, or what pad_packed_sequence() gave in its place,
        with the same numbers. The first one that is asked for is that argument."""
        node = self.without_casts(node)
        if not isinstance(node, fx.Node) or is_written(node, self.model, self.values):
            return False
        if isinstance(self.values.get(node), Lengths):
            return True
        first = next(iter(node.graph.nodes))
        if node.op != "placeholder" or node is first or str(node.target).startswith("*"):
            return False
        self.lengths = self.lengths or node
        return node is self.lengths

    def without_casts(self, node: Any) -> Any:
        """What a node has its numbers from."""
        while isinstance(node, fx.Node) and node.op == "call_method" and node.target in SAME_NUMBERS:
            # A list may be sorted or appended to, which does not show in a graph.
            if node.target == "tolist" and any(name_of(user.target) not in PACKS for user in node.users):
                break
            others = (*node.args[1:], *node.kwargs.values())
            if others and (node.target != "to" or not all(map(self.keeps_numbers, others))):
                break
            node = node.args[0]
        return node

    def keeps_numbers(self, given: Any) -> bool:
        """A device, or a type that holds every length: stated, or that of channels."""
        if not isinstance(given, fx.Node):
            return given in TYPES or isinstance(given, str | torch.device | bool)
        if given.target is not getattr:
            return False
        source, what = given.args
        of = self.value(source)
        return what == "device" or (what == "dtype" and isinstance(of, Value) and "C" in of.axes)

    def is_column(self, node: Any) -> bool:
        """lengths.unsqueeze(1): (B, 1), to divide every channel by"""
        columns = 0
        while isinstance(node := self.without_casts(node), fx.Node) and node.args:
            name, rest = name_of(node.target), (*node.args[1:], *node.kwargs.values())
            if is_written(node, self.model, self.values):
                return False
            if (
                (name == "unsqueeze" and rest in ((1,), (-1,)))
                or (name in ("view", "reshape") and listed(rest) == (-1, 1))
                or (name == "getitem" and rest in (((slice(None), None),), ((Ellipsis, None),)))
            ):
                columns += 1
            elif name != "clamp" or rest != (1,) or "max" in node.kwargs:  # nothing shorter can be packed
                break
            node = node.args[0]
        return columns == 1 and self.is_lengths(node)

    def last_of_each(self, node: fx.Node, x: Value) -> Value | None:
        """out[arange(B), lengths - 1]: the last step of every sequence."""
        index = node.args[1]
        if x.padding is None or len(x.axes) != 3 or x.axes[-1] != "C" or not isinstance(index, tuple):
            return None
        items = dict(zip(x.axes, index))
        rest = all(item in (slice(None), Ellipsis) for item in index[2:])
        batch, time = items.get(self.batch_axis), items.get(self.time)
        if not rest or not self.counts_batch(batch) or not self.is_end(time):
            return None
        return Value(with_last_step(x.steps), (self.batch_axis, "C"))

    def counts_batch(self, node: Any) -> bool:
        """torch.arange(B)"""
        if not isinstance(node, fx.Node) or node.target is not torch.arange or len(node.args) != 1:
            return False
        size = self.value(node.args[0])
        whole = isinstance(size, Size) and size.axis == self.batch_axis
        return whole and set(node.kwargs) <= {"device"} and not is_written(node, self.model, self.values)

    def is_end(self, node: Any) -> bool:
        """lengths - 1"""
        if not isinstance(node, fx.Node) or name_of(node.target) != "sub" or node.kwargs:
            return False
        less, by = node.args[0], node.args[1:]
        return by == (1,) and self.is_lengths(less) and not is_written(node, self.model, self.values)


def arguments(function: Any, node: fx.Node) -> dict[str, Any]:
    """What a call gives, by the names of the function's parameters."""
    bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.arguments
