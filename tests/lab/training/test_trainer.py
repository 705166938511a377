"""A run from recipe to result: every task and method, what it writes down, where it stops."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_corpora import changes, tiny
from tiny_runs import LINEAR, METHODS, STILL, lines, lines_so_far, numbers, options

import gatewise as gw
from gatewise.lab import cli
from gatewise.lab.data.sources import DataError
from gatewise.lab.files import RunError, plain
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.models import SeriesModel
from gatewise.lab.training import trainer
from gatewise.lab.training.checkpoints import load_checkpoint
from gatewise.lab.training.evaluation import Evaluator
from gatewise.lab.training.parts import Position
from gatewise.lab.training.progress import nothing_left, result_line
from gatewise.lab.training.trainer import train

TASKS = ("word-ptb", "char-ptb", "words", "imdb", "agnews", "g2p", "csv", "npz", "series")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs_with_every_method(task: str, method: str, folder: Path, tmp_path: Path) -> None:
    """One epoch; the compact model on disk has the quality and the structure that result.json tells."""
    row = tiny(task, folder, *METHODS[method])
    result = train(row, options(tmp_path, folder))
    assert json.loads((tmp_path / "result.json").read_text()) == plain(result)
    (line,) = lines(tmp_path)
    name = next(key for key in line if key.startswith("valid_"))
    assert result["quality"][name] == pytest.approx(line[name], rel=1e-6)
    assert line["neurons"].keys() == result["counts"]["neurons"].keys()
    assert method != "none" or line["compression"] == 1
    test = name.replace("valid", "test")
    assert result["quality"]["compact_" + test] == pytest.approx(result["quality"][test], rel=1e-5)
    again, report = evaluate_saved(tmp_path, data_dir=folder)
    assert again[test] == pytest.approx(result["quality"][test], rel=1e-5)
    assert report.fixed_point.neurons == result["counts"]["fixed_point"]["neurons"]
    assert (tmp_path / "gates.json").exists() == (method != "none")
    if method != "none":
        gates = json.loads((tmp_path / "gates.json").read_text())
        assert {name: len(layer["neurons"]) for name, layer in gates.items()} == result["counts"]["neurons"]
        live = {name: sum(map(sum, layer["live"])) for name, layer in gates.items()}
        assert live == result["counts"]["gates"]


def test_int8_weights_cost_little_and_change_no_count(folder: Path, tmp_path: Path) -> None:
    """256 steps a row: the perplexity moves, and by less than a percent."""
    result = train(tiny("word-ptb", folder, *METHODS["lasso"]), options(tmp_path, folder))
    rounded, report = evaluate_saved(tmp_path, data_dir=folder, int8=True)
    assert rounded["test_ppl"] != result["quality"]["compact_test_ppl"]
    assert rounded["test_ppl"] == pytest.approx(result["quality"]["compact_test_ppl"], rel=1e-2)
    assert report.neurons == result["counts"]["neurons"]


def test_a_compact_model_of_another_quality_is_told(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever goes wrong between training and the compact model must not pass in silence."""

    def compress(model: torch.nn.Module) -> torch.nn.Module:
        small = gw.compress(model)
        with torch.no_grad():
            small.fc.bias.add_(torch.arange(len(small.fc.bias)).to(small.fc.bias))
        return small

    monkeypatch.setattr("gatewise.lab.training.ending.compress", compress)
    with pytest.warns(UserWarning, match=r"before compress\(\) and .* after"):
        train(tiny("word-ptb", folder), options(tmp_path, folder))
    assert (tmp_path / "result.json").exists()


def test_what_is_special_about_the_data_is_told(folder: Path, tmp_path: Path) -> None:
    """A file that is not the published one, and how many words have a vector, stand in the result."""
    result = train(tiny("imdb", folder), options(tmp_path / "a", folder))
    assert "5 of" in result["data"]["vectors"]
    assert "word2vec_googlenews" in result["data"]["vectors"]
    result = train(tiny("word-ptb", folder), options(tmp_path / "b", folder))
    assert "ptb.train.txt is not the published file" in result["data"]["note"]
    assert result["hardware"]["device"] == "cpu"
    assert set(result["versions"]) == {"gatewise", "torch", "python"}
    assert result["command"].startswith("gatewise")


@pytest.mark.parametrize("method", ["lasso", "bayes"])
@pytest.mark.parametrize("task", ["words", "csv"])
def test_a_gru_takes_the_same_way(task: str, method: str, folder: Path, tmp_path: Path) -> None:
    """One state instead of two, three gates instead of four."""
    result = train(tiny(task, folder, *METHODS[method], "model.cell=GRU"), options(tmp_path, folder))
    kinds = [layer["gates"] for layer in result["counts"]["layers"].values() if layer["gates"] is not None]
    assert all(set(gates) == {"r", "u", "n"} for gates in kinds)


def test_the_seed_decides_everything(folder: Path, tmp_path: Path) -> None:
    row = tiny("words", folder, "epochs=2")
    a, b = (train(row, options(tmp_path / name, folder)) for name in "ab")
    assert numbers(a) == numbers(b)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    other = train(tiny("words", folder, "epochs=2", "seed=1"), options(tmp_path / "c", folder))
    assert other["quality"] != a["quality"]


@pytest.mark.parametrize(
    ("task", "changes", "said"),
    [
        ("words", ["data.batch=300"], r"the train text is too short: .*data\.steps and data\.remainder"),
        ("words", ["data.remainder=drop", "data.steps=28"], "the valid text is too short: .*window of 28"),
        ("words", ["data.test_batch=99"], r"the test text is too short: .*\(data\.test_batch\)"),
        ("char-ptb", ["data.chunk=300"], r"the valid text is too short: .*in a recipe data\.chunk"),
    ],
)
def test_a_text_that_is_too_short_is_named(
    task: str, changes: list[str], said: str, folder: Path, tmp_path: Path
) -> None:
    """Which of the three, and the keys that help."""
    with pytest.raises(DataError, match=said):
        train(tiny(task, folder, *changes), options(tmp_path, folder))


def test_a_loss_that_is_not_finite_stops_the_run(folder: Path, tmp_path: Path) -> None:
    """It says where, and what was saved before is whole and finite."""
    row = tiny("words", folder, "epochs=3", "train.lr=1e30", "train.optimizer=sgd")
    with pytest.raises(
        RunError, match=r"NaN or infinite in epoch 1, update \d+ of \d+.*last good checkpoint"
    ):
        train(row, options(tmp_path, folder, checkpoint_every=0))
    kept = load_checkpoint(tmp_path / "checkpoint.pt")
    assert all(value.isfinite().all() for value in kept["model"].values())
    assert kept["step"]["sums"].isfinite().all()
    assert not (tmp_path / "result.json").exists()


def test_on_a_cpu_a_run_stops_at_the_update_of_the_bad_loss(folder: Path, tmp_path: Path) -> None:
    """Not at the end of an epoch that may take an hour."""
    row = tiny("words", folder, "train.lr=1e30", "train.optimizer=sgd")
    run = trainer.Run(row, options(tmp_path, folder))
    with pytest.raises(RunError, match="NaN or infinite in epoch 1"):
        run.to_the_end()
    assert run.position.step == int(run.step.bad) + 1 < run.n_batches


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_update_that_breaks_weights_is_not_saved(epochs: int, folder: Path, tmp_path: Path) -> None:
    """Its own loss was finite, being computed before it; nor is the network of the last update a result."""
    more = [
        f"epochs={epochs}",
        "train.lr=1e39",
        "train.optimizer=sgd",
        "data.batch=17",
    ]  # one update an epoch
    with pytest.raises(
        RunError, match=r"infinite after epoch 1, update 1 of 1\. The last good.* is none yet"
    ):
        train(tiny("npz", folder, *more), options(tmp_path, folder, checkpoint_every=0))
    assert not (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "result.json").exists()


def test_the_best_epoch_is_kept_and_patience_ends_a_run(folder: Path, tmp_path: Path) -> None:
    """With a rate of nearly zero nothing gets better: two evaluations after the best one the run ends."""
    more = ["epochs=9", "train.keep=best", "train.patience=2", *METHODS["none"], *STILL]
    result = train(tiny("words", folder, *more), options(tmp_path, folder))
    assert result["epoch"] == 1
    assert len(lines(tmp_path)) == 3
    assert result["quality"]["valid_ppl"] == pytest.approx(lines(tmp_path)[0]["valid_ppl"])


def test_patience_is_for_runs_that_keep_the_best(folder: Path, tmp_path: Path) -> None:
    more = ["epochs=3", "train.keep=last", "train.patience=1", *METHODS["none"], *STILL]
    train(tiny("words", folder, *more), options(tmp_path, folder))
    assert len(lines(tmp_path)) == 3


@pytest.mark.parametrize(
    ("task", "told"), [("words", [9.0, 5.0, 7.0, 5.0]), ("csv", [50.0, 60.0, 55.0, 60.0])]
)
def test_the_result_is_that_of_the_best_epoch(
    task: str, told: list[float], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Low perplexity or high accuracy, here of the second epoch; an equal one that comes later is no better."""
    original, values = Position.note, iter(told)
    monkeypatch.setattr(Position, "note", lambda self, value, part: original(self, next(values), part))
    row = tiny(task, folder, "epochs=4", "train.keep=best", *METHODS["none"])
    result = train(row, options(tmp_path, folder))
    assert result["epoch"] == 2
    name = next(iter(result["quality"]))
    assert result["quality"][name] == pytest.approx(lines(tmp_path)[1][name], rel=1e-6)


def epochs_with(key: str, out: Path) -> list[int]:
    return [line["epoch"] for line in lines(out) if key in line]


def test_a_line_holds_what_is_due(folder: Path, tmp_path: Path) -> None:
    """Every so many epochs and at the last one; counts at the first one too."""
    more = ["epochs=5", "train.evaluate_every=2", "train.count_every=3", "train.test_every=2"]
    train(tiny("words", folder, *more, *METHODS["none"]), options(tmp_path, folder))
    assert epochs_with("valid_ppl", tmp_path) == epochs_with("test_ppl", tmp_path) == [2, 4, 5]
    assert epochs_with("neurons", tmp_path) == [1, 3, 5]
    first, *rest = (line["updates"] for line in lines(tmp_path))
    assert rest == [first * epoch for epoch in (2, 3, 4, 5)]


def test_the_epoch_at_which_patience_ends_is_a_last_one(folder: Path, tmp_path: Path) -> None:
    more = ["epochs=9", "train.keep=best", "train.patience=2", "train.count_every=9", "train.test_every=9"]
    train(tiny("words", folder, *more, *METHODS["none"], *STILL), options(tmp_path, folder))
    assert epochs_with("neurons", tmp_path) == [1, 3]
    assert epochs_with("test_ppl", tmp_path) == [3]


def test_a_line_tells_means_and_the_last_rate(folder: Path, tmp_path: Path) -> None:
    """Of weights that stay: the loss of a symbol, the penalty of an update, the rate that n updates left."""
    row = tiny("words", folder, *METHODS["lasso"], "sparsify.threshold=0", *LINEAR, *STILL)
    run = trainer.Run(row, options(tmp_path, folder))
    perplexity = Evaluator(run.model, run.objective, run.feed, run.device)()["ppl"]
    assert run.sparsifier is not None
    penalty = run.sparsifier.penalty().item()
    run.to_the_end()
    (line,) = lines(tmp_path)
    assert math.exp(line["train_loss"]) == pytest.approx(perplexity, rel=1e-5)
    assert line["penalty"] == pytest.approx(penalty, rel=1e-5)
    assert line["lr"] == pytest.approx(1e-30 / run.n_batches, rel=1e-6, abs=0)


def test_the_seconds_of_a_run_hold_those_of_its_epochs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that ticks whenever it is looked at."""
    ticks = itertools.count(0.0)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    row = tiny("words", folder, "epochs=2", *METHODS["none"])
    result = train(row, options(tmp_path, folder, checkpoint_every=1e9))
    assert result["seconds"] > sum(line["seconds"] for line in lines_so_far(tmp_path)) > 0


@pytest.mark.parametrize("nothing", [None, math.inf])
def test_the_last_line_of_a_run_without_weights(nothing: float | None) -> None:
    """result.json has null for what is infinite, and a run that was read back is shown like one just made."""
    counts = {"compression": None, "neurons": {"rnn.l0": 0}, "gates": {"rnn.l0": 0}}
    result = {"quality": {"test_ppl": nothing, "compact_test_ppl": 1.0}, "counts": counts, "seconds": 3.0}
    assert result_line(result) == "test_ppl infinite  infx  neurons 0  gates 0  in 3 s"


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """train, evaluate and data: one call, a clear sentence and an exit code where something is wrong."""
    family, small = changes("words", folder)
    sets = [part for change in small for part in ("--set", change)]
    out = str(tmp_path / "run")
    name = f"{family}-prune-wgn"
    arguments = ["train", name, *sets, "--data-dir", str(folder), "--out", out, "--device", "cpu"]
    assert cli.main(arguments) == 0
    assert "test_ppl" in capsys.readouterr().out
    assert cli.main([*arguments, "--resume", "--json"]) == 0
    quality = json.loads(capsys.readouterr().out)["quality"]
    assert cli.main(["evaluate", f"{out}/model", "--data-dir", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_ppl"] == pytest.approx(quality["test_ppl"], rel=1e-5)
    assert cli.main(["evaluate", f"{out}/model", "--data-dir", str(folder)]) == 0
    assert "compression" in capsys.readouterr().out
    assert cli.main(["train", "--list"]) == 0
    assert "imdb-bayes-wgn" in capsys.readouterr().out
    assert cli.main(["data", "word-ptb", "--data-dir", str(folder)]) == 0
    assert "not the published file" in capsys.readouterr().out
    for wrong, said in (
        (["train", name, "--set", "epoch=1"], "did you mean 'train.epochs'"),
        (["train", "nonsense"], "no recipe 'nonsense'"),
        (["train"], "name a recipe"),
        (["data", "ptb", "--data-dir", str(folder)], "no corpus 'ptb'"),
        (["data", "imdb", "--data-dir", str(tmp_path)], "1 of the corpora cannot be used"),
        (["train", name, "--device", "cuda", "--out", out + "2"], "no such CUDA device"),
        (["train", name, "--device", "gpu", "--out", out + "2"], "it must be cpu, cuda"),
    ):
        if "cuda" in wrong and torch.cuda.is_available():
            continue
        assert cli.main(wrong) != 0
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_saved_model_needs_a_task(folder: Path, tmp_path: Path) -> None:
    """Alone it does not say which data it was made for; with other data it does not fit."""
    result = train(tiny("words", folder), options(tmp_path / "run", folder))
    model = gw.load(tmp_path / "run")
    gw.save(model, tmp_path / "alone")
    with pytest.raises(ValueError, match="Name a recipe with --task"):
        evaluate_saved(tmp_path / "alone", data_dir=folder)
    family, small = changes("words", folder)
    named, _ = evaluate_saved(tmp_path / "alone", f"{family}-bayes-wgn", small, folder)
    assert named["test_ppl"] == pytest.approx(result["quality"]["test_ppl"], rel=1e-5)
    family, small = changes("char-ptb", folder)
    with pytest.raises(ValueError, match="does not fit the data"):
        evaluate_saved(tmp_path / "alone", f"{family}-bayes-wgn", small, folder)
    gw.save(SeriesModel(inputs=99, outputs=1), tmp_path / "wide")
    family, small = changes("npz", folder)
    with pytest.raises(ValueError, match=r"does not fit the data .*input_size is 99.*Name the recipe"):
        evaluate_saved(tmp_path / "wide", f"{family}-bayes-wgn", small, folder)


def test_a_run_that_removed_everything_says_why(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing passes so high a threshold. Of the two methods each has its way out."""
    family, small = changes("words", folder)
    given = [*small, "epochs=8", "sparsify.snr_threshold=1e9"]
    command = ["train", f"{family}-bayes-wgn", "--out", str(tmp_path), "--data-dir", str(folder)]
    assert cli.main([*command, *(part for change in given for part in ("--set", change))]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "rnn.l0, rnn.l1: no neuron is left" in said
    assert "--set sparsify.warm_up_epochs=2" in said
    lasso = {"sparsify.method": "group-lasso", "sparsify.group": 9.0}
    result = {"counts": {"neurons": {"rnn.l0": 3, "rnn.l1": 0}}, "recipe": lasso}
    assert nothing_left(result).startswith("rnn.l1: no neuron is left")
    assert "sparsify.group (here 9)" in nothing_left(result)
    assert nothing_left({"counts": {"neurons": {"rnn.l0": 1}}}) == ""


def test_a_run_leaves_a_model_card(folder: Path, tmp_path: Path) -> None:
    """Beside the model: the numbers of result.json, and that nobody stated the licence of own data."""
    result = train(tiny("words", folder), options(tmp_path / "run", folder))
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert f"| perplexity, test | {result['quality']['test_ppl']:.5g} |" in card
    assert result["data"]["sizes"] in card
    assert "seed 0" in card
    assert "add it before you pass the model on" in card
    assert "Not stated." not in card
