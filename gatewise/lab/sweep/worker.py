"""One trial after the other, until all have their results, by one worker or several; begun again it goes on.

A sweep of n trials has n runs. A run keeps its name, the number of its first trial, through all trials that make it:
after a kill or an interrupt. Two trials of one run at a time do no harm: they share a folder, and its lock
lets one write.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import TrialState

from gatewise.export import load
from gatewise.lab.data.sources import DataError
from gatewise.lab.files import Diverged, RunError, model_of
from gatewise.lab.schema import Recipe, RecipeError
from gatewise.lab.sweep.plan import Plan, said
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import MEASURED, RUN, joined, opened, runs_of, shown, write_about
from gatewise.lab.timing import example, take_turns
from gatewise.lab.training.options import Options
from gatewise.lab.training.ranks import world_size
from gatewise.lab.training.run_folder import Busy
from gatewise.lab.training.trainer import train
from gatewise.runtime.engine import Engine

ERROR = "error"  # of a trial
PAUSE = 1.0  # seconds between looks at the trials of others
SECONDS = 0.3  # of timing a step
# What the values of a trial are to blame for: it is told, and not tried again.
FAILURES = (Diverged, RecipeError, torch.OutOfMemoryError)
# What neither they nor we are to blame for: it is tried again, however often.
INTERRUPTS = (KeyboardInterrupt, RunError, DataError, OSError)
Say = Callable[[str], None]


class Surplus(Exception):
    """A trial too many: another worker asked at the same time."""


@dataclass(frozen=True)
class Job:
    """What every worker needs to begin; it travels to their processes."""

    plan: Plan
    folder: Path
    data_dir: str | Path | None = None
    device: str | None = None
    storage: str | None = None
    checkpoint_every: float = 60.0
    heartbeat: int = 20


def sweep(job: Job, workers: int = 1, say: Say = print) -> None:
    """Run the trials that are missing."""
    if world_size() > 1:
        raise SweepError(
            "sweeps run trials side by side, with --workers, not by several ranks: leave out torchrun."
        )
    with begun(job) as studies:  # what is wrong is said once, before there are workers
        if workers == 1:
            Worker(job, studies, say).work()
            return
    spawn = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    processes = [spawn.Process(target=work_alone, args=(job, threads)) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.join()  # an interrupt from the terminal has told them, too
    early = sum(bool(process.exitcode) for process in processes)
    if early == workers:
        raise SweepError(f"{job.folder}: all workers ended before the sweep did; the same line goes on.")
    if early:
        say(f"note: {early} of {workers} workers ended before the sweep did; the others took over")


@contextmanager
def begun(job: Job) -> Iterator[dict[str, optuna.Study]]:
    with opened(job.storage, job.folder, job.heartbeat) as storage:
        studies = joined(job.plan, storage, job.data_dir)
        write_about(job.folder, job.plan.name, job.storage)
        yield studies


def work_alone(job: Job, threads: int) -> None:
    """One of several, in a process of its own: what it says goes to the terminal."""
    torch.set_num_threads(threads)
    try:
        with begun(job) as studies:
            Worker(job, studies, partial(print, file=sys.stderr, flush=True)).work()
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception as error:
        print(f"Error: a worker has ended: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


class Worker:
    def __init__(self, job: Job, studies: Mapping[str, optuna.Study], say: Say) -> None:
        self.job, self.plan, self.studies, self.say = job, job.plan, studies, say
        self.quality = next(iter(studies.values())).metric_names[0]  # valid_ppl

    def work(self) -> None:
        end = time.monotonic() + 60 * (self.plan.minutes or math.inf)
        while time.monotonic() < end:
            kind = self.next_kind()
            if kind is not None:
                self.one_trial(kind)
            elif self.others_run():
                time.sleep(PAUSE)  # one of them may be killed
            else:
                return

    def next_kind(self) -> str | None:
        """The study with the fewest runs, of those with something to do."""
        counts = {}
        for kind, study in self.studies.items():
            optuna.storages.fail_stale_trials(study)
            trials = study.get_trials(deepcopy=False)
            if any(trial.state == TrialState.WAITING for trial in trials):
                return kind
            runs = len(runs_of(trials))
            if self.plan.trials is None or runs < self.plan.trials:
                counts[kind] = runs
        return min(counts, key=lambda kind: counts[kind], default=None)

    def others_run(self) -> bool:
        """One that was killed before it named its run gave no sign of life either, and is not waited for."""
        running = (
            study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) for study in self.studies.values()
        )
        return any(RUN in trial.user_attrs for trials in running for trial in trials)

    def one_trial(self, kind: str) -> None:
        try:
            objective, caught = partial(self.objective, kind), (Surplus, Busy, *FAILURES)
            self.studies[kind].optimize(objective, n_trials=1, catch=caught)
        except ValueError as error:
            # This worker was silent for too long, and another has the trial, with the result that lies in the folder.
            if not str(error).startswith("Cannot tell a FAIL trial"):
                raise

    def objective(self, kind: str, trial: optuna.Trial) -> list[float]:
        if RUN not in trial.user_attrs:
            trials = self.studies[kind].get_trials(deepcopy=False)[: trial.number]
            if self.plan.trials is not None and len(runs_of(trials)) >= self.plan.trials:
                raise Surplus
            trial.set_user_attr(RUN, f"{kind}/{trial.number:04d}")
        run = trial.user_attrs[RUN]
        try:
            values = self.plan.values(kind, trial)
            found = self.measured(run, self.plan.recipe_of(kind, values), trial)
            trial.set_user_attr(MEASURED, found)
            self.say(f"{run}: {shown(found, self.quality)}  ({said(values)})")
        except FAILURES as error:
            trial.set_user_attr(ERROR, str(error))
            self.say(f"{run}: failed: {error}")
            raise
        except optuna.TrialPruned:
            self.say(f"{run}: stopped early")
            raise
        except INTERRUPTS as error:
            with suppress(Exception):  # the reason may be the storage
                self.studies[kind].enqueue_trial(trial.params, {RUN: run})
            if isinstance(error, Busy):  # a worker that was given up lives, and ends it
                time.sleep(self.job.heartbeat)
            raise
        if under := self.plan.under:
            trial.set_constraint(under.objective, found[under.objective] - under.most)
            if found[under.objective] > under.most:
                raise optuna.TrialPruned  # it is no measure for those that fit
        return [found[name] for name in self.plan.objectives]

    def measured(self, run: str, recipe: Recipe, trial: optuna.Trial) -> dict[str, float]:
        """quality, bytes, and time where it is asked for."""
        name = f"{self.plan.name}-{run.replace('/', '-')}"
        # The paper's numbers belong to the paper's settings.
        told = {"name": name, "title": f"{self.plan.name}, {run}", "expect": {}}
        options = Options(
            self.job.folder / run,
            self.job.data_dir,
            self.job.device,
            resume=True,
            checkpoint_every=self.job.checkpoint_every,
            quiet=True,
            on_epoch=partial(self.stop_if_hopeless, trial) if self.plan.under else None,
        )
        result = train(recipe.model_copy(update=told), options)
        quality = result["quality"][self.quality]
        if quality is None or not math.isfinite(quality):
            raise Diverged(f"{self.quality} is not finite: the network has learned nothing.")
        found = {"quality": float(quality), "bytes": float(result["counts"]["bytes_int8"])}
        return {**found, "time": step_microseconds(options.out)} if self.plan.needs_time else found

    def stop_if_hopeless(self, trial: optuna.Trial, line: Mapping[str, Any]) -> None:
        if line.get(self.quality) is not None:
            trial.report(line[self.quality], line["epoch"])
            if trial.should_prune():
                raise optuna.TrialPruned


def step_microseconds(run: Path) -> float:
    """Of the compact network in the engine, one sequence on one thread: the fastest of many blocks, which trials
    beside it disturb least."""
    engine = Engine(load(model_of(run)))
    step = partial(engine.step, example(engine, 1, 1).flatten(0, 1).numpy())
    return 1e6 * min(take_turns({"": step}, SECONDS)[""])
