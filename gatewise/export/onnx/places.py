"""Operations that put the same values in other places, in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gatewise.export.onnx.graph import Graph
from gatewise.export.onnx.tensors import ARRAYS, Held, Tensors
from gatewise.program.graph import Node
from gatewise.program.operations import (
    Concat,
    Expand,
    Flip,
    Gather,
    Index,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Slice,
    Unpack,
)
from gatewise.program.sizes import Size, same

FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def permuted(t: Tensors, node: Node, op: Permute) -> Held:
    (source,) = node.inputs
    stays = op.order[-1] == source.rank - 1
    held = t.unscaled[source] if stays else Held(t.whole(source))
    return replace(held, name=t.graph.transposed(held.name, *op.order))


def reshaped(t: Tensors, node: Node, op: Reshape) -> str:
    return in_shape(t, t.whole(node.inputs[0]), node.inputs[0].shape, node.shape)


def in_shape(t: Tensors, x: str, old: Sequence[int], new: Sequence[int]) -> str:
    """x in a new shape. A size that only a call knows may stay where it was, and one may follow from the others."""
    stays = [k < len(old) and isinstance(n, Size) and same(n, old[k]) for k, n in enumerate(new)]
    open_ones = [k for k, n in enumerate(new) if isinstance(n, Size) and not stays[k]]
    if len(open_ones) > 1:
        return t.graph.add("Reshape", x, t.sizes.vector(new))
    form = [0 if stays[k] else -1 if k in open_ones else int(n) for k, n in enumerate(new)]
    return t.graph.add("Reshape", x, t.graph.integers(*form))


def expanded(t: Tensors, node: Node, op: Expand) -> str:
    return t.graph.add("Expand", t.whole(node.inputs[0]), t.sizes.vector(node.shape))


def sliced(t: Tensors, node: Node, op: Slice) -> Held:
    (source,) = node.inputs
    if op.axis == source.rank - 1:
        return Held(part(t, t.whole(source), op, source.shape[op.axis]))
    held = t.unscaled[source]
    return replace(held, name=part(t, held.name, op, source.shape[op.axis]))


def part(t: Tensors, x: str, op: Slice, size: int) -> str:
    stop = t.graph.integers(LAST) if same(op.stop, size) else limit(t, op.stop, size)
    return t.graph.add(
        "Slice", x, limit(t, op.start, size), stop, t.graph.integers(op.axis), t.graph.integers(op.step)
    )


def limit(t: Tensors, place: int, size: int) -> str:
    """A place on an axis; counted from the end if that is a plain number: T - 1 is -1."""
    behind = place - size
    if isinstance(place, Size) and not isinstance(behind, Size) and behind < 0:
        return t.graph.integers(behind)
    return t.sizes.number(place)


def joined(t: Tensors, node: Node, op: Concat) -> Held:
    last = op.axis == node.rank - 1
    if not last or all(t.some(source).kept is None for source in node.inputs):
        return Held(
            t.graph.add("Concat", *(t.whole(source, node.kind) for source in node.inputs), axis=op.axis)
        )
    kept, offset = [], 0
    for source in node.inputs:
        own, width = t.some(source).kept, source.shape[-1]
        kept.append(offset + (np.arange(width) if own is None else own))
        offset += width
    names = (t.cast(t.some(source).name, source.kind, node.kind) for source in node.inputs)
    return Held(t.graph.add("Concat", *names, axis=op.axis), np.concatenate(kept))


def flipped(t: Tensors, node: Node, op: Flip) -> str:
    n = len(op.axes)
    ends = (t.graph.integers(*[number] * n) for number in (-1, FIRST))
    return t.graph.add(
        "Slice", t.whole(node.inputs[0]), *ends, t.graph.integers(*op.axes), t.graph.integers(*[-1] * n)
    )


def padded(t: Tensors, node: Node, op: Pad) -> str:
    around = np.zeros((2, node.rank), np.int64)
    around[:, op.axis] = op.before, op.after
    value = t.graph.constant(np.array(op.value, ARRAYS[node.kind]))
    return t.graph.add("Pad", t.whole(node.inputs[0]), t.graph.constant(around.reshape(-1)), value)


def indexed(t: Tensors, node: Node, op: Index) -> str:
    """Several indices: the axes they index go to the front, where GatherND reads them, and their answers back."""
    source, *indices = node.inputs
    graph, n = t.graph, len(indices)
    if n == 1:
        return graph.add("Gather", t.whole(source), t.whole(indices[0]), axis=op.axis)
    before, taken = range(op.axis), range(op.axis, op.axis + n)
    behind = range(op.axis + n, source.rank)
    front = graph.transposed(t.whole(source), *taken, *before, *behind)
    rank = node.rank - (source.rank - n)  # of the indices, repeated to one shape
    shape = t.sizes.vector([*node.shape[op.axis : op.axis + rank], 1])
    places = [graph.add("Expand", column(graph, t.whole(index)), shape) for index in indices]
    found = graph.add("GatherND", front, graph.add("Concat", *places, axis=-1))
    order = [*range(rank, rank + op.axis), *range(rank), *range(rank + op.axis, node.rank)]
    return graph.transposed(found, *order)


def column(graph: Graph, x: str) -> str:
    return graph.add("Unsqueeze", x, graph.integers(-1))


def gathered(t: Tensors, node: Node, op: Gather) -> str:
    """torch refuses negative indices here, so for ONNX they are far beyond the end."""
    source, index = node.inputs
    places = t.whole(index)
    if not isinstance(index.op, Reduce):  # argmax() gives none
        negative = t.graph.add("Less", places, t.graph.integer(0))
        places = t.graph.add("Where", negative, t.graph.integer(LAST), places)
    return t.graph.add("GatherElements", t.whole(source), places, axis=op.axis)


def unpacked(t: Tensors, node: Node, op: Unpack) -> str:
    """Cut or filled up to L steps, which is the longest length where no tensor has L yet."""
    (source, lengths), graph = node.inputs, t.graph
    x, ends, size = t.whole(source), t.whole(lengths), node.shape[1]
    if isinstance(size, Size) and not size.letters <= t.sizes.letters.keys():
        steps = graph.over("ReduceMax", ends, 0, keepdims=1)
    else:
        steps = t.sizes.number(size)
    if not same(size, source.shape[1]):
        zero, one = graph.integers(0), graph.integers(1)
        x = graph.add("Slice", x, zero, steps, one)
        missing = graph.add("Sub", steps, graph.add("Shape", x, start=1, end=2))
        behind = graph.integers(*[0] * (node.rank - 2))
        pads = graph.add("Concat", graph.integers(*[0] * node.rank), zero, missing, behind, axis=0)
        x = graph.add("Pad", x, pads)
    inside = graph.add("Less", graph.count(steps), column(graph, ends))  # (B, L)
    inside = graph.add("Unsqueeze", inside, graph.integers(*range(2, node.rank)))
    return graph.add("Where", inside, x, graph.number(op.value))


RULES = {
    Permute: permuted, Reshape: reshaped, Expand: expanded, Slice: sliced, Concat: joined, Flip: flipped,
    Pad: padded, Index: indexed, Gather: gathered, Unpack: unpacked,
}  # fmt: skip
