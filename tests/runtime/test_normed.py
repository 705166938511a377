"""BatchNorm1d and LayerNorm as links: what is a chain with them, where they go, and what they must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE, check_answers
from networks import CELLS, TORCH, Net
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.runtime.narrow import Affine, Function, Level, narrow_chain
from gatewise.sparsify.layers import LOG_SIGMA

I, H, T, B = 3, 4, 5, 2


def trained(norm: Any) -> Any:
    """With numbers as training leaves them: channels of all sizes, one that hardly varies, scales of either sign."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        if norm.weight is not None:
            norm.weight.view(-1)[1].abs_().neg_()
        if isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None:
            norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=generator) + 0.05)
            norm.running_var[0] = 1e-4
            norm.running_mean.copy_(torch.randn(norm.running_var.shape, generator=generator))
            norm.running_mean.mul_(norm.running_var.sqrt())
    return norm


def swapped(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x.transpose(1, 2)).transpose(1, 2)


def rows(m: Any, x: Tensor) -> Tensor:
    b, t, c = x.shape
    return m.rnn(m.bn_in(x.reshape(-1, c)).view(b, t, c))[0]


CHAINS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "before": (lambda m, x: m.rnn(swapped(m.bn_in, x))[0], ["Level"]),
    "between": (lambda m, x: m.top(swapped(m.bn, m.rnn(x)[0]))[0], ["Level", "Level"]),
    "behind": (lambda m, x: swapped(m.bn, m.rnn(x)[0]), ["Level", "Affine"]),
    "before the head": (lambda m, x: m.fc(swapped(m.bn, m.rnn(x)[0])), ["Level", "Affine"]),
    "of the last step": (lambda m, x: m.fc(m.bn(m.rnn(x)[0][:, -1])), ["Level", "last_step", "Affine"]),
    "and the last step": (
        lambda m, x: m.fc(swapped(m.bn, m.rnn(x)[0])[:, -1]),
        ["Level", "last_step", "Affine"],
    ),
    "behind the head": (lambda m, x: swapped(m.bn, m.fc(m.rnn(x)[0])), ["Level", "Affine"]),
    "and a function": (
        lambda m, x: m.fc(torch.relu(swapped(m.bn, m.rnn(x)[0]))),
        ["Level", "Affine", "relu", "Affine"],
    ),
    "linear, norm, relu": (
        lambda m, x: m.top(torch.relu(swapped(m.bn, m.first(x))))[0],
        ["Affine", "relu", "Level"],
    ),
    "of a mean": (lambda m, x: m.fc(m.bn(m.rnn(x)[0].mean(1))), ["Level", "mean", "Affine"]),
    "and a mean": (lambda m, x: m.fc(swapped(m.bn, m.rnn(x)[0]).mean(1)), ["Level", "mean", "Affine"]),
    "and a sum": (lambda m, x: swapped(m.bn, m.rnn(x)[0]).sum(1), ["Level", "Affine", "sum"]),
    "and a maximum": (lambda m, x: swapped(m.bn, m.rnn(x)[0]).amax(1), ["Level", "Affine", "max"]),
    "and scores": (
        lambda m, x: torch.softmax(swapped(m.bn, m.rnn(x)[0]), -1),
        ["Level", "Affine", "softmax"],
    ),
    "of rows": (lambda m, x: m.fc(m.bn(m.rnn(x)[0].reshape(-1, H))), ["Level", "Affine"]),
    "of rows and back": (rows, ["Level"]),
    "twice": (lambda m, x: m.fc(swapped(m.bn, swapped(m.bn, m.rnn(x)[0]))), ["Level", "Affine"]),
    "without numbers to learn": (lambda m, x: m.fc(swapped(m.bare, m.rnn(x)[0])), ["Level", "Affine"]),
    "layer norm before": (lambda m, x: m.rnn(m.ln_in(x))[0], ["layer_norm", "Level"]),
    "layer norm between": (lambda m, x: m.top(m.ln(m.rnn(x)[0]))[0], ["Level", "layer_norm", "Level"]),
    "layer norm behind": (lambda m, x: m.ln(m.rnn(x)[0]), ["Level", "layer_norm", "Affine"]),
    "layer norm before the head": (
        lambda m, x: m.fc(m.ln(m.rnn(x)[0][:, -1])),
        ["Level", "last_step", "layer_norm", "Affine"],
    ),
    "layer norm of a mean": (
        lambda m, x: m.fc(m.ln(m.rnn(x)[0].mean(1))),
        ["Level", "mean", "layer_norm", "Affine"],
    ),
    "layer norm without numbers": (lambda m, x: m.plain(m.rnn(x)[0]), ["Level", "layer_norm"]),
    "layer norm without a bias": (
        lambda m, x: m.fc(m.unbiased(m.rnn(x)[0])),
        ["Level", "layer_norm", "Affine"],
    ),
}


def net(rule: Callable[..., Any], cell: str = "LSTM", *also: str) -> Net:
    """With the layers that the rule names: one that is never called might read anything."""
    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {
        "rnn": TORCH[cell](I, H, batch_first=True),
        "top": TORCH[cell](H, H, batch_first=True),
        "first": nn.Linear(I, H),
        "fc": nn.Linear(H, H),
        "bn_in": nn.BatchNorm1d(I),
        "bn": nn.BatchNorm1d(H, eps=1e-3),
        "bare": nn.BatchNorm1d(H, affine=False),
        "ln_in": nn.LayerNorm(I),
        "ln": nn.LayerNorm(H, eps=1e-2),
        "plain": nn.LayerNorm(H, elementwise_affine=False),
        "unbiased": nn.LayerNorm(H, bias=False),
        "batch": nn.BatchNorm1d(H, track_running_stats=False),
        "time": nn.BatchNorm1d(T),
        "both": nn.LayerNorm((T, H)),
    }
    used = {name: layer for name, layer in layers.items() if name in (*rule.__code__.co_names, *also)}
    for layer in used.values():
        if isinstance(layer, nn.BatchNorm1d | nn.LayerNorm):
            trained(layer)
    return Net(rule, **used)


def described(model: nn.Module, **options: Any) -> list[str]:
    links = narrow_chain(model, **options).links
    return [link.name if isinstance(link, Function) else type(link).__name__ for link in links]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", CHAINS)
def test_what_is_a_chain(name: str, cell: str) -> None:
    """The engine answers as forward() does in evaluation, and a normalisation is in a matrix where there is one."""
    rule, links = CHAINS[name]
    model = net(rule, cell)  # in training: as for dropout, an engine is what the model is in evaluation
    engine = gw.Engine(model)
    assert described(model) == links
    x = 3 * torch.randn(B, T, I)
    with torch.no_grad():
        torch.testing.assert_close(engine(x)[0], model.eval()(x), **CLOSE)


NOT_CHAINS: dict[str, Callable[..., Any]] = {
    "statistics of a batch": lambda m, x: swapped(m.batch, m.rnn(x)[0]),
    "over time": lambda m, x: m.time(m.rnn(x)[0]),
    "over time and channels": lambda m, x: m.both(m.rnn(x)[0]),
    "layer norm across": lambda m, x: m.ln(m.rnn(x)[0].transpose(1, 2)),
    "rows in another order": lambda m, x: m.top(
        m.bn(m.rnn(x)[0].reshape(-1, H)).view(x.size(1), x.size(0), H)
    )[0],
}


@pytest.mark.parametrize("name", NOT_CHAINS)
def test_what_is_not_a_chain(name: str) -> None:
    check_answers(net(NOT_CHAINS[name]).eval(), torch.randn(B, T, I))


def padded(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(m.rnn(packed)[0], batch_first=True)[0]


class Packs(Net):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.rule(self, x, lengths)


def test_padding_is_normalised_too() -> None:
    """forward() makes the shift of the zeros behind a sequence, and so must the engine, in a pool over it, too."""
    model = net(lambda m, x: x, "GRU", "rnn", "fc", "bn", "ln")
    model.__class__ = Packs
    lengths, x = torch.tensor([2, 4]), torch.randn(B, T, I)
    for name in ("bn", "ln"):
        norm = (lambda m, y: swapped(m.bn, y)) if name == "bn" else lambda m, y: m.ln(y)
        model.rule = lambda m, x, n, norm=norm: m.fc(norm(m, padded(m, x, n)))
        check_answers(model.eval(), x, lengths)
        model.rule = lambda m, x, n, norm=norm: norm(m, padded(m, x, n)).sum(1)
        check_answers(model, x, lengths)


REMOVED = {
    "read": lambda m, x: m.fc(swapped(m.bn, m.rnn(x)[0])),
    "read behind a function": lambda m, x: m.fc(torch.sigmoid(swapped(m.bn, m.rnn(x)[0]))),
    "answered": lambda m, x: swapped(m.bn, m.rnn(x)[0]),
    "summed": lambda m, x: swapped(m.bn, m.rnn(x)[0]).sum(1),
    "largest": lambda m, x: swapped(m.bn, m.rnn(x)[0]).amax(1),
    "weighed": lambda m, x: m.fc(m.ln(m.rnn(x)[0])),
}


@pytest.mark.parametrize("name", REMOVED)
def test_removed_neurons_are_constants_of_their_own(name: str) -> None:
    """A neuron that is always zero leaves a normalisation as its shift, another number for every channel: a matrix
    takes it in, a function makes another constant of it, and an answer has it back."""
    model = net(REMOVED[name])
    model.rnn = gw.nn.LSTM(I, H, batch_first=True)
    gw.Variational(model, "W+N", n_train=10, layers=["rnn"])
    with torch.no_grad():
        for parameter, value in model.rnn.named_parameters():
            if parameter.endswith(LOG_SIGMA):
                value.fill_(-9)
        getattr(model.rnn, "neuron_scale_l0" + LOG_SIGMA)[1:3] = 9
    small = gw.compress(model.eval())
    assert small.rnn.layers[0].kept == 2
    x = torch.randn(B, T, I)
    with torch.no_grad():
        torch.testing.assert_close(gw.Engine(small)(x)[0], small(x), **CLOSE)


def test_a_shared_matrix_stays_what_it_is() -> None:
    """What an output layer shares with the embedding is stored once, so nothing may be folded into it."""
    model = Net(lambda m, x: swapped(m.out, m.fc(swapped(m.bn, m.rnn(swapped(m.bn, m.emb(x)))[0]))),
                emb=nn.Embedding(7, H), rnn=nn.GRU(H, H, batch_first=True), fc=nn.Linear(H, 7),
                bn=trained(nn.BatchNorm1d(H)), out=trained(nn.BatchNorm1d(7)))  # fmt: skip
    model.fc.weight = model.emb.weight
    narrow = narrow_chain(model.eval())
    assert described(model) == ["Table", "Level", "Affine", "Affine", "Affine"]
    tied = narrow.links[3]
    assert isinstance(tied, Affine)
    assert tied.tied is not None
    np.testing.assert_array_equal(tied.weight, narrow.table.weight)
    x = torch.randint(0, 7, (B, T))
    with torch.no_grad():
        torch.testing.assert_close(gw.Engine(model)(x)[0], model(x), **CLOSE)


FAR = {
    "read": (lambda m, x: m.fc(swapped(m.bn, m.rnn(x)[0])), ["Level", "Affine", "Affine"]),
    "mapped": (lambda m, x: torch.relu(swapped(m.bn, m.rnn(x)[0])), ["Level", "Affine", "Affine", "relu"]),
    "of a linear layer": (
        lambda m, x: torch.relu(swapped(m.bn, m.fc(m.rnn(x)[0]))),
        ["Level", "Affine", "relu"],
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_a_mean_far_from_zero_goes_first(name: str) -> None:
    """Neurons that hardly move from 0.9: what they do is in their last digits, which no sum of large numbers may
    take. A linear layer adds up as many of them in forward(), too, so it may take the mean in."""
    rule, links = FAR[name]
    model = net(rule).eval()
    model.bn.running_mean.fill_(0.9)
    model.bn.running_var.fill_(1e-4)
    assert described(model) == links
    x = torch.randn(B, T, I)
    with torch.no_grad():
        torch.testing.assert_close(gw.Engine(model)(x)[0], model(x), **CLOSE)


def test_a_fold_is_rounded_once() -> None:
    """W (a x + b) + c in float64, then float32: nothing between loses digits."""
    model = net(lambda m, x: m.rnn(swapped(m.bn_in, x))[0]).eval()
    level = narrow_chain(model).links[0]
    assert isinstance(level, Level)
    bn, rnn = model.bn_in.double(), model.rnn.double()
    scale = bn.weight / (bn.running_var + bn.eps).sqrt()
    w = (rnn.weight_ih_l0 * scale).float()
    bias = (rnn.weight_ih_l0 @ (bn.bias - bn.running_mean * scale) + rnn.bias_ih_l0 + rnn.bias_hh_l0).float()
    found = level.directions[0]
    np.testing.assert_array_equal(found.w_ih, w.detach().numpy())
    np.testing.assert_allclose(found.bias.reshape(-1), bias.detach().numpy(), rtol=2e-7)
