"""Vectors predicted from those of another file, against a map that is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gatewise.lab.data.filling import RIDGES, Matrix, fill
from gatewise.lab.data.sources import DataError
from gatewise.lab.data.vectors import longest, pretrained_rows
from gatewise.lab.schema import RecipeError, parse

WORDS = [f"word{k}" for k in range(60)]
LACKING = ["late0", "Late1", "nowhere"]


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
    assert found.ridge == RIDGES[0]
    assert found.cosine == pytest.approx(1, abs=1e-6)
    assert (found.n_fitted, str(found)) == (
        60, "fitted on 60 words, ridge 1e-06, mean cosine of held-out words 1.000",
    )  # fmt: skip


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


def test_words_that_differ_in_case_are_others_without_the_fallback() -> None:
    x, y = linear()
    found = fill(LACKING, {word: y[word] for word in WORDS}, x, lower_fallback=False)
    assert set(found.vectors) == {"late0"}


@pytest.mark.parametrize("shared", [0, 1])
def test_too_few_shared_words_are_refused(shared: int) -> None:
    x, y = linear()
    with pytest.raises(DataError, match=rf"{shared} of 60 words with a vector are in the other file"):
        fill(LACKING, {word: y[word] for word in WORDS}, {word: x[word] for word in WORDS[:shared]})


def test_rows_of_missing_words_start_from_predictions(tmp_path: Path) -> None:
    """Words that are nowhere keep the rows that they would have without; what was predicted is told."""
    x, y = linear()
    for name, vectors in (("y", {word: y[word] for word in WORDS}), ("x", x)):
        np.savez(tmp_path / f"{name}.npz", words=list(vectors), vectors=np.stack(list(vectors.values())))
    words = [*WORDS, *LACKING]
    plain, filled = (
        pretrained_rows(tmp_path / "y.npz", words, 3, torch.Generator().manual_seed(0), fill_from=other)
        for other in (None, (tmp_path / "x.npz", 4))
    )
    torch.testing.assert_close(filled[0][63:65], torch.tensor(np.stack([y["late0"], y["Late1"]])))
    assert torch.equal(filled[0][:63], plain[0][:63])
    assert torch.equal(filled[0][65], plain[0][65])
    coverage = filled[1]
    assert (coverage.exact, coverage.predicted_words, coverage.missing_words) == (
        60, ("late0", "Late1"), ("nowhere",),
    )  # fmt: skip
    assert str(coverage) == (
        "62 of 63 words (98.4%) start from y.npz: 60 as written, 0 by their lower-case form, 2 predicted; "
        "predicted from x.npz, fitted on 60 words, ridge 1e-06, mean cosine of held-out words 1.000"
    )


def test_the_length_of_the_other_vectors_follows_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "embeddings").mkdir()
    (tmp_path / "embeddings" / "glove_6B_100d_subset.npz").touch()
    assert longest("glove", tmp_path) == 100


@pytest.mark.parametrize(("vectors", "fill_from"), [("none", "glove"), ("glove", "glove")])
def test_two_kinds_are_needed(vectors: str, fill_from: str) -> None:
    data = {"task": "imdb", "batch": 1, "vectors": vectors, "fill_from": fill_from}
    with pytest.raises(
        RecipeError, match=r"data\.fill_from = 'glove' with data\.vectors = .* Name two kinds"
    ):
        parse({"data": data, "model": {"hidden": 1}, "train": {"epochs": 1, "lr": 1}})
