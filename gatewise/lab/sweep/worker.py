"""One trial after the other, until all have their results."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import FrozenTrial, TrialState

from gatewise.lab.data.sources import DataError
from gatewise.lab.files import Diverged, RunError
from gatewise.lab.schema import RecipeError
from gatewise.lab.sweep import places
from gatewise.lab.sweep.journal import Alive, FileLock
from gatewise.lab.sweep.plan import Plan, Under
from gatewise.lab.sweep.space import suggested
from gatewise.lab.sweep.values import Measures, said, shown
from gatewise.lab.training.lock import Busy
from gatewise.lab.training.options import Options
from gatewise.lab.training.trainer import train

PAUSE = 1.0  # seconds between looks at the trials of others
Say = Callable[[str], None]


# What the values of a trial are to blame for: it is told, and not tried again.
FAILURES = (Diverged, RecipeError, torch.OutOfMemoryError)


class Surplus(Exception):
    """A trial without a place."""


@dataclass(frozen=True)
class Where:
    """Where a worker works, and how; nothing here changes a number."""

    folder: Path
    data_dir: str | Path | None = None
    device: str | None = None
    checkpoint_every: float = 60.0
    heartbeat: int = 60

    def run_folder(self, kind: str, number: int) -> Path:
        return self.folder / kind / f"{number:04d}"


class Worker:
    """With a journal `alive` tells who lives; in a database heartbeats do."""

    def __init__(
        self,
        plan: Plan,
        studies: Mapping[str, optuna.Study],
        measures: Measures,
        where: Where,
        alive: Alive | None,
        say: Say,
    ) -> None:
        self.plan, self.studies, self.measures, self.where = plan, studies, measures, where
        self.alive, self.say = alive, say
        self.asking = FileLock(where.folder / "asking.lock") if alive is not None else None
        self.end = None if plan.minutes is None else time.monotonic() + 60 * plan.minutes

    def work(self) -> None:
        while self.end is None or time.monotonic() < self.end:
            kind = self.next_kind()
            if kind is not None:
                self.one_trial(kind)
            elif self.others_run():
                time.sleep(PAUSE)  # one of them may be killed
            else:
                return

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Between asking for a trial and saying whose it is nobody else may look at a journal."""
        if self.asking is None:
            yield
            return
        with self.asking.held():
            yield

    def next_kind(self) -> str | None:
        """The study that has begun the fewest trials, of those with something to do."""
        counts = {}
        for kind, study in self.studies.items():
            with self.alone():
                places.fail_dead(study, self.alive, 2 * self.where.heartbeat)
                for trial in places.lost(study.get_trials(deepcopy=False)):
                    places.take_up(study, trial)
            trials = study.get_trials(deepcopy=False)
            if any(trial.state == TrialState.WAITING for trial in trials):
                return kind
            begun = places.begun(trials)
            if self.plan.trials is None or begun < self.plan.trials:
                counts[kind] = begun
        return min(counts, key=lambda kind: counts[kind], default=None)

    def others_run(self) -> bool:
        states = (TrialState.RUNNING, TrialState.WAITING)
        return any(study.get_trials(deepcopy=False, states=states) for study in self.studies.values())

    def one_trial(self, kind: str) -> None:
        ours = (Surplus, Busy, *FAILURES)
        try:
            with self.alone():
                self.studies[kind].optimize(partial(self.objective, kind), n_trials=1, catch=ours)
        except ValueError as error:
            # This worker was silent for too long, and another has taken the trial up, with the result that lies in
            # the folder.
            if not str(error).startswith("Cannot tell a FAIL trial"):
                raise

    def objective(self, kind: str, trial: optuna.Trial) -> list[float]:
        trial.set_user_attr(places.WORKER, "" if self.alive is None else self.alive.name)
        if self.asking is not None:
            self.asking.release()
        study = self.studies[kind]
        trials = study.get_trials(deepcopy=False)
        own = next(other for other in trials if other.number == trial.number)
        if places.is_surplus(own, trials, self.plan.trials):
            trial.set_user_attr(places.SURPLUS, True)
            raise Surplus
        try:
            found = self.run(kind, trial, own)
        except FAILURES as error:
            trial.set_user_attr(places.ERROR, str(error))
            self.say(f"{kind} {places.first_of(own)}: failed: {error}")
            raise
        except optuna.TrialPruned:
            self.say(f"{kind} {places.first_of(own)}: stopped early")
            raise
        except Busy:  # its worker was silent, and lives
            trial.set_user_attr(places.INTERRUPTED, True)
            time.sleep(self.where.heartbeat)
            raise
        except (KeyboardInterrupt, RunError, DataError, OSError):
            with suppress(Exception):  # the reason may be the storage
                trial.set_user_attr(places.INTERRUPTED, True)
            raise
        return [found[name] for name in self.plan.objectives]

    def run(self, kind: str, trial: optuna.Trial, own: FrozenTrial) -> dict[str, float]:
        values = suggested(self.plan.variables(kind), self.plan.base(kind).steering(), trial)
        number = places.first_of(own)
        told = {
            "name": f"{self.plan.name}-{kind}-{number:04d}",
            "title": f"{self.plan.name}, {kind} {number}",
            "expect": {},  # the paper's numbers belong to the paper's settings
        }
        recipe = self.plan.recipe_of(kind, values).model_copy(update=told)
        options = Options(
            self.where.run_folder(kind, number),
            self.where.data_dir,
            self.where.device,
            resume=True,
            checkpoint_every=self.where.checkpoint_every,
            quiet=True,
            on_epoch=None if self.plan.under is None else self.stop_if_hopeless(trial, self.plan.under),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a network of which nothing is left is a point, too
            found = self.measures.of(train(recipe, options))
        for name, value in found.items():
            trial.set_user_attr(name, value)
        if (under := self.plan.under) is not None:
            trial.set_constraint(under.objective, found[under.objective] - under.most)
        self.say(f"{kind} {number}: {shown(found, self.measures)}  ({said(values)})")
        return found

    def stop_if_hopeless(self, trial: optuna.Trial, under: Under) -> Callable[[Mapping[str, Any]], None]:
        key = f"valid_{self.measures.quality}"

        def look(line: Mapping[str, Any]) -> None:
            if line.get(key) is not None:
                trial.report(line[key], line["epoch"])
                if trial.should_prune():
                    trial.set_constraint(under.objective, 0.0)  # its size is not known
                    raise optuna.TrialPruned

        return look
