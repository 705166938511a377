"""From a recipe to its data: files that are missing, vectors that differ."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tiny_corpora import tiny

from gatewise.lab.data.corpus import load_data, pretrained
from gatewise.lab.data.sources import DataError


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("words", "path"),
        ("words", "valid_path"),
        ("words", "test_path"),
        ("csv", "path"),
        ("csv", "test_path"),
        ("npz", "path"),
        ("npz", "valid_path"),
    ],
)
def test_a_missing_file_of_a_moved_run_says_where_it_was_looked_for(
    task: str, key: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_data(tiny(task, folder, f"data.{key}=t.txt"))
    assert str(caught.value) == (
        f"t.txt: cannot be read (No such file or directory). data.{key} is relative to the current folder, "
        f"{tmp_path}. In train and evaluate, --set data.{key}=... names another place."
    )


def test_a_whole_path_is_relative_to_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_data(tiny("words", folder, f"data.path={tmp_path / 't.txt'}"))
    assert str(caught.value) == (
        f"{tmp_path / 't.txt'}: cannot be read (No such file or directory). In train and evaluate, "
        "--set data.path=... names another place."
    )


@pytest.mark.parametrize("task", ["words", "csv", "npz"])
def test_only_regular_files_are_read(task: str, folder: Path, tmp_path: Path) -> None:
    """A device does not end, and a pipe begins only when someone writes to it."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(DataError, match=rf"{path}: data\.path must be a regular file"):
            load_data(tiny(task, folder, f"data.path={path}"))


def test_vectors_that_differ_from_the_published_ones_are_told(folder: Path) -> None:
    row = tiny("imdb", folder)
    corpus = load_data(row, folder)
    rows, coverage = pretrained(row, corpus, folder)
    assert rows is not None
    assert re.fullmatch(
        r"5 of \d+ words \(.*\) start from word2vec_googlenews_300d_subset\.npz: 5 as written, 0 by their lower-case "
        r"form; word2vec_googlenews_300d_subset\.npz is not the published file \(sha256:\w+, expected sha256:24bea.*",
        str(coverage),
    )


def test_a_recipe_without_vectors_tells_nothing_about_them(folder: Path) -> None:
    row = tiny("agnews", folder)
    rows, coverage = pretrained(row, load_data(row, folder), folder)
    assert rows is None
    assert not coverage
