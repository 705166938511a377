"""Every operation of a program behind a recurrent layer: evaluator and engine answer as forward() does."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from operations import OPERATIONS, behind_a_layer
from torch import Tensor

import gatewise as gw
from gatewise.program.graph import leaves, mapped
from gatewise.program.ways import programs
from gatewise.runtime.evaluate import evaluate
from gatewise.runtime.graph_engine import GraphEngine, graph_engine
from gatewise.runtime.narrow import recorded

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    """Whole sequences, and pieces wherever the engine takes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which neurons stay although nobody reads them
        small = gw.compress(behind_a_layer(OPERATIONS[name]))
    x = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = small(x)
    (program,) = (way for way in programs(small, (x,)) if "state" in way.absent)
    answer = evaluate(program, small, {"x": x})
    torch.testing.assert_close(mapped(as_of(expected), answer), expected, **CLOSE)
    engine = graph_engine(small, recorded(small, (x,)))
    assert isinstance(engine, GraphEngine)
    answer, state = engine(x)
    torch.testing.assert_close(answer, expected, **CLOSE)
    if not state.way.stream.refused:
        check_pieces(engine, x, leaves(expected))


def as_of(expected: Any) -> Any:
    kinds = iter(leaves(expected))
    return lambda leaf: torch.as_tensor(leaf).to(next(kinds).dtype)


def check_pieces(engine: GraphEngine, x: Tensor, expected: list[Tensor]) -> None:
    answers, state = [], None
    for piece in x.split([2, 1, 4], dim=1):
        answer, state = engine(piece, state=state)
        answers.append(leaves(answer))
    assert state is not None
    for k, (node, leaf) in enumerate(zip(leaves(state.way.program.outputs), expected)):
        axis = state.way.time_axis(node)
        parts = [answer[k] for answer in answers]
        torch.testing.assert_close(parts[-1] if axis is None else torch.cat(parts, axis), leaf, **CLOSE)
