"""sweep(): all trials of a plan, by one worker or several; begun again it goes on."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gatewise.lab.sweep.journal import Alive
from gatewise.lab.sweep.plan import Plan
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import opened
from gatewise.lab.sweep.studies import ABOUT, PLAN, join, read_about, refuse_other, write_about
from gatewise.lab.sweep.values import Measures
from gatewise.lab.sweep.worker import Say, Where, Worker
from gatewise.lab.training.ranks import world_size


@dataclass(frozen=True)
class Setup:
    """What every worker needs to begin; it travels to their processes."""

    plan: Plan
    where: Where
    storage: str | None = None


def sweep(setup: Setup, workers: int = 1, say: Say = print) -> None:
    """Run the trials that are missing."""
    folder = setup.where.folder
    if world_size() > 1:
        raise SweepError(
            "sweeps run trials side by side, with --workers, not by several ranks: leave out torchrun."
        )
    if about := read_about(folder):
        refuse_other(about[PLAN], setup.plan, f"{folder / ABOUT}:")
    if workers == 1:
        work(setup, say)
        return
    with begun(setup):
        pass  # what is wrong is said once, and no two workers measure the machine
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    processes = [context.Process(target=work_alone, args=(setup, threads)) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.join()  # the terminal has told them, too
        raise
    early = sum(bool(process.exitcode) for process in processes)
    if early == workers:
        raise SweepError(
            f"{folder}: all {workers} workers ended before the sweep did; the same line goes on."
        )
    if early:
        say(f"note: {early} of {workers} workers ended before the sweep did; the others took over")


@contextmanager
def begun(setup: Setup) -> Iterator[tuple[dict[str, Any], Measures]]:
    """The studies, and what judges their trials."""
    where = setup.where
    with opened(setup.storage, where.folder, where.heartbeat) as storage:
        joined = join(setup.plan, storage, where.data_dir)
        write_about(where.folder, setup.plan, setup.storage)
        yield joined


def work(setup: Setup, say: Say) -> None:
    """The life of a worker."""
    with begun(setup) as (studies, measures):
        alive = Alive(setup.where.folder / "workers") if setup.storage is None else None
        try:
            Worker(setup.plan, studies, measures, setup.where, alive, say).work()
        finally:
            if alive is not None:
                alive.close()


def work_alone(setup: Setup, threads: int) -> None:
    """One of several, in a process of its own: what it says goes to the terminal."""
    torch.set_num_threads(threads)
    try:
        work(setup, lambda line: print(line, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception as error:
        print(f"Error: a worker has ended: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
