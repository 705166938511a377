"""What forward() computes of the lengths of its sequences: columns to divide by, indices of last steps, masks.

    lengths (B)    lengths - 1    mask = torch.arange(T) < lengths[:, None] (B, T)    mask.sum(1) = lengths

By itself it leads to no answer. So it is looked at where a value on the path meets it, back to where it comes from:
an argument of forward(), or words, of which one says that a text is over (mask = x != pad).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from gatewise.readers.lines import line_of
from gatewise.readers.names import PACKS, name_of
from gatewise.readers.record import is_written
from gatewise.runtime.steps import NO_PACKS, ChainError, Lengths, Size, Value, listed, way_out, width_of

# Methods that leave whole numbers what they are, and types that hold them all.
SAME_NUMBERS = "cpu cuda detach contiguous clone long int float to type_as tolist".split()
TYPES = (torch.int64, torch.int32, torch.float32)
COMPARISONS = ("lt", "le", "gt", "ge", "ne", "eq")
# Which steps a comparison is true of.
TRUE = {
    ("time", "lt", "lengths"): "inside",
    ("time", "ge", "lengths"): "outside",
    ("lengths", "gt", "time"): "inside",
    ("lengths", "le", "time"): "outside",
}
OTHER = {"inside": "outside", "outside": "inside"}
Axes = tuple[Any, ...]


@dataclass(frozen=True)
class Pad:
    """A word that stands behind the end of every text, and nowhere else."""

    word: int


@dataclass(frozen=True)
class OfLengths:
    """A tensor that follows from the lengths.

    holds: "lengths"; "last": lengths - 1; "batch" and "time": 0, 1, 2, ... along that axis; "inside" and "outside":
    which steps are of a sequence, and which are padding.
    """

    holds: str
    axes: Axes  # Size of an axis of the input, or a number: all the same along it
    boolean: bool = False


class LengthsWalk:
    """The part of a walk that knows what lengths are."""

    model: nn.Module
    values: dict[fx.Node, Any]
    batch_axis: int | None
    lengths: fx.Node | Pad | None  # where the lengths come from
    least: int  # steps that a sequence must have: without one, forward() gives something else

    def refuse(self, node: fx.Node | str, why: str, first: str = "") -> ChainError:
        ways = f"{first} {way_out(self.model)}".strip()
        where = line_of(node) or node if isinstance(node, fx.Node) else node
        return ChainError(f"{where}: {why}, so the model is not a chain of layers. {ways}")

    def refuse_packs(self, node: fx.Node | str, why: str) -> ChainError:
        return self.refuse(node, why, NO_PACKS)

    @property
    def time(self) -> int | None:
        """The axis of the input that a recurrent layer took for time."""
        return None if self.batch_axis is None else 1 - self.batch_axis

    def value(self, node: Any) -> Any:
        return self.values.get(node) if isinstance(node, fx.Node) else None

    def is_from(self, source: fx.Node | Pad) -> bool:
        """The lengths come from one place; the first one that is asked for is it."""
        self.lengths = self.lengths or source
        self.least = 1 if isinstance(source, Pad) else self.least
        return self.lengths == source

    def holds(self, node: Any, what: str) -> bool:
        """Whether a tensor (B) holds one number for each sequence, of that kind."""
        return self.of_lengths(node) == OfLengths(what, (Size(self.batch_axis),))

    def fits(self, t: OfLengths, x: Value) -> bool:
        """Whether a tensor lies beside x as it is, each axis beside its own, and makes it no larger."""
        sizes = [self.plain(size) for size in x.sizes]
        pairs = zip(reversed(t.axes), reversed(sizes))
        width = width_of(x.steps)
        aligned = (a in (1, size) or (size.axis == "C" and a == width) for a, size in pairs)
        return len(t.axes) <= len(sizes) and all(aligned)

    def of_lengths(self, node: Any) -> OfLengths | None:
        """What is known of a tensor; None if it does not follow from the lengths alone."""
        if not isinstance(node, fx.Node) or is_written(node, self.model, self.values):
            return None
        given_back = isinstance(self.values.get(node), Lengths)  # by pad_packed_sequence()
        if given_back or (node.op == "placeholder" and self.is_argument(node)):
            return OfLengths("lengths", (Size(self.batch_axis),))
        if node.op not in ("call_function", "call_method") or not node.args:
            return None
        name, rest = name_of(node.target), node.args[1:]
        if node.target in (torch.arange, range):
            return self.counted(node)
        if name in COMPARISONS:
            return self.compared(name, *node.args) if len(rest) == 1 and not node.kwargs else None
        t = self.of_lengths(node.args[0])
        if t is None:
            return None
        if name in (*SAME_NUMBERS, "bool"):
            return self.cast(node, name, t, (*rest, *node.kwargs.values()))
        if name in OTHER_SHAPES:
            axes = OTHER_SHAPES[name](t.axes, self.sizes((*rest, *node.kwargs.values())))
            return None if axes is None else replace(t, axes=axes)
        return self.computed(name, t, rest, dict(node.kwargs))

    def is_argument(self, node: fx.Node) -> bool:
        first = next(iter(node.graph.nodes))
        return node is not first and not str(node.target).startswith("*") and self.is_from(node)

    def counted(self, node: fx.Node) -> OfLengths | None:
        """torch.arange(T), range(B)"""
        *start, end = node.args
        size = self.sizes_of(end)[0]
        types = node.kwargs.get("dtype", torch.int64) in TYPES and set(node.kwargs) <= {"device", "dtype"}
        if start not in ([], [0]) or not types or not isinstance(size, Size):
            return None
        what = {self.batch_axis: "batch", self.time: "time"}.get(size.axis)
        return OfLengths(what, (size,)) if what else None

    def compared(self, name: str, one: Any, other: Any) -> OfLengths | None:
        """torch.arange(T) < lengths[:, None], x != pad"""
        x = self.value(one)
        if isinstance(x, Value):
            name, word = ("ne", 0) if (name, other) == ("gt", 0) else (name, other)
            words = not x.steps and len(x.axes) == 2 and type(word) is int and name in ("ne", "eq")
            if not words or is_written(one, self.model, self.values) or not self.is_from(Pad(word)):
                return None
            return OfLengths("inside" if name == "ne" else "outside", tuple(x.sizes), True)
        a, b = self.of_lengths(one), self.of_lengths(other)
        what = TRUE.get((a.holds, name, b.holds)) if a and b else None
        axes = beside(a.axes, b.axes) if a and b else None
        return OfLengths(what, axes, True) if what and axes else None

    def cast(self, node: fx.Node, name: str, t: OfLengths, others: tuple[Any, ...]) -> OfLengths | None:
        mask = t.holds in OTHER
        if name == "bool":
            return replace(t, boolean=True) if mask and not others else None
        # A list may be sorted or appended to, which does not show in a graph.
        if name == "tolist" and any(name_of(user.target) not in PACKS for user in node.users):
            return None
        if others and (
            name not in ("to", "type_as") or not all(self.keeps_numbers(given, mask) for given in others)
        ):
            return None
        typed = name in ("long", "int", "float", "type_as") or any(map(is_type, others))
        return replace(t, boolean=torch.bool in others if typed else t.boolean)

    def keeps_numbers(self, given: Any, mask: bool) -> bool:
        """A device, or a type that holds every length: stated, or that of channels."""
        if not isinstance(given, fx.Node):
            return (
                given in TYPES
                or (mask and given is torch.bool)
                or isinstance(given, str | torch.device | bool)
            )
        source, what = given.args[:2] if given.target is getattr else (given, "dtype")
        of = self.value(source)
        return what == "device" or (what == "dtype" and isinstance(of, Value) and "C" in of.axes)

    def computed(
        self, name: str, t: OfLengths, rest: tuple[Any, ...], named: dict[str, Any]
    ) -> OfLengths | None:
        """lengths - 1, ~mask, mask.sum(1), and what leaves lengths of at least 1 as they are"""
        if name in ("invert", "logical_not") and (t.boolean if name == "invert" else t.holds in OTHER):
            return replace(t, holds=OTHER[t.holds], boolean=True)
        if name == "sum" and t.holds == "inside" and named.keys() <= {"dim", "keepdim", "dtype"}:
            return self.summed(t, **dict(zip(("dim", "keepdim"), rest)) | named)
        if t.holds != "lengths":
            return None
        if name == "sub" and rest == (1,) and not named:
            return replace(t, holds="last")
        if name in ("clamp", "clamp_min") and len(rest) + len(named) == 1 and "max" not in named:
            (low,) = (*rest, *named.values())
            self.least = 1
            return t if isinstance(low, int | float) and low <= 1 else None
        if name == "add" and len(rest) == 1 and not named and isinstance(rest[0], float):
            return t if np.float32(1 + rest[0]) == 1 else None
        return None

    def summed(
        self, t: OfLengths, dim: Any = None, keepdim: Any = False, dtype: Any = torch.int64
    ) -> OfLengths | None:
        n = len(t.axes)
        at = dim % n if isinstance(dim, int) and -n <= dim < n else n
        steps = t.axes[at : at + 1]
        if dtype not in TYPES or not any(isinstance(size, Size) and size.axis == self.time for size in steps):
            return None
        return OfLengths("lengths", (*t.axes[:at], *((1,) if keepdim else ()), *t.axes[at + 1 :]))

    def sizes(self, given: tuple[Any, ...]) -> Axes:
        """The sizes among arguments, one by one or in a tuple, out.size() and out among them; the rest as it is."""
        return tuple(size for item in listed(given) for size in self.sizes_of(item))

    def sizes_of(self, item: Any) -> Axes:
        value = self.value(item)
        if isinstance(item, fx.Node) and item.target is len and self.holds(item.args[0], "lengths"):
            value = Size(self.batch_axis)
        value = value.sizes if isinstance(value, Value) else value
        sizes = value if isinstance(value, tuple) else (value,)
        known = all(isinstance(size, Size) for size in sizes)
        return tuple(map(self.plain, sizes)) if known else (item,)

    def plain(self, size: Size) -> Size:
        """Only time is ever cut."""
        return Size(size.axis, size.cut and size.axis == self.time)


# Axes under another shape, or None.


def unsqueezed(axes: Axes, given: Axes) -> Axes | None:
    at = given[0] if len(given) == 1 and isinstance(given[0], int) else len(axes) + 1
    index = (slice(None),) * at + (None,) if at >= 0 else (Ellipsis, None) + (slice(None),) * (-1 - at)
    return indexed(axes, index)


def indexed(axes: Axes, given: Axes) -> Axes | None:
    """t[:, None], t[..., None]"""
    at = given.index(Ellipsis) if Ellipsis in given else len(given)
    before, behind = given[:at], given[at + 1 :]
    rest = len(axes) - before.count(slice(None)) - behind.count(slice(None))
    items = (*before, *(slice(None),) * rest, *behind)
    left = iter(axes)
    known = rest >= 0 and all(item in (None, slice(None)) for item in items)
    return tuple(1 if item is None else next(left) for item in items) if known else None


def viewed(axes: Axes, given: Axes) -> Axes | None:
    """t.view(-1, 1): one axis, with others of length 1 beside it"""
    own = [axis for axis in axes if axis != 1]
    found = [item for item in given if item != 1]
    if len(own) != 1 or len(found) != 1 or found[0] not in (-1, own[0]):
        return None
    return tuple(1 if item == 1 else own[0] for item in given)


def expanded(axes: Axes, given: Axes) -> Axes | None:
    old = (1,) * (len(given) - len(axes)) + axes
    known = (isinstance(item, Size | int) and (a == 1 or item in (-1, a)) for a, item in zip(old, given))
    if len(given) < len(axes) or not all(known):
        return None
    return tuple(a if item == -1 else item for a, item in zip(old, given))


OTHER_SHAPES = {
    "unsqueeze": unsqueezed,
    "getitem": indexed,
    "view": viewed,
    "reshape": viewed,
    "expand": expanded,
    "expand_as": expanded,
}


def beside(one: Axes, other: Axes) -> Axes | None:
    """The axes of one operation on two tensors."""
    n = max(len(one), len(other))
    pairs = list(zip(*((1,) * (n - len(axes)) + axes for axes in (one, other))))
    fit = all(a == b or 1 in (a, b) for a, b in pairs)
    return tuple(b if a == 1 else a for a, b in pairs) if fit else None


def is_type(given: Any) -> bool:
    """Whether an argument of to() may change the type."""
    device = given.target is getattr and given.args[1] == "device" if isinstance(given, fx.Node) else False
    return not device and not isinstance(given, str | torch.device | bool)
