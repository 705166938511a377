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
    start,
    told,
    trials_of,
)

from gatewise.lab import cli
from gatewise.lab.sweep import places, worker
from gatewise.lab.sweep.front import open_front
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import open_database, opened, quiet_optuna
from gatewise.lab.sweep.sweep import Setup, sweep
from gatewise.lab.sweep.worker import Where

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
    done = finished(trials)
    assert len(done) == len(set(map(places.first_of, done))) == 6
    again = [trial for trial in done if places.first_of(trial) == int(killed.name)]
    assert [places.FOLLOWS in trial.user_attrs for trial in again] == [True]
    assert again[0].params == trials[int(killed.name)].params
    # Lines hold times of a clock: those of before the kill are there only if the run went on behind them.
    assert told(killed)[: len(had) - 1] == had[:-1]
    front = open_front(tmp_path, server.url())
    assert names(front.best) == front_of_folders(tmp_path, front)


def test_a_worker_that_lives_though_it_was_given_up(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stood still: its trial was handed on while it trained. Its result counts, once, and it goes on."""
    original, stolen = worker.train, []

    def slow(*given: object) -> object:
        result = original(*given)
        if not stolen:
            stolen.append(1)
            with opened(server.url(), tmp_path) as storage:
                study = optuna.load_study(study_name="slow", storage=storage)
                study.tell(0, state=optuna.trial.TrialState.FAIL)
        return result

    monkeypatch.setattr(worker, "train", slow)
    run(plan_of(dense=False, name="slow"), tmp_path, folder, server.url())
    front = open_front(tmp_path, server.url())
    assert len(front.points) == 2
    assert sorted(point.number for point in front.points) == [0, 2]


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

        with pytest.raises(SweepError, match=r"127.0.0.1:\d+/postgres: has gone"):
            sweep(Setup(plan, Where(tmp_path, folder, "cpu", heartbeat=1), other.url()), say=stop)
        assert (tmp_path / "sparse" / "0000" / "result.json").exists()
        other.restart()
        time.sleep(2.5)
        said = run(plan, tmp_path, folder, other.url(), heartbeat=1)
    assert len(said) == 2


def test_workers_that_begin_at_once_in_an_empty_database(tmp_path: Path) -> None:
    """Optuna's tables are made once, whoever is first."""

    def begin(_: int) -> str:
        try:
            storage = open_database(empty.url(), 1)
        except SweepError as error:
            return str(error)
        storage.engine.dispose()
        return ""

    with Server() as empty, ThreadPoolExecutor(6) as many, quiet_optuna():
        assert list(many.map(begin, range(6))) == [""] * 6
