"""What neurons do on text, on a network that is made here, against its equations written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import behaviour
import pytest
import torch
from gate_patterns import ONLY_OUTPUT
from made_runs import made
from torch import Tensor

import gatewise as gw
from gatewise.lab.analyse import LayerLags, map_gates
from gatewise.lab.data.language import LanguageData, Vocabulary
from gatewise.lab.models import WordLM
from gatewise.nn.lookup import weights_of

WORDS, HIDDEN = 12, 6


def cut_model() -> Any:
    """Two layers; in the second neurons 0 and 1 are o-only, 5 is removed and the others have all gates."""
    torch.manual_seed(3)
    model = WordLM(WORDS, embedding=5, hidden=HIDDEN)
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(-0.8, 0.8)
        for w in (model.rnn.weight_ih_l1, model.rnn.weight_hh_l1):
            w.view(4, HIDDEN, -1)[:3, :2] = 0
            w[:, 5] *= w is model.rnn.weight_ih_l1
        next(m for m in model.modules() if isinstance(m, torch.nn.Linear)).weight[:, 5] = 0
    small: Any = gw.compress(model).eval()
    with torch.no_grad():
        small.rnn.layers[1].neuron_scale.uniform_(0.5, 1.5)  # z_h, as a Bayesian run leaves it
    return small


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    model, vocabulary = cut_model(), Vocabulary(tuple(map(str, range(WORDS))))
    ids = torch.randint(0, WORDS, (3000,), generator=torch.Generator().manual_seed(0))
    corpus = LanguageData(ids, ids, ids, vocabulary, "word")
    monkeypatch.setattr(behaviour, "opened_with_data", lambda run: (SimpleNamespace(model=model), corpus))
    found = made(*(layer.to_dict() for layer in map_gates(model).values()))
    vars(found)["model"] = model
    yield found
    behaviour.trace.cache_clear()
    behaviour.own_gradients.cache_clear()


def test_the_cell_of_an_output_only_neuron_follows_its_constants(run: Any) -> None:
    """c_t = f c + i g from 0 on, step by step; and every such neuron is found."""
    own = behaviour.output_only_constants(run)
    last = run.last_layer
    assert (
        [last["neurons"][k] for k, p in enumerate(last["patterns"]) if p == ONLY_OUTPUT]
        == own.neurons
        == [0, 1]
    )
    (i, f, g), c = (torch.tensor([row[:2] for row in last["constant"][:3]])), torch.zeros(2)
    for t in range(1, 8):
        c = f * c + i * g
        torch.testing.assert_close(own.c(t), c)


def test_a_trace_holds_together(run: Any) -> None:
    """c is what the constants say, and h = o tanh(c) with o from its own dot product: three ways to one number."""
    seen = behaviour.trace(run)
    steps = torch.arange(1, len(seen.c) + 1)[:, None, None]
    torch.testing.assert_close(seen.c, seen.constants.c(steps).expand_as(seen.c))
    torch.testing.assert_close(seen.h, seen.o * seen.c.tanh())
    assert seen.o.std() > 0.01


def by_hand(model: Any, ids: Tensor, lag: int) -> Tensor:  # (K,)
    """Mean over texts of the gradient's norm, h of the step before held fixed: plain autograd, text by text."""
    weights = weights_of(model.rnn, 1, 0)
    with torch.no_grad():
        after = list(behaviour.steps(model, ids))[1:]
    x = torch.stack([h[0] for h, _ in after]).requires_grad_()  # (T, B, H)
    h = c = torch.zeros(ids.shape[1], HIDDEN)
    for x_t in x:
        pre = x_t @ weights.w_ih.T + h.detach() @ weights.w_hh.T + weights.b_ih + weights.b_hh
        i, f, g, o = pre.view(len(pre), 4, HIDDEN).unbind(1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh() * weights.neuron_scale
    norms = torch.zeros(HIDDEN)
    for k in range(HIDDEN):
        (grad,) = torch.autograd.grad(h[:, k].sum(), x, retain_graph=True)
        norms[k] = grad[-1 - lag].norm(dim=-1).mean()
    return norms


def test_own_gradients_go_through_the_cell_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behaviour, "LAGS", 24)
    seen = {}
    monkeypatch.setattr(behaviour, "near_and_far", lambda layer: seen.setdefault("layer", layer))
    behaviour.own_gradients(run)
    layer: LayerLags = seen["layer"]
    corpus = behaviour.opened_with_data(run)[1]
    ids = torch.cat([part for (part,) in behaviour.validation_batches(corpus, 24, 64)], dim=1)
    for lag in (0, 1, 20):
        expected = by_hand(run.model, ids, lag)[layer.neurons]
        torch.testing.assert_close(layer.norms[lag], expected, rtol=1e-4, atol=1e-8)


def test_near_and_far_are_means_over_lags_that_enough_sequences_reach() -> None:
    """Lags 0 to 5 and 20 on; a neuron without a live gate is left out."""
    lags = torch.arange(101.0)[:, None] * torch.tensor([1.0, 2.0, 3.0])
    sequences = torch.where(torch.arange(101) <= 60, 40, 1)
    layer = LayerLags("rnn.l1", "LSTM", torch.arange(3), ("o", "-", "ifgo"), lags, sequences)
    found = behaviour.near_and_far(layer)
    assert found.patterns == ("o", "ifgo")
    torch.testing.assert_close(found.near, torch.tensor([2.5, 7.5]))
    torch.testing.assert_close(found.far, torch.tensor([40.0, 120.0]))
    torch.testing.assert_close(found.ratio, torch.tensor([16.0, 16.0]))
