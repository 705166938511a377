"""How nodes run on sequences that arrive in pieces: what each remembers, and what it makes of it.

running sums     a' = a + a(piece), means and maxima alike
softmax of time  w(piece) = exp(s - m') / l'    with the running maximum m and sum l; what was summed with earlier
                 weights is to be multiplied by l exp(m - m') / l'
looking back     the last entries of the piece before stand in front of this one
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.program import operations as ops
from gatewise.program.graph import Node
from gatewise.program.sizes import at
from gatewise.runtime.functions import convolved, padded
from gatewise.runtime.prepared import Call, Run
from gatewise.runtime.rules import computed

Array = NDArray[Any]
JOINED: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
    "prod": np.multiply,
    "logsumexp": np.logaddexp,
}


def extent_so_far(node: Node, time: str) -> Run:
    def run(_: list[Array], call: Call) -> Array:
        assert isinstance(node.op, ops.Extent)
        return np.asarray(at(node.op.size, call.letters | {time: call.offset + call.letters[time]}), np.int64)

    return run


def counted_on(node: Node) -> Run:
    """Steps are counted from the first one of the sequence."""
    assert isinstance(node.op, ops.Count)
    step = node.op.step
    return lambda inputs, call: computed(node, inputs, call.letters) + call.offset * at(step, call.letters)


def sliced_on(node: Node) -> Run:
    """Positions go on where the piece before ended."""
    op = node.op
    assert isinstance(op, ops.Slice)

    def run(inputs: list[Array], call: Call) -> Array:
        start, stop = (at(n, call.letters) + call.offset for n in (op.start, op.stop))
        if stop > inputs[0].shape[op.axis]:
            raise ValueError(
                f"{node.line}: there are {inputs[0].shape[op.axis]} positions, and this piece ends at step {stop}."
            )
        part: Array = inputs[0][(slice(None),) * op.axis + (slice(start, stop),)]
        return part

    return run


def reduced_so_far(node: Node, weights: Node | None, axis: int) -> Run:
    op = node.op
    assert isinstance(op, ops.Reduce)

    def run(inputs: list[Array], call: Call) -> Array:
        piece, before = computed(node, inputs, call.letters), call.before.get(node)
        if before is None:
            answer = piece
        elif op.function == "mean":
            steps = inputs[0].shape[axis]
            answer = before + (piece - before) * np.float32(steps / (call.offset + steps))
        elif weights is None:
            answer = JOINED[op.function](before, piece)
        else:
            factor = call.factors[weights]
            answer = piece + scaled(before, factor if op.keep else np.squeeze(factor, axis))
        call.after[node] = answer.copy()
        return answer

    return run


def summed_product(node: Node, weights: Node | None) -> Run:
    def run(inputs: list[Array], call: Call) -> Array:
        answer, before = computed(node, inputs, call.letters), call.before.get(node)
        if before is not None:
            answer = answer + (before if weights is None else scaled(before, call.factors[weights]))
        call.after[node] = answer.copy()
        return answer

    return run


def weighed_so_far(node: Node) -> Run:
    op = node.op
    assert isinstance(op, ops.Softmax)

    def run(inputs: list[Array], call: Call) -> Array:
        scores = inputs[0]
        highest = scores.max(axis=op.axis, keepdims=True)
        before, total = call.before.get(node, (np.full_like(highest, -np.inf), np.zeros_like(highest)))
        top = np.maximum(highest, before)
        level = np.where(np.isinf(top) & (top < 0), 0, top)  # nothing but -inf so far
        weights = np.exp(scores - level)
        earlier = total * np.exp(before - level)
        total = earlier + weights.sum(axis=op.axis, keepdims=True)
        call.after[node] = (top, total)
        call.factors[node] = earlier / np.where(total == 0, 1, total)
        answer: Array = weights / total
        return answer

    return run


def weights_passed(node: Node, source: Node, time: str) -> Run:
    def run(inputs: list[Array], call: Call) -> Array:
        factor = call.factors[source]
        if isinstance(node.op, ops.Combine):
            call.factors[node] = factor.reshape((1,) * (node.rank - factor.ndim) + factor.shape)
        else:
            call.factors[node] = computed(node, [factor], call.letters | {time: 1})
        return computed(node, inputs, call.letters)

    return run


def scaled(before: Array, factor: Array) -> Array:
    """What was summed with weights that are now smaller; where none is left, not even NaN."""
    answer: Array = np.where(factor == 0, 0, before * factor)
    return answer.astype(before.dtype, copy=False)


def cumulated_on(node: Node) -> Run:
    op = node.op
    assert isinstance(op, ops.Cumulate)

    def run(inputs: list[Array], call: Call) -> Array:
        answer = computed(node, inputs, call.letters)
        if node in call.before:
            answer = answer + call.before[node]
        call.after[node] = np.take(answer, [-1], axis=op.axis)
        return answer

    return run


def with_earlier(node: Node, x: Array, axis: int, count: int, value: float, call: Call) -> Array:
    """The last entries so far in front of a piece; before the first one, what it is padded with."""
    before = call.before.get(node)
    whole = padded(x, axis, count, 0, value) if before is None else np.concatenate([before, x], axis)
    call.after[node] = np.take(whole, np.arange(whole.shape[axis] - count, whole.shape[axis]), axis)
    return whole


def padded_once(node: Node) -> Run:
    op = node.op
    assert isinstance(op, ops.Pad)
    return lambda inputs, call: with_earlier(node, inputs[0], op.axis, op.before, op.value, call)


def looked_back(node: Node, before: int) -> Run:
    op = node.op
    assert isinstance(op, ops.Convolve)

    def run(inputs: list[Array], call: Call) -> Array:
        x = with_earlier(node, inputs[0], 2, before, 0.0, call)
        y = convolved(x, inputs[1], op.stride, op.dilation, op.groups, (0, op.padding[1]))
        return y + inputs[2][:, None] if op.biased else y

    return run
