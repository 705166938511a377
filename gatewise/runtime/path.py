"""Values on the path of a chain: the links before them and their axes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gatewise.program.fits import is_one
from gatewise.program.graph import Node
from gatewise.program.sizes import same
from gatewise.runtime.chained import ChainLink


@dataclass(frozen=True)
class OnPath:
    """A value that the chain has reached."""

    links: tuple[ChainLink, ...]
    axes: tuple[str, ...]  # B, T, C, R: rows of B and T, 1: of size 1; without C: it had width 1
    rows: tuple[tuple[str, int], ...] = ()  # the axes that R is made of, and their sizes

    def without_time(self, keep: bool) -> tuple[str, ...]:
        """Its axes when one step is left, with an axis of its own or none."""
        return tuple("1" if axis == "T" else axis for axis in self.axes if keep or axis != "T")


@dataclass(frozen=True)
class States:
    """Some of the last states of the recurrent layer that ends `links`, by their places."""

    links: tuple[ChainLink, ...]
    part: str
    places: range
    whole: int  # places in all


def axis_of(size: int) -> str:
    """B, T, or C for a width."""
    return str(size) if str(size) in ("B", "T") else "C"


def renamed(x: OnPath, old: tuple[int, ...], new: tuple[int, ...]) -> OnPath | None:
    """x in another shape, if its axes stay in order: those of size 1 come and go, B and T become rows and back."""
    left = [pair for pair in zip(x.axes, old) if pair[0] != "1"]
    axes: list[str] = []
    rows = x.rows
    for size in new:
        if left and left[0][0] == "R" and not same(size, left[0][1]):
            left[:1], rows = rows, ()
        if left and same(size, left[0][1]):
            axes.append(left.pop(0)[0])
        elif is_one(size):
            has_channels = not x.links or "C" in (*axes, *(name for name, _ in left))
            axes.append("1" if has_channels else "C")
        elif {name for name, _ in left[:2]} == {"B", "T"} and same(size, left[0][1] * left[1][1]):
            rows = (left.pop(0), left.pop(0))
            axes.append("R")
        else:
            return None
    narrow = not left or (left[0][0] == "C" and is_one(left[0][1]) and len(left) == 1)
    return replace(x, axes=tuple(axes), rows=rows) if narrow else None


def same_shapes(one: Node, other: Node) -> bool:
    return one.rank == other.rank and all(map(same, one.shape, other.shape))


def along_channels(x: OnPath, other: Node) -> bool:
    """Whether a tensor beside x has one number for a channel, or one for all."""
    axes = x.axes[len(x.axes) - other.rank :] if other.rank else ()
    return other.rank <= len(x.axes) and all(axis == "C" or is_one(n) for axis, n in zip(axes, other.shape))
