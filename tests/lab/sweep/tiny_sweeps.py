"""Sweeps over tiny corpora: begun in this process or in others, and what they left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna

from gatewise.lab.sweep.front import Front, Point
from gatewise.lab.sweep.plan import Plan, read_plan
from gatewise.lab.sweep.storage import RUN, opened
from gatewise.lab.sweep.worker import Job, sweep
from gatewise.lab.training.run_folder import LOCK

RECIPE = "ptb-word-small-prune-wgn"
OVER = ["sparsify.group=log 1e-4..1e-2", "model.dropout=0..0.5"]
SMALL = ["model.hidden=6", "model.embedding=4", "data.batch=3", "data.steps=6", "train.epochs=1"]


def plan_of(*changes: str, over: list[str] = OVER, **options: Any) -> Plan:
    given = {"trials": 2, "objectives": "quality,bytes", "name": "tiny", **options}
    return read_plan(RECIPE, over, [*SMALL, *changes], **given)


def run(plan: Plan, out: Path, folder: Path, storage: str | None = None, **more: Any) -> list[str]:
    """What the sweep said, line by line."""
    said: list[str] = []
    sweep(Job(plan, out, folder, "cpu", storage, **more), say=said.append)
    return said


def command(out: Path, folder: Path, trials: int, *more: str, epochs: int = 1) -> list[str]:
    given = [sys.executable, "-m", "gatewise", "sweep", RECIPE, "--trials", str(trials), "--name", "tiny"]
    for change in [*SMALL, f"train.epochs={epochs}"]:
        given += ["--set", change]
    for over in OVER:
        given += ["--over", over]
    where = ["--out", str(out), "--data-dir", str(folder), "--device", "cpu", "--checkpoint-every", "0"]
    return [*given, *where, "--objectives", "quality,bytes", *more]


def start(line: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        line, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def kill_in_the_middle(worker: subprocess.Popen[str], out: Path, known: set[Path]) -> tuple[Path, list[str]]:
    """Kill it while a run that is not among the known ones has epochs behind it; the run, and what it had told."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and worker.poll() is None:
        for run_folder in set(out.glob("*/[0-9]*")) - known:
            if writes(worker, run_folder) and len(told(run_folder)) > 1:
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                assert not (run_folder / "result.json").exists()
                return run_folder, told(run_folder)
        time.sleep(0.01)
    raise AssertionError(worker.communicate()[1] if worker.poll() is not None else "nothing to kill")


def writes(worker: subprocess.Popen[str], run_folder: Path) -> bool:
    """Whether it has the lock of the run open."""
    opened_files = Path(f"/proc/{worker.pid}/fd").glob("*")
    return str((run_folder / LOCK).resolve()) in map(os.path.realpath, opened_files)


def told(run_folder: Path) -> list[str]:
    path = run_folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def trials_of(out: Path, storage: str | None = None, kind: str = "sparse") -> list[optuna.trial.FrozenTrial]:
    with opened(storage, out) as kept:
        name = "tiny" if kind == "sparse" else "tiny dense"
        return optuna.load_study(study_name=name, storage=kept).get_trials()


def finished(trials: list[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in trials if trial.state == optuna.trial.TrialState.COMPLETE]


def runs(trials: list[optuna.trial.FrozenTrial]) -> list[str]:
    """Of finished trials, the runs that they made."""
    return sorted(trial.user_attrs[RUN] for trial in finished(trials))


def front_of_folders(out: Path, front: Front) -> list[str]:
    """The front again, from nothing but the results in the run folders."""
    points = []
    for path in sorted(out.glob("*/[0-9]*/result.json")):
        result = json.loads(path.read_text())
        measured = {"quality": result["quality"][front.quality], "bytes": result["counts"]["bytes_int8"]}
        points.append(Point("/".join(path.parts[-3:-1]), path.parent, measured, {}))
    assert len(points) == len(front.points)
    return names(Front(front.name, front.quality, front.higher_is_better, tuple(points)).best)


def names(points: Any) -> list[str]:
    return [point.name for point in points]
