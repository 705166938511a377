"""Training on a task that needs few units really removes gates and neurons, and the answers stay right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import TORCH
from torch import Tensor, nn

import gatewise as gw

STEPS = 400


class Echo(nn.Module):
    """Says at every step what the first of three inputs was one step before: one neuron could do it."""

    def __init__(self, cell: str, hidden: int = 8) -> None:
        super().__init__()
        self.rnn = TORCH[cell](3, hidden)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out).squeeze(-1)


def examples(n: int) -> tuple[Tensor, Tensor]:
    x = torch.randint(2, (6, n, 3)).float() * 2 - 1
    return x, x[:-1, :, 0] > 0


def accuracy(model: nn.Module) -> float:
    model.eval()
    x, y = examples(500)
    with torch.no_grad():
        return ((model(x)[1:] > 0) == y).float().mean().item()


def lasso(model: nn.Module) -> Any:
    return gw.GroupLasso(model, l1=1e-4, group=0.01, threshold=1e-2)


def bayes(model: nn.Module) -> Any:
    return gw.Variational(model, n_train=1500, noise="batch")


def bayes_by_sequence(model: nn.Module) -> Any:
    return gw.Variational(model, n_train=1500, noise="sequence")


@pytest.mark.parametrize("make", [lasso, bayes, bayes_by_sequence])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_training_removes_gates_and_neurons(cell: str, make: Any) -> None:
    """Echoing needs no gating at all: most gates become constant, neurons go, and no echo is lost."""
    model = Echo(cell)
    sparsifier = make(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, 2 - 2 * k / STEPS))
    for _ in range(STEPS):
        x, y = examples(32)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x)[1:], y.float()) + sparsifier.penalty()
        loss.backward()
        optimizer.step()
        sparsifier.step()
        schedule.step()
    report = gw.measure(model)
    assert accuracy(model) > 0.98
    assert report.neurons["rnn.l0"] < 8
    assert report.gates["rnn.l0"] < len(model.rnn.weight_hh_l0) / 3
    assert report.compression > 4
