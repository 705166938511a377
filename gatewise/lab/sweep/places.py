"""Which trial of a study is next.

A sweep of n trials has n places. A new trial takes the next one; a trial whose worker was killed hands its place, and
its folder, on to a successor. Who asks Optuna for a trial may get one too many, because others ask at the same time:
it is surplus, and says so. Places depend on the numbers of trials alone, which Optuna gives out in order, so that
workers agree on them without a lock.

    begins   not a successor, not surplus       its place is its number among those
    follows  the number of the trial before it  attempts at a place are a chain
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from gatewise.lab.sweep.journal import Alive

FOLLOWS, FIRST, ATTEMPT, SURPLUS = "follows", "first", "attempt", "surplus"
ERROR, INTERRUPTED, WORKER = "error", "interrupted", "worker"
ATTEMPTS = 4  # a trial that ends its worker so often is not tried again


def first_of(trial: FrozenTrial) -> int:
    """The number of the trial that began at this place, which names its folder."""
    return int(trial.user_attrs.get(FIRST, trial.number))


def begins(trial: FrozenTrial) -> bool:
    return FOLLOWS not in trial.user_attrs and SURPLUS not in trial.user_attrs


def begun(trials: Sequence[FrozenTrial]) -> int:
    return sum(map(begins, trials))


def is_surplus(trial: FrozenTrial, trials: Sequence[FrozenTrial], limit: int | None) -> bool:
    """Whether it has no place: they are all taken, or another follows the same trial."""
    before = [other for other in trials if other.number < trial.number]
    if FOLLOWS in trial.user_attrs:
        return any(other.user_attrs.get(FOLLOWS) == trial.user_attrs[FOLLOWS] for other in before)
    return limit is not None and begun(before) >= limit


def lost(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials that ended without a result and without an error of their own, and that nobody follows yet."""
    followed = {trial.user_attrs.get(FOLLOWS) for trial in trials}
    return [
        trial
        for trial in trials
        if trial.state == TrialState.FAIL
        and not {ERROR, SURPLUS} & set(trial.user_attrs)
        and trial.number not in followed
        and trial.user_attrs.get(ATTEMPT, 1) < ATTEMPTS
    ]


def take_up(study: optuna.Study, trial: FrozenTrial) -> None:
    """Let another trial go on where this one was, with the same values in the same folder."""
    attempt = trial.user_attrs.get(ATTEMPT, 1) + (INTERRUPTED not in trial.user_attrs)
    follows = {FOLLOWS: trial.number, FIRST: first_of(trial), ATTEMPT: attempt}
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=follows,
        )
    )


def fail_dead(study: optuna.Study, alive: Alive | None, silent: float) -> None:
    """End the trials of workers that are gone: by their locks, or in a database by their heartbeats."""
    if alive is None:
        optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        worker = trial.user_attrs.get(WORKER)
        # In a database: killed before its first heartbeat, which would be waited for.
        silent_at_once = alive is None and worker is None and older(trial, silent)
        if silent_at_once or (alive is not None and alive.is_dead(worker)):
            with suppress(ValueError):  # another worker was faster, or the trial has ended
                study.tell(trial.number, state=TrialState.FAIL)


def older(trial: FrozenTrial, seconds: float) -> bool:
    start: Any = trial.datetime_start
    return start is not None and datetime.now() - start > timedelta(seconds=seconds)
