"""to_c(): what it refuses, and that a folder is replaced as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import variety
from networks import Net
from torch import nn

import gatewise as gw
from gatewise.export.c.source import KERNELS
from gatewise.lab.cli import main
from gatewise.runtime.chained import ChainError


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier export is replaced as a whole; anything else only if asked; a failure leaves all as it was."""
    small, target = variety(0).small, tmp_path / "a" / "m"
    gw.export.to_c(small, target, name="old")
    (target / "build").mkdir()
    report = gw.export.to_c(small, target)
    assert not (target / "old.c").exists()
    marker = json.loads((target / "gatewise.json").read_text())
    assert sorted(p.name for p in target.iterdir()) == marker["files"]
    assert marker["flash_bytes"] == report.flash_bytes
    (target / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes.txt is not of to_c"):
        gw.export.to_c(small, target)
    assert (target / "notes.txt").read_text() == "mine"
    gw.export.to_c(small, target, overwrite=True)
    assert not (target / "notes.txt").exists()

    other = tmp_path / "other"
    other.mkdir()
    gw.export.to_c(small, other)
    shutil.rmtree(other)
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no earlier export"):
        gw.export.to_c(small, other)
    (other / "gatewise.json").write_text("[]")
    with pytest.raises(FileExistsError, match="holds no earlier export"):
        gw.export.to_c(small, other)
    with pytest.raises(FileExistsError, match="is no folder"):
        gw.export.to_c(small, other / "thesis.tex", overwrite=True)

    before = {p.name: p.read_bytes() for p in target.iterdir()}

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        gw.export.to_c(small, target, weights="int8")
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before
    assert [p.name for p in target.parent.iterdir()] == ["m"]


def test_a_folder_is_not_replaced_around_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the current folder nor one above it, even where it is an earlier export."""
    gw.export.to_c(nn.LSTM(3, 2), tmp_path / "m")
    (tmp_path / "m" / "build").mkdir()
    for here in ("m", "m/build"):
        monkeypatch.chdir(tmp_path / here)
        with pytest.raises(FileExistsError, match="the current folder or one above it"):
            gw.export.to_c(nn.LSTM(3, 2), tmp_path / "m", overwrite=True)


@pytest.mark.parametrize("moved", [False, True])
def test_what_a_killed_export_left_goes(moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its two renames, the earlier export is not lost: the next one takes it back first."""
    work, target = tmp_path / ".gatewise-m", tmp_path / "m"
    gw.export.to_c(nn.LSTM(3, 2), target)
    before = (target / "model.c").read_bytes()
    (work / "new").mkdir(parents=True)
    (work / "new" / "model.c").write_text("half of a mod")
    if moved:
        target.rename(work / "old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            gw.export.to_c(nn.LSTM(3, 3), target)
    assert (target / "model.c").read_bytes() == before
    gw.export.to_c(nn.LSTM(3, 3), target)
    assert (target / "model.c").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_only_folders_are_replaced(tmp_path: Path) -> None:
    """A pipe, to which nobody writes, would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="pipe is no folder"):
        gw.export.to_c(nn.LSTM(3, 2), tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(gw.export.CheckpointError, match=r"pipe\.safetensors: was not written by gatewise"):
        gw.save(nn.LSTM(3, 2), tmp_path / "pipe")
    with pytest.raises(gw.export.CheckpointError, match="is a link, a pipe or a device"):
        gw.save(nn.LSTM(3, 2), tmp_path / "pipe", overwrite=True)


def test_a_rename_that_fails_brings_the_old_export_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, rename = variety(0).small, os.rename
    gw.export.to_c(small, tmp_path / "m")
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}

    def stuck(source: Path, target: Path) -> None:
        if source.name == "new":
            raise OSError("device or resource busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", stuck)
    with pytest.raises(OSError, match="busy"):
        gw.export.to_c(small, tmp_path / "m", weights="int8")
    assert {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def chain(m: Any, x: Any) -> Any:
    return m.fc(m.rnn(x)[0])


def doubled(m: Any, x: Any) -> Any:
    return 2 * chain(m, x) if isinstance(x, torch.Tensor) else chain(m, x)


def longer(m: Any, x: Any) -> Any:
    return torch.cat([chain(m, x)] * 2) if isinstance(x, torch.Tensor) else chain(m, x)


@pytest.mark.parametrize("forward", [doubled, longer])
def test_a_forward_that_asks_for_tensors_is_the_one_of_tensors(
    forward: Callable[..., Any], tmp_path: Path
) -> None:
    model = gw.compress(Net(chain, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)))
    model.rule = forward
    assert gw.export.to_c(model, tmp_path / "m").max_abs_error < 1e-5


def test_a_first_state_is_an_argument(tmp_path: Path) -> None:
    """Where forward() has no default for it; then every call begins with what it is given."""

    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 2)

        def forward(self, x: Any, state: Any) -> Any:
            return self.rnn(x, state)[0]

    gw.export.to_c(Starts(), tmp_path / "m")
    assert "const float *x, const float *state, float *y" in (tmp_path / "m" / "model.h").read_text()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_answers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """A golden vector of infinities would check nothing."""
    model = Net(chain, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2))
    with torch.no_grad():
        model.rnn.bias_ih_l0.fill_(5.0)
        model.fc.weight.fill_(3e38)
    with pytest.raises(ValueError, match="answer to small random inputs is not finite"):
        gw.export.to_c(model, tmp_path / "m")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the overflow itself
def test_weights_that_overflow_are_refused(tmp_path: Path) -> None:
    """Finite ones, whose products are not: C has no literal for those."""
    model = Net(lambda m, x: m.rnn(m.emb(x))[0], emb=nn.Embedding(5, 3), rnn=gw.nn.LSTM(3, 2))
    with torch.no_grad():
        model.emb.weight.fill_(1e25)
        model.rnn.weight_ih_l0.fill_(1e25)
    with pytest.raises(ValueError, match=r"would be inf"):
        gw.export.to_c(model, tmp_path / "m", fold_embedding=True)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("field", ["neuron_scale", "bias_gated"])
def test_numbers_beside_the_weights_are_finite_too(field: str, tmp_path: Path) -> None:
    small: Any = gw.compress(nn.GRU(3, 4))
    with torch.no_grad():
        getattr(small.layers[0], field).fill_(float("inf"))
    with pytest.raises(ValueError, match=rf"layers.0.{field} is not finite"):
        gw.export.to_c(small, tmp_path / "m")


@pytest.mark.parametrize("name", ["rnn.layers.0.bias", "fc.weight"])
def test_what_is_not_finite_is_named_where_no_literal_would_be(name: str, tmp_path: Path) -> None:
    """A weight file has no literals, and would hold a NaN."""
    small = gw.compress(Net(chain, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)))
    with torch.no_grad():
        small.get_parameter(name).fill_(float("nan"))
    with pytest.raises(ValueError, match=rf"{name} is not finite"):
        gw.export.to_c(small, tmp_path / "m", file_above=0)


def test_errors(tmp_path: Path) -> None:
    small, target = variety(0).small, tmp_path / "m"
    for options, message in (
        ({"name": "1st"}, "a name of C"),
        ({"name": "while"}, "a name of C"),
        *(({"name": file.split(".")[0]}, "a name of C") for file in KERNELS),
        ({"name": "math"}, "no other file or header"),
        ({"name": "Golden"}, "no other file or header"),  # one file where upper and lower case are the same
        ({"name": "net\n"}, "a name of C"),
        ({"name": "netz_ä"}, "a name of C"),
        ({"name": "gw"}, "a name of C"),
        ({"name": "GW_net"}, "a name of C"),
        ({"weights": "int4"}, "weights='int4'"),
        ({"block": 0}, "block=0"),
        ({"block": 1.5}, "block=1.5 must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            gw.export.to_c(small, target, **options)
    with pytest.raises(ChainError, match=r"asks for a value.*gatewise.accelerate\(model\)"):
        gw.export.to_c(Net(lambda m, x: m.rnn(x)[0] if x.sum() > 0 else x, rnn=nn.GRU(3, 3)), target)
    with torch.no_grad():
        small.rnn.layers[0].weight_hh.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"rnn.layers.0.weight_hh is not finite"):
        gw.export.to_c(small, target)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("file", [False, True])
def test_the_folder_says_how_it_is_used(file: bool, bidirectional: bool, tmp_path: Path) -> None:
    model = nn.LSTM(3, 2, bidirectional=bidirectional)
    gw.export.to_c(model, tmp_path / "m", name="net", file_above=0 if file else 1 << 20)
    readme = (tmp_path / "m" / "README.md").read_text()
    said = {call: f"net_{call}(&state" in readme for call in ("load", "reset", "step", "run")}
    assert said == {"load": file, "reset": not file, "step": not bidirectional, "run": bidirectional}
    marker = json.loads((tmp_path / "m" / "gatewise.json").read_text())
    assert marker["weight_file"] == ("net.bin" if file else None)


def test_a_model_in_training_mode_keeps_it(tmp_path: Path) -> None:
    layers = {"emb": nn.Embedding(5, 3), "drop": nn.Dropout(0.9), "rnn": gw.nn.LSTM(3, 4)}
    small = gw.compress(Net(lambda m, x: m.rnn(m.drop(m.emb(x)))[0], **layers).train())
    first = gw.export.to_c(small, tmp_path / "m")
    golden = (tmp_path / "m" / "golden.h").read_text()
    assert small.training
    assert small.drop.training
    assert first.max_abs_error < 1e-5
    gw.export.to_c(small, tmp_path / "m")
    assert (tmp_path / "m" / "golden.h").read_text() == golden


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gw.save(nn.ModuleList([gw.nn.GRU(3, 4)])[0], tmp_path / "saved")
    assert main(["export", str(tmp_path / "saved"), "--c", str(tmp_path / "m"), "--int8"]) == 0
    out = capsys.readouterr().out
    assert "flash" in out
    assert "RAM" in out
    assert "int8" in out
    assert "weights int8" in (tmp_path / "m" / "model.c").read_text()
    assert main(["export", str(tmp_path / "saved")]) == 2
    assert main(["export", str(tmp_path / "saved"), "--int8", "--onnx", str(tmp_path / "x.onnx")]) == 2
