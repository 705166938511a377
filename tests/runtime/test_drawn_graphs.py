"""Drawn graphs: the evaluator and the engine answer as forward() does, whole and in pieces."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from drawn_graphs import Graph, graphs
from hypothesis import assume, given
from hypothesis import strategies as st

import gatewise as gw
from gatewise.program.graph import leaves, mapped
from gatewise.program.ways import programs
from gatewise.runtime.evaluate import evaluate
from gatewise.runtime.graph_engine import GraphEngine, graph_engine
from gatewise.runtime.narrow import recorded

CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}


def engine_of(small: Any, inputs: Any) -> GraphEngine:
    engine = graph_engine(small, recorded(small, inputs))
    assert isinstance(engine, GraphEngine)
    return engine


def compact(graph: Graph) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which neurons stay although nobody reads them
        return gw.compress(graph.model())


@given(graph=graphs(), batch=st.integers(1, 3), steps=st.integers(1, 5))
def test_whole_sequences(graph: Graph, batch: int, steps: int) -> None:
    """Recorded on sequences of other sizes."""
    model, small, inputs = graph.model(), compact(graph), graph.arguments(batch, steps)
    with torch.no_grad():
        expected = model(*inputs)
        torch.testing.assert_close(small(*inputs), expected, **CLOSE)
    example = graph.arguments(batch + 1, steps + 2)
    (program,) = programs(small, example)
    given = {name: value for name, value in zip("abcd", inputs) if name in program.arguments}
    answer = mapped(lambda leaf: torch.from_numpy(leaf).float(), evaluate(program, small, given))
    torch.testing.assert_close(answer, expected, **CLOSE)
    answer, _ = engine_of(small, example)(*inputs)
    torch.testing.assert_close(answer, expected, **CLOSE)


@given(graph=graphs(causal=True), ends=st.sets(st.integers(1, 6), min_size=1))
def test_pieces(graph: Graph, ends: set[int]) -> None:
    """A graph of moves that look back only runs in any pieces."""
    cuts = sorted({*ends, 7})
    small, inputs = compact(graph), graph.arguments(2, 7)
    engine = engine_of(small, inputs)
    expected, state = engine(*inputs)
    way = state.way
    assume(way.stream.refused != "it reads several sequences")  # which never meet
    assert not way.stream.refused, way.stream.refused
    answers, state, start = [], None, 0
    for end in cuts:
        piece = [x if kind == "static" else x[:, start:end] for x, (kind, _) in zip(inputs, graph.inputs)]
        answer, state = engine(*piece, state=state)
        answers.append(leaves(answer))
        start = end
    for k, (node, leaf) in enumerate(zip(leaves(way.program.outputs), leaves(expected))):
        parts = [answer[k] for answer in answers]
        axis = way.time_axis(node)
        torch.testing.assert_close(parts[-1] if axis is None else torch.cat(parts, axis), leaf, **CLOSE)
