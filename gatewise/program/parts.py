"""What torch's functions mean that take parts of tensors, join them, or write into a part."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeGuard

import torch

from gatewise.program.arithmetic import RULES, cast, masked_fill, rule
from gatewise.program.creation import counted
from gatewise.program.fits import broadcast, require, unified, within
from gatewise.program.graph import BOOL, INT
from gatewise.program.operations import Concat, Flip, Gather, Index, Opaque, Pad, Slice
from gatewise.program.recorder import decide, made, node_of
from gatewise.program.shapes import expand, listed, reshaped, unsqueeze, with_axes
from gatewise.program.sizes import Size, Undecided, is_whole, letter, same
from gatewise.program.stand_ins import Recorded, Refused, current

# Parts.


def sliced(x: Recorded, axis: int, start: int, stop: int, step: int = 1) -> Recorded:
    """x[start:stop:step] along an axis. A call whose size does not reach so far is refused when it runs."""
    shape = x.node.shape
    if step == 1 and same(start, 0) and same(stop, shape[axis]):
        return x.alias()
    length = -((start - stop) // step)
    cut = (*shape[:axis], length, *shape[axis + 1 :])
    return made(Slice(axis, start, stop, step), [x], cut, x.node.kind)


def from_front(place: int, size: int) -> int:
    """A place that may count from the end."""
    return size + place if is_negative(place) else place


def is_negative(place: int) -> bool:
    try:
        return place < 0
    except Undecided:
        return False


def limits(part: slice, size: int) -> tuple[int, int, int]:
    """start, stop and step of a slice of an axis, none negative."""
    step = 1 if part.step is None else part.step
    if any(isinstance(v, Recorded) for v in (part.start, part.stop, step)):
        raise Refused("a slice is as long as a tensor says, which only a call knows")
    if isinstance(step, Size) or step < 1:
        raise Refused("a slice with a step that only a call knows")
    start = 0 if part.start is None else from_front(part.start, size)
    stop = size if part.stop is None else from_front(part.stop, size)
    if not isinstance(size, Size):
        start, stop = (n if isinstance(n, Size) else min(max(n, 0), size) for n in (start, stop))
    known = not isinstance(start, Size) and not isinstance(stop, Size)
    return start, max(start, stop) if known else stop, step


@rule("select")
def select(x: Recorded, dim: int, index: Any) -> Recorded:
    axis = within(dim, x.node.rank)
    if isinstance(index, torch.Tensor):
        return indexed(x, axis, [index])
    size = x.node.shape[axis]
    at = from_front(index, size)
    require(isinstance(size, Size) or isinstance(at, Size) or 0 <= at < size)
    return with_axes(sliced(x, axis, at, at + 1), axis, axis + 1, ())


@rule("narrow")
def narrow(x: Recorded, dim: int, start: Any, length: Any) -> Recorded:
    axis = within(dim, x.node.rank)
    first = from_front(start, x.node.shape[axis])
    return sliced(x, axis, first, first + length)


def spelled_out(index: Any, rank: int) -> list[Any]:
    """An index with one entry for every axis: `...` and what is left out as whole slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in items)
    taken += sum(max(item.node.rank - 1, 0) for item in items if is_mask(item))
    require(taken <= rank)
    rest = [slice(None)] * (rank - taken)
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    return [*items[: dots[0]], *rest, *items[dots[0] + 1 :]] if dots else [*items, *rest]


def is_mask(item: Any) -> TypeGuard[Recorded]:
    return isinstance(item, Recorded) and item.node.kind == BOOL


@rule("getitem")
def getitem(x: Recorded, index: Any) -> Any:
    result, axis, tensors = x, 0, []
    for item in spelled_out(index, x.node.rank):
        if isinstance(item, list):
            item = Recorded.of(node_of(torch.tensor(item)))
        if isinstance(item, torch.Tensor):
            if is_mask(item):
                result, item = by_mask(result, axis, item)
            tensors.append((axis, item))
            axis += 1
        elif item is None:
            result, axis = unsqueeze(result, axis), axis + 1
        elif isinstance(item, slice):
            result, axis = sliced(result, axis, *limits(item, result.node.shape[axis])), axis + 1
        elif is_whole(item) and not isinstance(item, bool):
            result = select(result, axis, item)
        else:
            raise Refused(f"it takes a part of a tensor by {item!r}")
    if not tensors:
        return result
    axes = [axis for axis, _ in tensors]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise Refused("it indexes axes that do not lie side by side")
    return indexed(result, axes[0], [item for _, item in tensors])


def by_mask(x: Recorded, axis: int, mask: Recorded) -> tuple[Any, Any]:
    """x with the axes of a mask as one, and the places along it where the mask is true."""
    recorder = current()
    if not recorder.lenient:
        raise Refused("it takes the values where a mask is true, as many as only a call knows")
    last = axis + mask.node.rank
    recorder.opaque.append(recorder.new(Opaque("it chooses by it"), (mask.node,), ()))
    places = recorder.new(Opaque(""), (), (letter(f"N{len(recorder.opaque)}"),), INT)
    return with_axes(x, axis, last, (math.prod(x.node.shape[axis:last]),)), Recorded.of(places)


def indexed(x: Recorded, axis: int, indices: list[Any]) -> Recorded:
    nodes = [node_of(index) for index in indices]
    for node in nodes:
        decide(node, INT)
    places = broadcast(*(node.shape for node in nodes))
    shape = (*x.node.shape[:axis], *places, *x.node.shape[axis + len(nodes) :])
    return made(Index(axis), [x, *nodes], shape, x.node.kind)


@rule("index_select")
def index_select(x: Recorded, dim: int, index: Recorded) -> Recorded:
    return indexed(x, within(dim, x.node.rank), [index])


@rule("gather", "take_along_dim")
def gather(x: Recorded, dim: Any, index: Any, **_: Any) -> Recorded:
    if isinstance(dim, torch.Tensor):
        dim, index = index, dim
    node, places = x.node, index.node
    decide(places, INT)
    at = within(dim, node.rank)
    require(places.rank == node.rank)
    for k, (own, asked) in enumerate(zip(node.shape, places.shape)):
        if k != at and (isinstance(own, Size) or isinstance(asked, Size)):
            unified(own, asked)
    return made(Gather(at), [x, index], places.shape, node.kind)


@rule("chunk")
def chunk(x: Recorded, chunks: int, dim: int = 0) -> tuple[Recorded, ...]:
    return split(x, -(-known_size(x, dim) // chunks), dim)


@rule("split", "split_with_sizes")
def split(x: Recorded, split_size: Any, dim: int = 0, **_: Any) -> tuple[Recorded, ...]:
    whole, axis = known_size(x, dim), within(dim, x.node.rank)
    sizes = split_size if isinstance(split_size, tuple | list) else [split_size] * -(-whole // split_size)
    parts, at = [], 0
    for width in sizes:
        parts.append(sliced(x, axis, at, min(at + width, whole)))
        at += width
    require(at >= whole)
    return tuple(parts)


@rule("unbind")
def unbind(x: Recorded, dim: int = 0) -> tuple[Recorded, ...]:
    axis = within(dim, x.node.rank)
    if isinstance(x.node.shape[axis], Size):
        return RULES["steps"](x, axis)  # type: ignore[no-any-return]
    return tuple(select(x, dim, k) for k in range(known_size(x, dim)))


def known_size(x: Recorded, dim: int) -> int:
    size = x.node.shape[within(dim, x.node.rank)]
    if isinstance(size, Size):
        raise Refused("it takes an input apart, step by step, into as many parts as only a call knows")
    return size


# Joins.


@rule("cat", "concat", "concatenate")
def cat(tensors: Any, dim: int = 0, axis: Any = None) -> Recorded:
    nodes = [node_of(v) for v in tensors]
    rank = nodes[0].rank
    at = within(dim if axis is None else axis, rank)
    require(all(node.rank == rank for node in nodes))
    if len(nodes) == 1:
        return Recorded.of(nodes[0])
    sizes = list(nodes[0].shape)
    for node in nodes[1:]:
        sizes = [n if k == at else unified(n, m) for k, (n, m) in enumerate(zip(sizes, node.shape))]
    sizes[at] = sum(node.shape[at] for node in nodes)
    kinds = {node.kind for node in nodes}
    kind = next((kind for kind in ("float", None, INT, BOOL) if kind in kinds), None)
    return made(Concat(at), nodes, sizes, kind)


@rule("stack")
def stack(tensors: Any, dim: int = 0) -> Recorded:
    return cat([unsqueeze(v, dim) for v in tensors], dim)


@rule("hstack", "column_stack")
def hstack(tensors: Any) -> Recorded:
    return cat(tensors, 0 if tensors[0].node.rank == 1 else 1)


@rule("flip")
def flip(x: Recorded, *dims: Any, **kwargs: Any) -> Recorded:
    axes = tuple(sorted(within(d, x.node.rank) for d in listed(dims or (kwargs["dims"],))))
    return made(Flip(axes), [x], x.node.shape, x.node.kind)


RULES["fliplr"] = lambda x: flip(x, 1)


@rule("roll")
def roll(x: Recorded, shifts: Any, dims: Any = None) -> Recorded:
    by, dim = (v[0] if isinstance(v, tuple | list) and len(v) == 1 else v for v in (shifts, dims))
    if not is_whole(by) or not is_whole(dim) or isinstance(by, Size):
        raise Refused("roll() over several axes, or by what only a call knows")
    axis = within(dim, x.node.rank)
    whole = x.node.shape[axis]
    at = whole - by if by > 0 else -by
    return cat([sliced(x, axis, at, whole), sliced(x, axis, 0, at)], axis)


@rule("pad")
def pad(x: Recorded, pad: Any, mode: str = "constant", value: Any = None) -> Recorded:
    if mode != "constant" or any(isinstance(n, Recorded | Size) for n in pad):
        raise Refused(f"it pads in mode {mode!r}, or by what only a call knows")
    for k, (before, after) in enumerate(zip(pad[::2], pad[1::2])):
        axis = within(-1 - k, x.node.rank)
        x = sliced(x, axis, max(-before, 0), x.node.shape[axis] - max(-after, 0))
        if before > 0 or after > 0:
            op = Pad(axis, max(before, 0), max(after, 0), float(value or 0.0))
            shape = (
                *x.node.shape[:axis],
                x.node.shape[axis] + op.before + op.after,
                *x.node.shape[axis + 1 :],
            )
            x = made(op, [x], shape, x.node.kind)
    return x


# Writes into a part: what is there then.


@rule("setitem")
def setitem(x: Recorded, index: Any, value: Any) -> Recorded:
    if is_mask(index):
        shape = (*index.node.shape, *[1] * (x.node.rank - index.node.rank))
        return masked_fill(x, reshaped(index, shape), value)
    return replaced_part(x, spelled_out(index, x.node.rank), value, 0)


def replaced_part(x: Recorded, items: list[Any], value: Any, axis: int) -> Recorded:
    """x with a part replaced: what lies before it, the part, what lies behind it."""
    if axis == len(items):
        return cast(expand(value, x.node.shape), x.node.kind)
    item, whole = items[axis], x.node.shape[axis]
    if isinstance(item, slice):
        start, stop, step = limits(item, whole)
    elif is_whole(item) and not isinstance(item, bool):
        start = from_front(item, whole)
        stop, step = start + 1, 1
    else:
        raise Refused("it writes into a part of a tensor; masked_fill() and torch.where() give a new one")
    if step != 1:
        raise Refused("it writes into every second part of a tensor, or the like")
    behind = sum(isinstance(other, slice) for other in items[axis + 1 :])
    if not isinstance(item, slice) and node_of(value).rank > behind:
        # The value has one axis less: give it one of size 1.
        value = unsqueeze(value, node_of(value).rank - behind)
    inner = replaced_part(sliced(x, axis, start, stop), items, value, axis + 1)
    pieces = [sliced(x, axis, 0, start), inner, sliced(x, axis, stop, whole)]
    sizes = [start, 1, whole - stop]
    return cat([p for p, n in zip(pieces, sizes) if isinstance(n, Size) or n > 0], axis)


RULES["zero_"] = RULES["fill_"] = lambda x, value=0.0: RULES["full_like"](x, value)
RULES["copy_"] = lambda x, value, *_: expand(value, x.node.shape)


def triangle(lower: bool, x: Recorded, diagonal: int = 0) -> Any:
    rows, columns = x.node.shape[-2:]
    ahead = counted(columns) - counted(rows).unsqueeze(1)
    gone = ahead > diagonal if lower else ahead < diagonal
    return masked_fill(x, gone, False if x.node.kind == BOOL else 0)  # type: ignore[arg-type]


RULES["tril"], RULES["triu"] = partial(triangle, True), partial(triangle, False)


@rule("data=")
def other_data(x: Recorded, value: Any) -> None:
    raise Refused("it gives a tensor other data")
