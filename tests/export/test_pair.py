"""Two files are written whole or not at all: crashes, full disks, and loads that overtake a save."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_models import IDS, Tagger, sparse

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.export.saved import pair
from gatewise.export.written import alone_in, put


class Crash(Exception):
    """The machine stops here."""


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("call", range(5))
def test_a_crash_leaves_the_old_or_the_new_model(
    call: int, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before any write, flush or rename of a save, the folder still loads, and can be saved to again."""
    old, new = sparse(Tagger()), gw.compress(sparse(Tagger(), 0.5))
    if not first:
        gw.save(old, tmp_path)
    calls = 0

    def stopping(inner: Any) -> Any:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > call:
                raise Crash
            return inner(*args, **kwargs)

        return maybe

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping(os.replace))
        patch.setattr(os, "fsync", stopping(os.fsync))
        with pytest.raises(Crash):
            gw.save(new, tmp_path)
    renamed = call >= 3  # flushed, flushed; then the weights are renamed, then the config
    if first and not renamed:
        with pytest.raises(CheckpointError, match="not found"):
            gw.load(tmp_path)
    else:
        expected = new if renamed else old
        assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), expected(IDS))
    newest = sparse(Tagger(), 0.2)
    gw.save(newest, tmp_path)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), newest(IDS))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_crash_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that begins where another stopped between its renames finishes that one first."""
    models = [sparse(Tagger(), share) for share in (0.1, 0.4, 0.7)]
    gw.save(models[0], tmp_path)
    replace = os.replace
    for model, stop_at in ((models[1], "config.json"), (models[2], "model.safetensors")):

        def stopping(source: Any, target: Any, stop_at: str = stop_at) -> None:
            if Path(target).name == stop_at:
                raise Crash
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stopping)
            with pytest.raises(Crash):
                gw.save(model, tmp_path)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), models[1](IDS))


def test_a_read_only_folder_is_loaded_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config under its temporary name is enough; that it cannot be renamed does no harm."""
    model = sparse(Tagger())
    gw.save(model, tmp_path)
    (tmp_path / "config.json").rename(tmp_path / ".gatewise-config.json")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), model(IDS))


def test_a_load_between_the_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the new model and finishes the second rename; the save that it overtook notices and goes on."""
    old, new = sparse(Tagger()), sparse(Tagger(), 0.3)
    gw.save(old, tmp_path)
    replace, seen = os.replace, []

    def overtaken(source: Any, target: Any) -> None:
        replace(source, target)
        if Path(target).name == "model.safetensors":
            seen.append(gw.load(tmp_path, into=Tagger()))

    monkeypatch.setattr(os, "replace", overtaken)
    gw.save(new, tmp_path)
    for loaded in (*seen, gw.load(tmp_path, into=Tagger())):
        assert torch.equal(loaded(IDS), new(IDS))
    assert len(seen) == 1


@pytest.mark.parametrize("before", [False, True])
def test_what_cannot_be_written_leaves_nothing_new(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the message names the folder, the model of before stays, and no folder stays empty."""
    folder, model = tmp_path / "model", Tagger()
    if before:
        gw.save(model, folder)

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(pair, "write_new", full)
    with pytest.raises(CheckpointError, match=r"model: the model could not be written .*No space left"):
        gw.save(Tagger(), folder)
    if before:
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
        assert torch.equal(gw.load(folder, into=Tagger()).fc.weight, model.fc.weight)
    else:
        assert not folder.exists()


def test_who_may_read_one_file_may_read_the_other(tmp_path: Path) -> None:
    gw.save(Tagger(), tmp_path)
    modes = {(tmp_path / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


@pytest.mark.parametrize("before", [False, True])
def test_a_save_between_the_two_reads(before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are opened before the config is read: both are the old model, or are read again."""
    old, new = sparse(Tagger()), sparse(Tagger(), 0.3)
    gw.save(old, tmp_path)
    read, overtaken = pair.read_config, []

    def slow(path: Path) -> Any:
        config = None if before else read(path)
        if not overtaken:
            overtaken.append(gw.save(new, tmp_path))
        return read(path) if before else config

    monkeypatch.setattr(pair, "read_config", slow)
    expected = new if before else old
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), expected(IDS))
    assert overtaken


def test_a_load_leaves_the_files_of_a_save_that_is_on(tmp_path: Path) -> None:
    """What lies under the temporary name may be the next config by now: only who is alone renames it."""
    model = sparse(Tagger())
    gw.save(model, tmp_path)
    waiting = tmp_path / ".gatewise-config.json"
    (tmp_path / "config.json").rename(waiting)
    with alone_in(tmp_path):
        assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), model(IDS))
        assert waiting.exists()
    gw.load(tmp_path, into=Tagger())
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_loads_while_another_thread_saves(tmp_path: Path) -> None:
    """Every load is the one model or the other, and none is refused."""
    models = [sparse(Tagger(), share) for share in (0.2, 0.8)]
    answers = [model(IDS) for model in models]
    gw.save(models[0], tmp_path)
    enough = threading.Event()

    def save_on() -> None:
        while not enough.is_set():
            for model in models:
                gw.save(model, tmp_path)

    saving = threading.Thread(target=save_on)
    saving.start()
    try:
        for _ in range(60):
            loaded = gw.load(tmp_path, into=Tagger())(IDS)
            assert any(torch.equal(loaded, answer) for answer in answers)
    finally:
        enough.set()
        saving.join()


@pytest.mark.parametrize("name", [".gatewise-config.json", ".gatewise-model.safetensors"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    """Whoever may write to the folder could let a save write to any file of its owner's."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).symlink_to(victim)
    gw.save(Tagger(), tmp_path / "model")
    assert victim.read_text() == "mine"
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("link", [False, True])
def test_what_a_killed_export_left_goes(link: bool, tmp_path: Path) -> None:
    """The temporary name is always the same one, so the next export finds it; a link there is not followed."""
    victim, left = tmp_path / "victim", tmp_path / ".gatewise-model.onnx"
    victim.write_text("mine")
    if link:
        left.symlink_to(victim)
    else:
        left.write_text("half of a mod")
    put(tmp_path / "model.onnx", b"whole")
    assert victim.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "model.onnx"}


FOREIGN: dict[str, dict[str, str]] = {
    "a config of another library": {"config.json": '{"model_type": "lstm", "format": 1}'},
    "weights alone": {"model.safetensors": "x"},
    "both": {"config.json": "{}", "model.safetensors": "x"},
    "no JSON": {"config.json": "[" * 100_000},
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
def test_files_of_others_stay(files: dict[str, str], tmp_path: Path) -> None:
    """config.json and model.safetensors are names that other libraries use."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(
        CheckpointError, match=r"was not written by gatewise, and would be replaced.*overwrite=True"
    ):
        gw.save(Tagger(), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
    model = Tagger()
    gw.save(model, tmp_path, overwrite=True)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), model(IDS))
    gw.save(model, tmp_path)  # now it is ours


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_regular_files_are_replaced(overwrite: bool, tmp_path: Path) -> None:
    """A link may lead anywhere, and a pipe or a device is no file to be replaced by one."""
    gw.save(Tagger(), tmp_path / "other")
    for make in (lambda path: path.symlink_to(tmp_path / "other/config.json"), os.mkfifo):
        folder = tmp_path / "model"
        folder.mkdir()
        make(folder / "config.json")
        with pytest.raises(CheckpointError, match=r"config\.json: is a link, a pipe or a device"):
            gw.save(Tagger(), folder, overwrite=overwrite)
        (folder / "config.json").unlink()
        folder.rmdir()
