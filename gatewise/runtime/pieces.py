"""How nodes run on sequences that arrive in pieces: what each remembers, and what it makes of it.

running sums    a' = a + a(piece), means and maxima alike
looking back    the last entries of the piece before stand in front of this one
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


def reduced_so_far(node: Node, axis: int) -> Run:
    op = node.op
    assert isinstance(op, ops.Reduce)

    def run(inputs: list[Array], call: Call) -> Array:
        piece, before = computed(node, inputs, call.letters), call.before.get(node)
        if before is None:
            answer = piece
        elif op.function == "mean":
            steps = inputs[0].shape[axis]
            answer = before + (piece - before) * np.float32(steps / (call.offset + steps))
        else:
            answer = JOINED[op.function](before, piece)
        call.after[node] = answer.copy()
        return answer

    return run


def summed_product(node: Node) -> Run:
    def run(inputs: list[Array], call: Call) -> Array:
        answer, before = computed(node, inputs, call.letters), call.before.get(node)
        if before is not None:
            answer = answer + before
        call.after[node] = answer.copy()
        return answer

    return run


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
