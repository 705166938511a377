"""Greedy steps that forward() takes one by one, rolled into one Decode.

    for _ in range(20):
        h = self.cell(self.emb(y), h)
        y = self.fc(h).argmax(-1)
        answers.append(y)
    return torch.stack(answers, 1)

No symbol ends them. What also hands on scores or states stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import nn

from gatewise.program.graph import INT, Node, Program, filling, substituted
from gatewise.program.operations import (
    Concat,
    Decode,
    Embed,
    LastState,
    Linear,
    Permute,
    Recurrent,
    Reduce,
    Reshape,
)
from gatewise.program.sizes import same, same_shape


class Greedy(NamedTuple):
    """answer = argmax head(layer(embedding(before), states))"""

    names: tuple[str, str, str]  # embedding, layer, head
    layer: Node
    before: Node
    states: tuple[Node, ...]


def rolled(program: Program, model: nn.Module) -> Program:
    """The same program with runs of greedy steps as one operation."""
    for node in program.nodes:
        steps = run_of(node, model) if isinstance(node.op, Concat) else []
        if steps and (made := decoder(node, steps)) is not None:
            shorter = substituted(program, {node: made})
            if not {step.layer for step in steps} & set(shorter.nodes):
                return rolled(shorter, model)
    return program


def run_of(node: Node, model: nn.Module) -> list[Greedy]:
    """The steps whose answers stand side by side, each read by the next; none where it is not so."""
    answers = [core(source) for source in node.inputs]
    steps = [step for answer in answers if (step := greedy(answer, model)) is not None]
    if len(steps) < len(answers) or len(steps) < 2 or len({step.names for step in steps}) > 1:
        return []
    read = all(step.before is answer for answer, step in zip(answers, steps[1:]))
    return steps if read and all(goes_on(earlier, later) for earlier, later in pairwise(steps)) else []


def greedy(answer: Node, model: nn.Module) -> Greedy | None:
    op = answer.op
    if not isinstance(op, Reduce) or op.function != "argmax" or op.axes != (answer.inputs[0].rank - 1,):
        return None
    head = core(answer.inputs[0])
    if not isinstance(head.op, Linear):
        return None
    layer = core(head.inputs[0])
    if isinstance(layer.op, LastState) and layer.op.part == "h" and same(layer.shape[0], 1):
        (layer,) = layer.inputs
    if not isinstance(layer.op, Recurrent) or layer.op.lengths or not same(layer.shape[1], 1):
        return None
    vectors = core(layer.inputs[0])
    if not isinstance(vectors.op, Embed) or getattr(
        model.get_submodule(layer.op.module), "bidirectional", False
    ):
        return None
    names = vectors.op.module, layer.op.module, head.op.module
    if model.get_submodule(names[0]).num_embeddings < model.get_submodule(names[2]).out_features:  # type: ignore
        return None
    return Greedy(names, layer, core(vectors.inputs[0]), layer.inputs[len(layer.inputs) - layer.op.states :])


def goes_on(earlier: Greedy, later: Greedy) -> bool:
    """Whether a step begins with all states that the one before left."""
    left = [core(state) for state in later.states]
    parts = [state.op.part for state in left if isinstance(state.op, LastState)]
    return (
        parts == ["h", "c"][: len(left)]
        and all(state.inputs[0] is earlier.layer for state in left)
        and bool(left)
    )


def core(node: Node) -> Node:
    """What a value is but for axes of size 1."""
    while isinstance(node.op, Reshape) and same_shape(without_ones(node), without_ones(node.inputs[0])):
        (node,) = node.inputs
    return node


def without_ones(node: Node) -> tuple[int, ...]:
    return tuple(size for size in node.shape if not same(size, 1))


def decoder(node: Node, steps: Sequence[Greedy]) -> Node | None:
    """What takes the place of the answers, side by side or one below another."""
    first, batch, count = steps[0], steps[0].layer.shape[0], len(steps)
    start = filling(first.before)
    if start is None or not first.states:
        return None
    states = [core(state) for state in first.states]
    whole = all(same_shape(state.shape, given.shape) for state, given in zip(states, first.states))
    op = Decode(*first.names, int(start), -1, count, len(states))
    made = Node(op, tuple(states) if whole else first.states, (batch, count), INT, node.line)
    if same_shape(node.shape, (batch, count)):
        return made
    across = same_shape(node.shape, (count, batch))
    return Node(Permute((1, 0)), (made,), (count, batch), INT, node.line) if across else None
