"""The studies of a sweep, one of sparse networks and one of their dense rivals: begun, or gone on with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.trial import FrozenTrial, TrialState

from gatewise.export.saved.schema import maybe, plain, record, table, text
from gatewise.lab.data.corpus import load_data
from gatewise.lab.files import read_json, write_json
from gatewise.lab.sweep import cost as costs
from gatewise.lab.sweep.plan import DENSE, SPARSE, Plan
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import without_password
from gatewise.lab.sweep.values import Measures, better
from gatewise.lab.training.assembly import objective_of

ABOUT = "sweep.json"  # of the folder: what is swept, and where its trials are
PLAN, MEASURES, COST = "plan", "measures", "cost"  # of a study
PATIENCE = 60.0  # seconds for who began a study to say what it is about
ENOUGH, WARM_UP = (
    5,
    0.3,
)  # finished trials before one is stopped early, and the part of its epochs it always has


def study_name(name: str, kind: str) -> str:
    return f"{name} {kind}" if kind == DENSE else name


def join(plan: Plan, storage: Any, data_dir: str | Path | None) -> tuple[dict[str, optuna.Study], Measures]:
    """The studies of a plan, and what judges their trials: the same for all workers."""
    judged = objective_of(plan.recipe, load_data(plan.recipe, data_dir))
    measures = Measures(judged.quality, judged.higher_is_better, plan.objectives, plan.under)
    studies = {}
    for kind in plan.kinds:
        study, is_new = made(study_name(plan.name, kind), plan, measures, storage)
        if is_new or not waited_for(study):
            describe(study, plan, measures, kind)
        refuse_other(study.user_attrs[PLAN], plan, f"the study {study.study_name!r}")
        studies[kind] = study
    return studies, measures_of(studies[SPARSE])


def made(name: str, plan: Plan, measures: Measures, storage: Any) -> tuple[optuna.Study, bool]:
    """The study of that name, and whether it began now."""
    sampler = optuna.samplers.TPESampler(multivariate=True, group=True)
    warm_up = round(WARM_UP * plan.recipe.train.epochs)
    pruner = NopPruner() if plan.under is None else Hopeless(measures, warm_up)
    directions: list[Any] = [measures.direction(name) for name in plan.objectives]
    options: dict[str, Any] = {"study_name": name, "storage": storage, "sampler": sampler, "pruner": pruner}
    try:
        return optuna.create_study(directions=directions, **options), True
    except optuna.exceptions.DuplicatedStudyError:
        return optuna.load_study(**options), False


def waited_for(study: optuna.Study) -> bool:
    """Whether who began the study has said what it is about; it may have been killed before."""
    end = time.monotonic() + PATIENCE
    while PLAN not in study.user_attrs and time.monotonic() < end:
        time.sleep(0.1)
    return PLAN in study.user_attrs


def describe(study: optuna.Study, plan: Plan, measures: Measures, kind: str) -> None:
    needs_time = "time" in plan.objectives or (plan.under is not None and plan.under.objective == "time")
    cost = costs.calibrated() if needs_time and kind == SPARSE else None
    study.set_user_attr(COST, None if cost is None else asdict(cost))
    study.set_user_attr(MEASURES, asdict(measures))
    study.set_metric_names([measures.title(name) for name in plan.objectives])
    study.set_user_attr(PLAN, plan.to_dict())  # the last: whoever sees it sees all


def measures_of(study: optuna.Study) -> Measures:
    known = study.user_attrs
    return Measures.from_dict(known[MEASURES], known[COST])


def refuse_other(before: Mapping[str, Any], plan: Plan, where: str) -> None:
    now = plan.to_dict()
    differs = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if differs:
        listed = ", ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differs[:4])
        raise SweepError(
            f"{where} is another sweep: {listed}. Go on with what it began with, or begin anew with another --name."
        )


# The folder.


def write_about(folder: Path, plan: Plan, storage: str | None) -> None:
    """What `front` and `pick` need to find the trials; never a password."""
    address = None if storage is None else without_password(storage)
    write_json(folder / ABOUT, {"name": plan.name, "storage": address, PLAN: plan.to_dict()})


def read_about(folder: Path) -> dict[str, Any]:
    check = record(name=text, storage=maybe(text), plan=table(plain))
    found: dict[str, Any] = read_json(folder / ABOUT, dict, check) if (folder / ABOUT).is_file() else {}
    return found


# One objective with a limit.


class Hopeless(BasePruner):
    """Stops a trial whose best quality so far is worse than the median, at the same epoch, of those that fit.

    Optuna's median is that of all trials: networks above the limit are better, and would stop those below it.
    """

    def __init__(self, measures: Measures, warm_up: int) -> None:
        self.measures, self.warm_up = measures, warm_up

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None or step <= self.warm_up:
            return False
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        others = [
            other.intermediate_values[step]
            for other in finished
            if step in other.intermediate_values and self.measures.fits(other.user_attrs)
        ]
        if len(others) < ENOUGH:
            return False
        higher = self.measures.higher_is_better
        best = (max if higher else min)(trial.intermediate_values.values())
        return better(statistics.median(others), best, higher)
