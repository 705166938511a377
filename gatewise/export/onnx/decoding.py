"""A decoder that reads its own answers, as a Loop of ONNX.

    symbols, ended, states -> body -> symbols, ended, states      until all have ended, or after `longest` steps

What the steps answer with is stacked; where all ended early, `end` is put behind. Keys and votes, if there are, stand
outside the loop, and every step reads them there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from gatewise.compact import CompactEmbedding, CompactLinear
from gatewise.export.onnx.graph import Graph
from gatewise.export.onnx.layers import enter, looked_up, read, recurrence
from gatewise.export.onnx.modules import compact_layer, levels_of, table_of, tied
from gatewise.export.onnx.tensors import Tensors
from gatewise.nn.lookup import bias_of, matrix_of
from gatewise.program.graph import Node
from gatewise.program.operations import Decode
from gatewise.runtime.narrow import Ints, Level, Recurrence, floats, integers
from gatewise.runtime.scaled import Channels


def decode(t: Tensors, node: Node, op: Decode) -> str:
    graph, batch = t.graph, t.sizes.vector(node.shape[:1])
    seen, states = node.inputs[: -op.states], node.inputs[-op.states :]
    body = Body(t, op, [t.whole(value) for value in seen])
    given = [t.whole(state) for state in states]
    places = len(body.levels)
    begun = [enter(graph, given[part], places, place, part, r) for place, part, r in body.states]
    symbols = graph.add("ConstantOfShape", batch, value=filled(graph, op.start, np.int64))
    ended = graph.add("ConstantOfShape", batch, value=filled(graph, False, np.bool_))
    limit, true = graph.integer(op.longest), graph.constant(np.array(True))
    carried = [symbols, ended, *begun]
    every = [True] * (len(carried) + 1)
    *_, steps = graph.add_many("Loop", [limit, true, *carried], every, body=body.graph())
    missing = graph.add("Sub", graph.integers(op.longest), graph.add("Shape", steps, start=0, end=1))
    behind = graph.add("Concat", graph.integers(0, 0), missing, graph.integers(0), axis=0)
    return graph.transposed(graph.add("Pad", steps, behind, graph.integer(op.end)), 1, 0)


def filled(graph: Graph, value: Any, kind: type[np.generic]) -> Any:
    return graph.to_tensor(np.array([value], kind))


class Body:
    """One step: embedding, layers, head, votes, the first of the largest."""

    def __init__(self, t: Tensors, op: Decode, seen: list[str]) -> None:
        self.op, self.inner, self.seen = op, Graph(t.graph.opset, t.graph), seen
        words, self.head = t.model.get_submodule(op.embedding), t.model.get_submodule(op.head)
        self.query = t.model.get_submodule(op.query) if op.query else None
        if isinstance(words, CompactEmbedding):
            self.vectors, kept = floats(words.weight), integers(words.components)
            self.rows = None if len(self.vectors) == words.num_embeddings else integers(words.rows)
        else:
            self.vectors, self.rows = table_of(words), None
            kept = np.arange(self.vectors.shape[1])
        module = compact_layer(op.module, t.model.get_submodule(op.module))
        self.levels: list[Level] = levels_of(op.module, module, Channels.plain(kept, module.input_size))
        self.is_tied = words.weight is self.head.weight and self.rows is None

    @property
    def states(self) -> list[tuple[int, int, Recurrence]]:
        """Place, part (h, c) and layer of every state that is carried; a layer without neurons has none."""
        return [
            (place, part, r)
            for place, (level, r) in enumerate((level, level.directions[0]) for level in self.levels)
            for part in range(level.cell.n_states if r.kept else 0)
        ]

    def graph(self) -> Any:
        g, helper = self.inner, self.inner.helper
        names = [f"{self.inner.prefix}{name}" for name in ("step", "more", "symbols", "ended")]
        carried = [f"{self.inner.prefix}state_{place}_{part}" for place, part, _ in self.states]
        symbols, ended, lasts = self.step(names[2], names[3], carried)
        least = g.over("ReduceMin", g.add("Cast", ended, to=g.int64), 0, keepdims=0)
        unfinished = g.add("Less", least, g.integer(1))
        outputs = [unfinished, symbols, ended, *lasts, g.add("Identity", symbols)]
        kinds = [g.bool, g.int64, g.bool, *[g.float32] * len(carried)]
        shapes: list[Any] = [[], ["batch"], ["batch"], *([1, "batch", r.kept] for _, _, r in self.states)]
        value = helper.make_tensor_value_info
        given = [
            value(names[0], g.int64, []),
            *(value(*each) for each in zip([*names[1:], *carried], kinds, shapes)),
        ]
        made = [value(*each) for each in zip(outputs, [*kinds, g.int64], [*shapes, ["batch"]])]
        return helper.make_graph(g.nodes, f"{g.prefix}step", given, made)

    def step(self, symbols: str, ended: str, carried: list[str]) -> tuple[str, str, list[str]]:
        g = self.inner
        x, columns = self.embedded(symbols), max(self.vectors.shape[1], 1)
        lasts: list[str] = []
        for level in self.levels:
            (r,) = level.directions
            if not r.kept:
                x, columns = self.zeros(symbols), 1
                continue
            starts, carried = carried[: level.cell.n_states], carried[level.cell.n_states :]
            source, w_ih = read(g, x, columns, r.inputs, r.w_ih)
            _, *after = recurrence(g, level, r, source, w_ih, starts, "", [False, True, True])
            lasts += after
            x, columns = after[0], r.kept
        answers = g.add("ArgMax", self.scores(x), axis=-1, keepdims=0)
        chosen = g.add("Where", ended, g.integer(self.op.end), answers)
        done = g.add("Or", ended, g.add("Equal", chosen, g.integer(self.op.end)))
        return chosen, done, lasts

    def embedded(self, symbols: str) -> str:  # (B) -> (1, B, E)
        if not self.vectors.size:
            return self.zeros(symbols)
        vectors, _ = looked_up(self.inner, symbols, self.vectors, self.rows)
        return self.inner.add("Unsqueeze", vectors, self.inner.integers(0))

    def scores(self, x: str) -> str:  # (1, B, K) -> (B, V)
        """Of all symbols, also of those that always have zero."""
        g, head, bias = self.inner, self.head, bias_of(self.head)
        (r,) = self.levels[-1].directions
        output = flat = g.add("Squeeze", x, g.integers(0))
        if self.shares_table(r.neurons):
            scale = np.ones(r.hidden)
            scale[r.neurons] = r.scale
            channels = Channels(r.neurons, scale, np.zeros(r.hidden))
            flat, matrix = tied(g, flat, channels, integers(head.inputs), g.constant(self.vectors))
        else:
            matrix = self.matrix(head)
        made = g.add("MatMul", flat, matrix)
        scores = made if bias is None else g.add("Add", made, g.constant(floats(bias)))
        return scores if self.query is None else g.add("Add", scores, self.votes(output, self.query))

    def votes(self, output: str, query: nn.Module) -> str:  # (B, K) -> (B, V)
        """sum_t a_t votes_t, with a = softmax over t of query(output) . keys_t."""
        g, bias, (keys, votes) = self.inner, bias_of(query), self.seen
        asked = g.add("MatMul", output, self.matrix(query))
        if bias is not None:
            asked = g.add("Add", asked, g.constant(floats(bias)))
        agreement = g.add("MatMul", keys, g.add("Unsqueeze", asked, g.integers(2)))  # (B, T, 1)
        shares = g.add("Softmax", g.transposed(agreement, 0, 2, 1), axis=-1)
        return g.add("Squeeze", g.add("MatMul", shares, votes), g.integers(1))

    def matrix(self, head: nn.Module) -> str:  # (K, O)
        """Of a layer that reads the last one, without its removed neurons."""
        (r,) = self.levels[-1].directions
        weight = floats(matrix_of(head))
        own = weight[:, r.neurons] * r.scale if r.kept else weight[:, :1]
        return self.inner.constant(np.ascontiguousarray(own.T.astype(np.float32)))

    def shares_table(self, kept: Ints) -> bool:
        """Whether the head's matrix can be read from the embedding's table: it has all rows, and reads something."""
        head = self.head
        if not self.is_tied or not isinstance(head, CompactLinear) or len(head.outputs) < head.out_features:
            return False
        return bool(np.isin(integers(head.inputs), kept).any())

    def zeros(self, symbols: str) -> str:  # (1, B, 1)
        g = self.inner
        shape = g.add("Concat", g.integers(1), g.add("Shape", symbols), g.integers(1), axis=0)
        return g.add("ConstantOfShape", shape)


RULES: dict[type, Any] = {Decode: decode}
