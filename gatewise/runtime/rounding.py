"""Weights of one byte: what they are rounded to, and how four of them share a word in the kernels."""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.int8]
Words = NDArray[np.uint32]
Weights = Literal["float32", "int8"]


def check_weights(weights: str) -> Weights:
    if weights not in get_args(Weights):
        raise ValueError(f"weights={weights!r} must be one of {', '.join(get_args(Weights))}.")
    return cast(Weights, weights)


def quantize(w: ArrayLike) -> tuple[Codes, Floats]:  # (rows, cols) -> (rows, cols), (rows)
    """Whole numbers from -127 to 127 and one scale per row: w is about codes * scale."""
    rows = np.asarray(w, np.float32)
    scale = np.abs(rows).max(axis=1, initial=0) / np.float32(127)
    codes = np.rint(rows / np.where(scale > 0, scale, 1)[:, None])
    # A scale that is denormal has few digits, and may be too small.
    return codes.clip(-127, 127).astype(np.int8), scale.astype(np.float32)


def narrows(w: Floats, weights: Weights) -> bool:
    """Whether a matrix is rounded: not one of a single column, which would grow by its scales."""
    return weights == "int8" and w.shape[1] > 1


def rounded(w: Floats, weights: Weights) -> Floats:  # (rows, cols) -> (rows, cols)
    """The numbers that the rounded weights stand for."""
    if not narrows(w, weights):
        return w
    codes, scale = quantize(w)
    return codes * scale[:, None]


def joined(w: Floats) -> tuple[Words, Floats]:  # (rows, words of a row), (rows)
    """4 columns of codes + 128 in every word, the first lowest; and the scales of the codes.

    The second and third change places: kernels that take every second byte then find neighbours.
    """
    codes, scale = quantize(w)
    rows, cols = w.shape
    padded = np.zeros((rows, -(-cols // 4), 4), np.uint32)
    padded.reshape(rows, padded.shape[1] * 4)[:, :cols] = codes.astype(np.int16) + 128
    shifts = np.array([0, 16, 8, 24], np.uint32)
    return (padded << shifts).sum(axis=-1, dtype=np.uint32), scale
