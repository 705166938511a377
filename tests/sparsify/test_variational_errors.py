"""What cannot be converted, drawn or added up is named, with the way out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from networks import Classifier, LanguageModel, Net
from noisy import noisy
from torch import nn

import gatewise as gw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 0}, "n_train=0"),
        ({"n_train": -5}, "n_train=-5"),
        ({"noise": "token"}, "noise='token' is not one of sequence, batch"),
        ({"linear_noise": "none"}, "linear_noise of 'fc'='none'"),
        ({"linear_noise": {"rnn": "local"}}, "'rnn' is not a Linear layer"),
        ({"vocabulary": ["rnn"]}, "'rnn' is not an embedding among the layers to convert; there are: emb"),
        ({"vocabulary": ["emb"], "layers": ["rnn"]}, "there are: none"),
        ({"snr_threshold": 0.0}, "snr_threshold=0"),
        ({"snr_threshold": -1.0}, "snr_threshold=-1.0"),
        ({"warm_up": (5, 5)}, r"warm_up=\(5, 5\)"),
        ({"warm_up": 3}, "warm_up=3 must be"),
        ({"warm_up": (1, 2, 3)}, r"warm_up=\(1, 2, 3\) must be"),
        ({"warm_up": ("0", "9")}, "warm_up=.* must be"),
        ({"log_sigma": math.nan}, "log_sigma=nan must be a finite number"),
        ({"batch_dim": -1}, "batch_dim=-1 must be a position"),
        ({"batch_dim": "1"}, "batch_dim='1' must be a position"),
        ({"vocabulary": "emb"}, "vocabulary='emb' must be a list"),
        (
            {"layers": ["emb", "fc"], "linear_noise": "sequence"},
            "No recurrent layer among those to convert tells where the batch is",
        ),
        ({"readers": {"rnn": ["nobody"]}}, "'nobody'"),
    ],
)
def test_errors_name_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.Variational(Classifier(), **{"n_train": 10} | options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: Net(lambda m, x: m.rnn(m.emb(x))[0], emb=nn.Embedding(5, 3, max_norm=1.0), rnn=nn.GRU(3, 4)),
            "emb: left out, because an embedding with max_norm",
        ),
        (
            lambda: Net(lambda m, x: m.rnn(m.emb(x))[0], emb=nn.Embedding(5, 3, sparse=True), rnn=nn.GRU(3, 4)),
            "emb: left out, because .* sparse gradients",
        ),
        (
            lambda: Net(
                lambda m, x: nn.functional.linear(m.rnn(m.emb(x))[0], m.emb.weight),
                emb=nn.Embedding(5, 3), rnn=nn.GRU(3, 3),
            ),
            r"emb: left out, because forward\(\) uses emb\.weight past the layer",
        ),
        (
            lambda: Net(
                lambda m, x: m.att(*[m.rnn(x)[0]] * 3)[0], rnn=nn.GRU(4, 4), att=nn.MultiheadAttention(4, 2)
            ),
            r"att\.out_proj: left out, because MultiheadAttention 'att' uses its weights",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_left_out_and_named(model: Any, message: str) -> None:
    """One layer must not cost the model; asked for by name it is an error."""
    network = model()
    with pytest.warns(UserWarning, match=f"^{message}"):
        sparsifier = gw.Variational(network, "W", n_train=1)
    assert sparsifier.penalty() > 0
    name = message.partition(":")[0].replace("\\", "")
    with pytest.raises(ValueError, match="so it cannot be sparsified"):
        gw.Variational(model(), "W", n_train=1, layers=[name])


def test_a_single_layer_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match=r"the model: it is the model itself .*; put it in a module\.$"):
        gw.Variational(nn.LSTM(3, 4), n_train=1)


def test_who_shares_a_weight_with_a_layer_that_is_left_out_is_left_out_too() -> None:
    """One would see the posterior, the other its bare mean, and a cut would make one matrix of both."""
    model = Net(
        lambda m, x: m.fc(m.rnn(m.emb(x))[0]), emb=nn.Embedding(5, 4, max_norm=1.0), rnn=nn.GRU(4, 4),
        fc=nn.Linear(4, 5, bias=False),
    )  # fmt: skip
    model.fc.weight = model.emb.weight
    with pytest.warns(
        UserWarning, match=r"fc: left out, because it shares its weight with emb: an embedding with max_norm"
    ):
        gw.Variational(model, n_train=1)
    assert type(model.fc) is nn.Linear


def test_converting_twice_is_refused() -> None:
    model = Classifier()
    gw.Variational(model, n_train=1)
    with pytest.raises(ValueError, match=r"variational already.*gatewise.load\(path, into=model\)"):
        gw.Variational(model, n_train=1)


def batch_places() -> nn.Module:
    return Net(
        lambda m, x: m.fc(m.b(m.a(m.emb(x))[0].transpose(0, 1))[0]),
        emb=nn.Embedding(9, 3), a=nn.GRU(3, 4), b=nn.GRU(4, 4, batch_first=True), fc=nn.Linear(4, 2),
    )  # fmt: skip


def test_the_batch_dimension_must_be_known_where_it_matters() -> None:
    with pytest.raises(ValueError, match="batch_dim="):
        gw.Variational(batch_places(), n_train=1, vocabulary=["emb"])
    with pytest.raises(ValueError, match="batch_dim="):
        gw.Variational(batch_places(), n_train=1, linear_noise="sequence")
    model = batch_places()
    gw.Variational(model, n_train=1, vocabulary=["emb"], batch_dim=1)
    assert model.emb.batch_dim == 1
    gw.Variational(batch_places(), n_train=1, vocabulary=["emb"], noise="batch")


def test_a_batch_that_an_input_does_not_have() -> None:
    words = torch.zeros(4, 2, dtype=torch.long)
    for options in ({"linear_noise": "sequence"}, {"vocabulary": ["emb"]}):
        model = LanguageModel()
        gw.Variational(model, n_train=1, batch_dim=2, **options)
        with pytest.raises(ValueError, match=r"batch_dim=2, but an input has the axes \(4, 2\).*0 to 1"):
            model(words)


def test_unknown_readers_of_an_embedding_warn() -> None:
    """Without them no z_x is made, which costs components; the warning says how to state them."""
    model = Net(lambda m, x: m.fc(m.rnn(m.norm(m.emb(x)))[0]), emb=nn.Embedding(7, 3), norm=nn.LayerNorm(3),
                rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))  # fmt: skip
    with pytest.warns(UserWarning, match=r"emb: no z_x is made for its components, because layer_norm"):
        gw.Variational(model, n_train=1)


def test_half_precision_is_for_evaluation() -> None:
    """float16 has no square of 0.005, and no sum of a hundred thousand KL terms."""
    model = Classifier()
    sparsifier = noisy(model, log_sigma=-6.0)  # sigma 0.0025: a mean of 0.005 is kept
    with torch.no_grad():
        model.fc.weight.fill_(0.005)
    model.half()
    assert model.fc.masked("weight").all()
    with pytest.raises(TypeError, match=r"float16.*torch.autocast"):
        sparsifier.penalty()
    with pytest.raises(TypeError, match="float16"):
        model(torch.zeros(4, 2, dtype=torch.long))
