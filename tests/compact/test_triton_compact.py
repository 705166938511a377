"""Compact layers in the GPU's own kernels: answers and gradients are those of the plain scan.

On a CUDA device, or in Triton's interpreter (TRITON_INTERPRET=1), where layers are told that there is a GPU.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from triton_device import DEVICE, INTERPRETED

import gatewise as gw
from gatewise.nn import recurrence, triton_persistent, triton_scan, triton_team
from gatewise.nn.recurrence import replayed

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # the interpreter is NumPy, which tells of inf


class Tagger(nn.Module):
    def __init__(self, cell: str, bidirectional: bool, gate_activation: str) -> None:
        super().__init__()
        kind = {"LSTM": gw.nn.LSTM, "GRU": gw.nn.GRU}[cell]
        self.rnn = kind(5, 6, 2, bidirectional=bidirectional, gate_activation=gate_activation)
        self.fc = nn.Linear(12 if bidirectional else 6, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.fc(self.rnn(x, mask=mask)[0])


def pruned(*kind: Any) -> nn.Module:
    """Gates without weights and neurons that nobody reads, in both layers."""
    torch.manual_seed(0)
    model = Tagger(*kind)
    with torch.no_grad():
        for name, weight in model.rnn.named_parameters():
            if name.startswith("weight"):
                weight[torch.arange(len(weight)) % 5 == 2] = 0
                weight[:, 1] = 0
        model.fc.weight[:, 1] = 0
    return model


def told(model: nn.Module, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The answer, and the gradient of everything."""
    model.zero_grad()
    answer = model(x, mask)
    answer.square().sum().backward()
    return [answer.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gate_activation", ["sigmoid", "hard_sigmoid"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_compact_layers_train_in_our_kernels(
    cell: str, bidirectional: bool, gate_activation: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain scan on the CPU is the oracle; both biases of a gate have become one, which no kernel may forget."""
    model = pruned(cell, bidirectional, gate_activation)
    gw.shrink(model)
    assert model.rnn.is_compact
    x = torch.randn(4, 17, 5)
    mask = torch.rand(4, 17) < 0.7 if masked else None
    expected = told(copy.deepcopy(model), x, mask)
    calls: list[int] = []
    original = triton_scan.device_scan
    monkeypatch.setattr(triton_scan, "device_scan", lambda *a, **o: calls.append(1) or original(*a, **o))
    if INTERPRETED:
        room = SimpleNamespace(major=9, multi_processor_count=4, shared_memory_per_block_optin=2**17)
        monkeypatch.setattr(triton_persistent, "gpu", lambda device: room)
        monkeypatch.setattr(triton_team, "await_all", lambda counter, count: None)
        monkeypatch.setattr(recurrence, "no_kernel", lambda cell, x, weights: None)
    monkeypatch.setattr(triton_scan, "precision", lambda: "ieee")
    with replayed():  # where a launch costs nothing, as in the recipes
        found = told(model.to(DEVICE), x.to(DEVICE), None if mask is None else mask.to(DEVICE))
    assert len(calls) == (4 if bidirectional else 2)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-4, atol=2e-5)
