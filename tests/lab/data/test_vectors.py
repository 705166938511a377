"""Pretrained vectors: every format gives the same rows, and what was found is told."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from gatewise.lab.data.sources import DataError
from gatewise.lab.data.vectors import Coverage, find_vectors, pretrained_rows, read_vectors

VECTORS = {"the": [1.0, 0.0], "cat": [0.0, -2.0], "Paris": [0.5, 0.25]}
TEXT = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())
BINARY = b"3 2\n" + b"".join(w.encode() + b" " + np.array(v, "<f4").tobytes() for w, v in VECTORS.items())
BINARY_WITH_FEEDS = b"3 2\n" + b"".join(
    w.encode() + b" " + np.array(v, "<f4").tobytes() + b"\n" for w, v in VECTORS.items()
)


def write(folder: Path, name: str) -> Path:
    path = folder / name
    if name.endswith(".npz"):
        np.savez(path, words=list(VECTORS), vectors=np.array(list(VECTORS.values()), np.float16))
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("glove.2d.txt", TEXT)
            archive.writestr("glove.3d.txt", "the 9 9 9\n")
    else:
        content = BINARY if ".bin" in name else TEXT.encode()
        content = b"3 2\n" + content if "header" in name else content
        content = BINARY_WITH_FEEDS if "feeds" in name else content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize(
    "name", ["a.npz", "a.bin", "feeds.bin", "a.bin.gz", "a.txt", "header.txt", "a.txt.gz", "glove.zip"]
)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    """Word i is row i + 3; `The` and `CAT` come by lower case, `dog` and the three special rows stay random."""
    path = write(tmp_path, name)
    words = ["the", "The", "Paris", "dog", "CAT"]
    rows, coverage = pretrained_rows(path, words, 2, torch.Generator().manual_seed(0))
    assert rows.shape == (8, 2)
    assert rows[[3, 4, 5, 7]].tolist() == [[1, 0], [1, 0], [0.5, 0.25], [0, -2]]
    assert (coverage.exact, coverage.lower, coverage.found, coverage.n_words) == (2, 2, 4, 5)
    assert coverage.to_dict() == {
        "source": name,
        "note": "",
        "words": 5,
        "exact": 2,
        "lower": 2,
        "predicted": 0,
        "missing": 1,
        "lower_words": ["The", "CAT"],
        "predicted_words": [],
        "missing_words": ["dog"],
    }
    assert str(coverage) == (
        f"4 of 5 words (80.0%) start from {name}: 2 as written, 2 by their lower-case form"
    )
    assert rows[[0, 1, 2, 6]].abs().max() <= 0.05


def test_the_authors_rule_takes_words_as_written_only(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt")
    _, coverage = pretrained_rows(path, ["The", "Paris"], 2, torch.Generator(), lower_fallback=False)
    assert (coverage.exact, coverage.lower, coverage.missing_words) == (1, 0, ("The",))


def test_without_vectors_there_is_nothing_to_tell() -> None:
    assert not Coverage()
    assert str(Coverage()) == ""


def test_random_rows_depend_on_the_generator_and_not_on_what_was_found(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt")
    rows, other = (
        pretrained_rows(path, words, 2, torch.Generator().manual_seed(7))[0]
        for words in (["cat", "dog"], ["bird", "dog"])
    )
    assert torch.equal(rows[4], other[4])
    assert not torch.equal(rows[3], other[3])


def test_unit_vectors_get_their_length_back_and_the_median_where_it_is_unknown(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        words=["a", "b", "c", "d"],
        vectors=np.array([[1, 0], [0, 1], [1, 0], [0, 1]], np.float16),
        norms=np.array([2.0, 3.0, 7.0, np.nan], np.float32),
    )
    rows, _ = pretrained_rows(tmp_path / "a.npz", ["a", "b", "c", "d"], 2, torch.Generator(), first_row=0)
    assert rows.tolist() == [[2, 0], [0, 3], [7, 0], [0, 3]]


def test_an_entry_with_blanks_is_not_the_word_before_the_blank(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the 1 2\n. . . 3 4\n. 5 6\n")
    assert {w: v.tolist() for w, v in read_vectors(tmp_path / "a.txt", {"."}, 2).items()} == {".": [5, 6]}


def test_the_first_of_two_entries_counts_and_a_number_may_be_a_word(tmp_path: Path) -> None:
    """Glove has words twice; a first line of a number and its vector is no header `N E`."""
    (tmp_path / "a.txt").write_text("7 1 2\ncat 3 4\ncat 5 6\n")
    found = read_vectors(tmp_path / "a.txt", {"7", "cat", "dog"}, 2)
    assert {w: v.tolist() for w, v in found.items()} == {"7": [1, 2], "cat": [3, 4]}


def test_another_length_is_refused_with_both_numbers(tmp_path: Path) -> None:
    for name in ("a.npz", "a.bin", "a.txt"):
        with pytest.raises(DataError, match=r"its vectors have 2 numbers, the embedding has 300"):
            read_vectors(write(tmp_path, name), {"the"}, 300)
    with pytest.raises(DataError, match=r"holds glove\.2d\.txt, glove\.3d\.txt; none is of length 300"):
        read_vectors(write(tmp_path, "glove.zip"), {"the"}, 300)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "short.bin").write_bytes(BINARY[:-3])
    with pytest.raises(DataError, match=r"short\.bin: ends after 2 of 3 words"):
        read_vectors(tmp_path / "short.bin", {"dog"}, 2)
    (tmp_path / "no.bin").write_bytes(b"hello\n")
    with pytest.raises(DataError, match=r"does not begin with a word2vec header"):
        read_vectors(tmp_path / "no.bin", {"dog"}, 2)
    (tmp_path / "cut.bin.gz").write_bytes(gzip.compress(BINARY)[:-9])
    (tmp_path / "not.zip").write_bytes(b"hello")
    for name in ("cut.bin.gz", "not.zip", "none.txt"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read"):
            read_vectors(tmp_path / name, {"dog"}, 2)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(DataError, match=r"needs arrays words \(N,\) and vectors"):
        read_vectors(tmp_path / "other.npz", {"dog"}, 2)


def test_the_best_file_of_the_right_length_is_found(tmp_path: Path) -> None:
    (tmp_path / "embeddings").mkdir()
    for name in ("word2vec_googlenews_300d_subset.npz", "glove_6B_100d_subset.npz"):
        (tmp_path / "embeddings" / name).touch()
    assert find_vectors("word2vec", 300, tmp_path).path.name == "word2vec_googlenews_300d_subset.npz"
    assert find_vectors("glove", 100, tmp_path).path.name == "glove_6B_100d_subset.npz"
    with pytest.raises(DataError, match=r"no glove vectors of length 300 .* There is glove_6B_100d_subset"):
        find_vectors("glove", 300, tmp_path)
    (tmp_path / "GoogleNews-vectors-negative300.bin.gz").touch()
    assert find_vectors("word2vec", 300, tmp_path).path.name == "GoogleNews-vectors-negative300.bin.gz"
