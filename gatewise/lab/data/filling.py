"""Vectors of words that a file lacks, predicted from those of another file by ridge least squares.

    y = mean_y + (x - mean_x) W        W = (X'X + ridge s I)^-1 X'Y, of centred X and Y, s the mean of diag(X'X)

It is fitted on the words that both files have. The ridge is the one whose predictions of held-out words come closest:
five parts, each predicted from the other four. `The` and `the` are in the same part, since they may have the same x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gatewise.lab.data.sources import DataError

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float32]

RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
PARTS = 5


@dataclass(frozen=True)
class Filling:
    vectors: Mapping[str, Vector]  # of the words that were asked for, where the other file has them
    ridge: float
    cosine: float  # mean over held-out words
    n_fitted: int

    def __str__(self) -> str:
        return (
            f"fitted on {self.n_fitted:,} words, ridge {self.ridge:g}, "
            f"mean cosine of held-out words {self.cosine:.3f}"
        )


def fill(
    lacking: Sequence[str],
    known: Mapping[str, Vector],
    other: Mapping[str, Vector],
    lower_fallback: bool = True,
) -> Filling:
    """Predict the vectors of `lacking` words like those of `known` ones, from `other` vectors."""
    sources = {word: source_of(word, other, lower_fallback) for word in (*known, *lacking)}
    fitted = [word for word in known if sources[word] is not None]
    parts = parts_of(fitted)
    if len(np.unique(parts)) < 2:
        raise DataError(
            f"{len(fitted)} of {len(known)} words with a vector are in the other file, too: too few to predict "
            "vectors from. Take files that share more words, or data.fill_from = 'none'."
        )
    x, y = stacked([sources[word] for word in fitted]), stacked([known[word] for word in fitted])
    cosines = {ridge: held_out_cosine(x, y, parts, ridge) for ridge in RIDGES}
    ridge = max(cosines, key=lambda ridge: cosines[ridge])
    found = {word: source for word in lacking if (source := sources[word]) is not None}
    rows = predicted(x, y, stacked(list(found.values())), ridge).astype(np.float32) if found else ()
    return Filling(dict(zip(found, rows)), ridge, cosines[ridge], len(fitted))


def source_of(word: str, other: Mapping[str, Vector], lower_fallback: bool) -> Vector | None:
    return other.get(word, other.get(word.lower()) if lower_fallback else None)


def stacked(vectors: Sequence[Vector | None]) -> Matrix:
    return np.stack([vector for vector in vectors if vector is not None]).astype(np.float64)


def parts_of(words: Sequence[str]) -> npt.NDArray[np.int64]:
    """0 to 4, as a permutation from a fixed seed deals them out to lower-case forms."""
    forms = sorted({word.lower() for word in words})
    dealt = dict(zip(forms, np.random.RandomState(0).permutation(len(forms)) % PARTS))
    return np.array([dealt[word.lower()] for word in words], dtype=np.int64)


def predicted(x: Matrix, y: Matrix, new: Matrix, ridge: float) -> Matrix:
    mean_x, mean_y = x.mean(0), y.mean(0)
    centred = x - mean_x
    squares = centred.T @ centred
    size = np.trace(squares) / len(squares) or 1.0  # all x alike: then y is its mean
    ridged = squares + ridge * size * np.eye(len(squares))
    weights = np.linalg.solve(ridged, centred.T @ (y - mean_y))
    found: Matrix = mean_y + (new - mean_x) @ weights
    return found


def held_out_cosine(x: Matrix, y: Matrix, parts: npt.NDArray[np.int64], ridge: float) -> float:
    """Mean cosine of predictions and true vectors, each predicted from the parts that it is not in."""
    guessed = np.empty_like(y)
    for part in np.unique(parts):
        out = parts == part
        guessed[out] = predicted(x[~out], y[~out], x[out], ridge)
    lengths = np.linalg.norm(guessed, axis=1) * np.linalg.norm(y, axis=1)
    return float(((guessed * y).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)).mean())
