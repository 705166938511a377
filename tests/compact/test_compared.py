"""compress() calls what it made: it answers as the network, or compress() raises, or says that it could not tell."""

from __future__ import annotations

import copy
import importlib
import random
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.readers import ReaderGraph, find_readers

compressing = importlib.import_module("gatewise.compact.compress")


def sparse(rule: Any, **layers: nn.Module) -> Net:
    """Two neurons that neither the layer nor the head reads."""
    model = Net(rule, rnn=nn.LSTM(3, 6, batch_first=True), fc=nn.Linear(6, 2), **layers).eval()
    with torch.no_grad():
        for weight in (model.rnn.weight_hh_l0, model.fc.weight):
            weight[:, 1:3] = 0
    return model


def headed(m: Any, x: Any) -> Any:
    return m.fc(m.rnn(x)[0])


def returned(m: Any, x: Any) -> Any:
    y, _ = m.rnn(x)
    return m.fc(y), y


def blind(model: nn.Module, readers: Any = None) -> ReaderGraph:
    """Readers as a recorder with a fault would find them: nobody outside sees a recurrent layer."""
    graph = find_readers(model, readers)
    return replace(graph, exposed={name: why for name, why in graph.exposed.items() if name == "fc"})


@pytest.mark.parametrize("example", [None, torch.randn(2, 5, 3)])
def test_a_cut_that_changes_the_answer_is_refused(monkeypatch: Any, example: Any) -> None:
    """Whatever a fault in recording hides, the answers show."""
    monkeypatch.setattr(compressing, "find_readers", blind)
    what = "made-up input" if example is None else "the example"
    with pytest.raises(ValueError, match=f"the cut network answers otherwise, by up to .* on {what}"):
        gw.compress(sparse(returned), example=example)
    assert gw.compress(sparse(headed), example=example).rnn.layers[0].kept == 4


class Everything(nn.Module):
    """A model with all that a call could change."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 3, max_norm=0.1)
        self.rnn, self.norm = nn.GRU(3, 6, batch_first=True), nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[Any] = []
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        y, self.last = self.rnn(self.emb(x))
        y = F.dropout(y, 0.5, training=True) + random.random() + float(np.random.rand())  # noqa: NPY002
        self.seen.append(y)
        self.calls += 1
        return self.fc(self.norm(y[:, -1]))


def test_the_model_is_as_it_was() -> None:
    """A call that is tried leaves no trace: not in weights, buffers, modes, stored states or random numbers."""
    model, noted = Everything().train(), []
    model.norm.eval()
    model.fc.register_forward_hook(lambda *given: noted.append(given))
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    drawn = random.getstate(), torch.get_rng_state(), np.random.get_state()[1]  # type: ignore[index] # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gw.compress(model, example=torch.tensor([[1, 2], [3, 4]]))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert [m.training for m in model.modules()] == modes
    assert random.getstate() == drawn[0]
    assert torch.equal(torch.get_rng_state(), drawn[1])
    assert np.array_equal(np.random.get_state()[1], drawn[2])  # type: ignore[index] # noqa: NPY002
    assert (model.seen, model.last, noted) == ([], None, [])


def noisy(m: Any, x: Any) -> Any:
    return m.fc(F.dropout(m.rnn(x)[0], 0.5, training=True)) + torch.rand(())


def as_many_as_are_live(m: Any, x: Any) -> Any:
    """Random numbers of which the compact layer draws others."""
    draws = len(list(m.modules()))
    return m.fc(m.rnn(x)[0]) + torch.rand(draws)[-1]


def last_digits(m: Any, x: Any) -> Any:
    return (m.fc(m.rnn(x)[0]) * 1e8) % 1.0


def best(m: Any, x: Any) -> Any:
    z = m.fc(m.rnn(x)[0])
    return torch.cat([z, z], -1).argmax(-1)


@pytest.mark.parametrize("rule", [noisy, as_many_as_are_live, last_digits, best])
@pytest.mark.filterwarnings("ignore:rnn.l0 keeps", "ignore:the cut could not be tried")
def test_chance_and_rounding_are_no_fault(rule: Any) -> None:
    """Such a network answers otherwise by itself, from call to call or from one rounding to the next."""
    assert gw.compress(sparse(rule)).rnn.layers[0].kept in (4, 6)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        y, state = self.rnn(x, state)
        return self.fc(y), state


@pytest.mark.parametrize("example", [None, torch.randn(2, 5, 3)])
def test_a_state_is_compared_where_neurons_are_left(example: Any) -> None:
    """The last state of a neuron that went is zero, which nobody reads."""
    model = Stateful().eval()
    with torch.no_grad():
        for weight in (model.rnn.weight_hh_l0, model.fc.weight):
            weight[:, 1:3] = 0
    assert gw.compress(model, example=example).rnn.layers[0].kept == 4


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_made_up_numbers_are_as_exact_as_the_model(kind: torch.dtype) -> None:
    assert gw.compress(sparse(headed).to(kind)).rnn.layers[0].kept == 4


def picky(m: Any, x: Any) -> Any:
    if not isinstance(x, dict):
        return m.fc(m.rnn(x)[0])
    raise ValueError("no dictionary")


def test_what_cannot_be_tried_is_said() -> None:
    """The warning asks for an example, unless that would not help either; with one nothing is said."""
    model = sparse(lambda m, x: m.fc(m.rnn(x["numbers"])[0]))
    with torch.no_grad():
        model.rnn.weight_ih_l0[3] = model.rnn.weight_hh_l0[3] = 0  # a constant gate
    with pytest.warns(
        UserWarning, match=r"the cut could not be tried: .*; compress\(model, example=x\) tries it"
    ):
        gw.compress(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gw.compress(model, example={"numbers": torch.randn(2, 5, 3)})
    assert not any("tried" in str(warning.message) for warning in said)
    with pytest.warns(UserWarning, match=r"^the cut could not be tried: no tensor is seen in its answer\.$"):
        gw.compress(sparse(lambda m, x: {m.fc(m.rnn(x)[0])}))


def test_an_example_that_forward_refuses_raises() -> None:
    with pytest.raises(ValueError, match="no dictionary"):
        gw.compress(sparse(picky), example={"x": 1})
