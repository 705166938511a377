"""Lag curves, on networks whose gradients are known by hand or by plain autograd."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from networks import Net
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import gatewise as gw
from gatewise.lab.analyse import lag_curves
from gatewise.lab.analyse.lag import kind_of


class Network(nn.Module):
    """A recurrent stack and a Linear that reads all of it; `mask` goes where the stack takes one."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.fc = nn.Linear(rnn.hidden_size * (2 if rnn.bidirectional else 1), 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.fc((self.rnn(x) if mask is None else self.rnn(x, mask=mask))[0])


class PackedNetwork(Network):
    """The same for a PackedSequence."""

    def forward(self, x: Any, mask: None = None) -> Tensor:
        return self.fc(self.rnn(x)[0].data)


def leaky() -> Network:
    """Three neurons without recurrent weights, one input; all that is needed for a curve on paper.

    0: i = 1, f = sigmoid(1), o = 1, only g live: c' = f c + tanh(w x)     -> norm at lag t: (1 - tanh(c)^2) w f^t
    1: only o live                                                         -> norm at lag 0 only
    2: no gate live                                                        -> 0
    """
    net = Network(gw.nn.LSTM(1, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net.fc.weight.fill_(1)
        bias = net.rnn.bias_ih_l0.view(4, 3)
        bias[0] = bias[3] = 40.0  # i and o are 1
        bias[1] = 1.0
        bias[2] = 0.5
        bias[2, 0] = 0.0
        net.rnn.weight_ih_l0[2 * 3 + 0] = 0.25
        bias[3, 1] = 0.0
        net.rnn.weight_ih_l0[3 * 3 + 1] = 2.0
    return net


def test_the_curve_of_a_leaky_neuron_is_geometric() -> None:
    """x = 0 throughout: c stays 0, so the gradient at lag t is exactly w * f^t."""
    layer = lag_curves(leaky(), [(torch.zeros(12, 3, 1),)], lags=10)["rnn.l0"]
    assert (layer.patterns, layer.kinds) == (("g", "o", "-"), ["long", "short", "constant"])
    f = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(layer.norms[:, 0], 0.25 * f ** torch.arange(11.0))
    c = sum(f**k for k in range(12)) * math.tanh(0.5)  # the cell of neuron 1 fills up with the constant g
    assert layer.norms[0, 1].item() == pytest.approx(2.0 * 0.25 * math.tanh(c), rel=1e-5)
    assert not layer.norms[1:, 1].any()
    assert not layer.norms[:, 2].any()
    assert layer.sequences.tolist() == [3] * 11
    assert layer.reach[1] == layer.reach[2] == 0 < layer.reach[0]


def test_a_lag_that_few_sequences_reach_moves_no_mean_lag() -> None:
    """Two sequences of 40 are no tenth of them; what these two say at lag 9 would weigh as much as lag 0."""
    few = lag_curves(leaky(), [(torch.zeros(3, 38, 1),), (torch.zeros(10, 2, 1),)], lags=9)["rnn.l0"]
    all_of_them = lag_curves(leaky(), [(torch.zeros(3, 40, 1),)], lags=2)["rnn.l0"]
    assert few.sequences.tolist() == [40] * 3 + [2] * 7
    torch.testing.assert_close(few.reach, all_of_them.reach)


def by_autograd(net: Network, x: Tensor, layer: int, lags: int) -> Tensor:  # (L + 1, H)
    """One backward call per neuron and sequence through torch's own layers."""
    for k in range(layer):
        x = one_layer(net.rnn, k)(x)[0]
    x = x.detach().requires_grad_()
    last = one_layer(net.rnn, layer)(x)[0][-1]
    found = torch.zeros(lags + 1, last.shape[1])
    for b in range(last.shape[0]):
        for k in range(last.shape[1]):
            (grad,) = torch.autograd.grad(last[b, k], x, retain_graph=True)
            found[:, k] += grad[:, b].norm(dim=-1).flip(0)[: lags + 1]
    return found / last.shape[0]


def one_layer(rnn: nn.Module, k: int) -> nn.Module:
    inputs = rnn.input_size if k == 0 else rnn.hidden_size
    made = type(rnn)(inputs, rnn.hidden_size)
    made.load_state_dict({name: getattr(rnn, name[:-1] + str(k)) for name in made.state_dict()})
    return made


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_every_layer_agrees_with_plain_autograd(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = Network(kind(3, 5, num_layers=2))
    x = torch.randn(9, 4, 3)
    found = lag_curves(net, [(x[:, :1],), (x[:, 1:],)], lags=6)
    for k, layer in enumerate(found.values()):
        torch.testing.assert_close(layer.norms, by_autograd(net, x, k, 6), rtol=1e-4, atol=1e-6)


def test_group_variables_and_compression_change_nothing() -> None:
    """Masked network and compact network are one function, so they have one set of curves."""
    torch.manual_seed(0)
    net = Network(gw.nn.LSTM(3, 6, num_layers=2))
    gw.Variational(net, n_train=100)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith("scale_l0") or name.endswith("scale_l1"):
                p.uniform_(0.5, 1.5)
        net.rnn.neuron_scale_l0_log_sigma[:2] = 5.0
        net.rnn.gate_scale_l1_log_sigma[:3, :3] = 5.0
    x = torch.randn(9, 4, 3)
    before = copy.deepcopy(net.state_dict())
    masked = lag_curves(net, [(x,)], lags=5)
    compact = lag_curves(gw.compress(net), [(x,)], lags=5)
    assert masked["rnn.l1"].kinds[:3] == ["short"] * 3
    for name, layer in masked.items():
        assert layer.neurons.tolist() == compact[name].neurons.tolist()
        torch.testing.assert_close(layer.norms, compact[name].norms, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert net.training


def test_padding_is_no_step() -> None:
    """Left padding with a mask, right padding in a PackedSequence, and the bare sequences: the same curves."""
    torch.manual_seed(0)
    net = Network(gw.nn.LSTM(3, 4, bidirectional=True))
    long, short = torch.randn(7, 1, 3), torch.randn(4, 1, 3)
    bare = lag_curves(net, [(long,), (short,)], lags=6)
    padded = torch.cat([long, torch.cat([torch.randn(3, 1, 3), short])], dim=1)
    mask = torch.ones(7, 2, dtype=torch.bool)
    mask[:3, 1] = False
    packed = pack_padded_sequence(torch.cat([long, torch.cat([short, torch.randn(3, 1, 3)])], 1), [7, 4])
    unpadded, turned = PackedNetwork(net.rnn), copy.deepcopy(net)
    turned.rnn.batch_first = True
    for other in (
        lag_curves(net, [(padded, mask)], lags=6),
        lag_curves(turned, [(padded.transpose(0, 1), mask.T)], lags=6),
        lag_curves(unpadded, [(packed,)], lags=6),
    ):
        for name, layer in bare.items():
            torch.testing.assert_close(other[name].norms, layer.norms, rtol=1e-5, atol=1e-7)
            assert other[name].sequences.tolist() == [2, 2, 2, 2, 1, 1, 1]


def test_a_sequence_without_a_batch_is_a_batch_of_one() -> None:
    net, x = Network(nn.LSTM(2, 3)), torch.randn(5, 2)
    alone, batch = (lag_curves(net, [(given,)], lags=3)["rnn.l0"].norms for given in (x, x[:, None]))
    torch.testing.assert_close(alone, batch)


def test_the_input_may_be_given_by_its_name() -> None:
    net, x = Network(nn.LSTM(2, 3)), torch.randn(5, 1, 2)
    named = Net(lambda m, x: m.fc(m.rnn(input=x)[0]), rnn=net.rnn, fc=net.fc)
    curves = [lag_curves(model, [(x,)], lags=3)["rnn.l0"].norms for model in (net, named)]
    torch.testing.assert_close(*curves)


def test_a_layer_that_reads_nothing_has_flat_curves() -> None:
    """After the cut its matrix has no column, and so its state no gradient."""
    net = Network(gw.nn.LSTM(2, 3))
    with torch.no_grad():
        net.rnn.weight_ih_l0.zero_()
        net.rnn.weight_hh_l0.zero_()
    small = gw.compress(net)
    norms = lag_curves(small, [(torch.randn(6, 2, 2),)], lags=4)["rnn.l0"].norms
    assert norms.shape == (5, 3)
    assert (norms == 0).all()


def test_the_median_of_a_pattern() -> None:
    layer = lag_curves(leaky(), [(torch.zeros(4, 1, 1),)], lags=2)["rnn.l0"]
    assert list(layer.by_pattern()) == ["g", "o", "-"]
    torch.testing.assert_close(layer.by_pattern()["g"], layer.norms[:, 0])


@pytest.mark.parametrize(
    ("cell", "pattern", "kind"),
    [("LSTM", "o", "short"), ("LSTM", "io", "long"), ("LSTM", "-", "constant"), ("GRU", "u", "long")],
)
def test_kinds(cell: str, pattern: str, kind: str) -> None:
    assert kind_of(cell, pattern) == kind


def test_what_cannot_be_followed_is_said() -> None:
    class Stepwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.fc = nn.LSTMCell(2, 3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.step(x)[0])

    with pytest.raises(ValueError, match="step is a LSTMCell: it sees one step a call"):
        lag_curves(Stepwise(), [])
    with pytest.raises(ValueError, match="lags=-1"):
        lag_curves(leaky(), [], lags=-1)


def test_looking_leaves_every_module_in_its_mode() -> None:
    """A layer that is kept in evaluation while the others train stays there."""
    net = leaky().train()
    net.rnn.eval()
    lag_curves(net, [(torch.randn(4, 1, 1),)], lags=1)
    assert (net.training, net.rnn.training, net.fc.training) == (True, False, True)
