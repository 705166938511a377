"""Runs on tiny corpora: how to start one, what it left, and how to cut it off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatewise.lab.schema import Recipe
from gatewise.lab.training import trainer
from gatewise.lab.training.checkpoints import Metrics
from gatewise.lab.training.trainer import Options, train

METHODS = {
    "none": ["sparsify.method=none"],
    "lasso": ["sparsify.method=group-lasso", "sparsify.group=1e-3"],
    "bayes": ["sparsify.method=variational"],
}
# A tiny network that loses weights, gates and neurons within an epoch, but not all.
SPARSE = {
    "lasso": ["sparsify.method=group-lasso", "sparsify.group=1e-3", "sparsify.threshold=0.05"],
    "bayes": ["sparsify.method=variational", "sparsify.log_sigma=-1.5", "sparsify.snr_threshold=0.5"],
}
WIDE = ["model.init=uniform", "model.init_range=0.3"]  # or an epoch would leave nothing
LINEAR = ["train.schedule=linear", "train.after=0"]
STILL = ["train.optimizer=sgd", "train.lr=1e-30"]  # weights stay as they were drawn
TIMES = ("seconds", "train_seconds", "peak_memory")


def options(out: Path, folder: Path, **more: Any) -> Options:
    return Options(out, folder, "cpu", quiet=True, **more)


def lines(out: Path) -> list[dict[str, Any]]:
    """The metrics without what a clock says."""
    found = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in found]


def lines_so_far(out: Path) -> list[dict[str, Any]]:
    return list(Metrics(out / "metrics.jsonl").lines())


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("quality", "counts", "epoch", "recipe", "seed")}


class Killed(BaseException):
    """Stands for a signal: nothing may catch it."""


def cut_off(row: Recipe, chosen: Options, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends right behind its checkpoint number `after`, counted from 0."""
    original, saves = trainer.Run.save, iter(range(after))

    def save(self: trainer.Run) -> None:
        original(self)
        if next(saves, None) is None:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Run, "save", save)
        with pytest.raises(Killed):
            train(row, chosen)
