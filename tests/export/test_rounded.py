"""rounded_model() == the reference that the int8 C is held to, over random chains and the models of the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE, PLAIN, Case, build, chains
from compiled import run
from hypothesis import given
from networks import LanguageModel, Net, randomly_sparse
from reference import answer, rounded_chain, should_fold
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.c.rounded import rounded_model
from gatewise.lab.models import CharLM, SeriesModel, TextClassifier, WordLM
from gatewise.program.graph import leaves
from gatewise.runtime.narrow import narrow_chain


def both(small: nn.Module, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The model's answer to each sequence, and the reference's."""
    narrow = narrow_chain(small, norms_apart=True)
    reference = rounded_chain(narrow, should_fold(narrow, None))
    model, axis = rounded_model(small).eval(), narrow.chain.batch_axis
    got, expected = [], []
    for b in range(x.shape[axis]):
        one = x.select(axis, b)
        with torch.no_grad():
            got.append(leaves(model(one.unsqueeze(axis)))[0].reshape(-1, narrow.width).numpy())
        expected.append(answer(reference, one.numpy()))
    return np.stack(got), np.stack(expected)


@given(case=chains())
def test_random_chains(case: Case) -> None:
    """Functions before, between and after the layers, both directions, no biases, nothing left."""
    np.testing.assert_allclose(*both(case.small, case.x), **CLOSE)


def test_a_layer_reads_both_directions() -> None:
    """The neurons of the second come after all of the first, removed ones too."""
    case = build(1, PLAIN | {"bidirectional": True, "second": True, "dead": 0.3})
    np.testing.assert_allclose(*both(case.small, case.x), **CLOSE)


def test_what_a_removed_channel_adds_is_in_every_row(tmp_path: Path) -> None:
    """A neuron with z = 0 is sigmoid(0) to the layer after it, a constant that its columns are multiplied with."""
    case = build(1, PLAIN | {"bayes": True, "layers": 1, "between": "sigmoid", "second": True})
    assert case.small.rnn.layers[0].kept < len(case.small.rnn2.layers[0].inputs)
    gw.export.to_c(case.small, tmp_path / "m", weights="int8")
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")


@pytest.mark.parametrize("steps", [1, 3])
def test_a_gru_without_biases_gets_both_halves(steps: int) -> None:
    """They are made to hold what removed channels add; with the first alone, a single step had no gated half."""
    for seed in range(8):
        case = build(
            seed,
            PLAIN | {"cell": "GRU", "bias": False, "words": 0, "density": 0.4, "steps": steps, "batch": 1},
        )
        np.testing.assert_allclose(*both(case.small, case.x), **CLOSE)


WORDS = torch.arange(20).view(10, 2) % 11
TASKS: dict[str, tuple[Any, Tensor, bool]] = {
    "words, folded": (lambda: WordLM(11, embedding=40, hidden=4), WORDS, True),
    "words": (lambda: WordLM(11, embedding=5, hidden=4), WORDS, False),
    "words, GRU, folded": (lambda: WordLM(11, embedding=40, hidden=4, cell="GRU"), WORDS, True),
    "characters": (lambda: CharLM(11, hidden=6), WORDS, True),
    "characters, few gates": (lambda: CharLM(30, hidden=2), WORDS, True),
    "characters, GRU": (lambda: CharLM(11, hidden=6, layers=2, cell="GRU"), WORDS, True),
    "texts": (lambda: TextClassifier(11, 3, embedding=40, hidden=4), WORDS.T, True),
    "series": (lambda: SeriesModel(3, 2, every_step=True, hidden=5), torch.randn(2, 7, 3), False),
    "tied": (lambda: LanguageModel(words=11, width=6, hidden=6, layers=1, tied=True), WORDS, False),
}


@pytest.mark.parametrize("task", TASKS)
def test_models_of_the_tasks(task: str) -> None:
    """Where the embedding folds, the product is rounded and not its factors, which is something else."""
    make, x, folded = TASKS[task]
    small = gw.compress(randomly_sparse(make().eval(), 0.6))
    assert should_fold(narrow_chain(small), None) == folded
    before = {name: value.clone() for name, value in small.state_dict().items()}
    got, expected = both(small, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(before[name], value) for name, value in small.state_dict().items())


def test_a_model_that_is_not_compact() -> None:
    model = build(3, PLAIN).model
    x = torch.arange(5).view(5, 1)
    torch.testing.assert_close(rounded_model(model)(x)[0], rounded_model(gw.compress(model))(x)[0])


def test_a_linear_layer_that_is_called_twice(tmp_path: Path) -> None:
    """Its second call reads no channel that is always zero, whose rows would have other scales there."""
    torch.manual_seed(0)
    layers = {"rnn": nn.GRU(3, 6, batch_first=True), "fc": nn.Linear(6, 6)}
    model = Net(lambda m, x: m.fc(torch.relu(m.fc(m.rnn(x)[0]))), **layers).eval()
    with torch.no_grad():
        model.fc.weight[:, 1] *= 30
        model.fc.weight[:3], model.fc.bias[:3] = 0, 0
    x = torch.randn(4, 9, 3)
    with torch.no_grad():
        rounding = float((rounded_model(model)(x) - model(x)).abs().max())
    report = gw.export.to_c(model, tmp_path / "m", weights="int8", example=x)
    assert report.max_abs_error == pytest.approx(rounding, rel=1e-3)
    assert rounding < 0.01  # where the rows of both calls are one matrix
    assert "passed" in run("make", "OPTIMIZE=-O0", "check", cwd=tmp_path / "m")
