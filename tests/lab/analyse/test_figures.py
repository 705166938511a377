"""The data behind the figures: what is drawn, where, and in which colour."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from networks import Classifier
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab import plot
from gatewise.lab.analyse import LagMap, LayerLags
from gatewise.lab.analyse.history import curve, named, quality_key, rises
from gatewise.lab.analyse.spread import Spread, group_norms, log_alphas
from gatewise.lab.plot import (
    Point,
    front,
    histogram,
    lag_figure,
    pareto_front,
    save,
    training,
)
from gatewise.lab.plot.style import SERIES


class Network(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn, self.fc = rnn, nn.Linear(rnn.hidden_size, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0])


def drawn(figure: Figure, folder: Path) -> None:
    """PNG and SVG can be written."""
    save(figure, folder / "a.png", dpi=40)
    save(figure, folder / "a.svg")
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / "a.svg").read_text()


# Lag curves.


def lags() -> LagMap:
    """Five neurons: three with all gates that decay slowly, one with o only, one without a live gate."""
    t = torch.arange(11.0)[:, None]
    norms = torch.cat([0.9**t, 0.8**t, 0.7**t, 0.01**t, torch.zeros_like(t)], dim=1)
    patterns = ("ifgo", "ifgo", "ifgo", "o", "-")
    return {"rnn.l1": LayerLags("rnn.l1", "LSTM", torch.arange(5), patterns, norms, torch.full((11,), 3))}


def test_lag_curves_are_coloured_by_pattern(tmp_path: Path) -> None:
    figure = lag_figure(lags(), title="A title")
    (axes,) = figure.axes
    thin = {line.get_gid(): line for line in axes.lines if line.get_gid()}
    assert set(thin) == {f"rnn.l1.{k}" for k in range(4)}  # a constant neuron has no gradient to draw
    assert {to_hex(thin[f"rnn.l1.{k}"].get_color()).upper() for k in range(3)} == {SERIES[0]}
    assert to_hex(thin["rnn.l1.3"].get_color()).upper() == SERIES[1]
    assert thin["rnn.l1.1"].get_ydata()[2] == pytest.approx(0.64)
    (median,) = (line for line in axes.lines if line.get_label() == "ifgo \N{MULTIPLICATION SIGN} 3")
    assert list(median.get_ydata()) == pytest.approx([0.8**t for t in range(11)])
    assert axes.get_yscale() == "log"
    assert axes.get_title(loc="left") == "rnn.l1: 1 constant, 3 long, 1 short"
    drawn(figure, tmp_path)


def test_patterns_without_a_colour_of_their_own_are_others() -> None:
    patterns = ("ifgo", "ifg", "ifo", "igo", "fgo", "if")
    layer = LayerLags("rnn.l0", "LSTM", torch.arange(6), patterns, torch.rand(4, 6), torch.full((4,), 3))
    (axes,) = lag_figure({"rnn.l0": layer}).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [f"{pattern} \N{MULTIPLICATION SIGN} 1" for pattern in patterns[:5]] + ["1 others"]


@pytest.mark.parametrize(
    ("sequences", "enough", "shared"),
    [
        ([32, 9, 4, 3, 1, 0], 4, 3),
        ([70, 7, 6], 7, 2),
        ([8, 5, 2, 1], 2, 3),
        ([1, 1, 0], 1, 2),
        ([3, 3, 3], 2, 3),
        ([0, 0], 0, 2),
    ],
)
def test_a_mean_of_few_sequences_is_one_of_less_than_a_tenth_or_of_one(
    sequences: list[int], enough: int, shared: int
) -> None:
    """A single sequence is all there is, so its curve is not held against it."""
    norms = torch.ones(len(sequences), 1)
    layer = LayerLags("rnn.l0", "LSTM", torch.arange(1), ("ifgo",), norms, torch.tensor(sequences))
    assert (layer.enough, layer.shared) == (enough, shared)


def test_lags_that_few_sequences_reach_lie_under_a_veil(tmp_path: Path) -> None:
    """Their means jump as sequences end, which would be read as memory."""
    layer = lags()["rnn.l1"]
    assert not lag_figure(lags()).axes[0].patches
    few = replace(layer, sequences=torch.tensor([40] * 8 + [4, 3, 1]))
    (axes,) = (figure := lag_figure({"rnn.l1": few})).axes
    (veil,) = axes.patches
    assert veil.get_x() == 8.5
    assert all(veil.get_zorder() > line.get_zorder() for line in axes.lines)
    assert "fewer than 4 of 40 sequences" in [text.get_text() for text in axes.get_legend().get_texts()]
    drawn(figure, tmp_path)


def test_a_layer_without_neurons_has_an_empty_panel(tmp_path: Path) -> None:
    empty = LayerLags("rnn.l0", "LSTM", torch.arange(0), (), torch.zeros(5, 0), torch.zeros(5).long())
    figure = lag_figure({"rnn.l0": empty})
    assert not figure.axes[0].get_lines()
    drawn(figure, tmp_path)


# Training and sizes.

FIRST: dict[str, Any] = {"neurons": {"a": 9, "b": 8}, "gates": {"a": {"i": 3, "o": 2}}}
LAST: dict[str, Any] = {"neurons": {"a": 4, "b": 5}, "gates": {"a": {"i": 1, "o": 2}}}
METRICS: list[dict[str, Any]] = [
    {"epoch": 1, "valid_ppl": 300.0, "compression": 1.1, **FIRST},
    {"epoch": 2, "valid_ppl": None},
    {"epoch": 3, "valid_ppl": 100.0, "compression": 2.5, **LAST},
]


def test_curves_leave_out_what_was_not_measured() -> None:
    assert curve(METRICS, "valid_ppl") == ([1, 3], [300.0, 100.0])
    assert curve(METRICS, "neurons") == ([1, 3], [17.0, 9.0])
    assert curve(METRICS, "gates") == ([1, 3], [5.0, 3.0])
    assert quality_key(METRICS) == "valid_ppl"
    assert quality_key([]) is None
    assert named("test_bpc") == "bits per character, test"
    assert named("valid_mse") == "squared error, validation"


def test_more_is_better_for_accuracy_alone() -> None:
    keys = ("valid_ppl", "test_bpc", "test_accuracy", "valid_mse")
    assert [key for key in keys if rises(key)] == ["test_accuracy"]


def test_only_perplexity_is_drawn_in_decades() -> None:
    """Its first epochs would flatten everything after them."""
    accuracies = [{"epoch": epoch, "valid_accuracy": 80.0 + epoch} for epoch in (1, 2)]
    for metrics, scale in ((METRICS, "log"), (accuracies, "linear")):
        quality, compression, *_ = training({"run": metrics}).axes
        assert (quality.get_yscale(), compression.get_yscale()) == (scale, "linear")


def test_runs_are_laid_over_each_other(tmp_path: Path) -> None:
    figure = training({"first": METRICS, "second": METRICS[:1], "dense": [{"epoch": 1, "valid_ppl": 120.0}]})
    quality, compression, neurons, gates = figure.axes
    assert [line.get_label() for line in quality.lines] == ["first", "second", "dense"]
    assert len({line.get_linestyle() for line in quality.lines}) == 3  # told apart without colour too
    assert list(compression.lines[0].get_ydata()) == [1.1, 2.5]
    assert list(neurons.lines[0].get_ydata()) == [17.0, 9.0]
    assert len(gates.lines[2].get_xdata()) == 0
    assert neurons.get_title(loc="left") == "neurons, as the paper counts"  # a gate map counts after the cut
    assert gates.get_title(loc="left") == "live gates, as the paper counts"
    drawn(figure, tmp_path)


def test_what_was_never_recorded_is_said(tmp_path: Path) -> None:
    figure = training({"dense": [{"epoch": 1, "valid_accuracy": 88.0}, {"epoch": 2, "valid_accuracy": 89.0}]})
    assert [text.get_text() for text in figure.axes[1].texts] == ["not recorded"]
    drawn(figure, tmp_path)


POINTS = [
    Point("small", 10, 110, "a"),
    Point("large", 90, 100, "a"),
    Point("worse", 95, 105, "b"),
    Point("tie", 10, 112),
]


def test_the_front_has_the_runs_that_no_other_beats() -> None:
    assert [point.name for point in pareto_front(POINTS)] == ["small", "large"]
    assert [point.name for point in pareto_front(POINTS, higher_is_better=True)] == ["tie"]
    assert pareto_front([]) == []


def test_every_run_is_a_point(tmp_path: Path) -> None:
    """Those of a kind that another of it beats are pale; the line is that of the others."""
    figure = front({"weights": POINTS}, "test perplexity", False, "A title")
    (axes,) = figure.axes
    drawn_at = [tuple(at) for collection in axes.collections for at in collection.get_offsets().tolist()]
    assert sorted(drawn_at) == sorted((point.size, point.quality) for point in POINTS)
    assert list(axes.lines[0].get_xdata()) == [10, 90]
    drawn(figure, tmp_path)


def test_many_runs_of_one_colour_have_markers_of_their_own() -> None:
    """There are six colours: without another marker the seventh run would pass for the first."""
    points = [Point(name, 10.0, 100.0, name) for name in "abcdefghijkl"]
    (axes,) = front({"weights": points}, "test perplexity", False, "A title").axes
    seen = {
        (to_hex(dots.get_facecolor()[0]), dots.get_paths()[0].vertices.tobytes())
        for dots in axes.collections
        if len(dots.get_offsets())
    }
    assert len(seen) == len(points)


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(front({"weights": POINTS}, "test perplexity", False, "A title"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# What decides.


def test_log_alpha_of_every_kind_of_variable() -> None:
    """log alpha = 2 log sigma - log m^2; the threshold of SNR 0.05 is log 20."""
    net = Network(gw.nn.LSTM(3, 4))
    gw.Variational(net, n_train=10)
    with torch.no_grad():
        net.rnn.gate_scale_l0.fill_(2.0)
        net.rnn.gate_scale_l0_log_sigma.fill_(-1.0)
    spread = log_alphas(net.state_dict())
    assert {name: len(values) for name, values in spread.values.items()} == {
        "gates": 16, "neurons": 4, "weights": 16 * 3 + 16 * 4 + 2 * 4,
    }  # fmt: skip
    assert spread.values["gates"].tolist() == pytest.approx([-2 - math.log(4)] * 16)
    assert spread.threshold == pytest.approx(math.log(20))
    assert spread.kept_below


def test_inputs_and_words_have_their_log_alphas_too() -> None:
    model = Classifier()
    gw.Variational(model, n_train=10, vocabulary=["emb"])
    spread = log_alphas(model.state_dict())
    counts = {kind: len(values) for kind, values in spread.values.items() if kind != "weights"}
    assert counts == {"gates": 16, "inputs": 3, "neurons": 4, "words": 9}


def test_what_has_a_small_log_alpha_is_kept() -> None:
    spread = Spread("log alpha", {"gates": torch.tensor([-5.0, 0.0, 4.0])}, 3.0, kept_below=True)
    (axes,) = histogram(spread).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["kept: 2", "not kept: 1"]


def test_the_norm_of_a_gate_knows_nothing_of_its_neuron() -> None:
    """z_h scales what a neuron says, not the weights that come in."""
    net = Network(nn.LSTM(2, 3))
    gw.Variational(net, n_train=10)
    before = group_norms(net).values
    with torch.no_grad():
        net.rnn.neuron_scale_l0.fill_(2.0)
    torch.testing.assert_close(group_norms(net).values, before)


def test_a_gate_whose_variable_is_zero_is_constant() -> None:
    net = Network(nn.LSTM(2, 3))
    gw.Variational(net, n_train=10)
    with torch.no_grad():
        net.rnn.gate_scale_l0_log_sigma[1, 2] = 9.0  # f of neuron 2
    (values,) = group_norms(net, 0.0).values.values()
    assert values.isinf().nonzero().flatten().tolist() == [1 * 3 + 2]


def test_norms_of_gates_and_the_constant_ones(tmp_path: Path) -> None:
    net = Network(nn.LSTM(2, 3))
    with torch.no_grad():
        for p in net.rnn.parameters():
            p.fill_(0.2)
        net.rnn.weight_ih_l0[:3] = net.rnn.weight_hh_l0[:3] = 0  # every input gate is constant
    spread = group_norms(net, 1e-4)
    (values,) = spread.values.values()
    assert values.isinf().tolist() == [True] * 3 + [False] * 9
    assert values[3:].tolist() == pytest.approx([math.log10(math.sqrt(5 * 0.04))] * 9)
    figure = histogram(spread)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["kept: 9", "not kept: 3"]
    assert list(axes.lines[0].get_xdata()) == pytest.approx([-4, -4])
    assert max(patch.get_xy()[:, 1].max() for patch in axes.patches) == 9  # nine of one norm
    drawn(figure, tmp_path)


def test_without_a_threshold_there_is_no_line_and_the_legend_says_so(tmp_path: Path) -> None:
    """Norms decide nothing in a variational model: a line of group lasso's would be made up."""
    net = Network(nn.LSTM(2, 3))
    with torch.no_grad():
        net.rnn.weight_ih_l0.fill_(1e-5)  # below group lasso's threshold, and yet not zero
        net.rnn.weight_hh_l0.zero_()
        net.rnn.weight_ih_l0[:3] = 0
    figure = histogram(group_norms(net, 0.0))
    (axes,) = figure.axes
    assert not axes.lines
    assert axes.get_legend().get_title().get_text() == "no threshold: all but zero is kept"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["kept: 9", "not kept: 3"]
    drawn(figure, tmp_path)
    with torch.no_grad():
        net.rnn.weight_ih_l0.zero_()
    drawn(histogram(group_norms(net, 0.0)), tmp_path)  # nothing has a place on the axis


def test_panels_that_are_not_needed_are_hidden() -> None:
    values = {name: torch.randn(50) for name in ("gates", "inputs", "neurons", "weights")}
    figure = histogram(Spread("log alpha", values, 3.0, kept_below=True), title="A title")
    assert [axes.get_visible() for axes in figure.axes] == [True] * 4 + [False] * 2
    with pytest.raises(ValueError, match="no value to draw"):
        histogram(Spread("log alpha", {}, 3.0, kept_below=True))


def test_the_legend_of_many_runs_covers_no_curve() -> None:
    figure = training({f"a run with a long name, seed {k}": METRICS for k in range(5)})
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_plot_is_the_door_for_a_model_of_ones_own(tmp_path: Path) -> None:
    """Gates and lag curves of a plain PyTorch model need nothing else of the lab: no recipe, no run."""
    model = Network(nn.LSTM(2, 4, batch_first=True))
    drawn(plot.gate_structure(model), tmp_path)
    curves = plot.lag_curves(model, [(torch.randn(3, 9, 2),)], lags=5)
    drawn(plot.lag_figure(curves), tmp_path)
    assert plot.map_gates(model).keys() == curves.keys()
