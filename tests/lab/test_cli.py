"""The command line: one sentence for an error, exit codes that mean something."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

import gatewise
from gatewise.lab import demo
from gatewise.lab.cli import app, main
from gatewise.lab.data.encoding import ENCODING, Encoding, content_of
from gatewise.lab.models import SeriesModel
from gatewise.lab.training import trainer

COMMANDS = typer.main.get_command(app).commands


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands in for the one library call of `gatewise demo`: records it, or raises what the test put there."""
    calls: list[tuple[Any, ...]] = []

    def called(*args: Any) -> None:
        if calls and isinstance(calls[0], BaseException):
            raise calls[0]
        calls.append(args)

    monkeypatch.setattr(demo, "show_demo", called)
    return calls


def test_help_lists_the_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "Try it" in text
    assert "demo" in text
    assert len(text.splitlines()) < 50  # one screen


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown, and it is a right use of the command."""
    assert main([name, "--help"]) == 0
    assert f"Example: gatewise {name} " in capsys.readouterr().out
    example = (COMMANDS[name].epilog or "").removeprefix(f"Example: gatewise {name} ")
    COMMANDS[name].make_context(name, example.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"gatewise {gatewise.__version__}"


def test_options_reach_the_library(library: list[tuple[Any, ...]], tmp_path: Path) -> None:
    assert main(["demo", "--method", "bayes", "--seed", "7", "--out", str(tmp_path)]) == 0
    assert library == [("bayes", tmp_path, 7, False)]


def test_options_reach_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed of `reproduce` other than 0 has a folder of its own, and goes on where it was killed."""
    calls = []

    def called(*given: Any) -> dict[str, Any]:
        calls.append(given)
        raise ValueError("enough")

    monkeypatch.setattr(trainer, "train", called)
    where = ["--data-dir", "corpora", "--device", "cpu"]
    seeds = ["--results", str(tmp_path), "--run", "imdb-original", "--seed", "2"]
    rest = [
        "--out",
        "o",
        "--set",
        "seed=3",
        "--overwrite",
        "--checkpoint-every",
        "7",
        "--no-graph",
    ]
    assert main(["reproduce", *seeds, *where]) == main(["train", "imdb-original", *rest, *where]) == 1
    (row, row_options), (recipe, options) = calls
    assert (row.name, row.train.seed, recipe.train.seed) == ("imdb-original", 2, 3)
    corpora = Path("corpora")
    out = tmp_path / "imdb-original" / "seeds" / "2"
    assert row_options == trainer.Options(out, corpora, "cpu", resume=True)
    assert options == trainer.Options(Path("o"), corpora, "cpu", False, True, 7, graph=False)


def test_missing_corpora_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "word-ptb", "--data-dir", str(tmp_path)]) == 1
    assert "1 of the corpora cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--method", "ridge"],
        ["demo", "--seed", "-1"],
        ["dmeo"],
        ["demo", "--no-such"],
        ["train", "imdb-original", "--resume", "--overwrite"],
    ],
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--out", ""],
        ["demo", "--out="],
        ["train", "imdb-original", "--out", ""],
        ["train", "imdb-original", "--data-dir", ""],
        ["compress", "run", "-o", ""],
        ["export", "run", "--c", ""],
        ["figures", "run", "-o", ""],
        ["measure", ""],
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    arguments: list[str], run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """It comes from a shell variable that is not set; files would land, or be looked for, anywhere."""
    monkeypatch.chdir(run.parent)
    before = sorted(run.parent.rglob("*"))
    assert main(arguments) == 2
    name = arguments[-1].rstrip("=") or arguments[-2]
    assert f"the value after {name} is empty" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("the rate is [too] high."), "Error: the rate is [too] high."),
        (FileNotFoundError(2, "No such file or directory", "data.txt"), "Error: data.txt: No such file"),
        (KeyError("rnn"), "Error: KeyError: 'rnn'. Run again with --debug for the traceback."),
        (ImportError("not built."), "Error: ImportError: not built. Run again with --debug"),
    ],
)
def test_an_error_is_one_sentence(
    error: Exception, said: str, library: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    library.append(error)
    assert main(["demo"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(said)
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--debug", "demo"], ["demo", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str], library: list[Any]) -> None:
    library.append(ValueError("the rate is too high"))
    with pytest.raises(ValueError, match="the rate is too high"):
        main(arguments)


def test_ctrl_c_is_130(library: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    library.append(KeyboardInterrupt())
    assert main(["demo"]) == 130
    assert "Interrupted" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file" / "demo")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder that holds a model, as `gatewise train` leaves one."""
    small = gatewise.compress(SeriesModel(2, 3, hidden=4).eval())
    encoding = content_of(Encoding("numbers", mean=(0.0, 1.0), scale=(1.0, 2.0)))
    (tmp_path / "run").mkdir()
    gatewise.save(small, tmp_path / "run", attached={ENCODING: encoding})
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["measure"], "compression"),
        (["compress", "-o", "small"], "small.safetensors: "),
        (["export", "--c", "c"], "largest error"),
        (["export", "--onnx", "m.onnx"], "m.onnx: "),
        (["bench", "--seconds", "0", "--steps", "2"], "gatewise engine"),
    ],
)
def test_a_run_stands_for_its_model(
    command: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    if "--onnx" in command:
        pytest.importorskip("onnx")
    monkeypatch.chdir(run.parent)
    for folder in ("run", "run/model.safetensors"):
        assert main([command[0], folder, *command[1:]]) == 0
        assert said in capsys.readouterr().out
    assert main([command[0], "nothere", *command[1:]]) == 1
    assert "nothere.safetensors: there is no such file" in capsys.readouterr().err


def test_the_encoding_goes_where_the_model_goes(run: Path, monkeypatch: Any) -> None:
    """Also a second time: an export replaces only what is its own."""
    monkeypatch.chdir(run.parent)
    kept = gatewise.export.attached(run)
    assert main(["compress", "run", "-o", "small"]) == 0
    assert main(["export", "run", "--c", "c"]) == main(["export", "run", "--c", "c"]) == 0
    assert gatewise.export.attached("small") == kept == {ENCODING: Path("c.encoding.json").read_bytes()}
    gatewise.save(gatewise.load(run), "other")
    assert main(["export", "other", "--c", "c"]) == 0
    assert not Path("c.encoding.json").exists()


@pytest.mark.parametrize("command", [["export", "run", "--onnx", "out"], ["report", "run", "--out", "out"]])
def test_outputs_are_regular_files(command: list[str], run: Path, capsys: Any, monkeypatch: Any) -> None:
    """A link or a pipe is refused before anything is computed, and stays what it is."""
    monkeypatch.chdir(run.parent)
    Path("out").symlink_to("/dev/null")
    assert main(command) == 1
    assert "out: is a link, a pipe or a device" in capsys.readouterr().err
    assert Path("out").is_symlink()


def test_the_model_of_a_run_is_not_replaced(run: Path, capsys: Any) -> None:
    """It is what its result.json tells of; one that was saved by hand may be cut where it stands."""
    (run / "recipe.toml").touch()
    assert main(["compress", str(run), "-o", str(run)]) == 1
    assert "model.safetensors: is the model of a run; name another file" in capsys.readouterr().err


def test_compress_replaces_files_of_others_only_if_told(run: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(run.parent)
    Path("small.safetensors").write_text("theirs")
    assert main(["compress", "run", "-o", "small"]) == 1
    assert "small.safetensors: was not written by gatewise" in capsys.readouterr().err
    assert main(["compress", "run", "-o", "small", "--overwrite"]) == 0
    gatewise.load("small")


def test_an_export_says_what_its_error_was_measured_on(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """An example is a file of sequences as the model takes them, in its own units."""
    monkeypatch.chdir(run.parent)
    np.save("x.npy", np.random.default_rng(0).standard_normal((6, 40, 2)))
    assert main(["export", "run", "--c", "c", "--int8"]) == 0
    assert "on one random sequence of 12 steps" in capsys.readouterr().out
    assert main(["export", "run", "--c", "c", "--int8", "--example", "x.npy"]) == 0
    assert "on the example, 6 x 40 x 2" in capsys.readouterr().out


TWO_INPUTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, who):
        return self.fc(self.rnn(x)[0] + who.unsqueeze(1))
"""


def test_an_example_may_have_several_inputs(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """An .npz file has one array for each argument, by name or in their order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("two_inputs.py").write_text(TWO_INPUTS)
    model = importlib.import_module("two_inputs").Net()
    gatewise.save(gatewise.compress(model), "small")
    x, who = np.ones((2, 5, 3), np.float32), np.ones((2, 4), np.float32)
    np.savez("named.npz", who=who, x=x)
    np.savez("ordered.npz", x, who)
    np.savez("other.npz", x=x, whose=who)
    export = ["export", "small", "--into", "two_inputs:Net", "--example"]
    for file in ("named.npz", "ordered.npz"):
        assert main([*export, file, "--c", "c", "--onnx", "m.onnx"]) == 0
        assert "the example" in capsys.readouterr().out
    assert main([*export, "other.npz", "--c", "c"]) == 2
    assert "has x, whose; forward() takes x, who" in " ".join(
        capsys.readouterr().err.replace("│", " ").split()
    )


@pytest.mark.parametrize("folder", [".", "..", "mine"])
def test_a_foreign_folder_is_refused_before_anything_is_written(
    folder: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    work = run.parent / "work"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "thesis.tex").touch()
    monkeypatch.chdir(work)
    before = sorted(run.parent.rglob("*"))
    assert main(["export", "../run", "--onnx", "m.onnx", "--c", folder]) == 1
    assert "Name another" in capsys.readouterr().err
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["export", "run", "--c", "c", "--lengths"], 2, "--lengths and --states belong to --onnx FILE"),
        (["export", "run", "--c", "c", "--no-lengths"], 2, "--lengths and --states belong to --onnx FILE"),
        (["export", "run", "--c", "c", "--no-states"], 2, "--lengths and --states belong to --onnx FILE"),
        (["export", "run", "--c", "c", "--onnx", "c/m.onnx"], 2, "lies in the folder of --c"),
        (["export", "run", "--c", "c", "--onnx", "c"], 2, "lies in the folder of --c"),
        (
            ["export", "run", "--onnx", "m.onnx", "--example", "run/x.npy"],
            2,
            "is no .npy or .npz file that can be read",
        ),
        (
            ["export", "run", "--c", "c", "--example", "run/x.npy"],
            2,
            "is no .npy or .npz file that can be read",
        ),
        (["export", "run", "--onnx", "run"], 1, "run is a folder; ONNX is written into a file"),
        (["measure", "run", "--into", "nothere"], 2, "--into 'nothere' is not of the form MODULE:NAME"),
        (["measure", "run", "--into", "nothere:Net"], 2, "--into 'nothere:Net': No module named 'nothere'"),
        (
            ["compress", "run", "-o", "c", "--into", "os:getcwd"],
            2,
            "--into 'os:getcwd' returns str, not a model",
        ),
    ],
)
def test_what_cannot_be_done_as_asked_is_refused_before_anything_is_written(
    arguments: list[str],
    code: int,
    said: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    """Not left out silently, not half done, and not put where no command looks for it."""
    if code == 1:
        pytest.importorskip("onnx")
    monkeypatch.chdir(run.parent)
    before = sorted(run.parent.rglob("*"))
    assert main(arguments) == code
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert sorted(run.parent.rglob("*")) == before


def test_a_full_disk_is_told_with_what_was_to_be_written(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system names no file when a write fails, and nothing half-written stays."""

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    pytest.importorskip("onnx")
    monkeypatch.chdir(run.parent)
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(os, "fsync", full)
    before = sorted(run.parent.rglob("*"))
    for option, name in (("--onnx", "m.onnx"), ("--c", "c")):
        assert main(["export", "run", option, name]) == 1
        assert f"{name}: No space left on device." in capsys.readouterr().err
    assert sorted(run.parent.rglob("*")) == before


def test_what_compress_warns_of_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layer = gatewise.nn.LSTM(3, 4)
    layer.weight_hh_l0.data[:, 0] = 0
    gatewise.save(layer, "layer")
    assert main(["compress", "layer", "-o", "small"]) == 0
    assert "Note: l0 keeps 1 neuron that no known weight reads" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["measure", "run"], ["compress", "run", "-o", "small"]])
def test_stated_readers_reach_the_library(
    command: list[str], run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    assert main([*command, "--reader", "nothere=fc"]) == 1
    assert "readers: 'nothere' is not a layer with units" in capsys.readouterr().err


def test_a_quality_of_zero_is_shown(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    found = {"note": "", "test_accuracy": 0.0}
    monkeypatch.setattr("gatewise.lab.finished.saved.evaluate_saved", lambda *args: (found, "counts"))
    assert main(["evaluate", str(run)]) == 0
    assert capsys.readouterr().out == "test_accuracy: 0.0000\n\ncounts\n"


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "runs/nothere"]) == 1
    assert "runs/nothere.safetensors: there is no such file" in capsys.readouterr().err
    assert main(["measure", __file__]) == 1
    assert f"{__file__}.safetensors: there is no such file" in capsys.readouterr().err


def test_a_model_cut_where_it_stands_shows_both_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = gatewise.nn.LSTM(30, 40)
    layer.weight_ih_l0.data[40:] = layer.weight_hh_l0.data[40:] = 0
    gatewise.save(layer, tmp_path)
    before = (tmp_path / "model.safetensors").stat().st_size
    assert main(["compress", str(tmp_path), "-o", str(tmp_path)]) == 0
    after = (tmp_path / "model.safetensors").stat().st_size
    assert f"{after:,} bytes, {before:,} before" in capsys.readouterr().out
    assert after < before


def test_a_run_that_is_not_finished_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.toml").touch()
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "the run is not finished" in capsys.readouterr().err
