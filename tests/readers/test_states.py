"""A state that comes back to its layer has no other reader; one that anybody looks at does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from networks import LanguageModel, Net
from patterns import E, H, emb
from torch import nn

from gatewise.readers import find_readers


def test_a_state_taken_and_handed_back_is_no_reader() -> None:
    """A stateful language model returns its state only to get it back; the softmax is the reader."""
    graph = find_readers(LanguageModel())
    assert set(graph.exposed) == {"fc"}
    assert {read.matrix for read in graph.reads_of("rnn.l1")} == {"rnn.weight_hh_l1", "fc.weight"}


def test_two_states_in_one_argument() -> None:
    """Each layer gets its own part of the state and hands it back."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        a, b = state
        x, a = m.a(m.emb(x), a)
        x, b = m.b(x, b)
        return m.fc(x), (a, b)

    model = Net(forward, emb=emb(), a=nn.GRU(E, H), b=nn.GRU(H, H), fc=nn.Linear(H, 2))
    assert set(find_readers(model).exposed) == {"fc"}


def test_asking_for_the_shape_of_a_state_is_harmless() -> None:
    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.rnn(m.emb(x), state)
        return m.fc(out) * (state[0].size(1) > 0), new

    model = Net(forward, emb=emb(), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    assert set(find_readers(model).exposed) == {"fc"}


def test_a_state_that_is_also_looked_at_is_exposed() -> None:
    """If forward() reads the state it is given, a caller who hands it back lets that reader see every neuron."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.rnn(m.emb(x), state)
        return m.fc(out) + m.look(state), new

    model = Net(forward, emb=emb(), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2), look=nn.Linear(H, 2))
    assert "rnn.l0" in find_readers(model).exposed


@pytest.mark.parametrize(
    "look",
    [
        lambda m, x, state: m.fc(state[0][-1]),
        lambda m, x, state: m.fc(state[0].detach()),
        lambda m, x, state: m.b(x, (state[0], state[1]))[0].mean(),
    ],
)
def test_a_state_is_looked_at_in_part_detached_or_by_another_layer(look: Callable[..., Any]) -> None:
    """Each of them sees what the caller hands back of the first layer."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.a(x, hx=(state[0], state[1]))
        return m.fc(out).mean() + look(m, x, state).mean(), new

    model = Net(forward, a=nn.LSTM(E, H), b=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    assert find_readers(model).exposed["a.l0"].startswith("forward() returns its last state")


def test_a_part_of_a_state_is_not_what_the_layer_takes_back() -> None:
    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.rnn(x, hx=state)
        return m.fc(out), new[m.part]

    model = Net(forward, rnn=nn.GRU(E, H, 2), fc=nn.Linear(H, 2))
    for model.part, exposed in ((slice(1), {"fc", "rnn.l0"}), (slice(1, 2), {"fc", "rnn.l1"})):
        assert set(find_readers(model).exposed) == exposed


def test_a_cell_state_that_is_returned_and_not_taken_is_seen() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, (_, c) = m.rnn(x)
        return m.fc(out), c

    graph = find_readers(Net(forward, rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2)))
    assert graph.memory == {"rnn.l0"}


def test_what_a_cell_returns_is_an_answer() -> None:
    """Its h is both its state and what it says: a caller may look at it."""
    model = Net(lambda m, x, state: m.cell(x, state), cell=nn.GRUCell(E, H))
    assert find_readers(model).exposed["cell"].startswith("forward() returns it (")
