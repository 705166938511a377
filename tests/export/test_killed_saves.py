"""Saves and exports that are killed: what was there, or what was to be there, and in the end nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from kills import killed
from saved_models import IDS, sparse
from torch import nn

import gatewise as gw
from gatewise.lab.models import WordLM

KILLS = (4, 70)  # usual and --long
CYCLE = 0.4  # seconds, about what two rounds of saves and exports take


def network(k: int) -> nn.Module:
    torch.manual_seed(k)
    return gw.compress(sparse(WordLM(vocabulary=11, embedding=5, hidden=6 + k, layers=1)))


def written(model: nn.Module, folder: Path) -> None:
    gw.save(model, folder / "model")
    gw.export.to_onnx(model, folder / "model.onnx")
    gw.export.to_c(model, folder / "c")


def write_on(models: list[nn.Module], folder: Path) -> None:
    """One model over the other, in three forms, until the process is killed. Made before: that takes longer."""
    for model in cycle(models):
        written(model, folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def which(found: Any, known: list[Any]) -> int:
    assert found in known, "neither the one nor the other"
    return known.index(found)


def test_killed_saves(tmp_path: Path, pytestconfig: Any, campaign: Any) -> None:
    """After each kill the three forms are whole, one model or the other; the next writer removes what is left."""
    models = [network(0), network(1)]
    count, seen, rng = KILLS[pytestconfig.getoption("--long")], Counter[str](), random.Random(0)
    for k in (0, 1):
        written(models[k], tmp_path / str(k))
    answers = [model(IDS)[0].tolist() for model in models]
    graphs = [(tmp_path / str(k) / "model.onnx").read_bytes() for k in (0, 1)]
    sources = [files(tmp_path / str(k) / "c") for k in (0, 1)]
    folder = tmp_path / "both"
    written(models[0], folder)
    for _ in range(count):
        assert killed(write_on, models, folder, after=rng.uniform(0, CYCLE))
        left = {path.name for path in folder.iterdir()}
        seen["with something left over"] += any(name.startswith(".") for name in left)
        of_c = folder / "c" if (folder / "c").exists() else folder / ".gatewise-c" / "old"
        which(gw.load(folder / "model")(IDS)[0].tolist(), answers)
        which((folder / "model.onnx").read_bytes(), graphs)
        assert set(files(of_c)) == set(json.loads((of_c / "gatewise.json").read_text())["files"])
        which(files(of_c), sources)
    assert seen["with something left over"] or count < KILLS[True], "no kill came while something was written"
    written(models[1], folder)
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "model.onnx", "c"}
    campaign(
        f"{count} killed saves: every model whole, {seen['with something left over']} with something left over"
    )
