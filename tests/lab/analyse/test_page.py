"""The data of the explorer page: what the library computes, in a page that is safe and not too large."""

from __future__ import annotations

import base64
import json
import math

import pytest
import torch
from networks import Net
from page_runs import HOSTILE, big_page, embedded, model, run_of
from torch import nn

from gatewise.lab.analyse import LayerLags, lag_curves, map_gates
from gatewise.lab.analyse.page import PageRun, as_json, lag_data, page


def test_the_page_holds_what_the_library_computes() -> None:
    net = model()
    data = embedded(page([run_of(net)]))["runs"][0]
    layer = data["layers"][0]
    assert layer["neurons"] == [0, 1, 2, 3, 4]
    assert layer["patterns"] == ["ifgo", "o", "-", "o", "go"]
    assert layer["kinds"] == ["long", "short", "constant", "short", "long"]
    assert layer["live"] == ["llll", "cccl", "cccc", "cccl", "ccll"]
    assert data["history"][0]["title"] == "perplexity, validation"
    assert {s["name"]: s["y"] for s in data["history"][3]["series"]} == {
        "rnn.l0": [5] * 3,
        "rnn.l1": [12] * 3,
    }


def test_stated_readers_count_in_every_view() -> None:
    """Behind a norm all neurons stay, until somebody says who reads them."""
    net = Net(
        lambda m, x: m.fc(m.norm(m.rnn(x)[0])), rnn=nn.LSTM(2, 3), norm=nn.LayerNorm(3), fc=nn.Linear(3, 2)
    )
    with torch.no_grad():
        net.fc.weight[:, 1] = net.rnn.weight_hh_l0[:, 1] = 0
    readers = {"rnn": ["fc"]}
    assert map_gates(net)["rnn.l0"].neurons.tolist() == [0, 1, 2]
    assert map_gates(net, readers)["rnn.l0"].neurons.tolist() == [0, 2]
    lags = lag_curves(net, [(torch.randn(4, 1, 2),)], lags=1, readers=readers)
    assert lags["rnn.l0"].neurons.tolist() == [0, 2]
    data = embedded(page([PageRun("stated", net, readers=readers)]))["runs"][0]
    (layer,) = data["layers"]
    assert layer["neurons"] == [0, 2]
    named = {data["names"][read[0]] for neuron in layer["readers"] for read in neuron}
    assert named == {"its own layer", "fc"}


def test_lag_curves_are_bytes_below_their_top() -> None:
    """0 is the top, 254 six decades below it; 255 is anything smaller, or a lag that no sequence has."""
    norms = torch.tensor([[10.0, 1e-2], [1e-6, torch.nan]])
    data = lag_data(LayerLags("rnn.l0", "LSTM", torch.arange(2), ("o", "o"), norms, torch.tensor([1, 0])))
    assert list(base64.b64decode(data["bytes"])) == [0, 255, 127, 255]
    assert data["top"] == 1


def test_two_layers_of_1500_stay_under_three_megabytes() -> None:
    assert 500_000 < len(big_page().encode()) < 3_000_000


def test_one_run_or_two() -> None:
    with pytest.raises(ValueError, match="not 3"):
        page([run_of(model())] * 3)


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        as_json({"value": math.nan})


def test_json_that_cannot_end_its_script() -> None:
    text = as_json({"words": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"words": HOSTILE}
