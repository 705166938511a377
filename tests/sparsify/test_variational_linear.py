"""Noise of linear layers: of every output, or shared over the time of a sequence."""

from __future__ import annotations

import math

import pytest
import torch
from networks import Net, tagger
from noisy import close
from torch import nn

import gatewise as gw


def test_local_reparametrisation_has_the_right_moments() -> None:
    """y ~ N(x m + b, x^2 sigma^2), one draw for every output."""
    model = tagger(nn.GRU(3, 4))
    gw.Variational(model, "W", n_train=1, linear_noise="local", log_sigma=-1.0)
    x = torch.tensor([0.5, -1.0, 2.0, 0.0])
    y = model.fc(x.expand(100_000, 4))
    mean, variance = model.fc.weight @ x + model.fc.bias, x.square().sum() * math.exp(-2)
    close(y.mean(0), mean, rtol=0, atol=0.02)
    close(y.var(0), variance.expand(2), rtol=0.03, atol=0)
    assert torch.corrcoef(y.T)[0, 1].abs() < 0.02


@pytest.mark.parametrize("batch_first", [False, True])
def test_sequence_epsilon_is_shared_over_time(batch_first: bool) -> None:
    """The char model: epsilon of shape (batch, 1, units), with mean and variance of every step."""
    model = tagger(nn.GRU(3, 4, batch_first=batch_first))
    gw.Variational(model, "W", n_train=1, linear_noise={"fc": "sequence"}, log_sigma=-1.0)
    x = torch.randn(6, 5, 4)  # (B, T, H)
    y = model.fc(x if batch_first else x.transpose(0, 1))
    y = y if batch_first else y.transpose(0, 1)
    sigma = (x.square().sum(-1, keepdim=True) * math.exp(-2) + 1e-8).sqrt()
    eps = (y - (x @ model.fc.weight.T + model.fc.bias)) / sigma
    close(eps, eps[:, :1].expand_as(eps), rtol=1e-3, atol=1e-4)
    assert (eps[0] != eps[1]).all()


def test_last_states_are_one_sequence_each() -> None:
    """Without a time axis there is nothing to share an epsilon over."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0][-1]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    gw.Variational(model, "W", n_train=1, linear_noise="sequence", log_sigma=-1.0)
    assert len(model.fc(torch.ones(6, 4))[:, 0].unique()) == 6


def test_linear_layers_that_are_not_named_draw_weights() -> None:
    model = Net(
        lambda m, x: m.fc(m.mid(m.rnn(x)[0])), rnn=nn.GRU(3, 4), mid=nn.Linear(4, 4), fc=nn.Linear(4, 2)
    )
    gw.Variational(model, "W", n_train=1, linear_noise={"fc": "local"})
    assert (model.mid.linear_noise, model.fc.linear_noise) == ("weights", "local")


def test_linear_noise_keeps_its_gradients() -> None:
    """Both the mean and log sigma of a locally reparametrised layer learn from the data."""
    model = tagger(nn.GRU(3, 4))
    gw.Variational(model, "W", n_train=1, linear_noise="local")
    model(torch.randn(5, 2, 3)).square().sum().backward()
    assert model.fc.weight.grad.any()
    assert model.fc.weight_log_sigma.grad.any()


def test_a_zero_input_has_finite_gradients() -> None:
    """sqrt has an infinite slope at 0, where a removed neuron leaves the variance."""
    model = tagger(nn.GRU(3, 4))
    gw.Variational(model, "W", n_train=1, linear_noise="local")
    x = torch.zeros(5, 4, requires_grad=True)
    model.fc(x).sum().backward()
    assert x.grad.isfinite().all()
    assert model.fc.weight_log_sigma.grad.isfinite().all()
