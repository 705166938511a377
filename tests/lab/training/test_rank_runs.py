"""One run by two processes: the numbers of one, the same network on both, and an end of one is the end of all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_recipes import RECIPES
from tiny_corpora import tiny
from tiny_runs import lines, options

from gatewise.lab import recipe
from gatewise.lab.files import RunError
from gatewise.lab.training.trainer import train

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes in /proc")
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def both(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The runs of two processes, and what each of them had in the end."""
    out = tmp_path_factory.mktemp("ranks")
    script = str(Path(__file__).parent / "two_rank_runs.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(out), str(folder)],
            env=os.environ | QUIET | {"RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=280)[1] for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    return out, [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "bayes"])
def test_two_processes_have_the_numbers_of_one(name: str, both: Any, folder: Path, tmp_path: Path) -> None:
    """Without noise a batch in two parts is the batch: the means of the parts, weighted as in the whole."""
    task, more = RECIPES[name]
    out, _ = both
    whole = train(tiny(task, folder, *(text.format(runs=out) for text in more)), options(tmp_path, folder))
    result = json.loads((out / name / "result.json").read_text())
    assert result["quality"] == pytest.approx(whole["quality"], rel=1e-5)
    assert result["counts"]["gates"] == whole["counts"]["gates"]
    assert result["counts"]["nonzero"] == whole["counts"]["nonzero"]
    assert result["ranks"] == 2
    for ours, theirs in zip(lines(out / name), lines(tmp_path), strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
        assert ours["penalty"] == pytest.approx(theirs["penalty"], rel=1e-5)
        assert ours["gates"] == theirs["gates"]


@pytest.mark.parametrize("name", [*RECIPES, "lasso-cut", "bayes-cut"])
def test_both_ranks_have_the_same_network(name: str, both: Any) -> None:
    """Weights, masks, and what they would cut out of it: to the bit."""
    _, (first, second) = both
    assert first[name] == second[name]


@pytest.mark.parametrize("name", ["lasso", "bayes"])
def test_resumed_with_as_many_ranks_it_ends_with_the_same_numbers(name: str, both: Any) -> None:
    """Streams of both ranks, their noise, the sums of the epoch: all go on as they were."""
    out, (first, _) = both
    assert first[f"{name}-cut"] == first[name]
    assert lines(out / f"{name}-cut") == lines(out / name)


def test_noise_of_two_ranks_trains_as_well(both: Any, folder: Path, tmp_path: Path) -> None:
    """Other noise, other digits; the quality is that of one process."""
    task, more = RECIPES["bayes"]
    whole = train(tiny(task, folder, *more), options(tmp_path, folder))
    _, (first, _) = both
    assert first["bayes"]["quality"] == pytest.approx(whole["quality"], rel=0.03)
    assert first["bayes"]["quality"] != whole["quality"]


def test_what_cannot_be_is_one_sentence_on_every_rank(both: Any, folder: Path) -> None:
    """A batch that cannot be divided; a network that is not the same; another number of ranks."""
    out, seen = both
    for rank in seen:
        assert rank["refused"].startswith("data.batch = 3 cannot be divided over 2 ranks.")
        assert rank["apart"].startswith("the 2 ranks do not have the same network after epoch 1.")
    task, more = RECIPES["lasso"]
    (out / "lasso" / "result.json").unlink()
    with pytest.raises(RunError, match=r"made by 2 ranks, here are 1: .* torchrun --nproc-per-node 2"):
        train(tiny(task, folder, *more), options(out / "lasso", folder, resume=True))


def of_rank(rank: int, parent: int) -> int | None:
    """The process of a rank, among the children of torchrun."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
                return int(child)
        except OSError:
            continue
    return None


def torchrun(*words: str) -> dict[str, Any]:
    """What subprocess needs to run a program on two ranks of this machine."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return {"args": line, "env": environment | QUIET, "text": True}


def bayes_row(folder: Path, out: Path) -> str:
    """A file with the recipe."""
    task, more = RECIPES["bayes"]
    source = out / "row.toml"
    source.write_text(recipe.dump(tiny(task, folder, *more)))
    return str(source)


@on_linux
def test_no_thread_of_gloo_outlives_a_run(folder: Path, tmp_path: Path) -> None:
    """One that lets go of a tensor while Python ends aborts its process, and torchrun then ends the others."""
    script = str(Path(__file__).parent / "threads_after_a_run.py")
    line = torchrun(script, bayes_row(folder, tmp_path), str(folder), str(tmp_path))
    done = subprocess.run(**line, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        names = json.loads((tmp_path / f"threads{rank}.json").read_text())
        assert not [name for name in names if "gloo" in name]


@on_linux
def test_kill_9_of_a_rank_and_resume(both: Any, folder: Path, tmp_path: Path) -> None:
    """The other rank says so, torchrun ends, and the run goes on to the numbers of one that nobody killed."""
    line = [
        "-m",
        "gatewise",
        "train",
        bayes_row(folder, tmp_path),
        "--data-dir",
        str(folder),
        "--device",
        "cpu",
    ]
    line += ["--out", str(tmp_path / "run"), "--checkpoint-every", "0"]
    process = subprocess.Popen(**torchrun(*line), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    try:
        while not (tmp_path / "run" / "checkpoint.pt").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        victim = of_rank(1, process.pid)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode != 0
    assert "rank 0 of 2: another rank has ended" in error
    assert not (tmp_path / "run" / "result.json").exists()
    done = subprocess.run(**torchrun(*line, "--resume"), capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("valid_ppl") == 1  # one rank speaks
    out, _ = both
    assert lines(tmp_path / "run") == lines(out / "bayes")
