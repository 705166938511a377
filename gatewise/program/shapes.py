"""What torch's functions mean that ask for shapes, or put values in other places."""

from __future__ import annotations

import math
from typing import Any

import torch

from gatewise.program.arithmetic import RULES, rule
from gatewise.program.fits import is_one, require, unified, within
from gatewise.program.graph import BOOL, INT
from gatewise.program.operations import Expand, Permute, Reshape
from gatewise.program.recorder import made, node_of
from gatewise.program.sizes import Size, Undecided, is_whole, same, same_shape
from gatewise.program.stand_ins import Assume, Impossible, Recorded, Refused, current

DTYPES = {INT: torch.int64, BOOL: torch.bool}


# Questions.


@rule("shape", "size")
def size(x: Recorded, dim: Any = None) -> Any:
    shape = x.node.shape
    return Sizes(shape) if dim is None else shape[within(dim, len(shape))]


class Sizes(tuple):  # type: ignore[type-arg]
    """A shape, which isinstance() takes for a torch.Size."""

    __slots__ = ()

    def numel(self) -> int:
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Sizes(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return Sizes((*self, *other))


RULES["dim"] = RULES["ndim"] = RULES["ndimension"] = lambda x: x.node.rank
RULES["numel"] = RULES["nelement"] = lambda x: math.prod(x.node.shape)
RULES["len"] = lambda x: x.node.shape[0]
RULES["is_floating_point"] = lambda x: x.node.kind not in DTYPES
RULES["get_device"] = lambda x: -1
for _name in ("is_contiguous", "is_cpu"):
    RULES[_name] = lambda x, **_: True
for _name in ("is_cuda", "is_meta", "is_sparse", "is_nested", "is_mkldnn", "is_quantized", "is_complex"):
    RULES[_name] = lambda x: False


@rule("dtype")
def dtype(x: Recorded) -> torch.dtype:
    floats = (p.dtype for p in current().model.parameters() if p.is_floating_point())
    return DTYPES.get(x.node.kind) or next(floats, torch.float32)


@rule("device")
def device(x: Recorded) -> torch.device:
    return next((p.device for p in current().model.parameters()), torch.device("cpu"))


# The same values in another shape.


def listed(sizes: Any) -> list[Any]:
    """view(2, 3) and view((2, 3)) alike."""
    single = len(sizes) == 1 and isinstance(sizes[0], tuple | list)
    return list(sizes[0]) if single else list(sizes)


@rule("reshape", "view", "_unsafe_view")
def reshape(x: Recorded, *sizes: Any, shape: Any = None) -> Recorded:
    wanted = listed(sizes) if shape is None else list(shape)
    if not all(is_whole(n) for n in wanted):
        raise Refused("it asks for a shape that only a call knows")
    total = math.prod(x.node.shape)
    free = [k for k, n in enumerate(wanted) if not isinstance(n, Size) and n == -1]
    known = math.prod(n for k, n in enumerate(wanted) if k not in free)
    try:
        rest = total // known if free else 1
        fits = len(free) < 2 and same(known * rest, total)
    except Undecided:
        fits = False
    if not fits:
        written_out(x.node.shape, wanted)
        raise Impossible
    if free:
        wanted[free[0]] = rest
    return reshaped(x, tuple(wanted))


def written_out(shape: tuple[int, ...], wanted: list[int]) -> None:
    """Numbers that forward() writes for the batch or time: reshape(5, 3, -1)."""
    for own, asked in zip(shape, wanted):
        if isinstance(own, Size) and not isinstance(asked, Size) and asked > 0:
            unified(own, asked)
    open_ones = [own for own in shape if isinstance(own, Size)]
    numbers = [asked for asked in wanted if not isinstance(asked, Size) and asked > 1]
    if open_ones and numbers:
        unified(open_ones[0], numbers[0])


def reshaped(x: Recorded, shape: tuple[int, ...]) -> Recorded:
    return x.alias() if same_shape(x.node.shape, shape) else made(Reshape(), [x], shape, x.node.kind)


def with_axes(x: Recorded, first: int, last: int, sizes: tuple[int, ...]) -> Recorded:
    """Other axes in the place of those from the first to before the last."""
    shape = x.node.shape
    return reshape(x, (*shape[:first], *sizes, *shape[last:]))


RULES["view_as"] = RULES["reshape_as"] = lambda x, other: reshape(x, other.node.shape)


@rule("flatten")
def flatten(x: Recorded, start_dim: int = 0, end_dim: int = -1) -> Recorded:
    first, last = (within(dim, x.node.rank) for dim in (start_dim, end_dim))
    return with_axes(x, first, last + 1, (math.prod(x.node.shape[first : last + 1]),))


@rule("unflatten")
def unflatten(x: Recorded, dim: int, sizes: Any) -> Recorded:
    at = within(dim, x.node.rank)
    return with_axes(x, at, at + 1, sizes)


@rule("unsqueeze")
def unsqueeze(x: Recorded, dim: int) -> Recorded:
    at = within(dim, x.node.rank + 1)
    return with_axes(x, at, at, (1,))


@rule("squeeze")
def squeeze(x: Recorded, *dims: Any, dim: Any = None) -> Recorded:
    """Axes of a size that only a call knows stay, as they do in every call but those of one sequence or one step."""
    shape = x.node.shape
    given = listed(dims) if dims else [] if dim is None else listed([dim])
    asked = {within(d, len(shape)) for d in given} if given else set(range(len(shape)))
    for axis in asked:
        maybe(shape[axis], 1)
    return reshaped(x, tuple(n for k, n in enumerate(shape) if k not in asked or not is_one(n)))


def maybe(size: int, number: int) -> None:
    """An analysis follows both: calls in which a size is this number, and all others."""
    name, recorder = str(size), current()
    if recorder.lenient and isinstance(size, Size) and name in size.letters:
        (is_it,) = recorder.choice(f"whether {name} is {number}", [(0,), (1,)])
        if is_it:
            raise Assume(name, number)


@rule("permute")
def permute(x: Recorded, *order: Any, dims: Any = None) -> Recorded:
    node = x.node
    axes = [within(k, node.rank) for k in (listed(order) if order else dims)]
    require(sorted(axes) == list(range(node.rank)))
    if axes == sorted(axes):
        return x.alias()
    return made(Permute(tuple(axes)), [x], [node.shape[k] for k in axes], node.kind)


@rule("transpose", "swapaxes", "swapdims")
def transpose(x: Recorded, dim0: int, dim1: int) -> Recorded:
    order = list(range(x.node.rank))
    a, b = within(dim0, len(order)), within(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


@rule("movedim", "moveaxis")
def movedim(x: Recorded, source: Any, destination: Any) -> Recorded:
    rank = x.node.rank
    order = [k for k in range(rank) if k != within(source, rank)]
    order.insert(within(destination, rank), within(source, rank))
    return permute(x, order)


@rule("t", "T", "mT")
def transposed(x: Recorded) -> Recorded:
    return x if x.node.rank < 2 else transpose(x, -2, -1)


@rule("expand", "broadcast_to")
def expand(x: Any, *sizes: Any, size: Any = None) -> Recorded:
    node, wanted = node_of(x), listed(sizes) if size is None else list(size)
    require(len(wanted) >= node.rank)
    old = (*[1] * (len(wanted) - node.rank), *node.shape)
    shape = tuple(
        a if not isinstance(n, Size) and n == -1 else n if is_one(a) else unified(a, n)
        for a, n in zip(old, wanted)
    )
    if isinstance(x, Recorded) and same_shape(shape, node.shape):
        return x.alias()
    return made(Expand(), [x], shape, node.kind)


RULES["expand_as"] = lambda x, other: expand(x, other.node.shape)


@rule("repeat", "tile")
def repeat(x: Recorded, *times: Any, repeats: Any = None, dims: Any = None) -> Recorded:
    """(a, b) n times over an axis: (n, a, b) -> (n * a, b)."""
    counts = listed(times) if times else list(repeats or dims)
    require(len(counts) >= x.node.rank)
    shape = (*[1] * (len(counts) - x.node.rank), *x.node.shape)
    apart = reshaped(x, tuple(n for size in shape for n in (1, size)))
    wide = expand(apart, [n for count, size in zip(counts, shape) for n in (count, size)])
    return reshaped(wide, tuple(count * size for count, size in zip(counts, shape)))


@rule("repeat_interleave")
def repeat_interleave(x: Recorded, repeats: Any, dim: Any = None, **_: Any) -> Recorded:
    if dim is None or not is_whole(repeats):
        raise Refused("repeat_interleave() as often as a tensor says, or over all axes")
    shape = x.node.shape
    at = within(dim, len(shape))
    wide = expand(unsqueeze(x, at + 1), (*shape[: at + 1], repeats, *shape[at + 1 :]))
    return with_axes(wide, at, at + 2, (shape[at] * repeats,))
