"""Word vectors from the public formats, and those that are predicted, against a map that is known."""

from __future__ import annotations

import gzip
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import word_vectors
from word_vectors import RIDGES, Matrix, fill, read_vectors

from gatewise.lab.data.sources import DataError
from gatewise.lab.data.vectors import read_vectors as read_npz

VECTORS = {"the": [1.0, 0.0], "cat": [0.0, -2.0], "Paris": [0.5, 0.25]}
TEXT = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())
ENTRIES = [w.encode() + b" " + np.array(v, "<f4").tobytes() for w, v in VECTORS.items()]
BINARY = b"3 2\n" + b"".join(ENTRIES)

WORDS = [f"word{k}" for k in range(60)]
LACKING = ["late0", "Late1", "nowhere"]


def write(folder: Path, name: str) -> Path:
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("glove.2d.txt", TEXT)
            archive.writestr("glove.3d.txt", "the 9 9 9\n")
        return path
    content = BINARY if ".bin" in name else TEXT.encode()
    content = b"3 2\n" + content if "header" in name else content
    content = b"3 2\n" + b"\n".join(ENTRIES) if "feeds" in name else content
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize(
    "name", ["a.bin", "feeds.bin", "a.bin.gz", "a.txt", "header.txt", "a.txt.gz", "glove.zip"]
)
def test_every_format_gives_the_same_vectors(tmp_path: Path, name: str) -> None:
    found = read_vectors(write(tmp_path, name), {"the", "cat", "Paris", "dog"}, 2)
    assert {word: vector.tolist() for word, vector in found.items()} == VECTORS


def test_an_entry_with_blanks_is_not_the_word_before_the_blank(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the 1 2\n. . . 3 4\n. 5 6\n")
    assert {w: v.tolist() for w, v in read_vectors(tmp_path / "a.txt", {"."}, 2).items()} == {".": [5, 6]}


def test_the_first_of_two_entries_counts_and_a_number_may_be_a_word(tmp_path: Path) -> None:
    """Glove has words twice; a first line of a number and its vector is no header `N E`."""
    (tmp_path / "a.txt").write_text("7 1 2\ncat 3 4\ncat 5 6\n")
    found = read_vectors(tmp_path / "a.txt", {"7", "cat", "dog"}, 2)
    assert {w: v.tolist() for w, v in found.items()} == {"7": [1, 2], "cat": [3, 4]}


def test_another_length_or_half_a_file_is_refused(tmp_path: Path) -> None:
    for name in ("a.bin", "a.txt"):
        with pytest.raises(DataError, match=r"its vectors have 2 numbers, not 300"):
            read_vectors(write(tmp_path, name), {"the"}, 300)
    with pytest.raises(DataError, match=r"holds glove\.2d\.txt, glove\.3d\.txt; none is of length 300"):
        read_vectors(write(tmp_path, "glove.zip"), {"the"}, 300)
    (tmp_path / "short.bin").write_bytes(BINARY[:-3])
    with pytest.raises(DataError, match=r"short\.bin: ends after 2 of 3 words"):
        read_vectors(tmp_path / "short.bin", {"dog"}, 2)


def test_the_script_writes_what_the_trainer_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of a recipe's corpus, predicted ones included; those that are nowhere are left out."""
    x, y = linear()
    for name, vectors in (("y", {word: y[word] for word in WORDS}), ("x", x)):
        lines = (f"{word} {' '.join(map(repr, map(float, vector)))}\n" for word, vector in vectors.items())
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    rows = [f"{label},{text}" for k in range(12) for label, text in ((k % 2, " ".join([*WORDS, *LACKING])),)]
    (tmp_path / "own.csv").write_text("label,text\n" + "\n".join(rows) + "\n")
    (tmp_path / "own.toml").write_text(
        f'[data]\ntask = "csv"\nbatch = 2\npath = "{tmp_path / "own.csv"}"\n[model]\nhidden = 1\n'
        "[train]\nepochs = 1\nlr = 1\n"
    )
    out = tmp_path / "filled.npz"
    told = ["word_vectors.py", tmp_path / "y.txt", tmp_path / "own.toml", "--out", out, "--dim", 3]
    monkeypatch.setattr(
        sys, "argv", [*map(str, told), "--fill-from", str(tmp_path / "x.txt"), "--fill-dim", "4"]
    )
    word_vectors.main()
    found = read_npz(out, {*WORDS, *LACKING}, 3)
    assert found.keys() == {*WORDS, "late0", "Late1"}
    np.testing.assert_allclose(found["Late1"], y["Late1"], rtol=1e-3, atol=1e-3)


def linear(noise: float = 0.0) -> tuple[dict[str, Matrix], dict[str, Matrix]]:
    """y = 3 + x W + noise, of all words but the last in `LACKING`; x in lower case."""
    draw = np.random.RandomState(0)
    names = [*WORDS, *LACKING[:2]]
    x, map_ = draw.randn(len(names), 4).astype(np.float32), draw.randn(4, 3)
    y = (3 + x @ map_ + noise * draw.randn(len(names), 3)).astype(np.float32)
    return dict(zip((name.lower() for name in names), x)), dict(zip(names, y))


def test_a_linear_map_is_found() -> None:
    """Least squares is exact where y is linear in x: the smallest ridge wins, and held-out words are hit, too."""
    x, y = linear()
    found = fill(LACKING, {word: y[word] for word in WORDS}, x)
    assert set(found.vectors) == {"late0", "Late1"}
    for word, vector in found.vectors.items():
        np.testing.assert_allclose(vector, y[word], rtol=1e-4, atol=1e-4)
    assert (found.ridge, found.n_fitted) == (RIDGES[0], 60)
    assert found.cosine == pytest.approx(1, abs=1e-6)


def test_the_cosine_is_that_of_words_it_was_not_fitted_on() -> None:
    """Where y has nothing to do with x, its own words would be hit by chance, held-out ones are not."""
    draw = np.random.RandomState(1)
    x = {word: draw.randn(20).astype(np.float32) for word in WORDS}
    y = {word: draw.randn(5).astype(np.float32) for word in WORDS}
    found = fill([], y, x)
    assert abs(found.cosine) < 0.2
    assert found.ridge > RIDGES[0]
    assert not found.vectors


def test_forms_of_a_word_are_held_out_together() -> None:
    """Cased forms share their x: were `w` fitted where `W` is held out, any y would seem to be predicted."""
    draw = np.random.RandomState(2)
    x = {word: draw.randn(60).astype(np.float32) for word in WORDS}
    y = {word: draw.randn(5).astype(np.float32) for word in WORDS}
    found = fill([], y | {word.upper(): vector for word, vector in y.items()}, x)
    assert found.n_fitted == 120
    assert abs(found.cosine) < 0.2


@pytest.mark.parametrize("shared", [0, 1])
def test_too_few_shared_words_are_refused(shared: int) -> None:
    x, y = linear()
    with pytest.raises(DataError, match=rf"{shared} of 60 words with a vector are in the other file"):
        fill(LACKING, {word: y[word] for word in WORDS}, {word: x[word] for word in WORDS[:shared]})
