"""A file is written whole or not at all: crashes, full disks, and loads that overtake a save."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from saved_models import IDS, Tagger, sparse

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.export.saved.file import model_file
from gatewise.export.written import write_atomic


class Crash(Exception):
    """The machine stops here."""


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("call", range(2))
def test_a_crash_leaves_the_old_model(
    call: int, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the flush or the rename of a save, the folder still loads, and can be saved to again."""
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
    if first:
        with pytest.raises(CheckpointError, match="there is no such file"):
            gw.load(tmp_path)
    else:
        assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), old(IDS))
    newest = sparse(Tagger(), 0.2)
    gw.save(newest, tmp_path)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), newest(IDS))
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("before", [False, True])
def test_what_cannot_be_written_leaves_nothing_new(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the message names the file, and the model of before stays."""
    model = Tagger()
    if before:
        gw.save(model, tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        told = r"model\.safetensors: the model could not be written \(No space left\)\."
        with pytest.raises(
            CheckpointError, match=told + (" What was there .* still there" if before else "")
        ):
            gw.save(Tagger(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"] * before
    if before:
        assert torch.equal(gw.load(tmp_path, into=Tagger()).fc.weight, model.fc.weight)


@pytest.mark.parametrize(
    ("given", "file"),
    [("a.safetensors", "a.safetensors"), ("a", "a.safetensors"), ("v1.2", "v1.2.safetensors"),
     ("new/", "new/model.safetensors"), ("folder", "folder/model.safetensors"),
     ("folder/", "folder/model.safetensors")],
)  # fmt: skip
def test_a_name_without_the_suffix_gets_it(given: str, file: str, tmp_path: Path) -> None:
    """A folder means the model in it; save() and load() read a path alike."""
    (tmp_path / "folder").mkdir()
    path, model = f"{tmp_path}/{given}", Tagger()
    assert gw.save(model, path).path == model_file(path) == tmp_path / file
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [tmp_path / file]
    assert torch.equal(gw.load(path, into=Tagger())(IDS), model(IDS))


def test_what_is_attached_comes_back(tmp_path: Path) -> None:
    """Byte for byte, an empty one too; it is none of the tensors."""
    files, model = (
        {"encoding.json": b'{"kind": "words"}\n', "empty": b"", "odd name": bytes(range(256))},
        Tagger(),
    )
    saved = gw.save(model, tmp_path, attached=files)
    assert gw.export.attached(tmp_path) == files
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), model(IDS))
    assert saved.dense_bytes == sum(t.nbytes for t in model.state_dict().values())


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


@pytest.mark.parametrize("link", [False, True])
def test_what_a_killed_writer_left_goes(link: bool, tmp_path: Path) -> None:
    """The temporary name is always the same one, so the next writer finds it; a link there is not followed."""
    victim, left = tmp_path / "victim", tmp_path / ".gatewise-model.onnx"
    victim.write_text("mine")
    if link:
        left.symlink_to(victim)
    else:
        left.write_text("half of a mod")
    write_atomic(tmp_path / "model.onnx", b"whole")
    assert victim.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "model.onnx"}


FOREIGN: dict[str, bytes] = {
    "no safetensors": b"x",
    "weights of another library": safetensors.torch.save({"w": torch.ones(2)}, {"format": "pt"}),
    "a key like ours": safetensors.torch.save({"w": torch.ones(2)}, {"gatewise": "[]"}),
    "no JSON": (200_000).to_bytes(8, "little") + b"[" * 200_000,
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_files_of_others_stay(content: bytes, tmp_path: Path) -> None:
    """Other libraries write files of this name, too."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"was not written by gatewise, and would be replaced.*overwrite=True"
    ):
        gw.save(Tagger(), tmp_path)
    assert file.read_bytes() == content
    model = Tagger()
    gw.save(model, tmp_path, overwrite=True)
    assert torch.equal(gw.load(tmp_path, into=Tagger())(IDS), model(IDS))
    gw.save(model, tmp_path)  # now it is ours


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_regular_files_are_replaced(overwrite: bool, tmp_path: Path) -> None:
    """A link may lead anywhere, and a pipe or a device is no file to be replaced by one."""
    other = tmp_path / "other"
    other.write_text("mine")
    file = tmp_path / "model.safetensors"
    for make in (lambda path: path.symlink_to(other), os.mkfifo, Path.mkdir):
        make(file)
        told = r"is (a link, a pipe or a device|a folder)" if overwrite else "not written by gatewise"
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: .*{told}"):
            gw.save(Tagger(), tmp_path / "model", overwrite=overwrite)
        file.rmdir() if file.is_dir() else file.unlink()
