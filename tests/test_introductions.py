"""Objects introduce themselves: what they are of, and their numbers, in one line; a report is its table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gatewise as gw


class Net(nn.Module):
    def __init__(self, residual: bool = False) -> None:
        super().__init__()
        self.gru, self.head, self.residual = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 2), residual
        with torch.no_grad():
            for weight in (self.gru.weight_ih_l0, self.gru.weight_hh_l0):
                weight[:4] = 0
            self.gru.weight_hh_l0[:, 3] = 0
            self.head.weight[:, 3] = 0

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(x)
        return self.head(y + x if self.residual else y)


def test_sparsifiers() -> None:
    model = Net()
    lasso = gw.GroupLasso(model, l1=1e-4, group=1e-3)
    numbers = "l1=0.0001, group=0.001, threshold=0.0001, subgradient updates"
    assert repr(lasso) == f"<GroupLasso W+G+N of Net (gru): {numbers}>"
    budget = gw.Budget(lasso, gates=6, steps=1000)
    budget.step()
    assert repr(budget) == "<Budget gates=6 of 12: step 1 of 1,000>"
    assert repr(gw.Refit(model)) == "<Refit of Net: hold='weights', 42 of 104 weights stay zero>"
    variational = gw.Variational(Net(), n_train=1000, warm_up=(0, 50))
    assert repr(variational) == "<Variational W+G+N of Net (gru, head): n_train=1,000, warm_up=(0, 50)>"


def test_engines_and_structures() -> None:
    engine = gw.Engine(Net().eval())
    assert (
        repr(engine)
        == "<Engine 4 numbers -> GRU, 3 neurons, 6 live gates -> 2 numbers, float32 weights, threads=1>"
    )
    graph = gw.Engine(Net(residual=True).eval())
    assert repr(graph) == "<Engine of forward(x) as a graph, 1 way to call it, float32 weights, threads=1>"
    said = repr(gw.Structure.from_weights(Net()))
    assert said.startswith("<Structure gru.l0: 4 of 4 inputs, 6 of 12 gates, 3 of 4 neurons, ")


def test_a_report_is_its_table() -> None:
    """Also in a notebook, where what a layer is called is text, not markup."""
    report = gw.measure(nn.Sequential(nn.Linear(2, 2)))
    assert repr(report) == str(report)
    odd = nn.Module()
    odd.add_module("<b>", nn.Linear(2, 2))
    shown = gw.measure(odd)._repr_html_()
    assert shown.startswith("<table><tr><th>layer</th>")
    assert "<td>&lt;b&gt;</td><td>Linear</td><td>4</td>" in shown
    assert "compression" in shown
