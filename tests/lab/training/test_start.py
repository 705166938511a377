"""Runs that begin with the network of another one: cut to a budget at once, then refitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_corpora import tiny
from tiny_runs import METHODS, SPARSE, WIDE, cut_off, lines, numbers, options

import gatewise as gw
from gatewise.lab.files import RunError
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.schema import Recipe, RecipeError
from gatewise.lab.training.trainer import train

TASKS = ("words", "char-ptb", "csv", "npz")
PAIRS = [("words", "lasso"), ("char-ptb", "bayes"), ("csv", "bayes"), ("npz", "lasso")]
OTHERS = [pair for task in TASKS for method in SPARSE if (pair := (task, method)) not in PAIRS]


def row_of(task: str, folder: Path, *more: str) -> Recipe:
    return tiny(task, folder, *WIDE, *more)


def after(run: Path, task: str, folder: Path, *more: str) -> Recipe:
    return row_of(task, folder, f"start.run={run}", "refit.epochs=2", "refit.lr=0.01", *more)


@pytest.fixture(
    scope="module",
    params=[*PAIRS, *(pytest.param(pair, marks=pytest.mark.long) for pair in OTHERS)],
    ids="-".join,
)
def first(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, dict[str, Any]]:
    """A task, a finished run of it, and what it told."""
    task, method = request.param
    out = tmp_path_factory.mktemp("first") / "run"
    return task, out, train(row_of(task, folder, *SPARSE[method]), options(out, folder))


def test_the_network_of_another_run_is_cut_and_refitted(
    first: tuple[str, Path, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    """It begins as good as that one was, ends within its budget, and no weight is there that was not."""
    task, before, found = first
    neurons = sum(found["counts"]["neurons"].values())
    budget = ["budget.neurons=1"] if neurons > 1 else []
    result = train(after(before, task, folder, *budget), options(tmp_path, folder))
    was = {key: value for key, value in found["quality"].items() if not key.startswith("compact")}
    assert result["before_refit"]["quality"] == pytest.approx(was, rel=1e-5)
    assert [line["epoch"] for line in lines(tmp_path)] == [1, 2]
    assert {line["part"] for line in lines(tmp_path)} == {"refit"}
    for key in ("weights",) if budget else ("weights", "compression"):
        assert result["counts"][key] == found["counts"][key]
    assert result["counts"]["nonzero"] <= found["counts"]["nonzero"]
    if budget:
        assert sum(result["counts"]["neurons"].values()) == 1 == result["budget"]["left"]
    again, _ = evaluate_saved(tmp_path, data_dir=folder)
    for key in was:
        assert again[key] == pytest.approx(result["quality"][key], rel=1e-4)


def test_a_started_run_goes_on_where_it_stopped(
    first: tuple[str, Path, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    """What was cut is in the checkpoint, as zeros that are held."""
    task, before, found = first
    budget = ["budget.neurons=1"] if sum(found["counts"]["neurons"].values()) > 1 else []
    row = after(before, task, folder, *budget)
    result = train(row, options(tmp_path / "a", folder))
    with pytest.MonkeyPatch.context() as patch:
        cut_off(row, options(tmp_path / "b", folder, checkpoint_every=0.0), 2, patch)
    assert numbers(train(row, options(tmp_path / "b", folder, resume=True))) == numbers(result)


@pytest.fixture(scope="module")
def words(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("words") / "run"
    train(row_of("words", folder, *SPARSE["lasso"]), options(out, folder))
    return out


def test_a_network_without_an_encoding_is_refused(words: Path, folder: Path, tmp_path: Path) -> None:
    """Nobody knows what its symbols are."""
    gw.save(gw.load(words), tmp_path)
    row = after(tmp_path, "words", folder)
    with pytest.raises(RunError, match="its network does not say what its symbols are"):
        train(row, options(tmp_path / "other", folder))


def test_what_it_begins_with_is_the_first_to_be_beaten(words: Path, folder: Path, tmp_path: Path) -> None:
    """A refit that only loses gives back the network of the other run."""
    before = json.loads((words / "result.json").read_text())
    result = train(after(words, "words", folder, "refit.lr=30"), options(tmp_path, folder))
    assert result["epoch"] == 0
    assert result["quality"]["valid_ppl"] == pytest.approx(before["quality"]["valid_ppl"], rel=1e-5)


def test_bad_starts(words: Path, folder: Path, tmp_path: Path) -> None:
    """One sentence each, before anything is written."""
    with pytest.raises(RecipeError, match=r"nothing to do without refit.epochs"):
        row_of("words", folder, f"start.run={words}")
    for row, error, message in (
        (after(tmp_path / "nowhere", "words", folder), RunError, "there is no such file"),
        (after(words, "char-ptb", folder), RunError, "start.run = .* reads other symbols"),
        (
            after(words, "words", folder, "model.hidden=99"),
            RunError,
            r"has model.hidden = \d+, this recipe 99",
        ),
    ):
        with pytest.raises(error, match=message):
            train(row, options(tmp_path / "run", folder))
        assert not (tmp_path / "run").exists()
    large = after(words, "words", folder, "budget.neurons=1000")
    with pytest.raises(RecipeError, match=r"\[budget\] neurons=1000: the network has"):
        train(large, options(tmp_path / "large", folder))


def test_a_dense_network_may_be_cut_too(folder: Path, tmp_path: Path) -> None:
    """sparsify.method is that of [train], which is not run."""
    train(row_of("npz", folder, *METHODS["none"]), options(tmp_path / "dense", folder))
    row = after(tmp_path / "dense", "npz", folder, *METHODS["none"], "budget.neurons=2")
    result = train(row, options(tmp_path / "cut", folder))
    assert sum(result["counts"]["neurons"].values()) == 2
