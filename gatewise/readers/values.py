"""What a traced value carries: which units sit on which channels, and how many axes it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


class Impossible(Exception):
    """A tensor of the assumed rank cannot go through this operation."""


@dataclass(frozen=True, eq=False)  # compared as objects: arrays have no single truth
class Channels:
    """A tensor of which one axis holds units. Path p says that channel c carries unit p.units[c] (-1: none).

    A layer takes one axis more or less (no batch, or two), and a dimension counted from the front may then be that of
    the units. So the rank is an assumption, and every one that may be true is followed.
    """

    paths: tuple[tuple[np.ndarray, bool], ...]  # (unit numbers (W,), whether a zero unit is still zero here)
    rank: int
    axis: int

    def axis_of(self, dim: int) -> int:
        """The axis that a dimension, counted from either end, means."""
        return within(dim, self.rank)

    def apart(self, dim: Any) -> bool:
        """Whether a dimension is another than that of the units."""
        return isinstance(dim, int) and self.axis_of(dim) != self.axis

    @property
    def width(self) -> int:
        return len(self.paths[0][0])

    def take(self, index: slice) -> Channels:
        return replace(self, paths=tuple((units[index], zero) for units, zero in self.paths))


class Unknown:
    """A tensor, size or object that carries no units."""


UNKNOWN = Unknown()


class Number(Unknown):
    """A whole number: that of a step in a loop."""


@dataclass(frozen=True)
class Sized(Unknown):
    """A tensor without units of a rank that is known."""

    rank: int


@dataclass(frozen=True)
class Bare(Unknown):
    """What is left of a tensor whose axis of `width` units is used up: no matrix with as many columns can mean it."""

    rank: int | None  # None: it was divided by a tensor that may have more axes
    width: int


@dataclass(frozen=True)
class Located:
    """Where max() and its like found their answers: numbers made from units, one for each of them."""

    units: Channels


@dataclass(frozen=True)
class Packed:
    """A PackedSequence: its data is (N, W)."""

    data: Channels | Unknown


@dataclass(frozen=True)
class States:
    """The last states (L*D, B, H) of a recurrent layer; `moved` after the batch axis came first."""

    module: str
    parts: tuple[Channels, ...]  # each (B, H)
    cell: bool  # c rather than h: nothing but handing it back is understood
    moved: bool = False


Value = Any  # Channels | Packed | States | Unknown | a Python constant | tuples and lists of these


def within(dim: int, rank: int) -> int:
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise Impossible
    return dim % rank


def without_zero(value: Value) -> Value:
    """After a function with f(0) != 0 a unit that is always zero is no longer read as zero."""
    if not isinstance(value, Channels):
        return NotImplemented
    return replace(value, paths=tuple((units, False) for units, _ in value.paths))


def listed(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """view(2, 3) and view((2, 3)) alike."""
    single = len(arguments) == 1 and isinstance(arguments[0], tuple | list)
    return tuple(arguments[0]) if single else arguments


def side_by_side(values: list[Channels]) -> tuple[tuple[np.ndarray, bool], ...]:
    """Paths of a concatenation along the channels: each path of each part, padded with 'no unit'."""
    total, at, paths = sum(v.width for v in values), 0, []
    for v in values:
        for units, zero in v.paths:
            whole = np.full(total, -1, dtype=np.int64)
            whole[at : at + v.width] = units
            paths.append((whole, zero))
        at += v.width
    return tuple(paths)


def has_units(value: Value) -> bool:
    return any(isinstance(leaf, Channels | Packed | States | Located) for leaf in leaves(value))


def leaves(value: Any) -> list[Any]:
    """What is inside nested tuples, lists and dicts."""
    if isinstance(value, dict):
        return leaves(list(value.values()))
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple | list) else [value]


def same_units(one: Value, other: Value) -> bool:
    """Whether two values carry the same units in the same places."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same_units, one, other))
    if isinstance(one, Channels):
        a, b = ({(units.tobytes(), zero) for units, zero in value.paths} for value in (one, other))
        return (a, one.rank, one.axis) == (b, other.rank, other.axis)
    if isinstance(one, States):
        return replace(one, parts=()) == replace(other, parts=()) and same_units(one.parts, other.parts)
    if isinstance(one, Packed | Located):
        return all(map(same_units, vars(one).values(), vars(other).values()))
    return isinstance(one, Number) or type(one) is Unknown or bool(one == other)


def plain_index(item: Any) -> bool:
    """Whether an index is no tensor, so that it is known how many axes it takes and leaves."""
    return item is None or item is Ellipsis or isinstance(item, int | slice)


def axes_taken(items: Iterable[Any]) -> int:
    """How many axes an index speaks of, a tensor in it counted as one."""
    return sum(item is not None and item is not Ellipsis for item in items)


def all_constant(index: slice) -> bool:
    return all(part is None or isinstance(part, int) for part in (index.start, index.stop, index.step))
