"""Sweeps of one machine: what they leave, that they go on, and that a killed worker loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from tiny_sweeps import (
    SMALL,
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
from gatewise.lab.files import Diverged, RunError
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.sweep import storage, worker
from gatewise.lab.sweep.front import open_front, write_front
from gatewise.lab.sweep.plan import read_plan
from gatewise.lab.sweep.space import SweepError
from gatewise.lab.sweep.storage import RUN


def test_a_sweep_has_as_many_dense_rivals_and_goes_on_when_begun_again(folder: Path, tmp_path: Path) -> None:
    """Every trial is an ordinary run; a second start finds nothing to do, a higher limit only what is new."""
    said = run(plan_of(), tmp_path, folder)
    assert [line.split(":")[0] for line in said] == ["sparse/0000", "dense/0000", "sparse/0001", "dense/0001"]
    assert run(plan_of(), tmp_path, folder) == []
    assert len(run(plan_of(trials=3), tmp_path, folder)) == 2
    result = json.loads((tmp_path / "dense" / "0000" / "result.json").read_text())
    assert (result["title"], result["expect"]) == ("tiny, dense/0000", {})  # not those of the base
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
        SweepError, match=r"search.sparsify.group was 'Float.* low=0.0001, .*is 'Float.* low=1e-05"
    ):
        run(wider, tmp_path, folder)
    with pytest.raises(SweepError, match=r"the study 'tiny' is another sweep: base.train.lr was"):
        run(plan_of("train.lr=0.5"), tmp_path, folder)
    with pytest.raises(SweepError, match=r"holds the sweep 'tiny', in trials.db. Name another --out"):
        run(plan_of(name="other"), tmp_path, folder)
    assert len(trials_of(tmp_path)) == 1


def test_a_trial_that_diverges_is_told_and_not_tried_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any) -> dict[str, Any]:
        raise Diverged("the loss was NaN.")

    monkeypatch.setattr(worker, "train", diverge)
    said = run(plan_of(dense=False), tmp_path, folder)
    assert said == [f"sparse/{k:04d}: failed: the loss was NaN." for k in range(2)]
    assert [trial.user_attrs[worker.ERROR] for trial in trials_of(tmp_path)] == ["the loss was NaN."] * 2
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
    assert len(runs(trials)) == 2
    assert all(trial.params == trials[0].params for trial in trials if trial.user_attrs[RUN] == "sparse/0000")


def test_a_mistake_ends_its_worker_and_is_not_tried_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours is shown; the sweep does not stumble over it for ever."""

    def broken(*_: Any) -> dict[str, Any]:
        raise ValueError("a mistake")

    with monkeypatch.context() as patched:
        patched.setattr(worker, "train", broken)
        with pytest.raises(ValueError, match="a mistake"):
            run(plan_of(dense=False), tmp_path, folder)
    assert len(run(plan_of(dense=False), tmp_path, folder)) == 1
    assert open_front(tmp_path).unfinished == 1


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_trial_that_kills_its_workers_is_given_up(folder: Path, tmp_path: Path) -> None:
    """Out of memory each time: the sweep must come to an end."""
    plan = plan_of(dense=False, trials=1)
    attempts = 0
    with worker.begun(worker.Job(plan, tmp_path, folder)) as studies:
        study = studies["sparse"]
        while worker.Worker(worker.Job(plan, tmp_path), studies, print).next_kind():
            trial = study.ask()
            trial.set_user_attr(RUN, trial.user_attrs.get(RUN, "sparse/0000"))
            study._storage.record_heartbeat(trial._trial_id)
            with study._storage._backend.engine.begin() as connection:  # long ago
                connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")
            attempts += 1
    assert attempts == 1 + storage.RETRIES
    assert run(plan, tmp_path, folder) == []


def test_kill_9_of_one_of_two_workers(folder: Path, tmp_path: Path) -> None:
    """The other makes its trial again, from the checkpoint, with the same values; all runs have one result."""
    line = command(tmp_path, folder, 4, "--no-dense", "--heartbeat", "1", epochs=25)
    first, second = start(line), start(line)
    try:
        killed, had = kill_in_the_middle(first, tmp_path, set())
        _, error = second.communicate(timeout=240)
        assert second.returncode == 0, error
    finally:
        end(first, second)
    trials = trials_of(tmp_path)
    assert len(runs(trials)) == 4
    (again,) = (trial for trial in trials if "retry_history" in trial.system_attrs)
    assert again.user_attrs[RUN] == f"sparse/{killed.name}"
    assert again.params == trials[int(killed.name)].params
    # Lines hold times of a clock: those of before the kill are there only if the run went on behind them.
    assert told(killed)[: len(had) - 1] == had[:-1]
    assert len(told(killed)) == 25
    front = open_front(tmp_path)
    assert names(front.best) == front_of_folders(tmp_path, front)


def test_two_workers_of_one_command(folder: Path, tmp_path: Path) -> None:
    """On one SQLite file; each run is made once, though both ask for trials at the same time."""
    line = command(tmp_path, folder, 2, "--workers", "2")
    process = start(line)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    for kind in ("sparse", "dense"):
        assert len(finished(trials_of(tmp_path, kind=kind))) == 2
        assert len(list((tmp_path / kind).iterdir())) == 2


def test_a_file_of_trials_that_is_damaged_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "trials.db").write_bytes(b"not a database" * 100)
    with pytest.raises(SweepError, match=r"trials.db: cannot be used for a sweep \(file is not a database\)"):
        run(plan_of(dense=False), tmp_path, folder)


def test_a_folder_may_have_any_name(folder: Path, tmp_path: Path) -> None:
    """Optuna fills in templates, and an address has a query."""
    out = tmp_path / "{SCHEMA} ?a=b %20"
    run(plan_of(dense=False, trials=1), out, folder)
    assert len(open_front(out).points) == 1
    assert (out / "trials.db").exists()


def test_with_a_limit_hopeless_trials_are_stopped_early(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest count, and are those that fit; networks above the limit are no measure for those below it."""
    monkeypatch.setattr("gatewise.lab.sweep.storage.ENOUGH", 1)
    plan = plan_of("train.epochs=4", "train.lr=0.5", under="bytes<=1_000_000", dense=False, trials=8)
    said = run(plan, tmp_path, folder)
    states = [trial.state for trial in trials_of(tmp_path)]
    assert set(states) <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert sum("stopped early" in line for line in said) == states.count(TrialState.PRUNED)
    assert TrialState.PRUNED in states


def test_networks_above_the_limit_are_no_measure_for_those_below_it(folder: Path, tmp_path: Path) -> None:
    """Larger networks are better: their median would stop those that fit. They are points of the front."""
    run(plan_of(under="bytes<=1", dense=False, objectives="quality"), tmp_path, folder)
    trials = trials_of(tmp_path)
    assert [trial.state for trial in trials] == [TrialState.PRUNED] * 2
    assert all(trial.constraints["bytes"] > 0 for trial in trials)
    assert len(open_front(tmp_path).points) == 2


@pytest.mark.parametrize("name", ["ptb-word-small-prune-wgn", "ptb-char-bayes-wgn", "imdb-bayes-wgn"])
def test_a_step_is_timed_where_it_is_asked_for(folder: Path, tmp_path: Path, name: str) -> None:
    """By the clock, in the engine: words, symbols and texts."""
    small = [change for change in SMALL if "char" not in name or "embedding" not in change]
    if "imdb" in name:
        small = [
            *(change for change in small if "steps" not in change),
            "data.vocabulary=train",
            "data.vectors=none",
        ]
    plan = read_plan(name, ["train.lr=log 1e-3..1e-2"], small, trials=1, dense=False, name="tiny")
    run(plan, tmp_path, folder)
    (point,) = open_front(tmp_path).points
    assert 0 < point.measured["time"] < 1e4


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
