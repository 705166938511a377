"""What is searched: ranges and choices read as they are written, and what cannot be is one sentence."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from tiny_sweeps import RECIPE, plan_of

from gatewise.lab.sweep.plan import SPARSE, read_plan
from gatewise.lab.sweep.space import SweepError, parse_over, parse_values


@pytest.mark.parametrize(
    ("key", "spec", "expected"),
    [
        ("sparsify.group", "log 1e-4..1e-2", FloatDistribution(1e-4, 1e-2, log=True)),
        ("model.dropout", "0..0.5", FloatDistribution(0, 0.5)),
        ("model.dropout", "linear 0..0.5 step 0.1", FloatDistribution(0, 0.5, step=0.1)),
        ("model.hidden", "log 16..256", IntDistribution(16, 256, log=True)),
        ("train.epochs", "10..40 step 10", IntDistribution(10, 40, step=10)),
        ("budget.bytes", "log 10_000..200_000", FloatDistribution(1e4, 2e5, log=True)),
        ("budget.bytes", "integer 10_000..200_000", IntDistribution(10_000, 200_000)),
        ("model.cell", ["LSTM", "GRU"], CategoricalDistribution(("LSTM", "GRU"))),
        ("model.cell", "choices LSTM, GRU", CategoricalDistribution(("LSTM", "GRU"))),
        ("model.layers", [1, 2], CategoricalDistribution((1, 2))),
        ("sparsify.l1_on_output", [True, False], CategoricalDistribution((True, False))),
    ],
)
def test_a_range_is_read_as_it_is_written(key: str, spec: Any, expected: Any) -> None:
    assert parse_values(key, spec) == expected


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ("sparsify.grup=log 1e-4..1e-2", r"unknown key 'sparsify.grup'; did you mean 'sparsify.group'"),
        ("model.dropout=0.5..0", r"model.dropout = '0.5..0': `low <= high` must hold"),
        ("sparsify.group=log 0..1", r"`low > 0` must hold for `log=True`"),
        ("sparsify.group=log 1..10 step 1", r"`step` is not supported when `log` is true"),
        ("model.dropout=0..0.5 step 1", r"step 1': .* not divisible by `step`"),
        ("model.hidden=1.5..8", r"model.hidden = '1.5..8': invalid literal for int"),
        ("model.dropout=integer 0..1", r"leave out `integer`"),
        ("model.cell=0..1", r"it is no number, so it has no range"),
        ("model.dropout=0..inf", r"finite numbers"),
        ("model.dropout=0..much", r"could not convert string to float: 'much'"),
        ("model.dropout=0.5", r"write a range"),
        ("model.dropout", r"write it as section.key=LOW..HIGH"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(over: str, sentence: str) -> None:
    with pytest.raises(SweepError, match=sentence):
        parse_over(over)


METHODS = "sparsify.method=choices group-lasso, variational"
GROUP = "sparsify.group=log 1e-4..1e-2"
WARM = "sparsify.warm_up_epochs=0..2"


def test_a_key_is_searched_only_by_trials_that_read_it() -> None:
    """Half of the trials would search what changes nothing; the order in which keys are written does not matter."""
    plan = plan_of(over=[WARM, GROUP, METHODS])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(20):
        values = plan.values(SPARSE, study.ask())
        seen.add(values["sparsify.method"])
        other = "sparsify.group" if values["sparsify.method"] == "group-lasso" else "sparsify.warm_up_epochs"
        assert set(values) == {"sparsify.method", other}
    assert len(seen) == 2


def test_a_key_that_no_trial_reads_is_refused() -> None:
    with pytest.raises(SweepError, match=r"no trial reads sparsify.warm_up_epochs"):
        read_plan(RECIPE, [WARM], trials=1)
