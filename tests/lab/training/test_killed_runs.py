"""Runs that are killed as often as one likes: they end with the numbers of a run that was left alone."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from kills import killed
from tiny_corpora import tiny
from tiny_runs import METHODS, lines, numbers, options

from gatewise.lab.schema import Recipe
from gatewise.lab.training.trainer import Options, train

KILLS = (1, 15)  # usual and --long, of each method


def go_on(row: Recipe, chosen: Options) -> None:
    train(row, chosen)


@pytest.mark.parametrize("method", ["lasso", "bayes"])
def test_killed_runs(method: str, folder: Path, tmp_path: Path, pytestconfig: Any, campaign: Any) -> None:
    """Killed at any moment and resumed until it ends, again and again, as many times as the campaign has kills."""
    count, rng = KILLS[pytestconfig.getoption("--long")], random.Random(0)
    row = tiny("words", folder, "epochs=4", *METHODS[method])
    begin = time.monotonic()
    assert not killed(go_on, row, options(tmp_path / "whole", folder, checkpoint_every=0), after=600)
    usual = time.monotonic() - begin
    kills, ends, checkpoints = 0, 0, set()
    while kills < count:
        chosen = options(tmp_path / "cut", folder, checkpoint_every=0, resume=True)
        if killed(go_on, row, chosen, after=rng.uniform(0, usual)):
            kills += 1
            checkpoints |= {file.read_bytes() for file in (tmp_path / "cut").glob("checkpoint.pt")}
        else:
            assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
            shutil.rmtree(tmp_path / "cut")
            ends += 1
    whole, resumed = (train(row, options(tmp_path / name, folder, resume=True)) for name in ("whole", "cut"))
    assert numbers(resumed) == numbers(whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    campaign(
        f"{count} killed runs ({method}), {len(checkpoints)} of them further than before: {ends + 1} ended, all with "
        "the numbers of one that was left alone"
    )
