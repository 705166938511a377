"""Weights of less than four bytes: what they are rounded to, and how several of them share a word in the kernels."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.int8]
Words = NDArray[np.uint32]
Weights = Literal["float32", "bfloat16", "int8"]

BYTES: dict[Weights, int] = {"float32": 4, "bfloat16": 2, "int8": 1}


def check_weights(weights: str) -> Weights:
    if weights not in BYTES:
        raise ValueError(f"weights={weights!r} must be one of {', '.join(get_args(Weights))}.")
    return weights


def quantize(w: ArrayLike) -> tuple[Codes, Floats]:  # (rows, cols) -> (rows, cols), (rows)
    """Whole numbers from -127 to 127 and one scale per row: w is about codes * scale."""
    rows = np.asarray(w, np.float32)
    scale = np.abs(rows).max(axis=1, initial=0) / np.float32(127)
    codes = np.rint(rows / np.where(scale > 0, scale, 1)[:, None])
    # A scale that is denormal has few digits, and may be too small.
    return codes.clip(-127, 127).astype(np.int8), scale.astype(np.float32)


def upper_halves(w: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16, ties to even: the upper halves of floats."""
    bits = np.ascontiguousarray(w).view(np.uint32)
    nearest = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(w), bits >> 16 | 0x40, nearest).astype(np.uint16)


def narrows(w: Floats, weights: Weights) -> bool:
    """Whether a matrix is rounded: not one of a single column, which would grow by its scales."""
    return weights != "float32" and w.shape[1] > 1


def rounded(w: Floats, weights: Weights) -> Floats:  # (rows, cols) -> (rows, cols)
    """The numbers that the rounded weights stand for."""
    if not narrows(w, weights):
        return w
    if weights == "int8":
        codes, scale = quantize(w)
        return codes * scale[:, None]
    return (upper_halves(w).astype(np.uint32) << 16).view(np.float32)


def joined(w: Floats, weights: Weights) -> tuple[Words, Floats | None]:  # (rows, words of a row), (rows)
    """2 columns of bfloat16, or 4 of codes + 128, in every word, the first lowest; and the scales of codes.

    Of four, the second and third change places: kernels that take every second byte then find neighbours.
    """
    per, scale = 4 // BYTES[weights], None
    if weights == "int8":
        codes, scale = quantize(w)
        parts = (codes.astype(np.int16) + 128).astype(np.uint32)
    else:
        parts = upper_halves(w).astype(np.uint32)
    rows, cols = w.shape
    padded = np.zeros((rows, -(-cols // per), per), np.uint32)
    padded.reshape(rows, padded.shape[1] * per)[:, :cols] = parts
    shifts = np.array([0, 16] if per == 2 else [0, 16, 8, 24], np.uint32)
    return (padded << shifts).sum(axis=-1, dtype=np.uint32), scale
