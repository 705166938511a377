"""Sweeps of one machine: what they leave, that they go on, and that a killed worker loses nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
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
from gatewise.lab.files import Diverged, RunError
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.sweep import places, worker
from gatewise.lab.sweep.front import open_front, write_front
from gatewise.lab.sweep.journal import Alive, Journal
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import open_journal


def test_a_sweep_has_as_many_dense_rivals_and_goes_on_when_begun_again(folder: Path, tmp_path: Path) -> None:
    """Every trial is an ordinary run; a second start finds nothing to do, a higher limit only what is new."""
    said = run(plan_of(), tmp_path, folder)
    assert [line.split(":")[0] for line in said] == ["sparse 0", "dense 0", "sparse 1", "dense 1"]
    assert run(plan_of(), tmp_path, folder) == []
    assert len(run(plan_of(trials=3), tmp_path, folder)) == 2
    result = json.loads((tmp_path / "dense" / "0000" / "result.json").read_text())
    assert (result["title"], result["expect"]) == ("tiny, dense 0", {})  # not those of the base
    dense = result["recipe"]
    assert dense["sparsify.method"] == "none"
    assert dense["model.hidden"] <= 6
    quality, _ = evaluate_saved(tmp_path / "sparse" / "0002", data_dir=folder)
    assert quality["test_ppl"] > 1
    front = open_front(tmp_path)
    assert len(front.points) == 6
    assert names(front.best) == front_of_folders(tmp_path, front)


def test_another_sweep_in_the_folder_is_refused_with_what_differs(folder: Path, tmp_path: Path) -> None:
    """Trials of two searches are no front; limits may change."""
    run(plan_of(trials=1, dense=False), tmp_path, folder)
    wider = plan_of(over=["sparsify.group=log 1e-5..1e-2", "model.dropout=0..0.5"])
    with pytest.raises(
        SweepError, match=r"search.sparsify.group was 'log 0.0001..0.01', is 'log 1e-05..0.01'"
    ):
        run(wider, tmp_path, folder)
    (tmp_path / "sweep.json").unlink()  # the storage knows it, too
    with pytest.raises(SweepError, match=r"the study 'tiny' is another sweep: base.train.lr was"):
        run(plan_of("train.lr=0.5"), tmp_path, folder)
    assert len(trials_of(tmp_path)) == 1


def test_a_trial_that_diverges_is_told_and_not_tried_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any) -> dict[str, Any]:
        raise Diverged("the loss was NaN.")

    monkeypatch.setattr(worker, "train", diverge)
    said = run(plan_of(dense=False), tmp_path, folder)
    assert said == [f"sparse {k}: failed: the loss was NaN." for k in range(2)]
    assert [trial.user_attrs[places.ERROR] for trial in trials_of(tmp_path)] == ["the loss was NaN."] * 2
    with pytest.raises(SweepError, match="no trial has finished"):
        write_front(open_front(tmp_path), tmp_path)


def test_what_the_machine_is_to_blame_for_ends_the_sweep_and_loses_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, an interrupt: the trial goes on in the next sweep, with the values it had, however often."""
    original = worker.train

    def full(*_: Any) -> dict[str, Any]:
        raise RunError("checkpoint.pt: could not be written (No space left on device).")

    def interrupt(*_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    for ending in (full, interrupt, full, full, full):
        monkeypatch.setattr(worker, "train", ending)
        with pytest.raises((RunError, KeyboardInterrupt)):
            run(plan_of(dense=False), tmp_path, folder)
    monkeypatch.setattr(worker, "train", original)
    run(plan_of(dense=False), tmp_path, folder)
    trials = trials_of(tmp_path)
    done = finished(trials)
    assert len(done) == len(set(map(places.first_of, done))) == 2
    assert all(trial.params == trials[0].params for trial in trials if places.first_of(trial) == 0)


def test_a_trial_that_raises_ends_its_worker_and_is_given_up_at_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours is shown; the sweep does not stumble over it for ever."""

    def broken(*_: Any) -> dict[str, Any]:
        raise ValueError("a mistake")

    original = worker.train
    monkeypatch.setattr(worker, "train", broken)
    for _ in range(places.ATTEMPTS):
        with pytest.raises(ValueError, match="a mistake"):
            run(plan_of(dense=False, trials=1), tmp_path, folder)
    monkeypatch.setattr(worker, "train", original)
    assert run(plan_of(dense=False, trials=1), tmp_path, folder) == []
    assert len(trials_of(tmp_path)) == places.ATTEMPTS


def test_a_trial_that_kills_its_workers_is_given_up(folder: Path, tmp_path: Path) -> None:
    """Out of memory each time: the sweep must come to an end."""
    plan = plan_of(dense=False, trials=1)
    run(plan, tmp_path, folder)
    journal = (tmp_path / "journal.log").read_text().splitlines(keepends=True)
    begun = next(k for k, line in enumerate(journal) if '"worker"' in line) + 1
    lives = "".join(journal[:begun])  # the worker is gone, its trial runs
    for _ in range(places.ATTEMPTS):
        (tmp_path / "journal.log").write_text(lives)
        storage = open_journal(tmp_path / "journal.log")
        study = optuna.load_study(study_name="tiny", storage=storage)
        alive = Alive(tmp_path / "workers")
        places.fail_dead(study, alive, 1.0)
        alive.close()
        lost = places.lost(study.get_trials())
        for trial in lost:
            places.take_up(study, trial)
            study.ask()  # by one more worker that dies
        lives = (tmp_path / "journal.log").read_text()
    assert lost == []
    assert run(plan, tmp_path, folder) == []


def test_kill_9_of_one_of_two_workers(folder: Path, tmp_path: Path) -> None:
    """Its trial is taken up from its checkpoint, by the other worker, exactly once; all trials have a result."""
    line = command(tmp_path, folder, 4, "--no-dense", epochs=25)
    first, second = start(line), start(line)
    try:
        killed, had = kill_in_the_middle(first, tmp_path, set())
        _, error = second.communicate(timeout=240)
        assert second.returncode == 0, error
    finally:
        end(first, second)
    trials = trials_of(tmp_path)
    done = finished(trials)
    assert len(done) == len(set(map(places.first_of, done))) == 4
    (again,) = (trial for trial in trials if places.FOLLOWS in trial.user_attrs)
    assert places.first_of(again) == int(killed.name)
    assert again.params == trials[places.first_of(again)].params
    # Lines hold times of a clock: those of before the kill are there only if the run went on behind them.
    assert told(killed)[: len(had) - 1] == had[:-1]
    assert len(told(killed)) == 25
    front = open_front(tmp_path)
    assert names(front.best) == front_of_folders(tmp_path, front)


def test_two_workers_of_one_command(folder: Path, tmp_path: Path) -> None:
    line = command(tmp_path, folder, 2, "--workers", "2")
    process = start(line)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    for kind in ("sparse", "dense"):
        assert len(finished(trials_of(tmp_path, kind=kind))) == 2
    assert len(list((tmp_path / "workers").iterdir())) == 0


def test_a_half_line_in_the_journal_is_dropped(folder: Path, tmp_path: Path) -> None:
    """A machine that stopped while it wrote: a line behind the half one would spoil the file for good."""
    run(plan_of(dense=False, trials=1), tmp_path, folder)
    with (tmp_path / "journal.log").open("a") as file:
        file.write('{"op_code":4,"worker')
    assert len(run(plan_of(dense=False), tmp_path, folder)) == 1
    assert len(finished(trials_of(tmp_path))) == 2


def test_a_journal_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and the file is as it was."""
    journal = Journal(tmp_path / "journal.log")
    journal.append_logs([{"a": 1}])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("gatewise.lab.sweep.journal.os.fsync", full)
        with pytest.raises(SweepError, match=r"journal.log: could not be written \(No space left"):
            journal.append_logs([{"b": 2}])
    journal.append_logs([{"c": 3}])
    assert [json.loads(line) for line in journal.path.read_text().splitlines()] == [{"a": 1}, {"c": 3}]


def test_with_a_limit_hopeless_trials_are_stopped_early(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest count, and are those that fit; networks above the limit are no measure for those below it."""
    monkeypatch.setattr("gatewise.lab.sweep.studies.ENOUGH", 1)
    plan = plan_of("train.epochs=4", "train.lr=0.5", under="bytes<=1_000_000", dense=False, trials=8)
    said = run(plan, tmp_path, folder)
    states = [trial.state for trial in trials_of(tmp_path)]
    assert set(states) <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert sum("stopped early" in line for line in said) == states.count(TrialState.PRUNED)
    assert TrialState.PRUNED in states


def test_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """front and pick, as they are typed; what cannot be is one sentence."""
    out = tmp_path / "sweep"
    run(plan_of(), out, folder)
    assert cli.main(["front", str(out), "--data-dir", str(folder)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:5] == ["run", "valid", "ppl", "bytes", "us"]
    assert {path.name for path in out.glob("front.*")} == {
        "front.html",
        "front.json",
        "front.png",
        "front.svg",
    }
    best = table[1].split()[0]
    assert (out / best / "report.html").exists()
    assert f'"href":"{best}/report.html"' in (out / "front.html").read_text()
    assert cli.main(["pick", str(out), "--under", "bytes<=1_000_000", "-o", str(tmp_path / "small")]) == 0
    assert cli.main(["export", str(tmp_path / "small"), "--onnx", str(tmp_path / "small.onnx")]) == 0
    capsys.readouterr()
    for arguments, sentence in (
        (["--under", "bytes<=1"], "The least is"),
        (["--under", "time<=1"], "has no time"),
        (["--under", "ram<=1"], "write it as bytes<=200_000"),
    ):
        assert cli.main(["pick", str(out), *arguments, "-o", str(tmp_path / "none")]) == 1
        assert sentence in capsys.readouterr().err
    assert cli.main(["front", str(tmp_path)]) == 1
    assert "no folder of a sweep" in capsys.readouterr().err


def test_minutes_end_a_sweep(folder: Path, tmp_path: Path) -> None:
    """A trial that runs then has its end; none begins after it."""
    run(plan_of(trials=None, minutes=0.01, dense=False), tmp_path, folder)
    assert {trial.state for trial in trials_of(tmp_path)} <= {TrialState.COMPLETE}
    assert run(plan_of(trials=1, dense=False), tmp_path / "b", folder)


def test_a_sweep_is_not_made_by_ranks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for each other in the first trial."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SweepError, match="leave out torchrun"):
        run(plan_of(), tmp_path, folder)
