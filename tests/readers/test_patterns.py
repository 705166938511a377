"""Who reads whom, for every way in which models hand neurons on: the reads are enough, no more is exposed."""

from __future__ import annotations

import pytest
import torch
from axis_patterns import AXES
from everyday_patterns import EVERYDAY
from joined_patterns import JOINED
from networks import LanguageModel, answer, disturb, hide, twin
from state_patterns import STATES

from gatewise.readers import find_readers

PATTERNS = EVERYDAY | STATES | JOINED | AXES


@pytest.mark.parametrize("name", PATTERNS)
def test_exposed_is_what_cannot_be_named(name: str) -> None:
    """Exactly the layers whose readers nobody can list are exposed; more would cost compression."""
    model = PATTERNS[name].build()
    graph = find_readers(model)
    assert set(graph.exposed) == PATTERNS[name].exposed
    assert all(graph.exposed.values())


@pytest.mark.parametrize("name", PATTERNS)
def test_reads_are_enough(name: str) -> None:
    """Zero the columns that are said to read a unit, and the answer no longer knows what the unit does."""
    pattern = PATTERNS[name]
    model = pattern.build().eval()
    graph, x = find_readers(model), pattern.x()
    handed = {hand.source for hand in graph.handed}  # needed where another block is, without a column
    for block in graph.blocks.values():
        if block.name in graph.exposed or block.name in handed:
            continue
        for unit in range(block.width):
            quiet, changed = twin(model), twin(model)
            disturb(changed, block, unit)
            for network in (quiet, changed):
                hide(network, graph, block.name, unit)
            torch.testing.assert_close(answer(quiet(x)), answer(changed(x)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PATTERNS)
def test_reads_are_needed(name: str) -> None:
    """Without zeroing anything a disturbed unit shows, so the test above is not empty."""
    pattern = PATTERNS[name]
    model = pattern.build().eval()
    graph, x = find_readers(model), pattern.x()
    block = next(block for block in graph.blocks.values() if block.place is not None)
    changed = twin(model)
    disturb(changed, block, 0)
    assert not torch.allclose(answer(model(x)), answer(changed(x)))


def test_tied_softmax_is_read_by_columns_and_shared() -> None:
    """fc reads the neurons with the embedding's own matrix: the graph names both parameters."""
    model = LanguageModel(width=4, tied=True)
    graph = find_readers(model)
    assert [read.block for read in graph.reads_by("fc.weight")] == ["rnn.l1"]
    assert [read.matrix for read in graph.reads_of("emb")] == ["rnn.weight_ih_l0"]


def test_a_column_that_reads_in_two_ways_is_one_read() -> None:
    """Otherwise the group lasso would count its weights twice."""
    graph = find_readers(EVERYDAY["one reader, two ways"].build())
    assert len(graph.reads_by("fc.weight")) == 1
