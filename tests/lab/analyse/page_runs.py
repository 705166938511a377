"""Runs for the explorer page: a network whose every gate is known, hostile words, and two layers of 1,500."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.analyse import LayerLags, lag_curves, map_gates
from gatewise.lab.analyse.page import Fact, PageRun, page

HOSTILE = ["<script>alert(1)</script>", "</script><script>window.pwned=1</script>", "<img src=x onerror=alert(1)>",
           "\u2028&amp;", "@@SCRIPT@@", "${pwned}", "plain"]  # fmt: skip
PATTERNS = ["ifgo", "o", "", "o", "go", None]  # of layer 0; None: read by nobody


class WordModel(nn.Module):
    def __init__(self, words: int = 7, width: int = 3, hidden: int = 6, layers: int = 2) -> None:
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.rnn = gw.nn.LSTM(width, hidden, num_layers=layers)
        self.fc = nn.Linear(hidden, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.rnn(self.emb(ids))[0])


def model() -> WordModel:
    torch.manual_seed(0)
    net = WordModel()
    with torch.no_grad():
        net.rnn.bias_hh_l0.zero_()
        net.rnn.bias_ih_l0.copy_(torch.arange(24) / 8 - 1)
        for j, pattern in enumerate(PATTERNS):
            for k, gate in enumerate("ifgo"):
                if gate not in (pattern or ""):
                    net.rnn.weight_ih_l0[6 * k + j] = net.rnn.weight_hh_l0[6 * k + j] = 0
            if pattern is None:
                net.rnn.weight_hh_l0[:, j] = net.rnn.weight_ih_l1[:, j] = 0
        net.emb.weight[1] *= 50  # this word drives everything
    return net


METRICS = [
    {"epoch": e, "valid_ppl": 200.0 - 10 * e, "compression": 1.0 + e, "neurons": {"rnn.l0": 6 - e, "rnn.l1": 6},
     "gates": {"rnn.l0": {"i": 3, "o": 2}, "rnn.l1": {"i": 6, "o": 6}}}
    for e in (1, 2, 3)
]  # fmt: skip


def run_of(net: nn.Module, title: str = "one run", **changes: Any) -> PageRun:
    lags = lag_curves(net, [(torch.arange(24).view(12, 2) % 7,)], lags=8)
    given: dict[str, Any] = {"symbols": HOSTILE, "outputs": HOSTILE, "lags": lags, "metrics": METRICS,
                             "facts": [Fact("compression", "3.00x", "paper: 2.9x")]}  # fmt: skip
    return PageRun(title, net, **(given | changes))


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


@cache
def big_page(hidden: int = 1500) -> str:
    """Two layers of 1,500 neurons with every pattern; lag curves made up, because computing them takes minutes."""
    torch.manual_seed(0)
    net = WordModel(200, 16, hidden)
    with torch.no_grad():
        for layer in (0, 1):
            dead = torch.rand(4 * hidden) < 0.5
            getattr(net.rnn, f"weight_ih_l{layer}")[dead] = 0
            getattr(net.rnn, f"weight_hh_l{layer}")[dead] = 0
    gates = map_gates(net)
    lags = {
        name: LayerLags(name, "LSTM", layer.neurons, tuple(layer.patterns), torch.rand(101, hidden),
                        torch.full((101,), 4))
        for name, layer in gates.items()
    }  # fmt: skip
    return page([PageRun("big", net, lags=lags)])
