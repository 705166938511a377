"""Sweeps over a real PostgreSQL server: what several machines would do."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from postgres_server import PASSWORD, Server
from tiny_sweeps import (
    command,
    end,
    finished,
    front_of_folders,
    kill_in_the_middle,
    names,
    plan_of,
    run,
    runs,
    start,
    told,
    trials_of,
)

from gatewise.lab import cli
from gatewise.lab.sweep import worker
from gatewise.lab.sweep.front import open_front
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import RUN, opened
from gatewise.lab.sweep.worker import Job, sweep

BEAT = "2"  # seconds; who is silent for twice as long is dead


def test_workers_that_are_killed_and_workers_that_join(server: Server, folder: Path, tmp_path: Path) -> None:
    """3 workers, 6 trials, one worker killed, one more joins: each trial has one result, and the killed one went on
    from its checkpoint."""
    line = command(
        tmp_path, folder, 6, "--no-dense", "--storage", server.url(), "--heartbeat", BEAT, epochs=6
    )
    workers = [start(line) for _ in range(3)]
    try:
        killed, had = kill_in_the_middle(workers[0], tmp_path, set())
        workers.append(start(line))
        for worker in workers[1:]:
            _, error = worker.communicate(timeout=280)
            assert worker.returncode == 0, error
    finally:
        end(*workers)
    trials = trials_of(tmp_path, server.url())
    assert len(runs(trials)) == 6
    (again,) = (trial for trial in finished(trials) if trial.user_attrs[RUN] == f"sparse/{killed.name}")
    assert again.number > int(killed.name)
    assert again.params == trials[int(killed.name)].params
    # Lines hold times of a clock: those of before the kill are there only if the run went on behind them.
    assert told(killed)[: len(had) - 1] == had[:-1]
    front = open_front(tmp_path, server.url())
    assert names(front.best) == front_of_folders(tmp_path, front)


def test_a_worker_that_lives_though_it_was_given_up(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stood still: its trial was handed on while it trained. The next one finds the result."""
    original, stolen = worker.train, []

    def slow(*given: object) -> object:
        result = original(*given)
        if not stolen:
            stolen.append(1)
            with opened(server.url(), tmp_path) as storage:
                study = optuna.load_study(study_name="slow", storage=storage)
                retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
                study.tell(0, state=optuna.trial.TrialState.FAIL)
                retry(study, study.get_trials()[0])
        return result

    monkeypatch.setattr(worker, "train", slow)
    run(plan_of(dense=False, name="slow"), tmp_path, folder, server.url())
    front = open_front(tmp_path, server.url())
    assert len(front.points) == 2
    assert names(front.points) == ["sparse/0000", "sparse/0002"]


def test_a_password_is_neither_printed_nor_kept(
    server: Server,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in the sentence of a refusal, not in the folder, from which the address is taken if none is given."""
    wrong = server.url("wrong-" + PASSWORD)
    line = command(tmp_path, folder, 1, "--storage", wrong)[3:]
    assert cli.main(line) == 1
    said = capsys.readouterr().err
    assert "password authentication failed" in said
    assert PASSWORD not in said
    run(plan_of(dense=False, trials=1, name="kept"), tmp_path / "kept", folder, server.url())
    for path in (tmp_path / "kept").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
    assert cli.main(["front", str(tmp_path / "kept")]) == 1
    assert (
        f"postgresql://gatewise@127.0.0.1:{server.port}/postgres: cannot be used" in capsys.readouterr().err
    )
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert cli.main(["front", str(tmp_path / "kept"), "--no-pages"]) == 0


def test_a_database_that_stops_loses_nothing(server: Server, folder: Path, tmp_path: Path) -> None:
    """The result is in the folder; the trial is told it when the database is back."""
    with Server() as other:
        plan = plan_of(dense=False, name="stops")

        def stop(_: str) -> None:
            other.stop()

        with pytest.raises(SweepError, match=r"127.0.0.1:\d+/postgres: cannot be used"):
            sweep(Job(plan, tmp_path, folder, "cpu", other.url(), heartbeat=1), say=stop)
        assert (tmp_path / "sparse" / "0000" / "result.json").exists()
        other.restart()
        time.sleep(2.5)
        said = run(plan, tmp_path, folder, other.url(), heartbeat=1)
    assert len(said) == 2


# Threads share the filters of warnings, which opened() sets for itself; workers are processes.
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_workers_that_begin_at_once_in_an_empty_database(tmp_path: Path) -> None:
    """Optuna's tables are made once, whoever is first."""

    def begin(_: int) -> str:
        try:
            with opened(empty.url(), tmp_path):
                return ""
        except SweepError as error:
            return str(error)

    with Server() as empty, ThreadPoolExecutor(6) as many:
        assert list(many.map(begin, range(6))) == [""] * 6
