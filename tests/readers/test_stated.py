"""Readers that the user states: where forward() cannot be traced, and checked against the layers."""

from __future__ import annotations

from typing import Any

import pytest
from networks import Classifier
from patterns import E, H, emb
from torch import Tensor, nn

from gatewise.readers import find_readers


class Loop(nn.Module):
    """A forward() with a loop over the data that counts its steps: no few of them show what the others do."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = emb(), nn.LSTMCell(E, H), nn.Linear(H, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, count = None, 0
        for step in self.emb(x).unbind(0):
            count = count + 1
            state = self.rnn(step, state)
        assert state is not None
        return self.fc(state[0])


def test_an_untraceable_forward_exposes_everything_with_the_reason() -> None:
    graph = find_readers(Loop())
    assert set(graph.exposed) == {"emb", "rnn", "fc"}
    assert all("could not be traced" in why for why in graph.exposed.values())
    assert "rnn" in graph.memory


def test_stated_readers_replace_the_trace() -> None:
    """What the user says of a layer holds; the others stay as they were found."""
    graph = find_readers(Loop(), {"rnn": ["fc"], "emb": ["rnn"]})
    assert set(graph.exposed) == {"fc"}
    assert {read.matrix for read in graph.reads_of("rnn")} == {"rnn.weight_hh", "fc.weight"}
    assert {read.matrix for read in graph.reads_of("emb")} == {"rnn.weight_ih"}
    assert "rnn" not in graph.memory


def test_stated_readers_of_both_directions() -> None:
    """The reverse direction is read by the second half of the columns."""
    model = Classifier(bidirectional=True)
    stated = find_readers(model, {"rnn": ["fc"]})
    found = find_readers(model)
    assert set(stated.reads) == set(found.reads)


@pytest.mark.parametrize(
    ("readers", "message"),
    [
        ({"nobody": ["fc"]}, "'nobody' is not a layer with units; the model has emb, fc, rnn"),
        ({"rnn": ["emb"]}, "'emb', stated as a reader of 'rnn', is not a layer that can read it"),
        ({"rnn": ["typo"]}, "'typo'"),
        ({"rnn": "fc"}, "must map to a list of names"),
        ({"emb": ["fc"]}, "'fc' takes 4 inputs, but 'emb' has 3 outputs"),
    ],
)
def test_stated_readers_are_checked(readers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_readers(Classifier(), readers)


def test_readers_of_a_bare_layer_cannot_be_stated() -> None:
    with pytest.raises(ValueError, match=r"the model is a single layer, GRU, .* Put it in a module"):
        find_readers(nn.GRU(E, H), {"": ["fc"]})
