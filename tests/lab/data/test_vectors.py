"""Pretrained vectors: the rows they give, and what was found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gatewise.lab.data.sources import DataError
from gatewise.lab.data.vectors import Coverage, find_vectors, pretrained_rows, read_vectors

VECTORS = {"the": [1.0, 0.0], "cat": [0.0, -2.0], "Paris": [0.5, 0.25]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", words=list(VECTORS), vectors=np.array(list(VECTORS.values()), np.float16))
    return tmp_path / "a.npz"


def test_rows_and_words_belong_together(path: Path) -> None:
    """Word i is row i + 3; `The` and `CAT` come by lower case, `dog` and the three special rows stay random."""
    words = ["the", "The", "Paris", "dog", "CAT"]
    rows, coverage = pretrained_rows(path, words, 2, torch.Generator().manual_seed(0))
    assert rows.shape == (8, 2)
    assert rows[[3, 4, 5, 7]].tolist() == [[1, 0], [1, 0], [0.5, 0.25], [0, -2]]
    assert (coverage.exact, coverage.lower, coverage.found, coverage.n_words) == (2, 2, 4, 5)
    assert str(coverage) == (
        "4 of 5 words (80.0%) start from a.npz: 2 as written, 2 by their lower-case form"
    )
    assert rows[[0, 1, 2, 6]].abs().max() <= 0.05


def test_the_authors_rule_takes_words_as_written_only(path: Path) -> None:
    _, coverage = pretrained_rows(path, ["The", "Paris"], 2, torch.Generator(), lower_fallback=False)
    assert (coverage.exact, coverage.lower) == (1, 0)


def test_without_vectors_there_is_nothing_to_tell() -> None:
    assert not Coverage()
    assert str(Coverage()) == ""


def test_random_rows_depend_on_the_generator_and_not_on_what_was_found(path: Path) -> None:
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


def test_another_length_is_refused_with_both_numbers(path: Path) -> None:
    with pytest.raises(DataError, match=r"its vectors have 2 numbers, the embedding has 300"):
        read_vectors(path, {"the"}, 300)


def test_broken_files_are_named(tmp_path: Path, path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-9])
    for name in ("cut.npz", "none.npz"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read"):
            read_vectors(tmp_path / name, {"dog"}, 2)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.txt").write_text("the 1 2\n")
    for name in ("other.npz", "one.npy", "text.txt"):
        with pytest.raises(DataError, match=r"needs arrays words \(N,\) and vectors"):
            read_vectors(tmp_path / name, {"dog"}, 2)


def test_vectors_are_those_of_a_kind_or_of_your_own(tmp_path: Path, path: Path) -> None:
    assert find_vectors(str(path), tmp_path / "elsewhere") == (path, "")
    with pytest.raises(DataError, match=r"glove_6B_100d_subset\.npz is not in .*word_vectors\.py` makes one"):
        find_vectors("glove", tmp_path)
    (tmp_path / "embeddings").mkdir()
    (tmp_path / "embeddings" / "glove_6B_100d_subset.npz").touch()
    found, note = find_vectors("glove", tmp_path)
    assert found.name == "glove_6B_100d_subset.npz"
    assert "is not the published file" in note
