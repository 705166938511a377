"""Values of a program on their way into C: views of memory, and what is computed of them on the fly.

    value[i, j] = f(leaf_1[i, j], leaf_2[i, j], ...)      leaf[i, j] = base[offset + i * stride_0 + j * stride_1]

An operation on every value by itself writes no code: it composes f. One that moves values changes offset and strides.
Code is written where numbers must lie in memory. Sizes are those of one sequence: B = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gatewise.export.c.sizes import in_c, is_one, product, same

Text = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Leaf:
    """base[offset + sum of index * stride]; without a base, that sum; with `number`, the base itself."""

    base: str
    strides: tuple[int, ...] = ()
    offset: int = 0
    number: bool = False

    def read(self, indices: Sequence[str]) -> str:
        if self.number:
            return self.base
        place = position(self.offset, zip(indices, self.strides, strict=True))
        return f"{self.base}[{place}]" if self.base else f"({place})"

    @property
    def begin(self) -> str:
        """A pointer to its first entry."""
        return self.base if same(self.offset, 0) else f"{self.base} + {in_c(self.offset)}"


def position(offset: int, steps: Iterable[tuple[str, int]]) -> str:
    parts = [] if same(offset, 0) else [in_c(offset)]
    for index, stride in steps:
        if index == "0" or same(stride, 0):
            continue
        by = in_c(stride)
        parts.append(index if is_one(stride) else f"{index} * {f'({by})' if ' ' in by else by}")
    return " + ".join(parts) or "0"


def itself(reads: Sequence[str]) -> str:
    return reads[0]


@dataclass(frozen=True)
class Value:
    """f of leaves that all have its shape; `text` is f, as C writes it."""

    shape: tuple[int, ...]
    kind: str
    leaves: tuple[Leaf, ...]
    text: Text = itself

    @property
    def plain(self) -> bool:
        """Whether it is memory, or costs no more to read."""
        return self.text is itself

    @property
    def in_memory(self) -> bool:
        return self.plain and bool(self.leaves[0].base) and not self.leaves[0].number

    @property
    def count(self) -> int:
        return product(self.shape)

    def read(self, indices: Sequence[str]) -> str:
        return self.text([leaf.read(indices) for leaf in self.leaves])

    def moved(self, shape: tuple[int, ...], change: Callable[[Leaf], Leaf]) -> Value:
        return replace(self, shape=shape, leaves=tuple(change(leaf) for leaf in self.leaves))


def number(text: str, shape: tuple[int, ...], kind: str) -> Value:
    """One number everywhere."""
    return Value(shape, kind, (Leaf(text, (0,) * len(shape), number=True),))


def stored(base: str, shape: tuple[int, ...], kind: str) -> Value:
    """Row by row in memory."""
    return Value(shape, kind, (Leaf(base, row_by_row(shape)),))


def row_by_row(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(product(shape[k + 1 :]) for k in range(len(shape)))


# The same values in other places.


def permuted(value: Value, order: Sequence[int]) -> Value:
    shape = tuple(value.shape[k] for k in order)
    return value.moved(shape, lambda leaf: replace(leaf, strides=tuple(leaf.strides[k] for k in order)))


def expanded(value: Value, shape: tuple[int, ...]) -> Value:
    missing = len(shape) - len(value.shape)
    stays = [same(a, b) for a, b in zip(value.shape, shape[missing:])]

    def change(leaf: Leaf) -> Leaf:
        kept = (stride if stay else 0 for stride, stay in zip(leaf.strides, stays))
        return replace(leaf, strides=((0,) * missing + tuple(kept)))

    return value.moved(shape, change)


def sliced(value: Value, axis: int, start: int, length: int, step: int = 1) -> Value:
    def change(leaf: Leaf) -> Leaf:
        strides = list(leaf.strides)
        offset = leaf.offset + start * strides[axis]
        strides[axis] = strides[axis] * step
        return replace(leaf, offset=offset, strides=tuple(strides))

    return value.moved((*value.shape[:axis], length, *value.shape[axis + 1 :]), change)


def flipped(value: Value, axes: Sequence[int]) -> Value:
    for axis in axes:
        value = sliced(value, axis, value.shape[axis] - 1, value.shape[axis], -1)
    return value


def reshaped(value: Value, shape: tuple[int, ...]) -> Value | None:
    """The same values, row by row, in another shape; None where they would have to be moved."""
    (flat,) = merged([value])
    found: list[list[int]] = [[] for _ in value.leaves]
    blocks = iter(range(len(flat.shape)))
    left = list(shape)
    while left:
        taken = [left.pop(0)]
        if is_one(taken[0]):
            for strides in found:
                strides.append(0)
            continue
        block = next(blocks, None)
        while block is not None and left and not same(product(taken), flat.shape[block]):
            taken.append(left.pop(0))
        if block is None or not same(product(taken), flat.shape[block]):
            return None
        for strides, leaf in zip(found, flat.leaves):
            strides.extend(leaf.strides[block] * within for within in row_by_row(taken))
    leaves = (replace(leaf, strides=tuple(strides)) for leaf, strides in zip(flat.leaves, found))
    return replace(value, shape=shape, leaves=tuple(leaves)) if next(blocks, None) is None else None


def merged(values: Sequence[Value]) -> list[Value]:
    """Values of one shape with as few axes as can be: those of size 1 gone, neighbours joined where all allow it."""
    shape: list[int] = []
    strides: list[list[int]] = []  # of each axis, those of every leaf
    leaves = [leaf for value in values for leaf in value.leaves]
    for axis, size in enumerate(values[0].shape):
        here = [leaf.strides[axis] for leaf in leaves]
        if is_one(size):
            continue
        if shape and all(same(outer, inner * size) for outer, inner in zip(strides[-1], here)):
            shape[-1], strides[-1] = shape[-1] * size, here
        else:
            shape.append(size)
            strides.append(here)
    columns = iter(zip(*strides) if strides else [()] * len(leaves))
    return [
        replace(
            value,
            shape=tuple(shape),
            leaves=tuple(replace(leaf, strides=tuple(next(columns))) for leaf in value.leaves),
        )
        for value in values
    ]


def nest(shape: Sequence[int], body: Callable[[list[str]], list[str]], name: str = "i") -> list[str]:
    """for (i0 ...) for (i1 ...) body; one statement."""
    indices = ["0" if is_one(size) else f"{name}{k}" for k, size in enumerate(shape)]
    lines = body(indices)
    for index, size in reversed(list(zip(indices, shape))):
        if index != "0":
            lines = looped(index, size, lines)
    return lines if is_statement(lines) else ["{", *indented(lines), "}"]


def looped(index: str, size: int, lines: Sequence[str]) -> list[str]:
    head = f"for (int32_t {index} = 0; {index} < {in_c(size)}; {index}++)"
    return [head, *indented(lines)] if is_statement(lines) else [f"{head} {{", *indented(lines), "}"]


def indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def is_statement(lines: Sequence[str]) -> bool:
    """A single line, or one loop or block with what belongs to it."""
    starts = len(lines) == 1 or lines[0].startswith(("for ", "{"))
    return starts and all(line.startswith((" ", "}")) for line in lines[1:])


def copied(target: Value, value: Value) -> list[str]:
    """target = value, entry by entry."""
    into, source = merged([target, value])
    return nest(into.shape, lambda at: [f"{into.read(at)} = {source.read(at)};"])
