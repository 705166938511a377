"""How a state_dict lies in a file: each tensor as it is, sparse or narrow, by a fixed rule on stored bytes.

    matrix (2-D, floating)  sparse where that takes fewer bytes: values of the non-zero entries row by row, their
                            column ids (uint16 below 65,536 columns, else int32) and row starts (int32)
    index list (int64)      the narrowest integer type that holds its smallest and largest value
    everything else         as it is

The rule looks at numbers alone, so a model gives the same file on every machine. Nothing is rounded: an entry is
zero only if all its bits are, so that -0.0 comes back as -0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatewise.export.saved.schema import SchemaError

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)
PARTS = (":values", ":columns", ":starts")
Array = NDArray[Any]
ROWS = 4096  # of a sparse matrix that are written out at once


@dataclass(frozen=True)
class Forms:
    """Which tensors are not stored as they are."""

    sparse: dict[str, list[int]] = field(default_factory=dict)  # rows and columns by name
    narrow: list[str] = field(default_factory=list)  # int64 in fewer bytes


def encode(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Forms]:
    """What is stored, by name, and in which forms. ValueError where two tensors would have one name."""
    stored: dict[str, Tensor] = {}
    forms = Forms()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous().clone()
        kept = {name: tensor}
        if tensor.dim() == 2 and tensor.is_floating_point():
            parts = sparse_parts(tensor)
            if size(parts) < size([tensor]):
                kept = {name + end: part for end, part in zip(PARTS, parts)}
                forms.sparse[name] = list(tensor.shape)
        elif tensor.dtype == torch.int64 and tensor.numel():
            low, high = int(tensor.min()), int(tensor.max())
            fits = (t for t in NARROW if torch.iinfo(t).min <= low and high <= torch.iinfo(t).max)
            if (narrow := next(fits, None)) is not None:
                kept = {name: tensor.to(narrow)}
                forms.narrow.append(name)
        if clash := stored.keys() & kept.keys():
            raise ValueError(f"two tensors would be stored as {clash.pop()!r}; rename one")
        stored |= kept
    return stored, forms


def blanks(stored: Mapping[str, Tensor], forms: Forms) -> dict[str, Tensor]:
    """The tensors without memory, as far as what is stored can be them."""
    parts = {name + end for name in forms.sparse for end in PARTS}
    for name in [*parts, *forms.narrow]:
        if name not in stored:
            raise SchemaError(f"there is no tensor {name!r}")
    found = {name: torch.empty_like(t, device="meta") for name, t in stored.items() if name not in parts}
    for name in forms.narrow:
        if stored[name].dtype not in NARROW:
            raise SchemaError(f"{name!r} is {stored[name].dtype}, not an int64 in fewer bytes")
        found[name] = found[name].to(torch.int64)
    for name, shape in forms.sparse.items():
        dtype = stored[name + PARTS[0]].dtype
        if name in found or len(shape) != 2 or not dtype.is_floating_point:
            raise SchemaError(
                f"{name!r} is sparse, but no matrix of floating numbers, or stored in two forms"
            )
        found[name] = torch.empty(shape, dtype=dtype, device="meta")
    return found


def decode(stored: Mapping[str, Tensor], forms: Forms) -> dict[str, Tensor]:
    """The tensors, bit for bit; SchemaError where sparse parts describe no matrix."""
    parts = {name + end for name in forms.sparse for end in PARTS}
    narrow = set(forms.narrow)
    tensors = {
        name: t.to(torch.int64 if name in narrow else t.dtype, copy=True)
        for name, t in stored.items()
        if name not in parts
    }
    for name, (rows, columns) in forms.sparse.items():
        tensors[name] = from_sparse(name, rows, columns, *(stored[name + end] for end in PARTS))
    return tensors


def sparse_parts(matrix: Tensor) -> list[Tensor]:
    """Values, column ids and row starts of the entries with any bit set."""
    mask = matrix.view(BITS[matrix.element_size()]) != 0
    rows, columns = mask.nonzero(as_tuple=True)
    ids = torch.uint16 if matrix.shape[1] < 65536 else torch.int32
    starts = torch.zeros(len(matrix) + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(rows, minlength=len(matrix)).cumsum(0)
    return [matrix[mask], columns.to(ids), starts.to(torch.int32)]


def from_sparse(
    name: str, n_rows: int, n_columns: int, values: Tensor, columns: Tensor, starts: Tensor
) -> Tensor:
    """The matrix; its parts are checked first, so that there are as many row starts as rows to allocate."""
    shape = n_rows, n_columns
    types = columns.dtype, starts.dtype
    fits = types == (torch.uint16 if n_columns < 65536 else torch.int32, torch.int32)
    fits = fits and values.dim() == columns.dim() == starts.dim() == 1 and len(starts) == n_rows + 1
    if not fits or int(starts[0]) != 0 or not int(starts[-1]) == len(values) == len(columns):
        raise SchemaError(f"{name} has sparse parts that do not describe a matrix of shape {shape}")
    ends, ids = starts.numpy(), columns.numpy()
    inside = not ((ends[1:] < ends[:-1]).any() or (ids >= n_columns).any() or (ids < 0).any())
    if not inside or (within_rows(ids, ends) <= 0).any():
        raise SchemaError(f"{name} has sparse parts that do not ascend within a matrix of shape {shape}")
    matrix = torch.zeros(shape, dtype=values.dtype)
    for row in range(0, n_rows, ROWS):  # in pieces: torch wants int64 for what is stored in two bytes
        counts = torch.from_numpy(np.diff(ends[row : row + ROWS + 1]).astype(np.int64))
        here = slice(int(ends[row]), int(ends[min(row + ROWS, n_rows)]))
        rows = torch.repeat_interleave(torch.arange(row, row + len(counts)), counts)
        matrix[rows, torch.from_numpy(ids[here].astype(np.int64))] = values[here]
    return matrix


def within_rows(ids: Array, ends: Array) -> Array:
    """How far it is from each entry to the next in the same row."""
    first = np.zeros(len(ids) + 1, bool)  # of a row; the last place is for rows without entries at the end
    first[ends] = True
    return np.diff(ids.astype(np.int64))[~first[1:-1]]


def size(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)
