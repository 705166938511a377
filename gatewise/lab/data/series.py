"""Numeric sequences of your own, from one .npz file without pickles.

    x        (N, T, I) or (N, T)   N sequences of T steps, I numbers a step
    lengths  (N,)   optional       real steps of each, at the start of its row; all T without it
    y        (N,) whole numbers    the class of each sequence                           -> classification
             (N, O)                numbers to predict at the end of each sequence       -> forecasting
             (N, T, O)             numbers to predict at every step                     -> forecasting
             absent                the next step: inputs x[:, :-1], targets x[:, 1:]    -> forecasting
    series   (T, I) or (T,)        instead of x: one long series, cut into windows of `steps`, next step to predict

Each may come again as x_valid, y_valid, lengths_valid, x_test, ..., or in a file of its own for valid or test; parts
that are not given are split off: by a permutation from the seed for x, from the end of time for series. Inputs, and
targets that are inputs one step later, are scaled to mean 0 and deviation 1 of the training part. Sequences end at
the last position, padding is on the left. Classes are numbered in their order, so those that no sequence has take no
score.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gatewise.lab.data.batches import SPLITS, Examples
from gatewise.lab.data.sources import DataError
from gatewise.lab.provenance import digest_of
from gatewise.wording import counted

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SeriesData:
    """Three sets of sequences. Predictions of the next step go back to the user's units by `* scale + mean`."""

    train: Examples
    valid: Examples
    test: Examples
    kind: Literal["classification", "forecasting"]
    n_inputs: int  # I
    n_outputs: int  # number of classes, or O
    every_step: bool  # targets are (N, T, O)
    mean: Tensor  # (I,) float64: float32 has no digits left for a date in seconds
    scale: Tensor  # (I,) float64
    classes: tuple[int, ...] = ()  # in the order of their scores
    next_step: bool = False  # targets are inputs, scaled
    note: str = ""
    digest: str = ""  # SHA-256 of the arrays as they were read

    def to(self, device: torch.device | str) -> SeriesData:
        train, valid, test = (part.to(device) for part in (self.train, self.valid, self.test))
        return replace(self, train=train, valid=valid, test=test)


@dataclass(frozen=True)
class _Part:
    """One checked split, steps at the start of each row as in the file."""

    x: Array  # (N, T, I) float64
    lengths: Array  # (N,)
    y: Array | None

    def take(self, rows: Array) -> _Part:
        return _Part(self.x[rows], self.lengths[rows], None if self.y is None else self.y[rows])


def npz_series(
    path: str | Path,
    valid_fraction: float = 0.15,
    test_fraction: float = 0.1,
    steps: int = 100,
    seed: int = 113,
    scaling: tuple[Array, Array] | None = None,
    classes: Sequence[int] = (),
    valid: str | Path | None = None,
    test: str | Path | None = None,
) -> SeriesData:
    """Read, check, split, scale and left-pad the arrays described above.

    `valid` and `test` are files whose x (or series), y and lengths are that part; they go before arrays in `path`.
    `scaling`, mean and scale (I,), and `classes` are those of a trained model; without them they are the file's.
    """
    fractions = {"valid": valid_fraction, "test": test_fraction}
    if min(fractions.values()) <= 0 or sum(fractions.values()) >= 1:
        raise DataError(
            f"valid_fraction {valid_fraction}, test_fraction {test_fraction}: each above 0 and their sum below 1."
        )
    arrays, files = _load(Path(path)), str(path)
    for split, file in (("valid", valid), ("test", test)):
        if file is not None:
            arrays, files = _with_part(arrays, split, Path(file)), f"{files}, {split} {file}"
    if len({name.startswith("series") for name in arrays}) > 1:
        raise DataError(f"{files}: holds {', '.join(sorted(arrays))}: either series, or x, y and lengths.")
    if "series" in arrays:
        parts = _cut_series(arrays, files, fractions, steps)
    else:
        parts = _split_rows(arrays, files, fractions, seed)
    shapes = {split: (part.x.shape[2], _kind(part)) for split, part in parts.items()}
    if len(set(shapes.values())) > 1:
        raise DataError(f"{files}: the parts differ in their number of inputs or kind of targets: {shapes}.")
    # Of what was read, not of the scaled inputs: their last digits may differ from one machine to another.
    return replace(_assemble(parts, files, scaling, tuple(classes)), digest=digest_of(arrays))


def _load(path: Path) -> dict[str, Array]:
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise DataError(f"{path}: holds one array without a name; save it by np.savez(path, x=...).")
        with file:
            arrays = {name: file[name] for name in file.files}
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: cannot be read as .npz without pickles ({error}). Sequences of different lengths go into one "
            "padded array x and an array lengths."
        ) from error
    known = {f"{name}{end}" for name in ("x", "y", "lengths", "series") for end in ("", "_valid", "_test")}
    unknown = sorted(set(arrays) - known)
    if unknown or not {"x", "series"} & set(arrays):
        raise DataError(
            f"{path}: holds arrays {sorted(arrays)}; it needs x (or series) and may have y, lengths, and each of "
            "them with _valid or _test."
        )
    for name in arrays:
        base, _, split = name.partition("_")
        if base in ("y", "lengths") and _named("x", split or "train") not in arrays:
            raise DataError(
                f"{path}: holds {name}, but no {_named('x', split or 'train')} that it belongs to."
            )
    return arrays


def _with_part(arrays: Mapping[str, Array], split: str, file: Path) -> dict[str, Array]:
    """The arrays of a file of its own in place of those of a split."""
    own = _load(file)
    ended = sorted(name for name in own if "_" in name)
    if ended:
        raise DataError(
            f"{file}: holds {ended[0]}; a file that is the {split} part as a whole has x (or series), y and lengths."
        )
    kept = {name: array for name, array in arrays.items() if not name.endswith(f"_{split}")}
    return kept | {_named(name, split): array for name, array in own.items()}


def _cut_series(
    arrays: Mapping[str, Array], path: str, fractions: Mapping[str, float], steps: int
) -> dict[str, _Part]:
    """Windows of steps + 1 points that share their end points, so no target is lost but a rest at the end."""
    if steps < 1:
        raise DataError(f"steps is {steps}; a window needs at least 1.")
    series = {
        split: _numbers(arrays, _named("series", split), path)
        for split in SPLITS
        if _named("series", split) in arrays
    }
    rest, total = series["train"], len(series["train"])
    for split in ("test", "valid"):
        if split not in series:
            cut = int(fractions[split] * total)
            rest, series[split] = rest[: len(rest) - cut], rest[len(rest) - cut :]
    series["train"] = rest
    parts = {}
    for split in SPLITS:
        name, values = _named("series", split), series[split]
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2:
            raise DataError(f"{path}: {name} has shape {values.shape}; it must be (T, I) or (T,).")
        n = (len(values) - 1) // steps
        if n < 1:
            raise DataError(
                f"{path}: {split} has {len(values)} points, too few for a window of {steps} steps and its target. "
                "Take a smaller `steps`, or give a longer series."
            )
        _check_finite(values[None], np.array([len(values)]), path, name)
        index = np.arange(n)[:, None] * steps + np.arange(steps + 1)
        parts[split] = _Part(values[index], np.full(n, steps + 1), None)
    return parts


def _split_rows(
    arrays: Mapping[str, Array], path: str, fractions: Mapping[str, float], seed: int
) -> dict[str, _Part]:
    parts = {split: _checked(arrays, split, path) for split in SPLITS if _named("x", split) in arrays}
    whole = parts["train"]
    order = np.random.RandomState(seed).permutation(len(whole.x))
    total = len(order)
    for split in ("test", "valid"):
        if split not in parts:
            cut = int(fractions[split] * total)
            if cut < 1:
                larger = ", a larger valid_fraction" if split == "valid" else ""
                raise DataError(
                    f"{path}: {total} sequences are too few to split off {fractions[split]:.0%} for {split}. Give "
                    f"x_{split}{larger}, or more sequences."
                )
            order, rows = order[:-cut], order[-cut:]
            parts[split] = whole.take(rows)
    parts["train"] = whole.take(order)
    return parts


def _checked(arrays: Mapping[str, Array], split: str, path: str) -> _Part:
    """The arrays of one split, or an error that names array, numbers and what would be right."""
    name, y_name, lengths_name = _named("x", split), _named("y", split), _named("lengths", split)
    x = _numbers(arrays, name, path)
    x = x[:, :, None] if x.ndim == 2 else x
    if x.ndim != 3 or 0 in x.shape:
        raise DataError(f"{path}: {name} has shape {x.shape}; it must be (N, T, I) or (N, T), nothing empty.")
    n, steps, _ = x.shape
    lengths = arrays.get(lengths_name, np.full(n, steps))
    if lengths.shape != (n,) or lengths.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {lengths_name} is {lengths.dtype} of shape {lengths.shape}; it must be whole numbers, ({n},)."
        )
    shortest = 1 if y_name in arrays else 2  # the next step must exist
    if steps < shortest:
        raise DataError(
            f"{path}: {name} has sequences of {steps} step; without {y_name} the next step is to be predicted, so 2 "
            f"are the least. Give longer sequences, or {y_name}."
        )
    bad = np.flatnonzero((lengths < shortest) | (lengths > steps))
    if len(bad):
        raise DataError(
            f"{path}: {lengths_name}[{bad[0]}] is {lengths[bad[0]]}; {name} allows {shortest} to {steps}."
        )
    _check_finite(x, lengths, path, name)
    y = arrays.get(y_name)
    if y is not None:
        if y.shape[:1] != (n,) or (y.ndim == 3 and y.shape[1] != steps) or y.ndim not in (1, 2, 3):
            raise DataError(
                f"{path}: {y_name} has shape {y.shape}; with {name} of {n} sequences of {steps} steps it must be "
                f"({n},) classes, ({n}, O) or ({n}, {steps}, O) numbers."
            )
        if y.ndim == 1 and (y.dtype.kind not in "iu" or y.min() < 0):
            raise DataError(
                f"{path}: {y_name} of shape ({n},) means classes and must hold whole numbers from 0; for numbers to "
                "forecast give it the shape (N, 1)."
            )
        if y.ndim > 1:
            y = _numbers(arrays, y_name, path)
            _check_finite(
                y if y.ndim == 3 else y[:, None], lengths if y.ndim == 3 else np.ones(n), path, y_name
            )
    return _Part(x, lengths, y)


def _assemble(
    parts: Mapping[str, _Part], path: str, scaling: tuple[Array, Array] | None, classes: tuple[int, ...]
) -> SeriesData:
    train = parts["train"]
    n_inputs = train.x.shape[2]
    mean, scale = scaling if scaling is not None else _scaling(train)
    if len(mean) != n_inputs:
        raise DataError(
            f"{path}: has {counted(n_inputs, 'number')} a step; the model was trained with {len(mean)}."
        )
    if train.y is not None and train.y.ndim == 1:
        known = classes or _classes(parts, path)
        parts = {split: _numbered(part, known, path, split) for split, part in parts.items()}
    elif classes:
        raise DataError(f"{path}: has no classes y of shape (N,), but the model tells {len(classes)} apart.")
    else:
        known = ()
    examples = {split: _examples(part, mean, scale) for split, part in parts.items()}
    targets = examples["train"].targets
    next_step = train.y is None
    return SeriesData(
        examples["train"],
        examples["valid"],
        examples["test"],
        "classification" if known else "forecasting",
        n_inputs,
        len(known) or targets.shape[-1],
        targets.ndim == 3,
        torch.from_numpy(mean),
        torch.from_numpy(scale),
        known,
        next_step,
        "mse is of scaled numbers, deviation 1 each; times scale^2 of encoding.json it is of those in the file"
        if next_step
        else "",
    )


def _scaling(train: _Part) -> tuple[Array, Array]:
    """Mean and deviation (I,) of the real steps."""
    real = train.x[np.arange(train.x.shape[1]) < train.lengths[:, None]]  # (real steps, I)
    mean, scale = real.mean(0), real.std(0)
    # A constant input carries nothing; dividing by its deviation, 0 or what rounding makes of it, would.
    constant = (real == real[0]).all(0) | (scale == 0)
    return np.where(constant, real[0], mean), np.where(constant, 1, scale)


def _classes(parts: Mapping[str, _Part], path: str) -> tuple[int, ...]:
    """Those of the training sequences; others would never be learned."""
    found = {split: set(np.unique(part.y).tolist()) for split, part in parts.items() if part.y is not None}
    unseen = sorted(set.union(*found.values()) - found["train"])
    if unseen or len(found["train"]) < 2:
        raise DataError(
            f"{path}: the training sequences have {counted(len(found['train']), 'class')}, all parts together "
            f"{len(found['train']) + len(unseen)}; there must be at least 2, and training must see them all"
            + (f", class {unseen[0]} too. Give x_valid and x_test of your own." if unseen else ".")
        )
    return tuple(sorted(found["train"]))


def _numbered(part: _Part, classes: tuple[int, ...], path: str, split: str) -> _Part:
    """Classes by their place in the order of scores."""
    assert part.y is not None
    new = np.setdiff1d(part.y, classes)
    if len(new):
        raise DataError(
            f"{path}: {_named('y', split)} has class {new[0]}, which the model does not know; it knows {classes}."
        )
    return replace(part, y=np.searchsorted(classes, part.y))


def _examples(part: _Part, mean: Array, scale: Array) -> Examples:
    """Scale, make the targets, and move every sequence to the right end of its row."""
    x = ((part.x - mean) / scale).astype(np.float32)
    lengths, y = part.lengths.astype(np.int64), part.y
    if y is None:
        x, y, lengths = x[:, :-1], x[:, 1:], lengths - 1
    if y.ndim == 3:
        y = _left_pad(y, lengths)
    targets = torch.from_numpy(y.astype(np.int64 if y.ndim == 1 else np.float32))
    return Examples(torch.from_numpy(_left_pad(x, lengths)), torch.from_numpy(lengths), targets)


def _left_pad(values: Array, lengths: Array) -> Array:
    """Row n: T - lengths[n] zeros, then its first lengths[n] steps."""
    steps = values.shape[1]
    source = np.arange(steps) - (steps - lengths[:, None])  # (N, T); negative on padding
    moved = np.take_along_axis(values, np.maximum(source, 0)[:, :, None], axis=1)
    return np.where(source[:, :, None] >= 0, moved, 0).astype(np.float32)


def _kind(part: _Part) -> str:
    if part.y is None:
        return "next step"
    where = "at every step" if part.y.ndim == 3 else "at the end"
    return "classes" if part.y.ndim == 1 else f"{counted(part.y.shape[-1], 'number')} {where}"


def _named(name: str, split: str) -> str:
    return name if split == "train" else f"{name}_{split}"


def _numbers(arrays: Mapping[str, Array], name: str, path: str) -> Array:
    if arrays[name].dtype.kind not in "fiub":
        raise DataError(f"{path}: {name} holds {arrays[name].dtype}; it must hold real numbers.")
    numbers = arrays[name].astype(np.float64)
    # What is too large for float32, in which a model computes, is reported with its place.
    numbers[np.abs(numbers) > np.finfo(np.float32).max] = np.inf
    return numbers


def _check_finite(values: Array, lengths: Array, path: str, name: str) -> None:
    """NaN and infinity are refused on real steps; what lies on padding is never read."""
    real = np.arange(values.shape[1]) < lengths[:, None]
    bad = np.argwhere(~np.isfinite(values).all(2) & real)
    if len(bad):
        row, step = bad[0]
        raise DataError(
            f"{path}: {name} is NaN or infinite at {len(bad):,} of {int(real.sum()):,} real steps, first at sequence "
            f"{row}, step {step}. Fill the gaps, or shorten the sequence through lengths."
        )
