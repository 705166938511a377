"""What every operation of a program computes, in NumPy; layers are made by whoever runs the program.

A rule gets the operation, its inputs, and the frame of the call: the node's shape, and the value of every letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.program import operations as ops
from gatewise.program.graph import BOOL, INT, Node
from gatewise.program.sizes import Size, at
from gatewise.runtime.functions import (
    COMBINED,
    MAPPED,
    REDUCED,
    convolved,
    layer_norm,
    padded,
    pooled,
    softmax,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Frame:
    """A node in one call."""

    shape: tuple[int, ...]
    letters: Mapping[str, int]
    kind: type[np.generic]  # of the answer


def kind_of(node: Node, floats: type[np.floating[Any]] = np.float32) -> type[np.generic]:
    return np.int64 if node.kind == INT else np.bool_ if node.kind == BOOL else floats


def computed(
    node: Node, inputs: list[Array], letters: dict[str, int], floats: type[Any] = np.float32
) -> Array:
    """The value of a node that is no layer, argument or parameter."""
    if isinstance(node.op, ops.Unpack):
        name_longest(node, inputs[1], letters)
    return ruled(node, inputs, frame_of(node, letters, floats))


def frame_of(node: Node, letters: Mapping[str, int], floats: type[Any] = np.float32) -> Frame:
    return Frame(tuple(at(size, letters) for size in node.shape), letters, kind_of(node, floats))


def ruled(node: Node, inputs: list[Array], frame: Frame) -> Array:
    answer = RULES[type(node.op)](node.op, inputs, frame)
    if type(answer) is np.ndarray and answer.dtype == frame.kind:
        return answer
    return np.asarray(answer).astype(frame.kind, copy=False)


def name_longest(node: Node, lengths: Array, letters: dict[str, int]) -> None:
    """The longest length is a letter of its own where no total length was given."""
    size = node.shape[1]
    if isinstance(size, Size) and not size.letters <= letters.keys():
        (name,) = size.letters
        letters[name] = int(lengths.max())


def counted(op: ops.Count, _: list[Array], frame: Frame) -> Array:
    return at(op.start, frame.letters) + at(op.step, frame.letters) * np.arange(frame.shape[0])


def normalised(op: ops.LayerNorm, inputs: list[Array], _: Frame) -> Any:
    y, *rest = layer_norm(inputs[0], op.axes, op.eps), *inputs[1:]
    if op.scaled:
        y = y * rest.pop(0)
    return y + rest.pop(0) if op.shifted else y


def convolution(op: ops.Convolve, inputs: list[Array], _: Frame) -> Array:
    y = convolved(inputs[0], inputs[1], op.stride, op.dilation, op.groups, op.padding)
    return y + inputs[2][:, None] if op.biased else y


def pool(op: ops.Pool, inputs: list[Array], frame: Frame) -> Any:
    kernel, stride = at(op.kernel, frame.letters), at(op.stride, frame.letters)
    return pooled(inputs[0], op.function, kernel, stride, op.dilation, op.padding, op.counts_padding)


def sliced(op: ops.Slice, inputs: list[Array], frame: Frame) -> Array:
    start, stop, step = (at(size, frame.letters) for size in (op.start, op.stop, op.step))
    part = (slice(None),) * op.axis + (slice(start, stop, step),)
    answer: Array = inputs[0][part]
    return answer


def around(op: ops.Pad, inputs: list[Array], frame: Frame) -> Array:
    before, after = at(op.before, frame.letters), at(op.after, frame.letters)
    return padded(inputs[0], op.axis, before, after, op.value)


def gathered(op: ops.Gather, inputs: list[Array], _: Frame) -> Array:
    x, index = inputs
    others = tuple(slice(None) if k == op.axis else slice(n) for k, n in enumerate(index.shape))
    return np.take_along_axis(x[others], index, op.axis)


def reduced(op: ops.Reduce, inputs: list[Array], _: Frame) -> Any:
    return REDUCED[op.function](inputs[0], *op.settings, axis=op.axes, keepdims=op.keep)


def unpacked(op: ops.Unpack, inputs: list[Array], frame: Frame) -> Array:
    y, lengths = inputs
    steps = frame.shape[1]
    whole = padded(y[:, :steps], 1, 0, max(0, steps - y.shape[1]))
    behind = np.arange(steps) >= lengths[:, None]
    return np.where(behind[:, :, None], np.asarray(op.value, y.dtype), whole)


RULES: dict[type[ops.Operation], Callable[[Any, list[Array], Frame], Any]] = {
    ops.Constant: lambda op, _, __: op.values,
    ops.Extent: lambda op, _, frame: at(op.size, frame.letters),
    ops.Count: counted,
    ops.Full: lambda op, _, frame: np.full(frame.shape, op.value, frame.kind),
    ops.LayerNorm: normalised,
    ops.Convolve: convolution,
    ops.Pool: pool,
    ops.Map: lambda op, x, _: MAPPED[op.function](x[0], *op.settings),
    ops.Combine: lambda op, x, _: COMBINED[op.function](*x),
    ops.Choose: lambda _, x, __: np.where(*x),
    ops.Cast: lambda _, x, frame: x[0].astype(frame.kind),
    ops.Permute: lambda op, x, _: x[0].transpose(op.order),
    ops.Reshape: lambda _, x, frame: x[0].reshape(frame.shape),
    ops.Expand: lambda _, x, frame: np.broadcast_to(x[0], frame.shape),
    ops.Slice: sliced,
    ops.Concat: lambda op, x, _: np.concatenate(x, axis=op.axis),
    ops.Flip: lambda op, x, _: np.flip(x[0], op.axes),
    ops.Pad: around,
    ops.Index: lambda op, x, _: x[0][(slice(None),) * op.axis + tuple(x[1:])],
    ops.Gather: gathered,
    ops.Reduce: reduced,
    ops.Softmax: lambda op, x, _: softmax(x[0], op.axis, op.log),
    ops.Cumulate: lambda op, x, _: np.cumsum(x[0], axis=op.axis),
    ops.Matmul: lambda _, x, __: np.matmul(*x),
    ops.Unpack: unpacked,
}
