"""Whether the C of a program can be fed in pieces: where the engine can, and steps follow each other in memory."""

from __future__ import annotations

from torch import nn

from gatewise.export.c.sizes import alone, product, same
from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program
from gatewise.runtime.streaming import MOVING, Stream, streamed

MOVES = (ops.Reshape, ops.Permute, ops.Slice, ops.Expand, ops.Concat)


def stream_of(program: Program, model: nn.Module) -> Stream | None:
    """How a program runs in pieces; None: it reads whole sequences."""
    stream = streamed(program, model)
    free = {name for node in program.inputs for size in node.shape for name in getattr(size, "letters", ())}
    if stream.refused or stream.batch != "B" or free - {stream.batch, stream.time}:
        return None
    for node in (*program.inputs, *program.results):
        flow = stream.flows[node]
        if flow.kind == MOVING and not same(product([alone(size) for size in node.shape[: flow.axis]]), 1):
            return None
    return stream


def begins_with_argument(program: Program) -> bool:
    """Whether a recurrent layer begins with a state that is an argument, which then every call reads."""
    return any(map(is_handed_over, program.nodes))


def is_handed_over(node: Node) -> bool:
    if not isinstance(node.op, ops.Recurrent) or not node.op.states:
        return False
    waiting, found = list(node.inputs[len(node.inputs) - node.op.states :]), False
    while waiting:
        current = waiting.pop()
        if not isinstance(current.op, (ops.Input, *MOVES)):
            return False
        found = found or isinstance(current.op, ops.Input)
        waiting.extend(current.inputs)
    return found
