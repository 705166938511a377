"""What torch's functions mean that take parts of tensors, join them, or write into a part."""

from __future__ import annotations

import math
from typing import Any

import torch

from gatewise.program.arithmetic import RULES, cast, combine, compare, rule
from gatewise.program.creation import counted
from gatewise.program.fits import broadcast, unified, within
from gatewise.program.graph import BOOL, INT, Node
from gatewise.program.operations import Concat, Flip, Gather, Index, Opaque, Pad, Slice
from gatewise.program.recorder import Recorder, decide
from gatewise.program.shapes import expand, listed, reshaped, unsqueeze
from gatewise.program.sizes import Size, Undecided, is_whole, letter
from gatewise.program.stand_ins import Impossible, Recorded, Refused

# Parts.


def sliced(recorder: Recorder, x: Any, axis: int, start: int, stop: int, step: int = 1) -> Recorded:
    """x[start:stop:step] along an axis. A call whose size does not reach so far is refused when it runs."""
    node = recorder.node(x)
    whole = node.shape[axis]
    if step == 1 and not isinstance(start, Size) and start == 0 and stop is whole:
        return Recorded.of(node, getattr(x, "memory", None))
    length = -((start - stop) // step)
    shape = (*node.shape[:axis], length, *node.shape[axis + 1 :])
    return recorder.made(Slice(axis, start, stop, step), [x], shape, node.kind)


def limits(part: slice, size: int) -> tuple[int, int, int]:
    """start, stop and step of a slice of an axis, none negative."""
    step = 1 if part.step is None else part.step
    if any(isinstance(v, Recorded) for v in (part.start, part.stop, step)):
        raise Refused("a slice is as long as a tensor says, which only a call knows")
    if isinstance(step, Size) or step < 1:
        raise Refused("a slice with a step that only a call knows")
    ends = []
    for value, usual in ((part.start, 0), (part.stop, size)):
        if value is None:
            ends.append(usual)
        elif not isinstance(value, Size) and value < 0:
            ends.append(size + value if isinstance(size, Size) else max(size + value, 0))
        elif isinstance(value, Size) and is_negative(value):
            ends.append(size + value)
        else:
            ends.append(value if isinstance(size, Size) or isinstance(value, Size) else min(value, size))
    start, stop = ends
    if isinstance(start, Size) or isinstance(stop, Size):
        return start, stop, step
    return start, max(start, stop), step


def is_negative(size: Size) -> bool:
    try:
        return size < 0
    except Undecided:
        return False


@rule("select")
def select(recorder: Recorder, x: Any, dim: int, index: Any) -> Recorded:
    node = recorder.node(x)
    axis = within(dim, node.rank)
    if isinstance(index, torch.Tensor):
        return indexed(recorder, x, axis, [index])
    size = node.shape[axis]
    at = size + index if not isinstance(index, Size) and index < 0 else index
    if not isinstance(size, Size) and not isinstance(at, Size) and not 0 <= at < size:
        raise Impossible
    part = sliced(recorder, x, axis, at, at + 1)
    return reshaped(recorder, part, (*node.shape[:axis], *node.shape[axis + 1 :]))


@rule("narrow")
def narrow(recorder: Recorder, x: Any, dim: int, start: Any, length: Any) -> Recorded:
    node = recorder.node(x)
    axis = within(dim, node.rank)
    first = node.shape[axis] + start if not isinstance(start, Size) and start < 0 else start
    return sliced(recorder, x, axis, first, first + length)


def spelled_out(index: Any, rank: int) -> list[Any]:
    """An index with one entry for every axis: `...` and what is left out as whole slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in items)
    for item in items:
        if isinstance(item, torch.Tensor) and is_mask(item) and rank_of(item) > 1:
            taken += rank_of(item) - 1
    if taken > rank:
        raise Impossible
    rest = [slice(None)] * (rank - taken)
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    return [*items[: dots[0]], *rest, *items[dots[0] + 1 :]] if dots else [*items, *rest]


def rank_of(value: torch.Tensor) -> int:
    return value.node.rank if isinstance(value, Recorded) else value.dim()


def is_mask(value: Any) -> bool:
    return value.node.kind == BOOL if isinstance(value, Recorded) else value.dtype == torch.bool


@rule("getitem")
def getitem(recorder: Recorder, x: Any, index: Any) -> Any:
    items = spelled_out(index, recorder.node(x).rank)
    result, axis, tensors = x, 0, []
    for item in items:
        if isinstance(item, list):
            item = torch.tensor(item)
        if isinstance(item, torch.Tensor):
            if is_mask(item):
                result, item = by_mask(recorder, result, axis, item)
            tensors.append((axis, item))
            axis += 1
        elif item is None:
            result, axis = unsqueeze(recorder, result, axis), axis + 1
        elif isinstance(item, slice):
            start, stop, step = limits(item, recorder.node(result).shape[axis])
            result, axis = sliced(recorder, result, axis, start, stop, step), axis + 1
        elif is_whole(item) and not isinstance(item, bool):
            result = select(recorder, result, axis, item)
        else:
            raise Refused(f"it takes a part of a tensor by {item!r}")
    if not tensors:
        return result
    axes = [axis for axis, _ in tensors]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise Refused("it indexes axes that do not lie side by side")
    return indexed(recorder, result, axes[0], [item for _, item in tensors])


def by_mask(recorder: Recorder, x: Any, axis: int, mask: Any) -> tuple[Any, Any]:
    """x with the axes of a mask as one, and the places along it where the mask is true."""
    if not recorder.lenient:
        raise Refused("it takes the values where a mask is true, as many as only a call knows")
    shape, rank = recorder.node(x).shape, rank_of(mask)
    flat = (*shape[:axis], math.prod(shape[axis : axis + rank]), *shape[axis + rank :])
    recorder.opaque.append(recorder.new(Opaque("it chooses by it"), (recorder.node(mask),), ()))
    places = recorder.new(Opaque(""), (), (letter(f"N{len(recorder.opaque)}"),), INT)
    return reshaped(recorder, x, flat), Recorded.of(places)


def indexed(recorder: Recorder, x: Any, axis: int, indices: list[Any]) -> Recorded:
    node = recorder.node(x)
    for index in indices:
        decide(recorder.node(index), INT)
    places = broadcast(*(recorder.node(index).shape for index in indices))
    shape = (*node.shape[:axis], *places, *node.shape[axis + len(indices) :])
    return recorder.made(Index(axis), [x, *indices], shape, node.kind)


@rule("index_select")
def index_select(recorder: Recorder, x: Any, dim: int, index: Any) -> Recorded:
    return indexed(recorder, x, within(dim, recorder.node(x).rank), [index])


@rule("gather", "take_along_dim")
def gather(recorder: Recorder, x: Any, dim: Any, index: Any, **_: Any) -> Recorded:
    if isinstance(dim, torch.Tensor):
        dim, index = index, dim
    node, places = recorder.node(x), recorder.node(index)
    decide(places, INT)
    at = within(dim, node.rank)
    if places.rank != node.rank:
        raise Impossible
    for k, (own, asked) in enumerate(zip(node.shape, places.shape)):
        if k != at and (isinstance(own, Size) or isinstance(asked, Size)):
            unified(own, asked)
    return recorder.made(Gather(at), [x, index], places.shape, node.kind)


@rule("chunk")
def chunk(recorder: Recorder, x: Any, chunks: int, dim: int = 0) -> tuple[Recorded, ...]:
    whole = known_size(recorder, x, dim)
    return split(recorder, x, -(-whole // chunks), dim)


@rule("split", "split_with_sizes")
def split(recorder: Recorder, x: Any, split_size: Any, dim: int = 0, **_: Any) -> tuple[Recorded, ...]:
    whole = known_size(recorder, x, dim)
    axis = within(dim, recorder.node(x).rank)
    sizes = split_size if isinstance(split_size, tuple | list) else [split_size] * -(-whole // split_size)
    parts, at = [], 0
    for width in sizes:
        parts.append(sliced(recorder, x, axis, at, min(at + width, whole)))
        at += width
    if at < whole:
        raise Impossible
    return tuple(parts)


@rule("unbind")
def unbind(recorder: Recorder, x: Any, dim: int = 0) -> tuple[Recorded, ...]:
    axis = within(dim, recorder.node(x).rank)
    if isinstance(recorder.node(x).shape[axis], Size):
        return RULES["steps"](x, axis)  # type: ignore[no-any-return]
    return tuple(select(recorder, x, dim, k) for k in range(known_size(recorder, x, dim)))


def known_size(recorder: Recorder, x: Any, dim: int) -> int:
    shape = recorder.node(x).shape
    size = shape[within(dim, len(shape))]
    if isinstance(size, Size):
        raise Refused("it takes an input apart, step by step, into as many parts as only a call knows")
    return size


# Joins.


@rule("cat", "concat", "concatenate")
def cat(recorder: Recorder, tensors: Any, dim: int = 0, axis: Any = None) -> Recorded:
    nodes = [recorder.node(v) for v in tensors]
    rank = nodes[0].rank
    at = within(dim if axis is None else axis, rank)
    if any(node.rank != rank for node in nodes):
        raise Impossible
    if len(nodes) == 1:
        return Recorded.of(nodes[0])
    sizes = list(nodes[0].shape)
    for node in nodes[1:]:
        sizes = [n if k == at else unified(n, m) for k, (n, m) in enumerate(zip(sizes, node.shape))]
    sizes[at] = sum(node.shape[at] for node in nodes)
    return recorder.made(Concat(at), nodes, sizes, joint_kind(nodes))


def joint_kind(nodes: list[Node]) -> str | None:
    kinds = {node.kind for node in nodes}
    return next((kind for kind in ("float", None, INT, BOOL) if kind in kinds), None)


@rule("stack")
def stack(recorder: Recorder, tensors: Any, dim: int = 0) -> Recorded:
    return cat(recorder, [unsqueeze(recorder, v, dim) for v in tensors], dim)


@rule("hstack", "column_stack")
def hstack(recorder: Recorder, tensors: Any) -> Recorded:
    return cat(recorder, tensors, 0 if recorder.node(tensors[0]).rank == 1 else 1)


@rule("flip")
def flip(recorder: Recorder, x: Any, *dims: Any, **kwargs: Any) -> Recorded:
    node = recorder.node(x)
    axes = tuple(sorted(within(d, node.rank) for d in listed(dims or (kwargs["dims"],))))
    return recorder.made(Flip(axes), [x], node.shape, node.kind)


RULES["fliplr"] = lambda recorder, x: flip(recorder, x, 1)


@rule("roll")
def roll(recorder: Recorder, x: Any, shifts: Any, dims: Any = None) -> Recorded:
    by, dim = (v[0] if isinstance(v, tuple | list) and len(v) == 1 else v for v in (shifts, dims))
    if not is_whole(by) or not is_whole(dim) or isinstance(by, Size):
        raise Refused("roll() over several axes, or by what only a call knows")
    axis = within(dim, recorder.node(x).rank)
    whole = recorder.node(x).shape[axis]
    at = whole - by if by > 0 else -by
    return cat(recorder, [sliced(recorder, x, axis, at, whole), sliced(recorder, x, axis, 0, at)], axis)


@rule("pad")
def pad(recorder: Recorder, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    if mode != "constant" or any(isinstance(n, Recorded) for n in pad):
        raise Refused(f"it pads in mode {mode!r}, or by what only a call knows")
    result, rank = x, recorder.node(x).rank
    for k in range(len(pad) // 2):
        axis, before, after = within(-1 - k, rank), pad[2 * k], pad[2 * k + 1]
        node = recorder.node(result)
        if isinstance(before, Size) or isinstance(after, Size):
            raise Refused("it pads by as much as only a call knows")
        whole, cut = node.shape[axis], (max(-before, 0), max(-after, 0))
        if any(cut):
            result = sliced(recorder, result, axis, cut[0], whole - cut[1])
            node = recorder.node(result)
        if before > 0 or after > 0:
            front, back = max(before, 0), max(after, 0)
            shape = (*node.shape[:axis], node.shape[axis] + front + back, *node.shape[axis + 1 :])
            op = Pad(axis, front, back, float(value or 0.0))
            result = recorder.made(op, [result], shape, node.kind)
    return result


# Writes into a part.


@rule("setitem")
def setitem(recorder: Recorder, x: Any, index: Any, value: Any) -> None:
    node = recorder.node(x)
    if isinstance(index, torch.Tensor) and is_mask(index):
        mask = recorder.node(index)
        wide = reshaped(recorder, index, (*mask.shape, *[1] * (node.rank - mask.rank)))
        recorder.write(x, RULES["masked_fill"](recorder, x, wide, value))
        return
    recorder.write(x, replaced_part(recorder, x, spelled_out(index, node.rank), value, 0))


def replaced_part(recorder: Recorder, x: Any, items: list[Any], value: Any, axis: int) -> Recorded:
    """x with a part replaced: what lies before it, the part, what lies behind it."""
    if axis == len(items):
        node = recorder.node(value)
        made = expand(recorder, value, recorder.node(x).shape)
        return made if node.kind == recorder.node(x).kind else cast(recorder, made, recorder.node(x).kind)
    item, whole = items[axis], recorder.node(x).shape[axis]
    if isinstance(item, slice):
        start, stop, step = limits(item, whole)
    elif is_whole(item) and not isinstance(item, bool):
        start, step = (whole + item if not isinstance(item, Size) and item < 0 else item), 1
        stop = start + 1
    else:
        raise Refused("it writes into a part of a tensor; masked_fill() and torch.where() give a new one")
    if step != 1:
        raise Refused("it writes into every second part of a tensor, or the like")
    part = sliced(recorder, x, axis, start, stop)
    if not isinstance(item, slice) and any(isinstance(other, slice) for other in items):
        # The value has one axis less: give it one of size 1.
        given = recorder.node(value)
        behind = sum(isinstance(other, slice) for other in items[axis + 1 :])
        if given.rank > behind:
            value = unsqueeze(recorder, value, given.rank - behind)
    inner = replaced_part(recorder, part, items, value, axis + 1)
    pieces = [sliced(recorder, x, axis, 0, start), inner, sliced(recorder, x, axis, stop, whole)]
    sizes = [start, 1, whole - stop]
    left = [p for p, n in zip(pieces, sizes) if isinstance(n, Size) or n > 0]
    return cat(recorder, left, axis)


@rule("zero_", "fill_")
def fill(recorder: Recorder, x: Any, value: Any = 0.0) -> Recorded:
    return RULES["full_like"](recorder, x, value)  # type: ignore[no-any-return]


@rule("copy_")
def copy(recorder: Recorder, x: Any, value: Any, *_: Any) -> Recorded:
    return expand(recorder, value, recorder.node(x).shape)


def triangle(lower: bool) -> Any:
    def call(recorder: Recorder, x: Any, diagonal: int = 0) -> Recorded:
        rows, columns = recorder.node(x).shape[-2:]
        ahead = combine(
            recorder, "sub", counted(recorder, columns), unsqueeze(recorder, counted(recorder, rows), 1)
        )
        gone = compare(recorder, "gt" if lower else "lt", ahead, diagonal)
        return RULES["masked_fill"](recorder, x, gone, False if recorder.node(x).kind == BOOL else 0)  # type: ignore[no-any-return]

    return call


RULES["tril"], RULES["triu"] = triangle(True), triangle(False)


@rule("data=")
def other_data(recorder: Recorder, x: Any, value: Any) -> None:
    raise Refused("it gives a tensor other data")
