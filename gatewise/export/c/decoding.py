"""A decoder that reads its own answers, in C: one loop, which the symbol that ends an answer leaves.

k = start
for (i0 = 0; i0 < longest; i0++) { vector of k; layers; scores; y[i0] = k = the largest; if (k == end) break; }

With attention, scores += sum over t of shares_t votes_t, by the softmax of query . keys_t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gatewise.compact import CompactRecurrent
from gatewise.export.c.layers import Frame, Ints, Layers, State, c_name, linear_of, recurrent_of, table_of
from gatewise.export.c.operations import shape_of
from gatewise.export.c.sizes import in_c, is_one
from gatewise.export.c.values import Value, indented, looped, stored
from gatewise.program import operations as ops
from gatewise.program.graph import FLOAT, Node
from gatewise.runtime.narrow import Level, Narrower, integers
from gatewise.runtime.scaled import Channels

ONE_STEP = Frame(1, 1, "NULL", remembers=False)


def decode(layers: Layers, node: Node, given: list[Value]) -> Value:
    op, body = node.op, layers.body
    assert isinstance(op, ops.Decode)
    made, wanted = body.answer(node, shape_of(node))
    if not is_one(made.shape[0]):
        raise NotImplementedError("of several sequences at once")
    answer = made.leaves[0].base
    seen = [body.whole(value) for value in given[: -op.states]]
    first = [body.whole(value).leaves[0].begin for value in given[-op.states :]]
    module = recurrent_of(layers.model.get_submodule(op.module), op.module)
    with body.apart() as step:
        x, channels = embedded(layers, op, module)
        narrower = Narrower(module.input_size)
        narrower.channels = channels
        narrower.recurrent(op.module, module)
        with body.apart() as begin:
            states = begun(layers, narrower, first)
        h = run(layers, states, (x, str(len(channels.kept))))
        scores = scored(layers, op.module, op.head, h, narrower.channels.kept)
        if op.query:
            query = scored(layers, op.module, op.query, h, narrower.channels.kept)
            add_votes(layers, scores, query, seen)
        body.say(
            f"{answer}[i0] = k = {body.call('first_largest')}({scores.shape[-1]}, {scores.leaves[0].base});"
        )
        if op.end >= 0:
            body.say(f"if (k == {op.end}) break;")
    body.say(
        f"{wanted}{{",
        *indented([f"int32_t k = {op.start};", *begin]),
        *(indented(looped("i0", op.longest, [f"{answer}[i0] = {op.end};"])) if op.end >= 0 else ()),
        *indented(looped("i0", op.longest, step)),
        "}",
    )
    return made


def embedded(layers: Layers, op: ops.Decode, module: CompactRecurrent) -> tuple[str, Channels]:
    """The vector of symbol k, and which channels it has."""
    words: Any = layers.model.get_submodule(op.embedding)
    weight, rows, kept = table_of(words)
    body, width = layers.body, module.input_size
    if not travels(layers, integers(module.layer(0, 0).inputs), kept):
        whole = np.zeros((len(weight), width), np.float32)
        whole[:, kept] = weight
        weight, kept = whole, np.arange(width)
    x = body.buffer(max(len(kept), 1))
    if not weight.size:
        body.say(f"memset({x}, 0, sizeof(float) * {max(len(kept), 1)});")
    else:
        body.say(f"const int32_t k1 = {layers.row(c_name(op.embedding), rows)};")
        body.say(f"{layers.vectors(op.embedding, words, weight)}, 1, &k1, {x});")
    return x, Channels.plain(kept, width)


def travels(layers: Layers, reads: Ints, kept: Ints) -> bool:
    """Whether a matrix takes the kept channels alone. With int8 the scale of a row is that of all its columns."""
    return not layers.body.int8 or bool(np.isin(reads, kept).all())


def begun(layers: Layers, narrower: Narrower, first: list[str]) -> list[State]:
    levels = [level for level in narrower.links if isinstance(level, Level)]
    return [
        layers.begin(level, level.directions[0], first, place, ONE_STEP) for place, level in enumerate(levels)
    ]


def run(layers: Layers, states: list[State], x: tuple[str, str]) -> str:
    """One step of all levels; where the output of the last one lies."""
    for state in states:
        kept = state.recurrence.kept
        to = layers.body.buffer(max(kept, 1))
        layers.run(state, ONE_STEP, x, (to, kept))
        x = to, str(kept)
    return x[0]


def add_votes(layers: Layers, scores: Value, query: Value, seen: list[Value]) -> None:
    body, (keys, votes) = layers.body, seen
    things, shares = keys.shape[1], body.buffer(keys.shape[1])
    asked, answers = query.shape[-1], scores.shape[-1]
    key, vote = keys.leaves[0].begin, votes.leaves[0].begin
    agree = f"sum += {query.leaves[0].base}[j] * ({key})[i1 * {asked} + j];"
    body.say(
        *looped("i1", things, ["float sum = 0;", *looped("j", asked, [agree]), f"{shares}[i1] = sum;"]),
        f"{body.call('softmax')}(1, {in_c(things)}, 1, {shares});",
    )
    share = f"{scores.leaves[0].base}[j] += {shares}[i1] * ({vote})[i1 * {answers} + j];"
    body.say(*looped("i1", things, looped("j", answers, [share])))


def scored(layers: Layers, rnn: str, head: str, h: str, kept: Ints) -> Value:
    """What the head, or the query, says; of symbols also those that always have zero."""
    module: Any = layers.model.get_submodule(head)
    value, source = stored(h, (1, len(kept)), FLOAT), Node(ops.Input(rnn), (), (1, module.in_features))
    if travels(layers, linear_of(module)[2], kept):
        layers.narrow = {**layers.narrow, source: kept}
    else:
        value = layers.body.room((1, module.in_features))
        layers.widen("1", kept, h, value, c_name(rnn))
    return layers.linear(Node(ops.Linear(head), (source,), (1, module.out_features)), [value])
