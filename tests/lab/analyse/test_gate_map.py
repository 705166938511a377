"""The gate map and its picture, on networks whose patterns are made by hand."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from networks import Net, tagger
from torch import nn

import gatewise as gw
from gatewise.lab.analyse import map_gates
from gatewise.lab.plot import COLOURS, gate_structure, number, save

PATTERNS = {0: "ifgo", 1: "o", 2: "", 4: "fo"}  # neuron -> live gates; neuron 3 is read by nobody
BIASES = {"i": 0.0, "f": 2.0, "g": -0.5, "o": 1.0}


def carve(rnn: nn.Module, fc: nn.Linear, patterns: dict[int, str], gates: str) -> None:
    """Zero rows until exactly these gates are live, and columns until exactly these neurons are read."""
    hidden = rnn.hidden_size
    with torch.no_grad():
        for parameter in (rnn.weight_ih_l0, rnn.weight_hh_l0, fc.weight):
            parameter.fill_(0.5)
        for j in range(hidden):
            for k, gate in enumerate(gates):
                if gate not in patterns.get(j, ""):
                    rnn.weight_ih_l0[k * hidden + j] = 0
                    rnn.weight_hh_l0[k * hidden + j] = 0
            if j not in patterns:
                rnn.weight_hh_l0[:, j] = 0
                fc.weight[:, j] = 0


def lstm(gate_activation: str = "sigmoid") -> Net:
    net = tagger(gw.nn.LSTM(3, 5, gate_activation=gate_activation))
    carve(net.rnn, net.fc, PATTERNS, "ifgo")
    with torch.no_grad():
        net.rnn.bias_hh_l0.fill_(0.25)
        for k, bias in enumerate(BIASES.values()):
            net.rnn.bias_ih_l0[5 * k : 5 * k + 5] = bias - 0.25  # both biases count, and only their sum
    return net


def test_patterns_of_a_hand_made_lstm() -> None:
    layer = map_gates(lstm())["rnn.l0"]
    assert layer.neurons.tolist() == [0, 1, 2, 4]
    assert layer.patterns == ["ifgo", "o", "-", "fo"]
    assert (layer.width, layer.gates) == (5, ("i", "f", "g", "o"))


@pytest.mark.parametrize("gate_activation", ["sigmoid", "hard_sigmoid"])
def test_a_constant_gate_shows_the_activation_of_its_bias(gate_activation: str) -> None:
    """sigmoid(b) or clip(0.2 b + 0.5, 0, 1) for i, f, o; tanh(b) for g; nothing where the gate is live."""
    layer = map_gates(lstm(gate_activation))["rnn.l0"]
    logistic = gate_activation == "sigmoid"
    for k, (gate, bias) in enumerate(BIASES.items()):
        squashed = 1 / (1 + math.exp(-bias)) if logistic else min(max(0.2 * bias + 0.5, 0), 1)
        expected = math.tanh(bias) if gate == "g" else squashed
        for column, pattern in enumerate(PATTERNS.values()):
            value = float(layer.constant[k, column])
            assert math.isnan(value) if gate in pattern else value == pytest.approx(expected, abs=1e-6)
    assert not layer.varying.any()


def test_a_constant_gate_is_what_the_network_computes() -> None:
    """Neuron 2 has no live gate, so its state can be told from the four numbers alone."""
    net = lstm()
    i, f, g, o = map_gates(net)["rnn.l0"].constant[:, 2].tolist()
    c = h = 0.0
    for _ in range(4):
        c = f * c + i * g
        h = o * math.tanh(c)
    output, _ = net.rnn(torch.randn(4, 3))
    assert output[-1, 2].item() == pytest.approx(h, abs=1e-6)


def test_the_candidate_of_a_gru_has_three_ways_to_be() -> None:
    """n = tanh(b_in + r b_hn): varies if r is live and b_hn is not 0; otherwise one number."""
    net = tagger(gw.nn.GRU(3, 4))
    carve(net.rnn, net.fc, {0: "r", 1: "r", 2: "u", 3: "run"}, "run")
    with torch.no_grad():
        net.rnn.bias_ih_l0.fill_(0.5)
        net.rnn.bias_hh_l0.fill_(0.25)
        net.rnn.bias_hh_l0[2 * 4 + 1] = 0  # b_hn of neuron 1
    layer = map_gates(net)["rnn.l0"]
    assert layer.patterns == ["r", "r", "u", "run"]
    assert layer.varying[2].tolist() == [True, False, False, False]
    assert float(layer.constant[2, 1]) == pytest.approx(math.tanh(0.5), abs=1e-6)
    r = 1 / (1 + math.exp(-0.75))
    assert float(layer.constant[2, 2]) == pytest.approx(math.tanh(0.5 + r * 0.25), abs=1e-6)


def test_a_third_cell_is_judged_by_its_own_declaration() -> None:
    """Which gate multiplies a recurrent half is what the cell says, whatever its name: measure() reads the same."""

    class Other(gw.nn.GRU):
        cell = dataclasses.replace(gw.nn.GRU.cell, name="Other", gated_recurrent={"n": "u"})

    net = tagger(Other(3, 3))
    carve(net.rnn, net.fc, {0: "r", 1: "u", 2: "run"}, "run")
    with torch.no_grad():
        net.rnn.bias_hh_l0.fill_(0.25)
    layer = map_gates(net)["rnn.l0"]
    assert layer.varying[2].tolist() == [False, True, False]
    assert gw.measure(net).layers["rnn.l0"].varying == int(layer.varying.sum())


def test_looking_changes_nothing_and_agrees_with_measure() -> None:
    """Both directions of a bidirectional layer, after a sparsifier with group variables."""
    torch.manual_seed(0)
    net = tagger(nn.LSTM(3, 4, bidirectional=True))
    gw.Variational(net, n_train=100)
    with torch.no_grad():
        net.rnn.gate_scale_l0_log_sigma[0, :2] = 5.0  # noise above signal: these input gates are constant
    before = copy.deepcopy(net.state_dict())
    found, report = map_gates(net), gw.measure(net)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert list(found) == ["rnn.l0", "rnn.l0_reverse"]
    for name, layer in found.items():
        assert dict(zip(layer.gates, layer.live.sum(1).tolist())) == report.layers[name].gates
    assert found["rnn.l0"].patterns == ["fgo", "fgo", "ifgo", "ifgo"]


def test_order_and_sample() -> None:
    layer = map_gates(lstm())["rnn.l0"]
    assert layer.by_pattern().patterns == ["ifgo", "fo", "o", "-"]
    assert layer.by_pattern().neurons.tolist() == [0, 4, 1, 2]
    drawn = layer.sample(2, seed=3)
    assert len(drawn.neurons) == 2
    assert drawn.neurons.tolist() == sorted(drawn.neurons.tolist())
    assert drawn.neurons.tolist() == layer.sample(2, seed=3).neurons.tolist()
    seeds = [layer.sample(2, seed).neurons.tolist() for seed in range(9)]
    assert seeds[3] == drawn.neurons.tolist()
    assert len({tuple(neurons) for neurons in seeds}) > 1
    assert layer.sample(99).neurons.tolist() == layer.neurons.tolist()
    with pytest.raises(ValueError, match=r"rnn.l0: a sample of -1"):
        layer.sample(-1)


def test_plain_numbers_for_json() -> None:
    content = json.loads(json.dumps(map_gates(lstm())["rnn.l0"].to_dict(), allow_nan=False))
    assert content["patterns"] == ["ifgo", "o", "-", "fo"]
    assert content["constant"][0][0] is None
    assert content["constant"][0][1] == pytest.approx(0.5)
    assert content["live"][3] == [True, True, False, True]


def test_a_network_without_gates_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no recurrent layer"):
        map_gates(nn.Sequential(nn.Linear(2, 2)))


def drawn_cells(figure: Figure) -> dict[str, str]:
    """Name of each cell -> its colour."""
    boxes = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]
    return {box.get_gid(): to_hex(box.get_facecolor()).upper() for box in boxes}


def test_live_gates_are_coloured_and_constants_are_pale_with_their_number() -> None:
    """A tint of the gate's own colour, between white and half of it."""
    figure = gate_structure(lstm(), title="by hand")
    cells = drawn_cells(figure)
    assert len(cells) == 4 * 4
    for neuron, pattern in PATTERNS.items():
        for gate in "ifgo":
            found = cells[f"rnn.l0.{gate}.{neuron}"]
            darkness = [1 - part for part in to_rgb(found)]
            full = [1 - part for part in to_rgb(COLOURS[gate])]
            if gate in pattern:
                assert found == COLOURS[gate]
            else:
                assert all(0 < pale <= 0.5 * own or not own for pale, own in zip(darkness, full))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count(".88") == 2  # sigmoid(2), the forget gates of neurons 1 and 2
    assert texts.count("-.46") == 3  # tanh(-0.5)
    assert {"ifgo", "fo", "o", "none"} <= set(texts)
    assert any("4 of 5 neurons, 7 of 20 gates live" in text.get_text() for text in figure.texts)


def test_long_layers_go_on_in_the_next_line() -> None:
    figure = gate_structure(lstm(), columns=3)
    assert len(figure.axes) == 2
    assert len(drawn_cells(figure)) == 16
    with pytest.raises(ValueError, match="columns=0"):
        gate_structure(lstm(), columns=0)


def test_a_sample_says_how_many_are_shown() -> None:
    figure = gate_structure(lstm(), sample=2)
    assert len(drawn_cells(figure)) == 8
    assert any("4 of 5 neurons (2 shown)" in text.get_text() for text in figure.texts)


def test_a_map_says_when_it_counts_after_the_cut() -> None:
    """A cut goes to the fixed point, so it can leave less than the paper counts: neuron 0 is read by 1 alone."""
    net = lstm()
    carve(net.rnn, net.fc, {0: "ifgo", 1: "ifgo", 3: "o"}, "ifgo")
    with torch.no_grad():
        net.fc.weight[:, :2] = 0
        net.rnn.weight_hh_l0[:, :2] = 0
        net.rnn.weight_hh_l0[1, 0] = 0.3  # kept by the paper's count, whatever becomes of its reader
    heads = {}
    for name, gates in (
        ("masked", map_gates(net)),
        ("fixed point", map_gates(net, fixed_point=True)),
        ("compressed", map_gates(gw.compress(net))),
    ):
        heads[name] = next(
            text.get_text() for text in gate_structure(gates).texts if "rnn.l0" in text.get_text()
        )
    assert heads["masked"] == "rnn.l0: 2 of 5 neurons, 5 of 20 gates live"
    assert heads["fixed point"] == "rnn.l0: 1 of 5 neurons, 1 of 20 gates live, after the cut"
    assert heads["compressed"] == heads["fixed point"]


def test_a_long_heading_stays_inside_the_picture() -> None:
    layer = dataclasses.replace(map_gates(lstm())["rnn.l0"], width=1500, cut=True)
    layer = dataclasses.replace(layer, name="encoder.recurrent_reverse.l1_reverse")
    figure = gate_structure({layer.name: layer}, sample=2)
    (heading,) = (text for text in figure.texts if layer.name in text.get_text())
    assert heading.get_window_extent().x1 < figure.bbox.x1


def test_a_layer_without_neurons_is_a_line_of_text() -> None:
    net = lstm()
    carve(net.rnn, net.fc, {}, "ifgo")
    figure = gate_structure(map_gates(net))
    assert not drawn_cells(figure)
    assert any("0 of 5 neurons" in text.get_text() for text in figure.texts)


def test_png_and_svg(tmp_path: Path) -> None:
    """Both are valid files, and the same figure is the same file."""
    for name in ("a.png", "a.svg", "b.svg"):
        save(gate_structure(lstm()), tmp_path / name, dpi=50)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("value", "text"), [(0.071, ".07"), (1.0, "1"), (0.999, "1"), (-0.98, "-.98"), (-0.001, "0")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
