"""Killed runs: they go on where they were, and refuse what is not theirs."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_corpora import tiny
from tiny_runs import LINEAR, METHODS, STILL, cut_off, lines, lines_so_far, numbers, options

import gatewise as gw
from gatewise.lab import recipe
from gatewise.lab.data import sources
from gatewise.lab.files import RunError, plain
from gatewise.lab.finished.opened import open_run
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.training.checkpoints import MAGIC, Metrics, load_checkpoint, save_checkpoint
from gatewise.lab.training.run_folder import refuse_other_recipe
from gatewise.lab.training.trainer import Options, train


@pytest.mark.parametrize("task", ["words", "char-ptb", "imdb"])
@pytest.mark.parametrize("after", [0, 4, 11])
def test_resumed_runs_end_with_the_same_numbers(
    task: str, after: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off after some checkpoint, in the middle of an epoch: noise, order and carried state go on as they were."""
    more = ["epochs=2", "train.keep=best", "train.test_every=1"]
    if task == "imdb":
        more += ["data.batch=2", "data.vectors=none", "model.embedding=4"]
    row = tiny(task, folder, *more)
    whole = train(row, options(tmp_path / "whole", folder))
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), after, monkeypatch)
    assert not (tmp_path / "cut" / "result.json").exists()
    (tmp_path / "cut" / "recipe.toml").unlink()  # moved here without it
    torch.manual_seed(99)  # another process would not have the generator of this one
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert (tmp_path / "cut" / "recipe.toml").read_text() == (tmp_path / "whole" / "recipe.toml").read_text()
    again = train(row, options(tmp_path / "cut", folder, resume=True))  # finished: nothing to do
    assert again == plain(resumed)


@pytest.mark.parametrize("more", [LINEAR, ["sparsify.warm_up_epochs=2"]])
def test_what_changes_from_update_to_update_goes_on(
    more: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate, and the weight of the KL."""
    row = tiny("words", folder, "epochs=2", *more)
    whole = train(row, options(tmp_path / "whole", folder))
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), 4, monkeypatch)
    assert numbers(train(row, options(tmp_path / "cut", folder, resume=True))) == numbers(whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.long
def test_kill_9_and_resume(folder: Path, tmp_path: Path) -> None:
    """A process that is killed without warning leaves a checkpoint that another goes on from, to the same numbers."""
    row = tiny("words", folder, "epochs=6")
    source = tmp_path / "row.toml"
    source.write_text(recipe.dump(row))
    whole = train(recipe.load(source), options(tmp_path / "whole", folder))
    out = tmp_path / "cut"
    command = [
        sys.executable,
        "-m",
        "gatewise",
        "train",
        str(source),
        "--data-dir",
        str(folder),
        "--out",
        str(out),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--checkpoint-every", "0", "--device", "cpu"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "metrics.jsonl").exists() and lines_so_far(out):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (out / "checkpoint.pt").exists()
    assert not (out / "result.json").exists()
    resumed = train(recipe.load(source), options(out, folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert lines(out) == lines(tmp_path / "whole")


def test_a_changed_recipe_does_not_resume(folder: Path, tmp_path: Path) -> None:
    """Neither a run in progress nor a finished one; the message says what differs."""
    train(tiny("words", folder), options(tmp_path, folder))
    changed = tiny("words", folder, "train.lr=0.5")
    for finished in (True, False):
        if not finished:
            (tmp_path / "result.json").unlink()
        with pytest.raises(RunError, match=r"another recipe: train.lr was 0.002, is 0.5"):
            train(changed, options(tmp_path, folder, resume=True))


def test_a_key_that_came_later_counts_as_its_default() -> None:
    """A run of an older version knows fewer keys, and resumes unless one of them is set now."""
    row = recipe.load("ptb-word-large-prune-wn")
    older = {key: value for key, value in row.steering().items() if key != "train.warm_up"}
    refuse_other_recipe(older, row, Path("checkpoint.pt"))
    warm = recipe.load("ptb-word-large-prune-wn", ["train.warm_up=9"])
    with pytest.raises(RunError, match=r"train\.warm_up was 0, is 9"):
        refuse_other_recipe(older, warm, Path("checkpoint.pt"))


def test_what_is_told_along_the_way_may_change() -> None:
    """How often a run counts and tests does not change its numbers."""
    before = recipe.load("imdb-bayes-wgn", ["train.count_every=10", "train.test_every=0"])
    refuse_other_recipe(before.steering(), recipe.load("imdb-bayes-wgn"), Path("checkpoint.pt"))


def test_other_data_does_not_resume(folder: Path, tmp_path: Path) -> None:
    row = tiny("words", folder)
    train(row, options(tmp_path, folder))
    (tmp_path / "result.json").unlink()
    text = folder / "own.txt"
    before = text.read_text()
    try:
        text.write_text(before + "another line\n" * 9)
        with pytest.raises(RunError, match="made from other data"):
            train(row, options(tmp_path, folder, resume=True))
    finally:
        text.write_text(before)


@pytest.mark.parametrize("task", ["words", "csv", "npz"])
@pytest.mark.parametrize("finished", [True, False])
def test_other_data_of_the_same_size_do_not_resume(
    task: str, finished: bool, folder: Path, tmp_path: Path
) -> None:
    """The digest of the content tells them apart."""
    name = {"words": "own.txt", "csv": "own.csv", "npz": "classes.npz"}[task]
    own, out = tmp_path / name, tmp_path / "run"
    own.write_bytes((folder / name).read_bytes())
    row = tiny(task, folder, f"data.path={own}")
    train(row, options(out, folder))
    if not finished:
        (out / "result.json").unlink()
    if task == "npz":
        arrays = dict(np.load(own))
        np.savez(own, x=arrays["x"][:, ::-1], y=arrays["y"])
    else:
        own.write_text(own.read_text().replace("cat", "CAT").replace("dog", "cat").replace("CAT", "dog"))
    with pytest.raises(
        RunError, match=r"made from other data: .*, of the same sizes but another content\. Resume"
    ):
        train(row, options(out, folder, resume=True))


def test_a_finished_run_outlives_its_data(folder: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "own.txt", tmp_path / "run"
    own.write_bytes((folder / "own.txt").read_bytes())
    row = tiny("words", folder, f"data.path={own}")
    result = train(row, options(out, folder))
    own.unlink()
    with pytest.warns(UserWarning, match=r"not compared with the data of today: .*own\.txt: cannot be read"):
        assert train(row, options(out, folder, resume=True)) == plain(result)


def test_nothing_is_downloaded_to_look_at_an_old_result(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tiny("word-ptb", folder)
    result = train(row, options(tmp_path / "run", folder))
    monkeypatch.delenv("GATEWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "fetched", pytest.fail)
    chosen = Options(tmp_path / "run", None, "cpu", resume=True, quiet=True)
    assert train(row, chosen) == plain(result)


def test_a_lost_model_comes_again_from_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    """As the error advises; where the checkpoint is gone as well, it advises something else."""
    row = tiny("words", folder)
    first = train(row, options(tmp_path, folder))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert numbers(train(row, options(tmp_path, folder, resume=True))) == numbers(first)
    gw.load(tmp_path)
    weights.unlink()
    with pytest.raises(RunError, match=r"model\.safetensors: is not there: .*Go on by --resume"):
        evaluate_saved(tmp_path, data_dir=folder)
    assert numbers(train(row, options(tmp_path, folder, resume=True))) == numbers(first)
    again, _ = evaluate_saved(tmp_path, data_dir=folder)
    assert again["test_ppl"] == pytest.approx(first["quality"]["test_ppl"], rel=1e-5)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match=r"Nor is there a checkpoint\.pt: train it again, --overwrite"):
        evaluate_saved(tmp_path, data_dir=folder)


def test_a_run_that_patience_ended_comes_again_from_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    """It is written at the end, however long it is until the next one is due."""
    row = tiny("words", folder, "epochs=9", "train.keep=best", "train.patience=1", *METHODS["none"], *STILL)
    first = train(row, options(tmp_path, folder, checkpoint_every=1e9))
    (tmp_path / "model.safetensors").unlink()
    assert numbers(train(row, options(tmp_path, folder, resume=True))) == numbers(first)
    assert len(lines(tmp_path)) == 2


@pytest.mark.parametrize(
    ("content", "said"), [("{", "is not JSON"), ("[]", "holds list"), ("{}", "names no recipe")]
)
def test_a_damaged_result_is_named(content: str, said: str, folder: Path, tmp_path: Path) -> None:
    """And with it out of the way, the run goes on."""
    row = tiny("words", folder)
    first = train(row, options(tmp_path, folder))
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunError, match=rf"result\.json: {said}.*[Rr]emove it"):
        train(row, options(tmp_path, folder, resume=True))
    (tmp_path / "result.json").unlink()
    assert numbers(train(row, options(tmp_path, folder, resume=True))) == numbers(first)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other"])
def test_a_damaged_checkpoint_is_refused(damage: str, folder: Path, tmp_path: Path) -> None:
    """A checkpoint is used whole or not at all."""
    row = tiny("words", folder)
    train(row, options(tmp_path, folder))
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    else:
        content = bytearray(b"something else")
    path.write_bytes(content)
    with pytest.raises(RunError, match="is damaged" if damage != "other" else "is not a checkpoint"):
        train(row, options(tmp_path, folder, resume=True))


WRONG = {
    "no dictionary": lambda content: [1],
    "nothing": lambda content: {},
    "a part is missing": lambda content: {key: value for key, value in content.items() if key != "rng"},
    "no tensors": lambda content: content | {"model": {"fc.weight": 7}},
    "another network": lambda content: content | {"model": {"fc.weight": torch.zeros(2)}},
    "a position too many": lambda content: content | {"position": content["position"] | {"new": 2}},
    "random numbers of nobody": lambda content: content | {"rng": torch.zeros(3)},
    "no state": lambda content: content | {"state": []},
    "sums of another shape": lambda content: content | {"step": content["step"] | {"sums": torch.zeros(7)}},
    "an optimiser without groups": lambda content: content | {"optimizer": {"state": {}, "param_groups": []}},
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_checkpoint_of_another_content_is_refused(wrong: Any, folder: Path, tmp_path: Path) -> None:
    """Its sum is right, so a program wrote it: one sentence, not whatever torch and Python raise."""
    row = tiny("words", folder)
    train(row, options(tmp_path, folder))
    (tmp_path / "result.json").unlink()
    path = tmp_path / "checkpoint.pt"
    payload = io.BytesIO()
    torch.save(wrong(load_checkpoint(path)), payload)
    write_summed(path, payload.getvalue())
    with pytest.raises(RunError, match=r"checkpoint\.pt: does not hold what this run would go on with"):
        train(row, options(tmp_path, folder, resume=True))


@pytest.mark.parametrize("payload", [b"", b"junk", b"PK\x03\x04", b"\x80\x02}q\x00."])
def test_a_checkpoint_that_is_none_is_refused(payload: bytes, tmp_path: Path) -> None:
    write_summed(tmp_path / "checkpoint.pt", payload)
    with pytest.raises(RunError, match=r"checkpoint\.pt: does not hold what this run would go on with"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def write_summed(path: Path, payload: bytes) -> None:
    path.write_bytes(MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


@pytest.mark.parametrize("change", [
    {"recipe": 7}, {"recipe": {"data.task": {}}}, {"data": "x"}, {"data": {"digest": 3}}, {"counts": []},
    {"counts": {"weights": "x"}}, {"quality": {"test_ppl": "low"}}, {"seconds": "x"}, {"seed": "x"},
    {"hardware": 3}, {"model_bytes": -1}, {"expect": {"compression": "much"}}, {"title": 5},
])  # fmt: skip
def test_a_result_of_other_types_is_named(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """By those who resume and by those who look: the file, the place, what was expected."""
    row = tiny("words", folder)
    train(row, options(tmp_path, folder))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for look in (lambda: train(row, options(tmp_path, folder, resume=True)), lambda: open_run(tmp_path)):
        with pytest.raises(RunError, match=r"(result\.json: is not what a run writes \(it\.|another recipe)"):
            look()


@pytest.mark.parametrize(
    "change", [{"valid_ppl": "low"}, {"neurons": [3]}, {"gates": {"rnn": "x"}}, {"epoch": -1}]
)
def test_metrics_of_other_types_are_named(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """A line that was cut short is run again; one that says something else is nobody's."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"epoch": 1, "valid_ppl": 3.5} | change) + "\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl: is not what a run writes: epoch -?1\."):
        list(Metrics(path).lines())


def test_a_full_disk_leaves_the_last_good_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stops and says what to do; with room again it goes on to the same numbers."""
    row = tiny("words", folder, "epochs=2")
    whole = train(row, options(tmp_path / "whole", folder))
    real, writes = os.fsync, iter(range(9))

    def fsync(handle: int) -> None:
        if next(writes, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    out = tmp_path / "full"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(RunError, match=r"could not be written \(No space left.*still there.*--resume"):
            train(row, options(out, folder, checkpoint_every=0))
    assert not list(out.glob(".*"))
    load_checkpoint(out / "checkpoint.pt")
    assert numbers(train(row, options(out, folder, resume=True))) == numbers(whole)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    """It is read with weights_only: an object that would run something is refused."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"x": Path("a")})
    with pytest.raises(RunError, match=r"would go on with \(UnpicklingError: Weights only"):
        load_checkpoint(path)
    with pytest.raises(RunError, match="nothing to resume"):
        load_checkpoint(tmp_path / "none.pt")


def test_lines_of_epochs_that_run_again_are_dropped(tmp_path: Path) -> None:
    """Also a line that was cut short by a crash, and one that tells of no epoch."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for epoch in (1, 2, 3):
        metrics.append({"epoch": epoch, "x": float("inf")})
    with metrics.path.open("a") as sink:
        sink.write('{"note": "mine"}\n{"epoch": 4, "tr')
    metrics.rewind(2)
    assert list(metrics.lines()) == [{"epoch": 1, "x": None}, {"epoch": 2, "x": None}]
