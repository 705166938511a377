"""A sweep written down: file and command line say the same, and mistakes are found before the first trial."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_sweeps import OVER, RECIPE, SMALL, plan_of

from gatewise.lab import cli
from gatewise.lab import recipe as recipes
from gatewise.lab.schema import RecipeError
from gatewise.lab.sweep.plan import DENSE, SPARSE, Under, read_plan
from gatewise.lab.sweep.space import SweepError

FILE = f"""
base = "{RECIPE}"
trials = 2
objectives = ["quality", "bytes"]

[set]
model.hidden = 6
model.embedding = 4
data.batch = 3
data.steps = 6
train.epochs = 1

[search]
sparsify.group = "log 1e-4..1e-2"
model.dropout = "0..0.5"
"""


def written(folder: Path, text: str) -> str:
    path = folder / "tiny.toml"
    path.write_text(text)
    return str(path)


def test_a_file_says_what_the_command_line_says(tmp_path: Path) -> None:
    source = written(tmp_path, FILE)
    assert (
        read_plan(source).to_dict()
        == read_plan(RECIPE, OVER, SMALL, trials=2, objectives="quality,bytes").to_dict()
    )
    plan = read_plan(source, trials=7, dense=False)  # what is typed goes before what is written
    assert (plan.name, plan.trials, plan.kinds) == ("tiny", 7, (SPARSE,))


def test_a_base_is_found_from_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f'base = "{RECIPE}"\n[train]\nepochs = 3\n')
    plan = read_plan(written(tmp_path, FILE.replace(RECIPE, "own.toml").replace("train.epochs = 1", "")))
    assert plan.recipe.train.epochs == 3
    assert (
        read_plan(str(tmp_path / "own.toml"), OVER, trials=1).recipe.train.epochs == 3
    )  # a recipe with --over


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("trials = 2", "trails = 2", r"unknown key 'trails'; did you mean 'trials'"),
        ("trials = 2", "", r"a sweep needs an end: trials = 40 or minutes = 60"),
        ("trials = 2", "trials = 0", r"trials = 0 should be greater than 0"),
        ("trials = 2", "trials = 2.5", r"trials = 2.5 should be a valid integer"),
        ("sparsify.group", "sparsify.grup", r"unknown key 'sparsify.grup'; did you mean 'sparsify.group'"),
        (
            "model.dropout =",
            "dropout =",
            r"\[search\] has an unknown key 'dropout'; did you mean 'refit.dropout' or 'model.dropout'",
        ),
        ('"0..0.5"', '"0..1.5"', r"model.dropout = 1.5 should be less than 1. Narrow the range"),
        (
            '"quality", "bytes"',
            '"quality", "byte"',
            r"objectives = 'byte' should be 'quality', 'bytes' or 'time'",
        ),
        ('"quality", "bytes"', '"bytes"', r"name quality"),
        ("[search]", "[serach]", r"unknown key 'serach'"),
        ("base =", "base = 3 #", r"base = 3 should be a valid string"),
        ("trials", "trials =", r"is not TOML"),
        ("[search]", 'under = "size<=3"\n[search]', r"unknown key"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    if "under" in new:  # belongs above the tables
        old, new, sentence = "trials = 2", 'trials = 2\nunder = "size<=3"', r"write it as bytes<=200_000"
    with pytest.raises((SweepError, RecipeError), match=sentence):
        read_plan(written(tmp_path, FILE.replace(old, new, 1)))


def test_nothing_to_search_is_refused() -> None:
    with pytest.raises(
        SweepError, match=r"there is nothing to search. Give it a \[search\] table, or say --over"
    ):
        read_plan(RECIPE, trials=1)


def test_dense_rivals_are_smaller_and_search_what_they_read() -> None:
    """Their optimiser and dropout are those of the sparse networks; what belongs to sparsification is gone."""
    plan = plan_of("model.hidden=64", "model.embedding=32", "refit.epochs=3", "budget.bytes=9000")
    found = plan.space(DENSE)
    assert set(found) == {"model.dropout", "model.hidden", "model.embedding"}
    assert (found["model.hidden"].low, found["model.hidden"].high) == (4, 64)
    base = plan.base(DENSE)
    assert (base.sparsify.method, base.refit.epochs, base.budget.wanted()) == ("none", 0, {})
    as_long = {"epochs": 1 + 3}  # as the sparse ones, with their refit
    assert base.train == plan.recipe.train.model_copy(update=as_long)
    assert plan.recipe_of(DENSE, {"model.hidden": 9}).model.hidden == 9


def test_a_dense_sweep_has_no_rivals() -> None:
    plan = read_plan("ptb-word-small-original", ["model.dropout=0..0.5"], trials=1)
    assert plan.kinds == (SPARSE,)


def test_a_limit_leaves_one_objective() -> None:
    """Optuna stops no trial early that has several."""
    plan = plan_of(under="bytes<=200_000")
    assert (plan.objectives, plan.under) == (("quality",), Under("bytes", 200_000))


@pytest.mark.parametrize(
    ("storage", "sentence"),
    [
        ("sqlite:///trials.db", "On one leave --storage out"),
        ("mysql://user:secret@host/db", "many machines share a database of PostgreSQL"),
        ("postgresql://user:secret@host", "HOST:5432/DATABASE"),
        ("secret", "no address of a database"),
        ("postgresql://user@127.0.0.1:1/db?password=secret", "connection"),
        ("postgresql://user:secret@127.0.0.1:1/db", "connection"),
    ],
)
def test_a_wrong_address_is_one_sentence_without_its_password(
    storage: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--over", OVER[0], "--trials", "1", "--out", str(tmp_path / "sweep"), "--storage", storage]
    assert cli.main(["sweep", RECIPE, *arguments]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert "secret" not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[3] / "reproduction" / "sweeps").glob("*.toml"))
)
def test_the_sweeps_that_come_with_the_package_can_begin(path: Path) -> None:
    """Both ends of all of their ranges make a recipe, of a sparse network and of a dense one."""
    plan = read_plan(str(path))
    assert plan.kinds == (SPARSE, DENSE)


def test_a_network_that_spells_has_no_time_of_a_step() -> None:
    """It reads a whole word before it answers; said before the first trial, which would fail."""
    recipe = next(name for name in recipes.names() if "g2p" in name)
    with pytest.raises(SweepError, match=r"name --objectives quality,bytes"):
        read_plan(recipe, ["train.lr=log 1e-4..1e-2"], trials=1)
