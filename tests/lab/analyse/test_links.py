"""Who drives a neuron and who reads it, by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import Classifier, LanguageModel, Net, randomly_sparse
from page_runs import HOSTILE, model
from torch import nn

import gatewise as gw
from gatewise.lab.analyse import links, map_gates
from gatewise.lab.analyse.links import Link, NeuronLinks, find_links


def both_ways() -> Net:
    """Two directions that a second layer reads."""

    def forward(m: Any, x: Any) -> Any:
        return m.fc(m.b(m.a(x)[0])[0])

    return Net(forward, a=nn.GRU(2, 3, bidirectional=True), b=nn.GRU(6, 2), fc=nn.Linear(2, 2))


def drivers(neurons: list[NeuronLinks]) -> set[str]:
    return {name for neuron in neurons for gate in neuron.inputs.values() for name, _ in gate}


def lists_of(neuron: NeuronLinks) -> list[tuple[Link, ...]]:
    reading = [read.strongest for read in neuron.readers]
    return [*neuron.inputs.values(), *neuron.recurrent.values(), *reading]


def test_links_are_the_largest_products_and_weights() -> None:
    net = model()
    gates = map_gates(net)
    links = find_links(net, gates, symbols=HOSTILE, outputs=HOSTILE, n=3)
    drive = net.emb.weight @ net.rnn.weight_ih_l0.T  # (V, 4 H)
    word, value = max(links["rnn.l0"][0].inputs["g"], key=lambda link: abs(link[1]))
    at = int(drive[:, 12].abs().argmax())
    assert (word, value) == (HOSTILE[at], pytest.approx(drive[at, 12].item(), rel=1e-5))
    assert links["rnn.l0"][1].inputs.keys() == {"o"}
    assert links["rnn.l0"][2].inputs == links["rnn.l0"][2].recurrent == {}
    assert links["rnn.l0"][4].bias == pytest.approx([(6 * k + 4) / 8 - 1 for k in range(4)])
    readers = {reading.reader: reading for reading in links["rnn.l0"][0].readers}
    assert readers.keys() == {"its own layer", "rnn.l1"}
    assert readers["rnn.l1"].weights == 24
    assert readers["its own layer"].weights == 4 + 1 + 0 + 1 + 2  # only live gates read
    column = net.rnn.weight_ih_l1[:, 0]
    best = int(column.abs().argmax())
    name, weight = max(readers["rnn.l1"].strongest, key=lambda link: abs(link[1]))
    assert (name, weight) == (f"{'ifgo'[best // 6]} of rnn.l1 {best % 6}", pytest.approx(column[best].item()))
    (top,) = (reading for reading in links["rnn.l1"][5].readers if reading.reader == "fc")
    assert {name for name, _ in top.strongest} <= set(HOSTILE)
    inputs = {name for links_of in links["rnn.l1"] for gate in links_of.inputs.values() for name, _ in gate}
    assert "rnn.l0 0" in inputs
    assert "rnn.l0 5" not in inputs  # removed, its columns are zero


def test_a_list_begins_with_the_most_positive_and_has_no_zero() -> None:
    model = randomly_sparse(LanguageModel(), 0.5)
    found = find_links(model, map_gates(model), n=9)
    lists = [values for neurons in found.values() for neuron in neurons for values in lists_of(neuron)]
    assert any(values[0][1] > 0 > values[-1][1] for values in lists if values)
    for values in lists:
        weights = [weight for _, weight in values]
        assert weights == sorted(weights, reverse=True)
        assert 0 not in weights


def test_a_layer_whose_column_is_zero_is_no_reader() -> None:
    model = LanguageModel()
    with torch.no_grad():
        model.fc.weight[:, 3] = 0
    top = find_links(model, map_gates(model))["rnn.l1"]
    readers = [{read.reader for read in neuron.readers} for neuron in top]
    assert readers == [{"its own layer", "fc"}] * 3 + [{"its own layer"}]


def test_links_are_what_evaluation_computes_with() -> None:
    """Both biases of a gate, and weights times the variables of inputs and gates."""
    model = Classifier()
    gw.Variational(model, n_train=1)
    w_ih, w_hh = (getattr(model.rnn, name).clone() for name in ("weight_ih_l0", "weight_hh_l0"))
    with torch.no_grad():
        model.rnn.gate_scale_l0[0, 1] = 3.0
    neuron = find_links(model, map_gates(model), n=99)["rnn.l0"][1]
    recurrent = {f"rnn.l0 {j}": 3 * w_hh[1, j].item() for j in range(4)}
    assert dict(neuron.recurrent["i"]) == pytest.approx(recurrent, rel=1e-5)
    first = 3 * (model.emb.weight[0] * model.rnn.input_scale) @ w_ih[1]
    assert dict(neuron.inputs["i"])["word 0"] == pytest.approx(first.item(), rel=1e-4)
    both = model.rnn.bias_ih_l0 + model.rnn.bias_hh_l0
    assert neuron.bias == pytest.approx(both.view(4, 4)[:, 1].tolist())


def test_a_word_drives_as_strongly_as_its_variable_lets_it() -> None:
    model = Classifier()
    gw.Variational(model, n_train=1, vocabulary=["emb"])
    with torch.no_grad():
        model.emb.weight.fill_(1.0)
        model.emb.word_scale[6] = 2.0
    assert drivers(find_links(model, map_gates(model), n=1)["rnn.l0"]) == {"word 6"}


def test_both_directions_have_their_names() -> None:
    model = both_ways()
    found = find_links(model, map_gates(model), n=99)
    assert drivers(found["b.l0"]) == {f"{layer} {j}" for layer in ("a.l0", "a.l0_reverse") for j in range(3)}
    (reading,) = (read for read in found["a.l0_reverse"][1].readers if read.reader == "b.l0")
    assert dict(reading.strongest)["r of b.l0 0"] == pytest.approx(model.b.weight_ih_l0[0, 3 + 1].item())


def test_a_reader_of_a_part_reads_that_part_alone() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.rnn(x)[0]
        return m.left(h[..., :1]), m.right(h[..., 1:])

    model = Net(forward, rnn=nn.GRU(2, 3), left=nn.Linear(1, 2), right=nn.Linear(2, 2))
    neurons = find_links(model, map_gates(model), n=99)["rnn.l0"]
    read = [{r.reader: r for r in neuron.readers if r.reader != "its own layer"} for neuron in neurons]
    assert [set(readers) for readers in read] == [{"left"}, {"right"}, {"right"}]
    assert dict(read[2]["right"].strongest)["output 0"] == pytest.approx(model.right.weight[0, 1].item())


def test_one_hot_inputs_are_symbols() -> None:
    model = both_ways()
    assert drivers(find_links(model, map_gates(model), symbols=["x", "y"])["a.l0"]) == {"x", "y"}


def test_rows_in_many_parts_are_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel()
    whole = find_links(model, map_gates(model))["rnn.l1"]
    monkeypatch.setattr(links, "ROWS_AT_ONCE", 3)
    assert find_links(model, map_gates(model))["rnn.l1"] == whole
