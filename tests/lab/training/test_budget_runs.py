"""Runs with a [budget]: met when [train] ends, also after a kill, and told in the result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_corpora import tiny
from tiny_runs import cut_off, lines, numbers, options

from gatewise.lab import recipe
from gatewise.lab.schema import RecipeError
from gatewise.lab.training.trainer import train

LASSO = ["sparsify.method=group-lasso", "sparsify.group=1e-3", "train.lr=0.01", "train.epochs=4"]
BAYES = ["train.epochs=4"]
WIDE = ["model.init=uniform", "model.init_range=0.3"]  # or nothing would be left to choose from


@pytest.mark.parametrize(("method", "wanted", "kind"), [
    (LASSO, "budget.gates=12", "gates"),
    ([*LASSO, "sparsify.update=proximal"], "budget.gates=12", "gates"),
    (LASSO, "budget.neurons=0.5", "neurons"),
    (BAYES, "budget.gates=8", "gates"),
])  # fmt: skip
def test_a_run_meets_its_budget(
    method: list[str], wanted: str, kind: str, folder: Path, tmp_path: Path
) -> None:
    """And keeps it through a refit."""
    result = train(tiny("words", folder, *method, *WIDE, wanted, "refit.epochs=2"), options(tmp_path, folder))
    told = result["budget"]
    assert told["of"] == kind
    assert told["left"] == told["budget"] == sum(result["before_refit"]["counts"][kind].values())
    assert sum(result["counts"][kind].values()) <= told["budget"]


@pytest.mark.parametrize("after", [0, 20, 40, 51])
def test_a_budget_survives_a_kill(
    after: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tiny("words", folder, *LASSO, *WIDE, "budget.gates=12", "refit.epochs=1")
    whole = train(row, options(tmp_path / "whole", folder))
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), after, monkeypatch)
    torch.manual_seed(99)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert resumed["budget"] == whole["budget"]
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.parametrize(("changes", "said"), [
    (["budget.gates=9", "budget.bytes=9"], "has gates and bytes; keep one"),
    (["budget.gates=9", "sparsify.method=none"], "nothing would go"),
    (["budget.gates=9", "train.keep=best"], "may take an earlier epoch"),
    (["budget.gates=9", "budget.end=0.1"], r"0 <= begin < end <= 1"),
    (["budget.gates=0"], "budget.gates = 0 should be greater than 0"),
    (["budget.end=0.5"], "--set budget.end=0.5: does nothing without budget.gates"),
    (["budget.gates=few"], "budget.gates = 'few' should be a valid integer"),
    (["sparsify.update=proximal", "sparsify.threshold=0.01"], "proximal updates have no threshold"),
])  # fmt: skip
def test_a_budget_that_cannot_be(changes: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load("ptb-word-small-prune-wgn", changes)


def test_a_budget_larger_than_the_network(folder: Path, tmp_path: Path) -> None:
    """Only the data tell how large it is, so it is said when they are read."""
    with pytest.raises(RecipeError, match=r"\[budget\] gates=1000: the network has 32"):
        train(tiny("words", folder, "budget.gates=1000"), options(tmp_path, folder))


def test_a_budget_in_a_recipe() -> None:
    row = recipe.load("ptb-word-small-prune-wgn", ["budget.gates=0.25"])
    assert row.budget.wanted() == {"gates": 0.25}
    assert recipe.parse(row.model_dump()) == row
    assert recipe.load("ptb-word-small-prune-wgn", ["budget.gates=400"]).budget.wanted() == {"gates": 400}


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
@pytest.mark.parametrize(
    "method", [LASSO, [*LASSO, "sparsify.update=proximal"], [*BAYES, "sparsify.noise=batch"]]
)
def test_on_a_gpu_a_captured_step_sees_what_is_turned(
    method: list[str], folder: Path, tmp_path: Path
) -> None:
    from gatewise.lab.training.trainer import Options

    row = tiny("words", folder, *method, *WIDE, "budget.gates=8", "refit.epochs=1")
    result = train(row, Options(tmp_path, folder, "cuda", quiet=True))
    assert result["graph"]
    assert result["budget"]["left"] == 8
