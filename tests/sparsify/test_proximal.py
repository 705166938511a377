"""Proximal updates: the closed form of every step, and zeros that are exact with any optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from networks import Classifier, LanguageModel, answer
from torch import Tensor, nn

import gatewise as gw
from gatewise.sparsify.proximal import soften_

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.01),
}


def updated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    words = torch.randint(7, (6, 4), generator=torch.Generator().manual_seed(1))
    nn.functional.cross_entropy(answer(model(words[:-1])).flatten(0, 1), words[1:].flatten()).backward()
    optimizer.step()


def shrunk(parts: list[Tensor], by: float) -> list[Tensor]:
    """w max(1 - by / ||w||, 0) of one group."""
    norm = torch.sqrt(sum((part.detach().square().sum() for part in parts), torch.zeros(())))
    return [part * max(0.0, 1 - by / float(norm)) if norm else part for part in parts]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_are_softened(name: str) -> None:
    """At the level W: sign(w) max(|w| - eta l1, 0) of what the optimizer left; embedding and biases stay."""
    torch.manual_seed(0)
    model = LanguageModel().double()
    lasso = gw.GroupLasso(model, "W", l1=0.7, update="proximal")
    optimizer = OPTIMIZERS[name](model.parameters())
    updated(model, optimizer)
    eta, before = optimizer.param_groups[0]["lr"], copy.deepcopy(model.state_dict())
    lasso.step(optimizer)
    for key, w in before.items():
        pulled = "weight" in key and not key.startswith("emb")
        expected = w.sign() * (w.abs() - eta * 0.7).clamp_min(0) if pulled else w
        torch.testing.assert_close(model.state_dict()[key], expected)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_disjoint_groups_have_their_closed_form(cell: str) -> None:
    """Without recurrent weights a gate is a row of the input matrix, a neuron a column of the Linear after it."""
    torch.manual_seed(0)
    model = Classifier(cell=cell).double()
    nn.init.zeros_(model.rnn.weight_hh_l0)
    by = float(model.rnn.weight_ih_l0.detach().norm(dim=1).median())  # half of the gates go
    lasso = gw.GroupLasso(model, l1=0.0, group=by / 0.1, update="proximal")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model)
    lasso.step(optimizer)
    expected = torch.stack([shrunk([row], by)[0] for row in before.rnn.weight_ih_l0])
    torch.testing.assert_close(model.rnn.weight_ih_l0, expected)
    columns = torch.stack([shrunk([column], by)[0] for column in before.fc.weight.t()]).t()
    torch.testing.assert_close(model.fc.weight, columns)
    assert (model.rnn.weight_ih_l0.abs().sum(1) == 0).any()
    assert (model.rnn.weight_ih_l0.abs().sum(1) > 0).any()


def test_the_closed_form_is_the_minimum() -> None:
    """Of ||x - w||^2 / (2 eta) + lambda ||x||: no step away from it is lower."""
    torch.manual_seed(0)
    w = torch.randn(5, dtype=torch.float64)
    (x,) = shrunk([w], 0.3 * 0.5)

    def value(at: Tensor) -> Tensor:
        return (at - w).square().sum() / (2 * 0.3) + 0.5 * at.norm()

    for _ in range(200):
        assert value(x + 1e-3 * torch.randn(5, dtype=torch.float64)) > value(x)


def test_gates_come_before_neurons() -> None:
    """They share the recurrent weights: rows are shrunk first, then columns, with the norms that are left."""
    torch.manual_seed(0)
    model = Classifier().double()
    lasso = gw.GroupLasso(model, l1=0.2, group=2.0, update="proximal")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ih, hh, fc = (
        p.detach().clone() for p in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0, model.fc.weight)
    )
    lasso.step(optimizer)
    ih, hh, fc = (w.sign() * (w.abs() - 0.02).clamp_min(0) for w in (ih, hh, fc))
    for row in range(len(ih)):
        ih[row], hh[row] = shrunk([ih[row], hh[row]], 0.2)
    for neuron in range(hh.shape[1]):
        hh[:, neuron], fc[:, neuron] = shrunk([hh[:, neuron], fc[:, neuron]], 0.2)
    torch.testing.assert_close(model.rnn.weight_ih_l0.detach(), ih)
    torch.testing.assert_close(model.rnn.weight_hh_l0.detach(), hh)
    torch.testing.assert_close(model.fc.weight.detach(), fc)


@pytest.mark.parametrize("levels", ["W+N", "W+G+N"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_are_exact_without_a_threshold(name: str, levels: str) -> None:
    """Whole groups go, and what goes is zero; the same penalty by its slope leaves nothing at zero."""
    left = {}
    for update in ("proximal", "subgradient"):
        torch.manual_seed(0)
        model = LanguageModel(hidden=8)
        group = 0.3 if name == "SGD" else 10.0  # Adam moves every weight by its rate, however small the slope
        lasso = gw.GroupLasso(model, levels, l1=1e-4, group=group, update=update, threshold=0.0)
        optimizer = OPTIMIZERS[name](model.parameters())
        for _ in range(60):
            optimizer.zero_grad()
            words = torch.randint(7, (6, 4))
            loss = nn.functional.cross_entropy(answer(model(words[:-1])).flatten(0, 1), words[1:].flatten())
            (loss + lasso.penalty()).backward()
            optimizer.step()
            lasso.step(optimizer)
        left[update] = sum(gw.measure(model).neurons.values())
    assert left["proximal"] < left["subgradient"] == 16


def test_the_penalty_tells_and_does_not_pull() -> None:
    """The value is that of the other way, its gradient is none: the loop stays as it is."""
    torch.manual_seed(0)
    model = LanguageModel()
    lasso = gw.GroupLasso(model, group=0.3, update="proximal")
    torch.testing.assert_close(lasso.penalty().detach(), gw.GroupLasso(model, group=0.3).penalty().detach())
    lasso.penalty().backward()
    torch.testing.assert_close(lasso.backward(), lasso.penalty().detach())
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        assert not lasso.penalty().requires_grad
    assert lasso.threshold == 0


def test_a_budget_turns_proximal_updates_too() -> None:
    torch.manual_seed(0)
    model = LanguageModel(hidden=8)
    lasso = gw.GroupLasso(model, group=1e-3, update="proximal")
    budget = gw.Budget(lasso, gates=0.5, steps=60)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        updated(model, optimizer)
        lasso.step(optimizer)
        budget.step()
    assert budget.to_dict()["left"] == budget.target == 32


def test_a_rate_that_is_a_tensor() -> None:
    """As in a captured step, which sees no other number change."""
    ends = []
    for rate in (0.1, torch.tensor(0.1)):
        torch.manual_seed(0)
        model = LanguageModel()
        lasso = gw.GroupLasso(model, group=0.3, update="proximal")
        lasso.step(torch.optim.SGD(model.parameters(), lr=rate))
        ends.append(model.state_dict())
    torch.testing.assert_close(ends[0], ends[1])


def test_frozen_matrices_stay() -> None:
    model = LanguageModel()
    model.fc.weight.requires_grad_(False)
    before = model.fc.weight.clone()
    lasso = gw.GroupLasso(model, group=30.0, update="proximal")
    lasso.step(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0))
    assert torch.equal(model.fc.weight, before)
    assert not model.rnn.weight_ih_l0.any()


def test_what_it_needs_of_the_optimizer() -> None:
    model = LanguageModel()
    lasso = gw.GroupLasso(model, group=0.3, update="proximal")
    with pytest.raises(ValueError, match=r"call step\(optimizer\), after its own step"):
        lasso.step()
    with pytest.raises(ValueError, match=r"rnn\.weight_ih_l0: the optimizer does not have it"):
        lasso.step(torch.optim.SGD(model.fc.parameters(), lr=0.1))
    groups = [{"params": model.rnn.parameters()}, {"params": model.fc.parameters(), "lr": 0.2}]
    with pytest.raises(ValueError, match=r"learning rate 0\.1, fc\.weight has 0\.2"):
        lasso.step(torch.optim.SGD(groups, lr=0.1))
    with pytest.raises(ValueError, match="update='prox' is not one of subgradient, proximal"):
        gw.GroupLasso(model, group=0.3, update="prox")


def test_softening_keeps_nan_visible() -> None:
    w = torch.tensor([1.0, -0.5, 0.1, torch.nan])
    soften_(w, torch.tensor(0.2))
    torch.testing.assert_close(w, torch.tensor([0.8, -0.3, 0.0, torch.nan]), equal_nan=True)
