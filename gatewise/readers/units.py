"""Which units the values of a program carry, and where.

    trail.units[i, j, ...]    the number of the unit at place (i, j, ...) of the axes `trail.axes`, -1 for none

Every operation either hands a trail on, moved as its values are, or mixes what it leads over: then it is lost, and
someone unknown sees its units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gatewise.program import operations as ops
from gatewise.program.graph import Node, filling
from gatewise.program.sizes import Size, same


@dataclass(frozen=True, eq=False)  # compared as objects: arrays have no single truth
class Trail:
    """Units along some axes of a value; `zero`: a unit that is always zero is zero here."""

    axes: tuple[int, ...]  # rising
    units: np.ndarray
    zero: bool = True
    cell: bool = False  # c of a neuron rather than its h
    lost: str = ""  # why it ends here, while others go on

    def moved(self, by: int) -> Trail:
        return replace(self, axes=tuple(axis + by for axis in self.axes))


class Lost(Exception):
    """An operation mixes what trails lead over."""


def followed(node: Node, trails: Sequence[tuple[Trail, ...]]) -> tuple[Trail, ...]:
    """The trails of a node, from those of its inputs; Lost, with the reason, where one cannot be followed."""
    rule = RULES.get(type(node.op))
    if rule is None:
        raise Lost(f"{spelled(node)} may mix its channels")
    return tuple(rule(node, trails))


def spelled(node: Node) -> str:
    op = node.op
    if isinstance(op, ops.Map | ops.Combine | ops.Reduce | ops.Pool):
        return f"{op.function}()"
    return f"{op.name.lower()}()"


def first_only(rule: Callable[[Node, Trail], Trail]) -> Callable[..., list[Trail]]:
    """A rule for the first input; units in another one, an index say, are seen by nobody knows whom."""

    def apply(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
        if any(trails[1:]):
            raise Lost(f"{spelled(node)} looks for something by it")
        return [rule(node, trail) for trail in trails[0]]

    return apply


def same_place(node: Node, trail: Trail) -> Trail:
    op = node.op
    if isinstance(op, ops.Map):
        keeps = op.keeps_zero
    elif isinstance(op, ops.Unpack):
        keeps = op.value == 0
    else:
        keeps = True
    return replace(trail, zero=trail.zero and keeps)


def permuted(node: Node, trail: Trail) -> Trail:
    assert isinstance(node.op, ops.Permute)
    places = [node.op.order.index(axis) for axis in trail.axes]
    order = np.argsort(places)
    return replace(trail, axes=tuple(sorted(places)), units=trail.units.transpose(order))


def sliced(node: Node, trail: Trail) -> Trail:
    op = node.op
    assert isinstance(op, ops.Slice)
    if op.axis not in trail.axes:
        return trail
    if isinstance(op.start, Size) or isinstance(op.stop, Size):
        raise Lost("some of its channels are taken")
    part = slice(op.start, op.stop, op.step)
    index = tuple(part if axis == op.axis else slice(None) for axis in trail.axes)
    return replace(trail, units=trail.units[index])


def flipped(node: Node, trail: Trail) -> Trail:
    assert isinstance(node.op, ops.Flip)
    over = [k for k, axis in enumerate(trail.axes) if axis in node.op.axes]
    return replace(trail, units=np.flip(trail.units, tuple(over)))


def padded(node: Node, trail: Trail) -> Trail:
    op = node.op
    assert isinstance(op, ops.Pad)
    if op.axis not in trail.axes:
        return replace(trail, zero=trail.zero and op.value == 0)
    around = [(op.before, op.after) if axis == op.axis else (0, 0) for axis in trail.axes]
    return replace(trail, units=np.pad(trail.units, around, constant_values=-1))


def indexed(node: Node, trail: Trail) -> Trail:
    op = node.op
    assert isinstance(op, ops.Index)
    taken = len(node.inputs) - 1
    gone = range(op.axis, op.axis + taken)
    if any(axis in gone for axis in trail.axes):
        raise Lost("some of its channels are taken")
    shift = node.rank - node.inputs[0].rank
    return replace(trail, axes=tuple(axis + shift if axis > op.axis else axis for axis in trail.axes))


def along(node: Node, trail: Trail) -> Trail:
    """Softmax, running sums and gather() go along one axis."""
    op = node.op
    assert isinstance(op, ops.Softmax | ops.Cumulate | ops.Gather)
    if op.axis in trail.axes:
        raise Lost(f"{spelled(node)} goes over its channels")
    cut = tuple(slice(min(n, node.shape[axis])) for axis, n in zip(trail.axes, trail.units.shape))
    return replace(trail, units=trail.units[cut], zero=trail.zero and not isinstance(op, ops.Softmax))


def reduced(node: Node, trail: Trail) -> Trail:
    op = node.op
    assert isinstance(op, ops.Reduce)
    if set(op.axes) & set(trail.axes):
        raise Lost(f"{spelled(node)} goes over its channels")
    keeps = trail.zero and op.function in ("sum", "mean", "max", "min", "any", "norm", "median")
    if op.keep:
        return replace(trail, zero=keeps)
    axes = tuple(axis - sum(gone < axis for gone in op.axes) for axis in trail.axes)
    return replace(trail, axes=axes, zero=keeps)


def pooled(node: Node, trail: Trail) -> Trail:
    if node.rank - 1 in trail.axes:
        raise Lost(f"{spelled(node)} goes over its channels")
    return trail


def expanded(node: Node, trail: Trail) -> Trail:
    source = node.inputs[0]
    trail = trail.moved(node.rank - source.rank)
    trail = squeezed(trail)
    for k, axis in enumerate(trail.axes):
        size = node.shape[axis]
        if isinstance(size, Size):
            raise Lost("it is spread over other channels")
        assert trail.units.shape[k] == size
    return trail


def reshaped(node: Node, trail: Trail) -> Trail:
    """Row by row: axes of both shapes fall into groups of equal size, and units stay in theirs."""
    old, new, trail = node.inputs[0].shape, node.shape, squeezed(trail)
    concerned, axes = list[int](), list[int]()
    for before, after in groups(old, new):
        if not set(before) & set(trail.axes):
            continue
        if any(isinstance(old[axis], Size) for axis in before):
            if trail.units.size == 1:  # a single neuron: wherever it is, it is all there is
                return replace(trail, axes=(), units=trail.units.reshape(()))
            raise Lost("its channels are laid side by side with as many others as only a call knows")
        concerned += before
        axes += [axis for axis in after if new[axis] != 1] or after[-1:]
    # Axes without units between those with them: every place has the same.
    missing = [k for k, axis in enumerate(concerned) if axis not in trail.axes]
    whole = np.broadcast_to(np.expand_dims(trail.units, missing), [old[axis] for axis in concerned])
    return replace(trail, axes=tuple(axes), units=whole.reshape([new[axis] for axis in axes]))


def squeezed(trail: Trail) -> Trail:
    """Without axes of a single place; the last of all stays."""
    kept = [k for k, size in enumerate(trail.units.shape) if size != 1] or [*range(trail.units.ndim)][-1:]
    axes = tuple(trail.axes[k] for k in kept)
    return replace(trail, axes=axes, units=trail.units.reshape([trail.units.shape[k] for k in kept]))


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


# Of several inputs.


def combined(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """Place by place: a reader of the result reads both. A zero factor leaves zero, and so does a zero dividend."""
    op = node.op
    assert isinstance(op, ops.Combine)
    if op.function in ("pow", "floordiv", "remainder", "atan2") and trails[1]:
        raise Lost(f"{op.function}() may mix its channels")
    keeping = {"mul": (0, 1), "div": (0,), "and": (0, 1)}.get(op.function, ())
    moved = (
        spread(node, k, trail, trail.zero and k in keeping) for k, own in enumerate(trails) for trail in own
    )
    return list(moved)


def spread(node: Node, k: int, trail: Trail, zero: bool) -> Trail:
    """A trail in the shape of the result."""
    moved = replace(trail.moved(node.rank - node.inputs[k].rank), zero=zero)
    for at, axis in enumerate(moved.axes):
        size = node.shape[axis]
        if isinstance(size, Size) or moved.units.shape[at] != size:
            return replace(trail, lost=f"{spelled(node)} spreads it over other channels")
    return moved


def chosen(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """A zero stays zero where both branches are zero then, whatever the condition."""
    zero = all(
        filling(node.inputs[k]) == 0 or (own and all(t.zero for t in own))
        for k, own in enumerate(trails)
        if k
    )
    return [spread(node, k, trail, bool(zero)) for k, own in enumerate(trails) for trail in own]


def joined(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    op = node.op
    assert isinstance(op, ops.Concat)
    found: list[Trail] = []
    foreign = any(not own and filling(source) != 0 for source, own in zip(node.inputs, trails))
    sizes = [source.shape[op.axis] for source in node.inputs]
    for k, own in enumerate(trails):
        for trail in own:
            if op.axis not in trail.axes:
                found.append(replace(trail, zero=trail.zero and not foreign))
                continue
            if any(isinstance(size, Size) for size in sizes):
                raise Lost("its channels are laid side by side with as many others as only a call knows")
            at = trail.axes.index(op.axis)
            around = [(0, 0)] * trail.units.ndim
            around[at] = (sum(sizes[:k]), sum(sizes[k + 1 :]))
            found.append(replace(trail, units=np.pad(trail.units, around, constant_values=-1)))
    return found


def collected(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """Steps side by side along a new axis: every reader of one reads the others alike."""
    op = node.op
    assert isinstance(op, ops.Collect)
    moved = [
        replace(
            trail,
            axes=tuple(axis + (axis >= op.axis) for axis in trail.axes),
            zero=trail.zero and all(trails),
        )
        for own in trails
        for trail in own
    ]
    return moved


def multiplied(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    """a (..., n, k) b (..., k, m): rows of a and columns of b stay, what lies between is summed."""
    found = []
    for k, own in enumerate(trails):
        rank = node.inputs[k].rank
        summed = rank - 1 if k == 0 else rank - 2
        for trail in own:
            if summed in trail.axes:
                raise Lost("a matrix product sums over it")
            found.append(trail.moved(node.rank - rank))
    return found


def normed(node: Node, trails: Sequence[tuple[Trail, ...]]) -> list[Trail]:
    op = node.op
    assert isinstance(op, ops.LayerNorm)
    if any(trails[1:]) or any(axis >= node.rank - op.axes for trail in trails[0] for axis in trail.axes):
        raise Lost("layer_norm() may mix its channels")
    return [replace(trail, zero=False) for trail in trails[0]]


RULES: dict[type[ops.Operation], Callable[..., list[Trail]]] = {
    ops.Map: first_only(same_place),
    ops.Cast: first_only(same_place),
    ops.Unpack: first_only(same_place),
    ops.Permute: first_only(permuted),
    ops.Reshape: first_only(reshaped),
    ops.Expand: first_only(expanded),
    ops.Slice: first_only(sliced),
    ops.Flip: first_only(flipped),
    ops.Pad: first_only(padded),
    ops.Index: first_only(indexed),
    ops.Gather: first_only(along),
    ops.Softmax: first_only(along),
    ops.Cumulate: first_only(along),
    ops.Reduce: first_only(reduced),
    ops.Pool: first_only(pooled),
    ops.Combine: combined,
    ops.Choose: chosen,
    ops.Concat: joined,
    ops.Collect: collected,
    ops.Matmul: multiplied,
    ops.LayerNorm: normed,
}
