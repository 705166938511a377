"""Who has which trial: whatever the order in which workers ask, die and take over, every place has one result."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState
from tiny_sweeps import plan_of, run, trials_of

from gatewise.lab.sweep import places, studies
from gatewise.lab.sweep.journal import Alive
from gatewise.lab.sweep.storage import opened

WORKERS = 3
ACTIONS = ("finish", "finish", "kill", "take up", "both take up")


class Workers:
    """Workers over one study, one action at a time."""

    def __init__(self, limit: int) -> None:
        self.study, self.limit = optuna.create_study(), limit
        self.running: dict[int, optuna.Trial] = {}

    def act(self, worker: int, action: str) -> None:
        """A worker without a trial asks for one; two that saw the same lost trial both take it up."""
        if "take up" in action:
            lost = places.lost(self.study.get_trials())
            for trial in lost * (2 if action == "both take up" else 1):
                places.take_up(self.study, trial)
        elif worker in self.running:
            if action == "finish":
                self.study.tell(self.running.pop(worker), 0.0)
            else:
                self.study.tell(self.running.pop(worker), state=TrialState.FAIL)  # by those who find it dead
        elif self.has_work():
            self.begin(worker)

    def has_work(self) -> bool:
        """By what a worker saw a moment ago: others may have been faster, so now and then it asks in vain."""
        waiting = self.study.get_trials(states=(TrialState.WAITING,))
        return bool(waiting) or places.begun(self.study.get_trials()) <= self.limit

    def begin(self, worker: int) -> None:
        trial = self.study.ask()
        trials = self.study.get_trials()
        if places.is_surplus(trials[trial.number], trials, self.limit):
            trial.set_user_attr(places.SURPLUS, True)
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.running[worker] = trial

    def end(self) -> list[FrozenTrial]:
        """Nobody is killed any more."""
        for worker in list(self.running):
            self.act(worker, "finish")
        self.act(0, "take up")
        while (
            self.study.get_trials(states=(TrialState.WAITING,))
            or places.begun(self.study.get_trials()) < self.limit
        ):
            self.act(0, "finish")
        self.act(0, "finish")
        return self.study.get_trials(states=(TrialState.COMPLETE,))


@given(
    st.lists(st.tuples(st.integers(0, WORKERS - 1), st.sampled_from(ACTIONS)), min_size=20, max_size=60),
    st.integers(1, 4),
)
def test_every_place_has_one_result(actions: list[tuple[int, str]], limit: int) -> None:
    """Or it was given up, after as many attempts as a trial has."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    workers = Workers(limit)
    for worker, action in actions:
        workers.act(worker, action)
    done = [places.first_of(trial) for trial in workers.end()]
    assert len(done) == len(set(done))
    assert set(done) <= {trial.number for trial in workers.study.get_trials() if places.begins(trial)}
    attempts = [trial.user_attrs.get(places.ATTEMPT, 1) for trial in workers.study.get_trials()]
    assert len(done) == limit or max(attempts) == places.ATTEMPTS
    assert len(done) <= limit


def test_a_study_whose_beginner_died_is_described_by_the_next(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between making the study and saying what it is about: nobody waits for ever."""
    monkeypatch.setattr(studies, "PATIENCE", 0.2)
    with opened(None, tmp_path) as storage:
        optuna.create_study(study_name="tiny", storage=storage, directions=["minimize", "minimize"])
    run(plan_of(trials=1, dense=False), tmp_path, folder)
    assert [trial.state for trial in trials_of(tmp_path)] == [TrialState.COMPLETE]


def test_a_worker_is_dead_when_its_lock_is_free(tmp_path: Path) -> None:
    """One that ended, one that never said its name; not one that lives."""
    first, second = Alive(tmp_path), Alive(tmp_path)
    assert not second.is_dead(first.name)
    assert second.is_dead(None)
    first.lock.release()  # as the system does for who is killed
    assert second.is_dead(first.name)
    first.close()
    assert second.is_dead(first.name)
    second.close()
