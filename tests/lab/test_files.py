"""Files are whole or absent, and what they hold is JSON."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from gatewise.lab.files import RunError, write_json, write_whole


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new content is flushed before the old file goes, and nothing else is left behind."""
    path = tmp_path / "run" / "result.json"
    write_whole(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(
            RunError, match=r"result\.json: could not be written \(No space left\).*still there"
        ):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]
    with pytest.raises(RunError, match="could not be written"):
        write_whole(path / "below a file", b"")


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """A link may lead to anything, and a rename over a pipe or a device takes it from who reads it."""
    link, pipe, target = tmp_path / "link", tmp_path / "pipe", tmp_path / "target"
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(
            RunError, match=rf"{path.name}: could not be written \(is a link, a pipe or a device"
        ):
            write_whole(path, b"new")
    with pytest.raises(RunError, match="is a folder, which is not replaced"):
        write_whole(tmp_path, b"new")
    assert link.is_symlink()
    assert target.read_text() == "old"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Whoever may write to the folder could make a link of the name under which a file is written first."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".gatewise-result.json").symlink_to(victim)
    write_whole(tmp_path / "result.json", b"new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "result.json").read_bytes() == b"new"


def test_json_knows_no_infinity(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ppl": math.inf, 3: [math.nan, 1.5, (2,)]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"ppl": None, "3": [None, 1.5, [2]]}
