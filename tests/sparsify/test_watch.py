"""A layer of which nothing is left is named while it trains; nothing is said of the others."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from networks import Classifier, LanguageModel
from torch import nn

import gatewise as gw
from gatewise.sparsify.watch import EVERY, IN_A_ROW

ENOUGH = (IN_A_ROW + 1) * EVERY


def sink(model: nn.Module, *names: str) -> None:
    with torch.no_grad():
        for name in names:
            model.get_parameter(name + "_log_sigma").fill_(9.0)


def train(model: Any, sparsifier: Any, updates: int, optimizer: Any = None) -> None:
    """The loop of the README on two texts."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    ids = torch.tensor([[0, 1, 2, 3, 4], [4, 5, 6, 0, 1]]).t()
    for _ in range(updates):
        scores = model(ids[:-1])[0]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), ids[1:].flatten()) + sparsifier.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sparsifier.step()


@pytest.mark.parametrize(("cell", "levels"), [("GRU", "W"), ("LSTM", "W+G+N")])
def test_a_collapse_is_said_while_it_trains(cell: str, levels: str) -> None:
    """Too small an n_train: the penalty wins at once, and the warning comes with what was given and a way out."""
    torch.manual_seed(0)
    model = LanguageModel(cell=cell, layers=1)
    sparsifier = gw.Variational(model, levels, n_train=3, noise="batch")
    said = r"rnn\.l0: for the last 500 of (500|600) updates .* n_train=3,.* warm_up=\(0, (5_000|6_000)\)"
    with pytest.warns(UserWarning, match=said) as found:
        train(model, sparsifier, ENOUGH)
    assert len(found) == 1
    assert found[0].filename == __file__
    assert gw.measure(model).neurons == {"rnn.l0": 0}


def test_nothing_is_said_of_a_healthy_run() -> None:
    """Warnings are errors here."""
    torch.manual_seed(0)
    model = LanguageModel(layers=1)
    train(model, gw.Variational(model, n_train=100_000, noise="batch"), ENOUGH)
    assert gw.measure(model).neurons["rnn.l0"] > 0


def test_an_optimizer_from_before_the_conversion_is_noticed() -> None:
    """It trains the means alone: what goes is then decided by a sigma that nobody learnt."""
    model = LanguageModel(layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sparsifier = gw.Variational(model, n_train=100, noise="batch")
    train(model, sparsifier, EVERY - 1, optimizer)
    with pytest.warns(
        UserWarning, match=r"no log sigma has moved.* sigma they began with.* after gatewise\.Variational"
    ):
        train(model, sparsifier, 1, optimizer)
    train(model, sparsifier, EVERY, optimizer)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_lasso_that_kills_a_network_is_noticed(cell: str) -> None:
    """All weights of the layer go to zero within a hundred updates; what was given is said, and a way out."""
    torch.manual_seed(0)
    model = LanguageModel(cell=cell, layers=1)
    sparsifier = gw.GroupLasso(model, l1=0.1, group=1.0, threshold=2e-2)
    with pytest.warns(
        UserWarning, match=r"rnn\.l0: for the last 100 of .* group=1, l1=0\.1, thresh"
    ) as found:
        train(model, sparsifier, 300)
    assert len(found) == 1
    assert found[0].filename == __file__
    assert gw.measure(model).neurons == {"rnn.l0": 0}


def test_nothing_is_said_of_a_healthy_lasso() -> None:
    torch.manual_seed(0)
    model = LanguageModel(layers=1)
    train(model, gw.GroupLasso(model, l1=1e-5, group=1e-3, threshold=1e-3), 200)
    assert gw.measure(model).neurons["rnn.l0"] > 0


@pytest.mark.parametrize("zero", ["rnn.weight_ih_l0", "rnn.weight_ih_l1", "fc.weight"])
@pytest.mark.parametrize("compact", [False, True])
def test_either_side_of_a_layer_is_enough(zero: str, compact: bool) -> None:
    """No input weight, or nobody who reads it; the layer between two others is read by the one above."""
    model: Any = LanguageModel()
    if compact:
        model = gw.compress(model)
        zero = zero.replace("weight_ih_l0", "layers.0.weight_ih").replace(
            "weight_ih_l1", "layers.1.weight_ih"
        )
    sparsifier = gw.GroupLasso(model, l1=1e-9, group=1e-9, threshold=1e-9)
    with torch.no_grad():
        model.get_parameter(zero).zero_()
    named = {"0": r"rnn\.l0: ", "1": r"rnn\.l0, rnn\.l1: ", "t": r"rnn\.l1: "}
    steps(sparsifier, 99)
    with pytest.warns(UserWarning, match="^" + named["0" if "0" in zero else "1" if "1" in zero else "t"]):
        steps(sparsifier, 1)


def test_a_layer_that_began_with_nothing_is_not_named_by_a_lasso() -> None:
    model = LanguageModel()
    with torch.no_grad():
        model.fc.weight.zero_()
    sparsifier = gw.GroupLasso(model, l1=1e-9, group=1e-9)
    steps(copy.deepcopy(sparsifier), 101)
    steps(pickle.loads(pickle.dumps(sparsifier)), 101)


def test_a_compiled_lasso_step_asks_nothing() -> None:
    sparsifier = gw.GroupLasso(Classifier(), l1=1e-9, group=1e-9)
    torch.compile(sparsifier.step, backend="eager")()
    assert sparsifier._watch.updates == 0


@pytest.mark.parametrize("names", [["rnn.weight_ih_l1"], ["rnn.neuron_scale_l1"]])
def test_either_sign_is_enough_and_the_layer_is_named(names: list[str]) -> None:
    model = LanguageModel()
    sparsifier = gw.Variational(model, n_train=3, warm_up=(0, 10_000))
    sink(model, *names)
    steps(sparsifier, IN_A_ROW * EVERY - 1)
    with pytest.warns(UserWarning, match=r"^rnn\.l1: .* warm_up=\(0, 20_000\)"):
        steps(sparsifier, 1)


def test_one_direction_may_go() -> None:
    """The other still reads."""
    model = LanguageModel(bidirectional=True, layers=1)
    sparsifier = gw.Variational(model, n_train=3)
    sink(model, "rnn.weight_ih_l0_reverse", "rnn.neuron_scale_l0_reverse")
    steps(sparsifier, ENOUGH)
    sink(model, "rnn.weight_ih_l0")
    with pytest.warns(UserWarning, match=r"rnn\.l0: "):
        steps(sparsifier, ENOUGH)


def test_what_comes_back_in_time_is_not_named() -> None:
    model = Classifier()
    sparsifier = gw.Variational(model, n_train=3)
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        sink(model, "rnn.weight_ih_l0")
        steps(sparsifier, (IN_A_ROW - 1) * EVERY)
        model.load_state_dict(before)
        steps(sparsifier, EVERY)


def test_what_began_below_the_threshold_is_not_named() -> None:
    """As a wide layer may, or one that starts with a large sigma."""
    sparsifier = gw.Variational(Classifier(), "W", n_train=3, log_sigma=5.0)
    steps(sparsifier, 2 * ENOUGH)


def test_nan_is_another_trouble() -> None:
    model = Classifier()
    sparsifier = gw.Variational(model, n_train=3)
    with torch.no_grad():
        model.rnn.weight_ih_l0.fill_(torch.nan)
    steps(sparsifier, ENOUGH)


def test_copies_and_models_without_such_layers() -> None:
    model = Classifier()
    sparsifier = gw.Variational(model, n_train=3)
    copy.deepcopy(model)
    steps(pickle.loads(pickle.dumps(sparsifier)), EVERY)
    steps(gw.Variational(Classifier(), n_train=3, layers=["fc"], batch_dim=0), EVERY)


def test_a_compiled_step_asks_nothing() -> None:
    """What Python counts would be a reason to compile anew at every update."""
    sparsifier = gw.Variational(Classifier(), n_train=3)
    torch.compile(sparsifier.step, backend="eager", fullgraph=True)()
    assert (sparsifier.steps.item(), sparsifier._watch.updates) == (1, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_asks_nothing() -> None:
    """Reading the device would end the capture with an error."""
    model = Classifier().cuda()
    sparsifier = gw.Variational(model, n_train=3)
    steps(sparsifier, EVERY - 1)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        sparsifier.step()


def steps(sparsifier: Any, n: int) -> None:
    for _ in range(n):
        sparsifier.step()
