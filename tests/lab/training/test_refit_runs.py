"""Runs in two parts: a refit begins with the result of [train], holds its zeros, and can be killed as well."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpora import tiny
from tiny_runs import METHODS, SPARSE, STILL, WIDE, cut_off, lines, lines_so_far, numbers, options

import gatewise as gw
from gatewise.lab import recipe
from gatewise.lab.files import RunError
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.schema import Recipe, RecipeError, Refit
from gatewise.lab.training import trainer
from gatewise.lab.training.average import Average
from gatewise.lab.training.parts import Position
from gatewise.lab.training.progress import result_line
from gatewise.lab.training.trainer import train

REFIT = ["refit.epochs=2", "refit.lr=0.01"]


def sparse(task: str, method: str, folder: Path, *more: str) -> Recipe:
    return tiny(task, folder, *SPARSE[method], *WIDE, *REFIT, *more)


def without_refit(row: Recipe) -> Recipe:
    return row.model_copy(update={"refit": Refit()})


@pytest.mark.parametrize("method", SPARSE)
def test_a_finished_run_goes_on_with_a_refit(method: str, folder: Path, tmp_path: Path) -> None:
    """As if it had been asked for from the start; so several refits can begin with copies of one run."""
    row = sparse("words", method, folder)
    direct = train(row, options(tmp_path / "direct", folder))
    first = train(without_refit(row), options(tmp_path / "run", folder))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert numbers(train(row, options(tmp_path / "run", folder, resume=True))) == numbers(direct)
    other = row.model_copy(update={"refit": row.refit.model_copy(update={"lr": 0.002})})
    result = train(other, options(tmp_path / "other", folder, resume=True))
    assert result["before_refit"]["quality"] == {
        key: value for key, value in first["quality"].items() if not key.startswith("compact")
    }
    with pytest.raises(RunError, match=r"refit.lr was 0.002, is 0.01"):
        train(row, options(tmp_path / "other", folder, resume=True))


def test_a_refit_needs_a_checkpoint_to_go_on_from(folder: Path, tmp_path: Path) -> None:
    """Without one nothing begins anew over a result that is there."""
    row = sparse("words", "lasso", folder)
    train(without_refit(row), options(tmp_path, folder))
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match=r"refit.epochs was 0, is 2"):
        train(row, options(tmp_path, folder, resume=True))


@pytest.mark.parametrize("method", SPARSE)
@pytest.mark.parametrize("task", ["words", "char-ptb", "csv", "npz"])
def test_a_refit_follows_in_the_same_run(task: str, method: str, folder: Path, tmp_path: Path) -> None:
    """Epochs go on counting; nothing that was removed comes back; both qualities are told."""
    result = train(sparse(task, method, folder), options(tmp_path, folder))
    assert [(line["epoch"], line["part"]) for line in lines(tmp_path)] == [
        (1, "train"),
        (2, "refit"),
        (3, "refit"),
    ]
    assert [line["penalty"] == 0 for line in lines(tmp_path)] == [False, True, True]
    before = result["before_refit"]
    assert before["epoch"] == 1
    name = next(iter(result["quality"]))
    assert before["quality"][name] == pytest.approx(lines(tmp_path)[0][name], rel=1e-6)
    kept = [line for line in lines(tmp_path) if line["epoch"] == result["epoch"]]
    assert result["quality"][name] == pytest.approx(kept[0][name], rel=1e-5)
    assert 0 < result["counts"]["nonzero"] <= before["counts"]["nonzero"] < before["counts"]["weights"]
    for kind in ("neurons", "gates"):
        assert all(n <= before["counts"][kind][layer] for layer, n in result["counts"][kind].items())
    test = name.replace("valid", "test")
    again, _ = evaluate_saved(tmp_path, data_dir=folder)
    assert again[test] == pytest.approx(result["quality"][test], rel=1e-5)
    assert "before the refit" in result_line(result)


@pytest.mark.parametrize("method", SPARSE)
def test_the_network_does_not_change_between_the_parts(method: str, folder: Path, tmp_path: Path) -> None:
    """A refit whose rate is zero in effect ends with the quality that it began with: keep=last, so it was trained."""
    row = sparse("words", method, folder, "refit.optimizer=sgd", "refit.lr=1e-30", "refit.keep=last")
    result = train(row, options(tmp_path, folder))
    assert result["epoch"] == 3
    for split in ("valid_ppl", "test_ppl"):
        assert result["quality"][split] == pytest.approx(result["before_refit"]["quality"][split], rel=1e-5)


def test_the_best_may_be_what_the_refit_began_with(folder: Path, tmp_path: Path) -> None:
    """A rate that ruins the network: the result is that of [train], and of the refit's epochs none is."""
    row = sparse("words", "lasso", folder, "refit.lr=30")
    result = train(row, options(tmp_path, folder))
    assert result["epoch"] == 1
    assert result["quality"]["valid_ppl"] == pytest.approx(
        result["before_refit"]["quality"]["valid_ppl"], rel=1e-6
    )
    last = train(
        sparse("words", "lasso", folder, "refit.lr=30", "refit.keep=last"), options(tmp_path / "b", folder)
    )
    assert last["quality"]["valid_ppl"] > result["quality"]["valid_ppl"]


def test_a_refit_begins_with_the_result_of_the_first_part(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With train.keep=best that is the best epoch, here the first of three, not the last."""
    original, told = Position.note, iter([5.0, 9.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr(Position, "note", lambda self, value, part: original(self, next(told), part))
    row = sparse("words", "lasso", folder, "train.epochs=3", "train.keep=best")
    result = train(row, options(tmp_path, folder))
    assert result["before_refit"]["epoch"] == 1
    assert result["before_refit"]["quality"]["valid_ppl"] == pytest.approx(lines(tmp_path)[0]["valid_ppl"])


@pytest.mark.parametrize("method", SPARSE)
@pytest.mark.parametrize(
    "after", [0, 12, 13, *(pytest.param(k, marks=pytest.mark.long) for k in (9, 14, 25)), 34]
)
def test_cut_off_in_either_part_the_numbers_are_the_same(
    method: str, after: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right behind any checkpoint, with dropout and moments of an optimiser to go on with."""
    row = sparse("words", method, folder, "model.dropout=0.2", "refit.dropout=0.1", "train.keep=best")
    whole = train(row, options(tmp_path / "whole", folder))
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), after, monkeypatch)
    torch.manual_seed(99)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert resumed["before_refit"] == whole["before_refit"]
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.parametrize("lines_before", [pytest.param(1, marks=pytest.mark.long), 2])
def test_kill_9_in_either_part(lines_before: int, folder: Path, tmp_path: Path) -> None:
    row = sparse("words", "bayes", folder, "refit.epochs=4")
    source, out = tmp_path / "row.toml", tmp_path / "cut"
    source.write_text(recipe.dump(row))
    whole = train(recipe.load(source), options(tmp_path / "whole", folder))
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
    process = subprocess.Popen(
        [*command, "--checkpoint-every", "0", "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "metrics.jsonl").exists() and len(lines_so_far(out)) >= lines_before:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "result.json").exists()
    resumed = train(recipe.load(source), options(out, folder, resume=True))
    assert numbers(resumed) == numbers(whole)
    assert lines(out) == lines(tmp_path / "whole")


def test_patience_of_each_part_is_its_own(folder: Path, tmp_path: Path) -> None:
    """It ends [train] early, and the refit after it: epochs go on counting from there."""
    more = ["train.epochs=9", "train.keep=best", "train.patience=1", "refit.epochs=9", "refit.patience=2"]
    row = sparse("words", "lasso", folder, *more, *STILL, "refit.lr=1e-30")
    train(row, options(tmp_path, folder))
    assert [line["part"] for line in lines(tmp_path)] == ["train", "train", "refit", "refit"]


def test_dropout_of_the_refit_is_its_own(folder: Path, tmp_path: Path) -> None:
    """In every place where the network drops: outside the stack and between its layers."""
    row = sparse("words", "bayes", folder, "model.dropout=0.5", "refit.dropout=0.25")
    run = trainer.Run(row, options(tmp_path, folder))
    assert (run.model.drop.p, run.model.rnn.dropout) == (0.5, 0.5)
    run.to_the_end()
    assert (run.model.drop.p, run.model.rnn.dropout) == (0.25, 0.25)
    assert gw.load(tmp_path).drop.p == 0.25


def test_a_network_in_which_nothing_is_zero_has_no_refit(folder: Path, tmp_path: Path) -> None:
    """It is told, and the result is that of the first part."""
    row = tiny("words", folder, *METHODS["lasso"], "sparsify.threshold=0", *REFIT)
    with pytest.warns(UserWarning, match=r"no refit, the result is that of \[train\]\. The model is dense"):
        result = train(row, options(tmp_path, folder))
    assert "is dense" in result["before_refit"]["refused"]
    assert result["epoch"] == len(lines(tmp_path)) == 1


def test_who_is_not_refitted_is_taken_from_its_best_epoch_once(folder: Path, tmp_path: Path) -> None:
    """A variational network is settled before a cut: what was kept of its best epoch does not fit it any more."""
    never = ["sparsify.method=variational", "sparsify.log_sigma=-12", *WIDE, *STILL]
    more = ["train.epochs=2", "train.keep=best", "train.shrink_every=1"]
    with pytest.warns(UserWarning, match=r"no refit, the result is that of \[train\]"):
        result = train(tiny("words", folder, *never, *more, *REFIT), options(tmp_path, folder))
    assert result["epoch"] == result["before_refit"]["epoch"]
    assert result["quality"]["valid_ppl"] == result["before_refit"]["quality"]["valid_ppl"]


def test_schedules_count_from_the_first_epoch_of_the_refit(folder: Path, tmp_path: Path) -> None:
    """lr d^max(e - after, 0), as in [train], and a straight fall to zero by default."""
    power = ["refit.epochs=3", "refit.lr=0.5", "refit.schedule=power", "refit.decay=0.5", "refit.after=1"]
    train(sparse("words", "lasso", folder, *power), options(tmp_path / "power", folder))
    assert [line["lr"] for line in lines(tmp_path / "power")][1:] == [0.5, 0.25, 0.125]
    train(sparse("words", "lasso", folder), options(tmp_path / "linear", folder))
    _, first, second = (line["lr"] for line in lines(tmp_path / "linear"))
    n = lines(tmp_path / "linear")[0]["updates"]
    assert first == pytest.approx(0.01 * (n + 1) / (2 * n))
    assert second == pytest.approx(0.01 / (2 * n))


@pytest.mark.parametrize(("changes", "said"), [
    (["sparsify.method=none", "refit.epochs=2"], "a dense network has no zeros to hold"),
    (["refit.lr=0.5"], "--set refit.lr=0.5: does nothing without refit.epochs"),
    (["refit.epochs=2", "refit.after=2"], r"refit\.after = 2 must be below refit\.epochs = 2"),
    (["refit.epochs=2", "refit.schedule=stairs"], r"refit\.schedule 'stairs' needs refit\.after"),
    (["refit.epochs=2", "refit.hold=gates"], "refit.hold = 'gates' should be 'weights' or 'structure'"),
    (["refit.epochs=-1"], "refit.epochs = -1 should be greater than or equal to 0"),
    (["refit.epochs=2", "refit.dropout=1"], "refit.dropout = 1 should be less than 1"),
])  # fmt: skip
def test_a_refit_that_cannot_be(changes: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load("ptb-word-small-prune-wgn", changes)


def test_keys_of_a_refit_are_those_of_training_unless_said_otherwise() -> None:
    row = recipe.load("ptb-word-small-prune-wgn", ["refit.epochs=16", "refit.lr=0.5"])
    second = row.refit_train()
    assert (second.epochs, second.lr, second.schedule, second.optimizer) == (16, 0.5, "linear", "sgd")
    assert (second.clip, second.loss, second.keep) == (5, "window-sum", "best")
    assert recipe.load("ptb-word-small-prune-wgn", ["epochs=3"]).train.epochs == 3
    assert recipe.parse(row.model_dump()) == row


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
@pytest.mark.parametrize("method", SPARSE)
def test_on_a_gpu_the_second_part_is_captured_anew(method: str, folder: Path, tmp_path: Path) -> None:
    """Zeros stay zeros through replays, and with and without a graph the run ends alike."""
    ends: list[Any] = []
    for graph in (True, False):
        row = sparse("words", method, folder, *(["sparsify.noise=batch"] if method == "bayes" else []))
        chosen = trainer.Options(tmp_path / str(graph), folder, "cuda", quiet=True, graph=graph)
        result = train(row, chosen)
        assert result["graph"] == graph
        assert 0 < result["counts"]["nonzero"] <= result["before_refit"]["counts"]["nonzero"]
        ends.append(result["quality"]["test_ppl"])
    if method == "lasso":  # noise is drawn in another order
        assert ends[0] == pytest.approx(ends[1], rel=1e-2)
    gw.load(tmp_path / "True")


def test_an_average_is_the_mean_over_updates() -> None:
    model = torch.nn.Linear(2, 3)
    average, seen = Average(model), []
    for _ in range(4):
        with torch.no_grad():
            model.weight.copy_(torch.randn(3, 2))
        average.add()
        seen.append(model.weight.detach().clone())
    with average.judged():
        torch.testing.assert_close(model.weight.detach(), torch.stack(seen).mean(0))
    assert torch.equal(model.weight, seen[-1])


def test_a_run_ends_with_averaged_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the last epochs, zeros and all; cut off between them, it goes on to the same numbers."""
    row = sparse("words", "lasso", folder, "refit.epochs=3", "refit.average=2", "refit.keep=last")
    run = trainer.Run(row, options(tmp_path / "whole", folder))
    (tmp_path / "whole").mkdir()
    whole = run.to_the_end()
    assert run.average is not None
    assert run.average.n == 2 * run.n_batches
    for own, mean in zip(run.average.weights, run.average.means):
        assert torch.equal(own, mean)
    assert whole["counts"]["nonzero"] <= whole["before_refit"]["counts"]["nonzero"]
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), 3 * run.n_batches, monkeypatch)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)


def test_an_average_has_the_zeros_of_the_last_update() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    average = Average(model)
    for weights in ([[4.0, 2.0]], [[0.0, 0.0]], [[2.0, 0.0]]):
        with torch.no_grad():
            model.weight.copy_(torch.tensor(weights))
        average.add()
    average.take()
    assert model.weight.tolist() == [[2.0, 0.0]]


def test_a_pruned_network_is_averaged_in_the_first_part(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is met, what was cut while it trained stays cut, and a run that was killed ends with the same."""
    more = ["train.average=2", "train.epochs=4", "train.shrink_every=1", "budget.gates=24"]
    row = without_refit(sparse("words", "lasso", folder, *more))
    run = trainer.Run(row, options(tmp_path / "whole", folder))
    (tmp_path / "whole").mkdir()
    whole = run.to_the_end()
    assert run.average is not None
    assert run.average.n == 2 * run.n_batches
    assert 0.95 * 24 <= sum(whole["counts"]["gates"].values()) <= 24
    assert whole["quality"]["compact_test_ppl"] == pytest.approx(whole["quality"]["test_ppl"], rel=1e-4)
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), 3 * run.n_batches + 1, monkeypatch)
    resumed = train(row, options(tmp_path / "cut", folder, resume=True))
    assert numbers(resumed) == numbers(whole)


def test_averages_that_cannot_be_are_refused(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.average = 1 does nothing with .* 'variational'"):
        sparse("words", "bayes", folder, "train.average=1")
    with pytest.raises(RecipeError, match=r"refit\.average = 9, but there are 2 epochs"):
        sparse("words", "lasso", folder, "refit.average=9")
