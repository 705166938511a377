"""A budget that cuts at once: what the loss misses least goes, and by how much it would miss a unit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gatewise as gw

BATCHES, HIDDEN = 4, 6


class Speaker(nn.Module):
    """Scores at every step; in float64, so that differences of losses are exact enough."""

    def __init__(self, cell: str, layers: int, both: bool) -> None:
        super().__init__()
        kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}[cell]
        self.rnn = kind(3, HIDDEN, layers, batch_first=True, bidirectional=both, dtype=torch.float64)
        self.fc = nn.Linear(HIDDEN * (1 + both), 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0])


def batch(k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(5, 7, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (5, 7), generator=generator)


def loss_of(model: nn.Module, k: int) -> Tensor:
    x, y = batch(k)
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def heard(model: nn.Module, **wanted: Any) -> tuple[gw.GroupLasso, gw.Budget]:
    lasso = gw.GroupLasso(model, l1=1.0, group=1.0)
    budget = gw.Budget(lasso, steps=1, **wanted)
    for k in range(BATCHES):
        loss_of(model, k).backward()
        budget.listen()
        model.zero_grad()
    return lasso, budget


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_it_is_the_slope_of_the_loss(cell: str, layers: int, both: bool) -> None:
    """Strength of a unit = |d loss / d scale of its weights|: by differences, one unit after the other."""
    torch.manual_seed(0)
    model = Speaker(cell, layers, both)
    lasso, budget = heard(model, neurons=3)
    gates, neurons = budget.handle.strengths()
    found = torch.cat([gates, neurons])
    groups = budget.handle.whole(torch.arange(len(gates)), len(gates) + torch.arange(len(neurons)))  # type: ignore[union-attr]
    matrices = lasso.current()
    for group, unit in list(enumerate(groups.tolist()))[:: 1 + len(groups) // 12]:
        lines = torch.zeros(sum(map(sum, (m.shape for m in matrices))) + 1)
        lines[lasso.plan.groups[group]] = 1
        parts = lines[:-1].split([size for m in matrices for size in m.shape])
        slopes = []
        for k in range(BATCHES):
            sides = []
            for factor in (1 + 1e-5, 1 - 1e-5):
                before = [m.detach().clone() for m in matrices]
                with torch.no_grad():
                    for m, rows, columns in zip(matrices, parts[::2], parts[1::2]):
                        m[rows.bool()] *= factor
                        m[:, columns.bool()] *= factor
                    sides.append(loss_of(model, k))
                    for m, old in zip(matrices, before):
                        m.copy_(old)
            slopes.append((sides[0] - sides[1]) / 2e-5)
        expected = torch.stack(slopes).square().sum().sqrt()
        torch.testing.assert_close(found[unit], expected, rtol=1e-4, atol=1e-8)


def test_those_go_that_the_loss_misses_least() -> None:
    """A neuron with large weights into nowhere, and one with small weights that everything hangs on."""
    torch.manual_seed(0)
    model = Speaker("GRU", 1, False)
    with torch.no_grad():
        model.fc.weight.zero_()
        model.rnn.weight_hh_l0.zero_()
        model.fc.weight[0, 0], model.fc.weight[1, 1] = 0.5, 0.1
        model.fc.weight[:, 2] = 3.0  # the same for all classes: no answer depends on it
    _, budget = heard(model, neurons=2)
    budget.step()
    assert model.fc.weight.abs().sum(0).nonzero().flatten().tolist() == [0, 1]
    assert budget.count() == 2
    by_norm = gw.Budget(gw.GroupLasso(model, l1=1.0, group=1.0), neurons=1, steps=1)
    by_norm.step()
    assert by_norm.count() == 1


def test_a_layer_of_which_nothing_is_left_is_silent() -> None:
    """It takes no part in the loss, so it has no gradient; the others are heard as if it were not there."""
    torch.manual_seed(0)
    model = Speaker("GRU", 2, False)
    with torch.no_grad():
        for matrix in (model.rnn.weight_ih_l1, model.rnn.weight_hh_l0):
            matrix.zero_()
    small = gw.compress(model)
    assert gw.measure(small).neurons["rnn.l0"] == 0
    _, budget = heard(small, neurons=2)
    budget.step()
    assert budget.count() == 2


@pytest.mark.parametrize("wanted", [{"weights": 150}, {"gates": 16}, {"neurons": 6}])
def test_a_network_that_fits_already_is_told_nothing(wanted: dict[str, int]) -> None:
    """It has far less than it may, and nothing goes: there is no penalty that would be too strong."""
    torch.manual_seed(0)
    model = Speaker("GRU", 1, False)
    with torch.no_grad():
        for matrix in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            matrix[::2] = 0
        for matrix in (model.fc.weight, model.rnn.weight_hh_l0):
            matrix[:, :2] = 0
    before = gw.measure(model)
    gw.Budget(gw.GroupLasso(model, l1=1.0, group=1.0), steps=1, **wanted).step()
    assert gw.measure(model) == before


def test_what_a_cut_at_once_leaves_unread_is_told() -> None:
    """Weights of a neuron that nobody reads any more count as gone; no penalty is to blame, for there was none."""
    torch.manual_seed(0)
    budget = gw.Budget(gw.GroupLasso(Speaker("GRU", 2, False), l1=1.0, group=1.0), weights=20, steps=1)
    with pytest.warns(UserWarning, match=r"20 weights, and 13 are left\. .* then reached nothing: ask for"):
        budget.step()


def test_what_cannot_be_heard() -> None:
    """One sentence each."""
    model = Speaker("GRU", 1, False).float()
    lasso = gw.GroupLasso(model, l1=1.0, group=1.0)
    with pytest.raises(ValueError, match=r"has no gradient: call listen\(\) after loss.backward"):
        gw.Budget(lasso, neurons=2, steps=1).listen()
    model.rnn.requires_grad_(False)  # rows without a gradient would look as if nobody missed them
    loss_of(model.double(), 0).backward()
    with pytest.raises(
        ValueError, match=r"rnn.weight_ih_l0, rnn.weight_hh_l0: frozen, .* leave listen\(\) out"
    ):
        gw.Budget(gw.GroupLasso(model, l1=1.0, group=1.0), neurons=2, steps=1).listen()
    model.requires_grad_(True)
    with pytest.raises(ValueError, match="for a budget that cuts at once"):
        gw.Budget(lasso, neurons=2, steps=10).listen()
    with pytest.raises(ValueError, match="Weights go by their size"):
        gw.Budget(lasso, weights=20, steps=1).listen()
    variational = gw.Variational(Speaker("GRU", 1, False).float(), n_train=100)
    with pytest.raises(ValueError, match="signal-to-noise ratio"):
        gw.Budget(variational, neurons=2, steps=1).listen()
