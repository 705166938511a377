"""measure(): weights, neurons, gates and words counted by hand, and looking changes nothing."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from networks import Classifier, LanguageModel, Net, load, parameter
from test_structure import BY_HAND, by_hand, matrix, variational
from torch import nn

import gatewise as gw


def test_counts_by_hand() -> None:
    """Every number of the table for a network small enough to count with a finger."""
    report = gw.measure(by_hand())
    assert report.weights == 3 * 2 + 12 * 2 + 12 * 3 + 3 * 3
    rnn = report.layers["rnn.l0"]
    assert (rnn.kind, rnn.weights, rnn.inputs, rnn.neurons, rnn.varying) == ("LSTM", 60, 2, 3, 0)
    assert rnn.gates == {"i": 2, "f": 2, "g": 1, "o": 1}
    assert rnn.nonzero == rnn.nonzero_as_masked == 6
    assert (report.layers["emb"].words, report.layers["emb"].inputs, report.layers["emb"].nonzero) == (
        2,
        2,
        3,
    )
    assert (report.layers["fc"].inputs, report.layers["fc"].nonzero) == (1, 1)
    assert report.nonzero == 10
    assert report.compression == report.compression_as_masked == 7.5
    assert report.neurons == {"rnn.l0": 3}
    assert report.gates == {"rnn.l0": 6}


def test_fixed_point_stands_beside() -> None:
    """Neuron 2, read only by itself, goes with its two weights and the component only it reads."""
    after = gw.measure(by_hand()).fixed_point
    assert after.neurons == {"rnn.l0": 2}
    assert after.gates == {"rnn.l0": 4}
    assert after.layers["rnn.l0"].nonzero == 4
    assert after.layers["emb"].nonzero == 2
    assert after.nonzero == 4 + 2 + 1
    assert after.weights == gw.measure(by_hand()).weights


def test_weights_of_removed_neurons_do_not_count() -> None:
    """Incoming weights of a neuron that nobody reads are dead (details 3.7, rule 5)."""
    model = LanguageModel(words=3, width=2, hidden=3, layers=1)
    load(model, {**BY_HAND, "fc.weight": 0.0, "rnn.weight_hh_l0": 0.0})
    report = gw.measure(model)
    assert report.neurons == {"rnn.l0": 0}
    assert report.layers["rnn.l0"].nonzero == 0
    assert report.layers["emb"].inputs == 2  # a single pass: the components are still read by dead rows
    assert report.fixed_point.nonzero == 0
    assert report.fixed_point.compression == math.inf


def test_both_weight_counts() -> None:
    """The authors print the weights of a gate whose z is gone, but do not store them: both numbers are given."""
    model = LanguageModel(words=3, width=2, hidden=3, layers=1)
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    variational(model)
    with torch.no_grad():
        parameter(model, "rnn.gate_scale_l0")[2, 1] = 0
    report = gw.measure(model)
    rnn = report.layers["rnn.l0"]
    assert rnn.gates == {"i": 3, "f": 3, "g": 2, "o": 3}
    assert rnn.nonzero_as_masked == 12 * 5
    assert rnn.nonzero == 11 * 5
    assert report.compression_as_masked == 1.0
    assert report.compression == pytest.approx(75 / 70)


def test_group_variables_and_biases_are_no_weights() -> None:
    """|W| counts matrices only."""
    model = LanguageModel()
    dense = gw.measure(model).weights
    variational(model, vocabulary=["emb"])
    assert (
        gw.measure(model).weights
        == dense
        == sum(p.numel() for n, p in LanguageModel().named_parameters() if p.dim() == 2)
    )


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (lambda: Classifier(words=20003, width=300, hidden=128), 6_220_164 + 128),
        (lambda: LanguageModel(words=10000, width=200, hidden=200), 4_640_000),
    ],
)
def test_totals_of_the_paper(model: Any, weights: int) -> None:
    """The denominators of table 1; our classifier has two outputs where IMDb has one."""
    report = gw.measure(model())
    assert report.weights == weights
    assert report.compression == 1.0


def test_a_shared_parameter_counts_once() -> None:
    """A tied softmax is one matrix; an entry is stored if the embedding or the softmax needs it."""
    model = LanguageModel(words=3, width=2, hidden=2, layers=1, tied=True)
    load(model, {"emb.weight": [[1, 0], [0, 1], [0, 0]], "rnn.weight_ih_l0": matrix(8, 2, (0, 0))})
    report = gw.measure(model)
    assert report.layers["emb"].weights == 6
    assert report.layers["fc"].weights == 0
    assert report.layers["fc"].nonzero == 0
    # Component 1 is not read by the layer, but column 1 of the softmax reads neuron 1.
    assert report.layers["emb"].nonzero == 2


def test_a_shared_parameter_is_stored_for_whoever_needs_it() -> None:
    """The softmax does not need column 0, whose neuron has z_h = 0; the embedding still needs component 0."""
    model = LanguageModel(words=3, width=2, hidden=2, layers=1, tied=True)
    model = variational(model)
    with torch.no_grad():
        parameter(model, "rnn.neuron_scale_l0")[0] = 0
    emb = gw.measure(model).layers["emb"]
    assert (emb.nonzero, emb.nonzero_as_masked) == (6, 6)


def test_a_network_without_recurrent_layers_has_no_neurons_to_count() -> None:
    assert "neurons none   gates none" in str(gw.measure(nn.Sequential(nn.Linear(2, 3))))


def test_gru_candidates_that_move_without_a_product() -> None:
    """n = tanh(b_in + r * b_hn): with a zero row it varies iff r is live and b_hn is not 0; u has no part in it."""
    model = LanguageModel(words=3, width=2, hidden=3, layers=1, cell="GRU")
    b_hn = [0.0] * 6 + [0.0, 1.0, 1.0]
    for live, varying in [("r", 2), ("u", 0)]:
        rows = {"r": range(3), "u": range(3, 6)}[live]
        w = matrix(9, 2, *((row, 0) for row in rows))
        load(model, {"emb.weight": 1.0, "rnn.weight_ih_l0": w, "rnn.bias_hh_l0": b_hn, "fc.weight": 1.0})
        count = gw.measure(model).layers["rnn.l0"]
        assert count.gates == {"r": 0, "u": 0, "n": 0} | {live: 3}
        assert count.varying == varying


@pytest.mark.parametrize("method", ["plain", "lasso", "bayes"])
def test_looking_changes_nothing(method: str) -> None:
    """Parameters, modes, gradients and the random state are as before."""
    model = LanguageModel(cell="GRU")
    if method == "lasso":
        gw.GroupLasso(model, group=1e-3)
    if method == "bayes":
        gw.Variational(model, n_train=10)
    model.train()
    model.rnn.eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random = torch.get_rng_state()
    str(gw.measure(model))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())


def test_report_as_text_and_as_numbers() -> None:
    report = gw.measure(by_hand())
    text = str(report)
    assert "rnn.l0  LSTM            60         6       2        3  6 (i 2 f 2 g 1 o 1)" in text
    assert "compression  7.50x" in text
    assert "fixed point  10.71x   neurons 2   gates 4" in text
    numbers = json.loads(json.dumps(report.to_dict()))
    assert numbers["layers"]["rnn.l0"]["gates"] == {"i": 2, "f": 2, "g": 1, "o": 1}
    assert numbers["fixed_point"]["nonzero"] == 7
    assert numbers["compression"] == 7.5


def test_a_network_without_weights_is_plain_numbers_too() -> None:
    """JSON has no infinity: null stands for it, while the text and the property say infinite."""
    model = LanguageModel()
    load(model, {})
    report = gw.measure(model)
    assert report.compression == math.inf
    assert "compression  infx   as masked infx" in str(report)
    assert str(report).endswith("no neuron is left, so it says the same to every input")
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    for counts in (numbers, numbers["fixed_point"]):
        assert counts["compression"] is counts["compression_as_masked"] is None


def test_report_says_what_unknown_readers_cost() -> None:
    model = Net(
        lambda m, x: m.fc(m.norm(m.rnn(x)[0])), rnn=nn.LSTM(2, 3), norm=nn.LayerNorm(3), fc=nn.Linear(3, 2)
    )
    report = gw.measure(model)
    assert list(report.exposed) == ["rnn.l0"]
    assert "rnn.l0: neurons stay, because layer_norm()" in str(report)


def test_stated_readers_count() -> None:
    model = Net(
        lambda m, x: m.fc(m.norm(m.rnn(x)[0])), rnn=nn.LSTM(2, 3), norm=nn.LayerNorm(3), fc=nn.Linear(3, 2)
    )
    load(model, {"rnn.weight_ih_l0": 1.0, "fc.weight": [[1, 0, 0], [0, 0, 0]]})
    assert gw.measure(model).neurons == {"rnn.l0": 3}
    assert gw.measure(model, readers={"rnn": ["fc"]}).neurons == {"rnn.l0": 1}


def test_nan_is_refused_by_name() -> None:
    model = LanguageModel()
    with torch.no_grad():
        parameter(model, "rnn.weight_hh_l1")[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"rnn\.weight_hh_l1: 1 of 64 values are NaN"):
        gw.measure(model)


def test_a_projected_layer_is_not_taken_for_a_plain_one() -> None:
    """Its output is narrower than its neurons; it is an opaque reader like any module we do not know."""
    model = Net(
        lambda m, x: m.fc(m.top(m.rnn(x)[0])[0]),
        rnn=nn.GRU(2, 4), top=nn.LSTM(4, 4, proj_size=2), fc=nn.Linear(2, 2),
    )  # fmt: skip
    report = gw.measure(model)
    assert list(report.layers) == ["rnn.l0", "fc"]
    assert list(report.exposed) == ["rnn.l0"]


def test_a_parametrised_matrix_is_itself() -> None:
    """A weight made anew at each access is not taken for another that lived at the same address."""
    model = Classifier()
    nn.utils.parametrizations.spectral_norm(model.fc)
    nn.utils.parametrizations.spectral_norm(model.emb)
    report = gw.measure(model)
    assert report.layers["fc"].weights == 8
    assert report.layers["emb"].weights == 27


def test_what_is_not_counted_is_named() -> None:
    """A convolution, and a recurrent layer that is no LSTM or GRU; nothing to count is nothing compressed."""
    layers = {"conv": nn.Conv1d(3, 2, 4), "old": nn.RNN(3, 3), "rnn": nn.LSTM(3, 4), "fc": nn.Linear(4, 2)}
    report = gw.measure(Net(lambda m, x: m.fc(m.rnn(m.old(x)[0])[0]), **layers))
    assert list(report.uncounted) == ["conv", "old"]
    assert "not counted: conv (Conv1d), 24 weights" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["uncounted"] == dict(report.uncounted)
    alone = gw.measure(nn.RNN(3, 4))
    assert alone.compression == 1
    assert "not counted: the model (RNN), 28 weights" in str(alone)
    assert not gw.measure(gw.compress(by_hand())).uncounted
    assert not gw.measure(by_hand()).uncounted


def test_a_name_that_begins_like_that_of_a_layer_is_no_part_of_it() -> None:
    layers = {"rnn": nn.LSTM(3, 4), "fc": nn.Linear(4, 2), "fc_conv": nn.Conv1d(3, 2, 4)}
    report = gw.measure(Net(lambda m, x: m.fc(m.rnn(x)[0]), **layers))
    assert list(report.uncounted) == ["fc_conv"]
