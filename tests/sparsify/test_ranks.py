"""Data-parallel training: what DistributedDataParallel does not know of is refused or noticed; noise is per rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes saw, rank by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).parent / "two_ranks.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, error = process.communicate(timeout=120)
            assert process.returncode == 0, error
    finally:
        for process in ranks:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_model_that_is_wrapped_already_is_refused(seen: list[dict[str, Any]], which: str) -> None:
    """Its reducer has the parameters of before; `ddp.module` does not show that it was wrapped."""
    for rank in seen:
        assert "wrapped in DistributedDataParallel" in rank["too_early"][which]
        assert "Convert first, then wrap it" in rank["too_early"][which]


def test_converted_and_then_wrapped_the_ranks_stay_alike(seen: list[dict[str, Any]]) -> None:
    assert [rank["right"]["error"] for rank in seen] == ["", ""]
    assert seen[0]["right"]["weights"] == seen[1]["right"]["weights"]


def test_ranks_with_equal_seeds_draw_noise_of_their_own(seen: list[dict[str, Any]]) -> None:
    """Same weights, same input, same seed: only the noise differs, and what is drawn outside forward() does not."""
    first, second = (rank["right"] for rank in seen)
    draws = [torch.tensor(draw) for rank in (first, second) for draw in rank["draws"]]
    assert all(not torch.allclose(a, b) for k, a in enumerate(draws) for b in draws[:k])
    assert first["outside"] == second["outside"]


@pytest.mark.parametrize("part", ["lasso", "refit"])
def test_masks_and_cuts_are_the_same_on_both_ranks(seen: list[dict[str, Any]], part: str) -> None:
    """Thresholds, budgets and cuts are functions of weights that are the same: no rank has a mask of its own."""
    first, second = (rank["pruned"][part] for rank in seen)
    assert first == second
    assert 0 < first["gates"] <= 12  # half of them


def test_ranks_that_drift_apart_are_noticed(seen: list[dict[str, Any]]) -> None:
    """Whoever comes second sees that the added parameters differ where the others do not."""
    said = "".join(rank["forgotten"]["error"] for rank in seen)
    assert "After update 10 ranks" in said
    assert "emb.weight_log_sigma" in said


def test_independent_runs_are_not_compared(seen: list[dict[str, Any]]) -> None:
    assert [rank["independent"]["error"] for rank in seen] == ["", ""]


def test_unwrapped_cut_and_wrapped_again_the_ranks_stay_alike(seen: list[dict[str, Any]]) -> None:
    """A cut follows from the weights, which all ranks have; the reducer of before holds parameters that are gone."""
    first, second = (rank["shrunk"] for rank in seen)
    assert "wrapped in DistributedDataParallel" in first["refused"]
    assert (first["kept"], second["kept"]) == (2, 2)
    assert first["weights"] == second["weights"]
