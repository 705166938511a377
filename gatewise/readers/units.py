"""Which units the values of a program carry, and where.

    trail.units[i, j, ...]    the number of the unit at place (i, j, ...) of a value, -1 for none

It has the axes of the value, with size 1 where every place along one has the same. Every operation either hands a
trail on, moved as its values are, or mixes what it leads over: then it is lost, and someone unknown sees its units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gatewise.program import operations as ops
from gatewise.program.graph import Node, filling
from gatewise.program.sizes import Size, same


@dataclass(frozen=True, eq=False)  # compared as objects: arrays have no single truth
class Trail:
    """Units in the places of a value; `zero`: a unit that is always zero is zero here."""

    units: np.ndarray
    zero: bool = True
    cell: bool = False  # c of a neuron rather than its h
    lost: str = ""  # why it ends here, while others go on


class Lost(Exception):
    """An operation mixes what trails lead over."""


def followed(node: Node, trails: Sequence[tuple[Trail, ...]]) -> tuple[Trail, ...]:
    """The trails of a node, from those of its inputs; Lost, with the reason, where one cannot be followed."""
    op = node.op
    if type(op) in SEVERAL:
        return tuple(SEVERAL[type(op)](op, node, trails))
    move = MOVES.get(type(op))
    if move is None:
        raise Lost(f"{spelled(op)} may mix its channels")
    if any(trails[1:]):  # an index, say
        raise Lost(f"{spelled(op)} looks for something by it")
    return tuple(
        replace(trail, units=move(op, node, trail.units), zero=trail.zero and op.keeps_zero)
        for trail in trails[0]
    )


def spelled(op: ops.Operation) -> str:
    return f"{getattr(op, 'function', '') or op.name.lower()}()"


# Of one input: where its units are then.


def unmoved(op: Any, node: Node, units: np.ndarray) -> np.ndarray:
    return units


def sliced(op: ops.Slice, node: Node, units: np.ndarray) -> np.ndarray:
    if units.shape[op.axis] == 1:
        return units
    if isinstance(op.start, Size) or isinstance(op.stop, Size):
        raise Lost("some of its channels are taken")
    return units[(*[slice(None)] * op.axis, slice(op.start, op.stop, op.step))]


def padded(op: ops.Pad, node: Node, units: np.ndarray) -> np.ndarray:
    around = (op.before, op.after) if units.shape[op.axis] > 1 else (0, 0)
    return surrounded(units, op.axis, *around)


def surrounded(units: np.ndarray, axis: int, before: int, after: int) -> np.ndarray:
    """With places of no unit around an axis."""
    around = [(0, 0)] * units.ndim
    around[axis] = (before, after)
    return np.pad(units, around, constant_values=-1)


def indexed(op: ops.Index, node: Node, units: np.ndarray) -> np.ndarray:
    behind = op.axis + len(node.inputs) - 1
    if max(units.shape[op.axis : behind], default=1) > 1:
        raise Lost("some of its channels are taken")
    front, back = units.shape[: op.axis], units.shape[behind:]
    return units.reshape(*front, *[1] * (node.rank - len(front) - len(back)), *back)


def along(op: Any, node: Node, units: np.ndarray) -> np.ndarray:
    """Softmax, running sums and gather() go along one axis; others may be cut."""
    apart_from(op, units, [op.axis])
    return units[tuple(slice(size if n > 1 else 1) for n, size in zip(units.shape, node.shape))]


def apart_from(op: ops.Operation, units: np.ndarray, axes: Iterable[int]) -> None:
    if any(units.shape[axis] > 1 for axis in axes):
        raise Lost(f"{spelled(op)} goes over its channels")


def reduced(op: ops.Reduce, node: Node, units: np.ndarray) -> np.ndarray:
    apart_from(op, units, op.axes)
    return units if op.keep else units.squeeze(op.axes)


def pooled(op: ops.Pool, node: Node, units: np.ndarray) -> np.ndarray:
    apart_from(op, units, [node.rank - 1])
    return units


def reshaped(op: ops.Reshape, node: Node, units: np.ndarray) -> np.ndarray:
    """Row by row: axes of both shapes fall into groups of equal size, and units stay in theirs."""
    old, new = node.inputs[0].shape, node.shape
    whole, wanted = [1] * len(old), [1] * len(new)
    for before, after in groups(old, new):
        if all(units.shape[axis] == 1 for axis in before):
            continue
        if any(isinstance(old[axis], Size) for axis in before):
            raise Lost("its channels are laid side by side with as many others as only a call knows")
        for axis in before:
            whole[axis] = old[axis]
        for axis in after:
            wanted[axis] = new[axis]
    return np.broadcast_to(units, whole).reshape(wanted)


def groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of the old and the new shape that hold the same values, as short as can be."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(before), j + len(after)
        while not same(size := product(old, before), other := product(new, after)):
            if i < len(old) and (j >= len(new) or (same(size, 1) or smaller(size, other))):
                before.append(i)
                i += 1
            elif j < len(new):
                after.append(j)
                j += 1
            else:
                raise Lost("reshape() may mix its channels")
        found.append((before, after))
    return found


def product(shape: tuple[int, ...], axes: list[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


def smaller(one: int, other: int) -> bool:
    """By stand-ins, where sizes are only known in a call: such a group is one, in any case."""
    return int.__lt__(int(one), int(other))


def expanded(op: ops.Expand, node: Node, units: np.ndarray) -> np.ndarray:
    if is_spread(node, 0, units):
        raise Lost("it is spread over other channels")
    return of_rank(units, node.rank)


def of_rank(units: np.ndarray, rank: int) -> np.ndarray:
    """With as many axes as the result, new ones in front."""
    return units.reshape((*[1] * (rank - units.ndim), *units.shape))


def is_spread(node: Node, k: int, units: np.ndarray) -> bool:
    """Whether a single unit, the only channel of an input, meets all channels of others."""
    narrow, wide = node.inputs[k].shape[-1:], node.shape[-1:]
    return units.size == 1 and len(narrow) == 1 and same(narrow[0], 1) and not same(wide[0], 1)


MOVES: dict[type[ops.Operation], Callable[[Any, Node, np.ndarray], np.ndarray]] = {
    ops.Map: unmoved,
    ops.Cast: unmoved,
    ops.Unpack: unmoved,
    ops.Permute: lambda op, node, units: units.transpose(op.order),
    ops.Reshape: reshaped,
    ops.Expand: expanded,
    ops.Slice: sliced,
    ops.Flip: lambda op, node, units: np.flip(units, op.axes),
    ops.Pad: padded,
    ops.Index: indexed,
    ops.Gather: along,
    ops.Softmax: along,
    ops.Cumulate: along,
    ops.Reduce: reduced,
    ops.Pool: pooled,
}


# Of several inputs.


def combined(op: ops.Combine, node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """Place by place: a reader of the result reads both. A zero factor leaves zero, and so does a zero dividend."""
    if op.function in ("pow", "floordiv", "remainder", "atan2") and trails[1]:
        raise Lost(f"{op.function}() may mix its channels")
    keeping = {"mul": (0, 1), "div": (0,), "and": (0, 1)}.get(op.function, ())
    return beside(node, trails, lambda k, trail: trail.zero and k in keeping)


def beside(
    node: Node, trails: Sequence[tuple[Trail, ...]], zero: Callable[[int, Trail], bool]
) -> list[Trail]:
    """All trails, in the shape of the result."""
    found = []
    for k, own in enumerate(trails):
        for trail in own:
            lost = (
                f"{spelled(node.op)} spreads it over other channels"
                if is_spread(node, k, trail.units)
                else ""
            )
            units = of_rank(trail.units, node.rank)
            found.append(replace(trail, units=units, zero=zero(k, trail), lost=lost))
    return found


def chosen(op: ops.Choose, node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """A zero stays zero where both branches are zero then, whatever the condition."""
    branches = zip(node.inputs[1:], trails[1:])
    zero = all(filling(source) == 0 or (own and all(t.zero for t in own)) for source, own in branches)
    return beside(node, trails, lambda k, trail: zero)


def joined(op: ops.Concat, node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    found: list[Trail] = []
    foreign = any(not own and filling(source) != 0 for source, own in zip(node.inputs, trails))
    sizes = [source.shape[op.axis] for source in node.inputs]
    for k, own in enumerate(trails):
        for trail in own:
            # A single unit has no axis of its own; its channel is the last one.
            alone = trail.units.size == 1 and op.axis == node.rank - 1 and same(sizes[k], 1)
            if trail.units.shape[op.axis] == 1 and not alone:
                found.append(replace(trail, zero=trail.zero and not foreign))
                continue
            if any(isinstance(size, Size) for size in sizes):
                raise Lost("its channels are laid side by side with as many others as only a call knows")
            units = surrounded(trail.units, op.axis, sum(sizes[:k]), sum(sizes[k + 1 :]))
            found.append(replace(trail, units=units))
    return found


def collected(op: ops.Collect, node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """Steps side by side along a new axis: every reader of one reads the others alike."""
    return [
        replace(trail, units=np.expand_dims(trail.units, op.axis), zero=trail.zero and all(trails))
        for own in trails
        for trail in own
    ]


def multiplied(op: ops.Matmul, node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """a (..., n, k) b (..., k, m): rows of a and columns of b stay, what lies between is summed."""
    if any(trail.units.shape[summed] > 1 for summed, own in zip((-1, -2), trails) for trail in own):
        raise Lost("a matrix product sums over it")
    return beside(node, trails, lambda k, trail: trail.zero)


def normed(op: ops.LayerNorm, node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    over = [size for trail in trails[0] for size in trail.units.shape[-op.axes :]]
    if any(trails[1:]) or max(over, default=1) > 1:
        raise Lost("layer_norm() may mix its channels")
    return [replace(trail, zero=False) for trail in trails[0]]


SEVERAL: dict[type[ops.Operation], Callable[[Any, Node, Sequence[tuple[Trail, ...]]], list[Trail]]] = {
    ops.Combine: combined,
    ops.Choose: chosen,
    ops.Concat: joined,
    ops.Collect: collected,
    ops.Matmul: multiplied,
    ops.LayerNorm: normed,
}
