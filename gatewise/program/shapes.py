"""What torch's functions mean that ask for shapes, or put values in other places."""

from __future__ import annotations

import math
from typing import Any

import torch

from gatewise.program.arithmetic import RULES, rule
from gatewise.program.fits import is_one, unified, within
from gatewise.program.graph import BOOL, INT
from gatewise.program.operations import Expand, Permute, Reshape
from gatewise.program.recorder import Recorder
from gatewise.program.sizes import Size, Undecided, is_whole, same, same_shape
from gatewise.program.stand_ins import Assume, Impossible, Recorded, Refused

DTYPES = {INT: torch.int64, BOOL: torch.bool}


# Questions.


@rule("shape", "size")
def size(recorder: Recorder, x: Any, dim: Any = None) -> Any:
    shape = recorder.node(x).shape
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


RULES["dim"] = RULES["ndim"] = RULES["ndimension"] = lambda recorder, x: recorder.node(x).rank
RULES["numel"] = RULES["nelement"] = lambda recorder, x: math.prod(recorder.node(x).shape)
RULES["len"] = lambda recorder, x: recorder.node(x).shape[0]
RULES["is_contiguous"] = lambda recorder, x, **_: True
RULES["is_floating_point"] = lambda recorder, x: recorder.node(x).kind not in (INT, BOOL)
RULES["is_cuda"] = RULES["is_meta"] = RULES["is_sparse"] = RULES["is_nested"] = lambda recorder, x: False
RULES["is_mkldnn"] = RULES["is_quantized"] = RULES["is_complex"] = RULES["is_nested"]
RULES["is_cpu"] = lambda recorder, x: True


@rule("dtype")
def dtype(recorder: Recorder, x: Any) -> torch.dtype:
    floats = (p.dtype for p in recorder.model.parameters() if p.is_floating_point())
    return DTYPES.get(recorder.node(x).kind) or next(floats, torch.float32)


@rule("device")
def device(recorder: Recorder, x: Any) -> torch.device:
    return next((p.device for p in recorder.model.parameters()), torch.device("cpu"))


RULES["get_device"] = lambda recorder, x: -1


# The same values in another shape.


def listed(sizes: Any) -> list[Any]:
    """view(2, 3) and view((2, 3)) alike."""
    single = len(sizes) == 1 and isinstance(sizes[0], tuple | list)
    return list(sizes[0]) if single else list(sizes)


@rule("reshape", "view", "_unsafe_view")
def reshape(recorder: Recorder, x: Any, *sizes: Any, shape: Any = None) -> Recorded:
    node = recorder.node(x)
    wanted = listed(sizes) if shape is None else list(shape)
    if not all(is_whole(n) for n in wanted):
        raise Refused("it asks for a shape that only a call knows")
    total = math.prod(node.shape)
    free = [k for k, n in enumerate(wanted) if not isinstance(n, Size) and n == -1]
    known = math.prod(n for k, n in enumerate(wanted) if k not in free)
    try:
        rest = total // known if free else 1
        fits = len(free) < 2 and same(known * rest, total)
    except Undecided:
        fits = False
    if not fits:
        written_out(node.shape, wanted)
        raise Impossible
    if free:
        wanted[free[0]] = rest
    return reshaped(recorder, x, tuple(wanted))


def written_out(shape: tuple[int, ...], wanted: list[int]) -> None:
    """Numbers that forward() writes for the batch or time: reshape(5, 3, -1)."""
    for own, asked in zip(shape, wanted):
        if isinstance(own, Size) and not isinstance(asked, Size) and asked > 0:
            unified(own, asked)
    open_ones = [own for own in shape if isinstance(own, Size)]
    numbers = [asked for asked in wanted if not isinstance(asked, Size) and asked > 1]
    if open_ones and numbers:
        unified(open_ones[0], numbers[0])


def reshaped(recorder: Recorder, x: Any, shape: tuple[int, ...]) -> Recorded:
    if same_shape(recorder.node(x).shape, shape):
        return Recorded.of(recorder.node(x), getattr(x, "memory", None))
    return recorder.made(Reshape(), [x], shape, recorder.node(x).kind)


RULES["view_as"] = RULES["reshape_as"] = lambda recorder, x, other: reshape(
    recorder, x, recorder.node(other).shape
)


@rule("flatten")
def flatten(recorder: Recorder, x: Any, start_dim: int = 0, end_dim: int = -1) -> Recorded:
    shape = recorder.node(x).shape
    first, last = within(start_dim, len(shape)), within(end_dim, len(shape))
    return reshaped(recorder, x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@rule("unflatten")
def unflatten(recorder: Recorder, x: Any, dim: int, sizes: Any) -> Recorded:
    shape = recorder.node(x).shape
    at = within(dim, len(shape))
    return reshape(recorder, x, (*shape[:at], *sizes, *shape[at + 1 :]))


@rule("unsqueeze")
def unsqueeze(recorder: Recorder, x: Any, dim: int) -> Recorded:
    shape = recorder.node(x).shape
    at = within(dim, len(shape) + 1)
    return reshaped(recorder, x, (*shape[:at], 1, *shape[at:]))


@rule("squeeze")
def squeeze(recorder: Recorder, x: Any, *dims: Any, dim: Any = None) -> Recorded:
    """Axes of a size that only a call knows stay, as they do in every call but those of one sequence or one step."""
    shape = recorder.node(x).shape
    given = listed(dims) if dims else [] if dim is None else listed([dim])
    asked = {within(d, len(shape)) for d in given} if given else set(range(len(shape)))
    for axis in asked:
        maybe(recorder, shape[axis], 1)
    return reshaped(recorder, x, tuple(n for k, n in enumerate(shape) if k not in asked or not is_one(n)))


def maybe(recorder: Recorder, size: int, number: int) -> None:
    """An analysis follows both: calls in which a size is this number, and all others."""
    name = str(size)
    if recorder.lenient and isinstance(size, Size) and name in size.letters:
        (is_it,) = recorder.choice(f"whether {name} is {number}", [(0,), (1,)])
        if is_it:
            raise Assume(name, number)


@rule("permute")
def permute(recorder: Recorder, x: Any, *order: Any, dims: Any = None) -> Recorded:
    node = recorder.node(x)
    axes = [within(k, node.rank) for k in (listed(order) if order else dims)]
    if sorted(axes) != list(range(node.rank)):
        raise Impossible
    if axes == sorted(axes):
        return Recorded.of(node, getattr(x, "memory", None))
    return recorder.made(Permute(tuple(axes)), [x], [node.shape[k] for k in axes], node.kind)


@rule("transpose", "swapaxes", "swapdims")
def transpose(recorder: Recorder, x: Any, dim0: int, dim1: int) -> Recorded:
    rank = recorder.node(x).rank
    order = list(range(rank))
    a, b = within(dim0, rank), within(dim1, rank)
    order[a], order[b] = order[b], order[a]
    return permute(recorder, x, order)


@rule("movedim", "moveaxis")
def movedim(recorder: Recorder, x: Any, source: Any, destination: Any) -> Recorded:
    rank = recorder.node(x).rank
    order = [k for k in range(rank) if k != within(source, rank)]
    order.insert(within(destination, rank), within(source, rank))
    return permute(recorder, x, order)


@rule("t", "T", "mT")
def transposed(recorder: Recorder, x: Any) -> Recorded:
    return x if recorder.node(x).rank < 2 else transpose(recorder, x, -2, -1)


@rule("expand", "broadcast_to")
def expand(recorder: Recorder, x: Any, *sizes: Any, size: Any = None) -> Recorded:
    node, wanted = recorder.node(x), listed(sizes) if size is None else list(size)
    if len(wanted) < node.rank:
        raise Impossible
    old = (*[1] * (len(wanted) - node.rank), *node.shape)
    shape = tuple(
        a if not isinstance(n, Size) and n == -1 else n if is_one(a) else unified(a, n)
        for a, n in zip(old, wanted)
    )
    if same_shape(shape, node.shape):
        return Recorded.of(node, getattr(x, "memory", None))
    return recorder.made(Expand(), [x], shape, node.kind)


RULES["expand_as"] = lambda recorder, x, other: expand(recorder, x, recorder.node(other).shape)


@rule("repeat", "tile")
def repeat(recorder: Recorder, x: Any, *times: Any, repeats: Any = None, dims: Any = None) -> Recorded:
    """(a, b) n times over an axis: (n, a, b) -> (n * a, b)."""
    counts = listed(times) if times else list(repeats or dims)
    shape = recorder.node(x).shape
    if len(counts) < len(shape):
        raise Impossible
    shape = (*[1] * (len(counts) - len(shape)), *shape)
    apart = [n for count, size in zip(counts, shape) for n in (1, size)]
    wide = [n for count, size in zip(counts, shape) for n in (count, size)]
    whole = tuple(count * size for count, size in zip(counts, shape))
    return reshaped(recorder, expand(recorder, reshaped(recorder, x, tuple(apart)), wide), whole)


@rule("repeat_interleave")
def repeat_interleave(recorder: Recorder, x: Any, repeats: Any, dim: Any = None, **_: Any) -> Recorded:
    if dim is None or not is_whole(repeats):
        raise Refused("repeat_interleave() as often as a tensor says, or over all axes")
    shape = recorder.node(x).shape
    at = within(dim, len(shape))
    wide = expand(recorder, unsqueeze(recorder, x, at + 1), (*shape[: at + 1], repeats, *shape[at + 1 :]))
    return reshaped(recorder, wide, (*shape[:at], shape[at] * repeats, *shape[at + 1 :]))
