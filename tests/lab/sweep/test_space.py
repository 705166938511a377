"""What is searched: ranges and choices read as they are written, and what cannot be is one sentence."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from tiny_sweeps import plan_of

from gatewise.lab.sweep.space import SweepError, Variable, in_order, parse_over, parse_variable, suggested


@pytest.mark.parametrize(
    ("key", "spec", "expected"),
    [
        ("sparsify.group", "log 1e-4..1e-2", Variable("sparsify.group", 1e-4, 1e-2, log=True)),
        ("model.dropout", "0..0.5", Variable("model.dropout", 0, 0.5)),
        ("model.dropout", "linear 0..0.5 step 0.1", Variable("model.dropout", 0, 0.5, step=0.1)),
        ("model.hidden", "log 16..256", Variable("model.hidden", 16, 256, log=True, whole=True)),
        ("budget.bytes", "log 10_000..200_000", Variable("budget.bytes", 1e4, 2e5, log=True)),
        ("budget.bytes", "integer 10_000..200_000", Variable("budget.bytes", 1e4, 2e5, whole=True)),
        ("model.cell", ["LSTM", "GRU"], Variable("model.cell", choices=("LSTM", "GRU"))),
        ("model.cell", "choices LSTM, GRU", Variable("model.cell", choices=("LSTM", "GRU"))),
        ("model.layers", [1, 2], Variable("model.layers", choices=(1, 2))),
        ("sparsify.l1_on_output", [True, False], Variable("sparsify.l1_on_output", choices=(True, False))),
    ],
)
def test_a_range_is_read_as_it_is_written(key: str, spec: Any, expected: Variable) -> None:
    found = parse_variable(key, spec)
    assert found == expected
    assert parse_variable(key, str(found)) == expected  # what a sweep remembers of it


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ("sparsify.grup=log 1e-4..1e-2", r"unknown key 'sparsify.grup'; did you mean 'sparsify.group'"),
        ("model.dropout=0.5..0", r"model.dropout = 0.5..0: the lower end comes first"),
        ("model.dropout=0.5..0.5", r"the ends differ"),
        ("sparsify.group=log 0..1", r"a logarithmic range begins above 0"),
        ("sparsify.group=log 1..10 step 1", r"a logarithmic range has no step"),
        ("model.dropout=0..0.5 step 1", r"step 1: a step is above 0"),
        ("model.hidden=1.5..8", r"model.hidden is a whole number"),
        ("model.dropout=integer 0..1", r"leave out `integer`"),
        ("model.cell=0..1", r"it is no number, so it has no range"),
        ("model.dropout=0..inf", r"'inf' is not a finite number"),
        ("model.dropout=0..much", r"'much' is not a number"),
        ("model.dropout=0.5", r"write a range"),
        ("model.dropout", r"write it as section.key=LOW..HIGH"),
        ("model.cell=choices LSTM, LSTM", r"and differ"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(over: str, sentence: str) -> None:
    with pytest.raises(SweepError, match=sentence):
        parse_over(over)


BOTH = "sparsify.method=choices group-lasso, variational"
GROUP = "sparsify.group=log 1e-4..1e-2 only with sparsify.method=group-lasso"
WARM = "sparsify.warm_up_epochs=0..2 only with sparsify.method=variational"


def test_a_key_is_searched_only_where_its_condition_holds() -> None:
    """Whatever the order in which they were written."""
    variables = in_order(map(parse_over, (WARM, GROUP, BOTH)), {})
    assert variables[0].key == "sparsify.method"
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(20):
        values = suggested(variables, {}, study.ask())
        seen.add(values["sparsify.method"])
        other = "sparsify.group" if values["sparsify.method"] == "group-lasso" else "sparsify.warm_up_epochs"
        assert set(values) == {"sparsify.method", other}
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ([GROUP], r"only with sparsify.method=group-lasso, but here that is none"),
        (["model.hidden=4..8 only with model.cel=GRU"], r"there is no such key; did you mean 'model.cell'"),
        (
            ["model.hidden=4..8 only with model.layers=1", "model.layers=1..2 only with model.hidden=4"],
            r"wait for each other",
        ),
    ],
)
def test_a_condition_that_never_holds_is_refused(over: list[str], sentence: str) -> None:
    with pytest.raises(SweepError, match=sentence):
        in_order(map(parse_over, over), {"sparsify.method": "none"})


def test_without_a_condition_a_key_that_nobody_reads_is_refused() -> None:
    """Half of the trials would search what changes nothing."""
    with pytest.raises(SweepError, match=r"does nothing with .* search the key \"only with\" another one"):
        plan_of(over=[BOTH, "sparsify.warm_up_epochs=1..2"])
    plan_of(over=[BOTH, WARM])
