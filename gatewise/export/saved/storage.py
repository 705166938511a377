"""How a tensor lies in a file: dense, sparse or narrow, by a fixed rule on stored bytes.

    matrix (2-D, floating)  sparse where that takes fewer bytes: values of the non-zero entries row by row, their
                            column ids (uint16 below 65,536 columns, else int32) and row starts (int32)
    index list (int64)      the narrowest integer type that holds its smallest and largest value
    everything else         as it is

The rule looks at numbers alone, so a model gives the same file on every machine. Nothing is rounded: an entry is
zero only if all its bits are, so that -0.0 comes back as -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatewise.export.saved.schema import SchemaError, listed, one_of, record, whole

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)
PARTS = {"dense": ("",), "narrow": ("",), "sparse": (":values", ":columns", ":starts")}
Array = NDArray[Any]
ROWS = 4096  # of a sparse matrix that are written out at once


@dataclass(frozen=True)
class Entry:
    """What the config says of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    form: str  # dense, sparse or narrow
    bytes: int  # stored
    dense_bytes: int  # as it lies in memory

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"shape": list(self.shape)}

    @property
    def kind(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    def blank(self) -> Tensor:
        """A tensor of this shape and type without memory."""
        return torch.empty(self.shape, dtype=self.kind, device="meta")

    @staticmethod
    def read(where: str, fields: Any) -> Entry:
        """What a file says of a tensor, as far as it can be true."""
        said = ENTRY(where, fields)
        entry = Entry(
            tuple(said["shape"]), *(said[name] for name in ("dtype", "form", "bytes", "dense_bytes"))
        )
        if entry.dense_bytes != math.prod(entry.shape) * entry.kind.itemsize:
            raise SchemaError(
                f"{where}.dense_bytes is {entry.dense_bytes}, which {entry.dtype} {entry.shape} is not"
            )
        if entry.form == "sparse" and not (len(entry.shape) == 2 and entry.kind.is_floating_point):
            raise SchemaError(f"{where} is sparse, but no matrix of floating numbers")
        if entry.form == "narrow" and entry.kind != torch.int64:
            raise SchemaError(f"{where} is narrow, but not int64")
        return entry


DTYPES = sorted(str(t).removeprefix("torch.") for t in vars(torch).values() if isinstance(t, torch.dtype))
ENTRY = record(
    shape=listed(whole(), most=64),
    dtype=one_of(*DTYPES),
    form=one_of(*PARTS),
    bytes=whole(),
    dense_bytes=whole(),
)


def encode(name: str, tensor: Tensor) -> tuple[Entry, dict[str, Tensor]]:
    """The tensor's entry, and what is stored for it by name."""
    tensor = tensor.detach().cpu().contiguous().clone()
    stored = {name: tensor}
    form = "dense"
    if tensor.dim() == 2 and tensor.is_floating_point():
        sparse = sparse_parts(tensor)
        if size(sparse) < size([tensor]):
            form, stored = "sparse", {name + end: part for end, part in zip(PARTS["sparse"], sparse)}
    elif tensor.dtype == torch.int64 and tensor.numel():
        low, high = int(tensor.min()), int(tensor.max())
        fits = (t for t in NARROW if torch.iinfo(t).min <= low and high <= torch.iinfo(t).max)
        narrow = next(fits, None)
        if narrow is not None:
            form, stored = "narrow", {name: tensor.to(narrow)}
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Entry(tuple(tensor.shape), dtype, form, size(stored.values()), size([tensor])), stored


def decode(name: str, entry: Entry, stored: Mapping[str, Tensor]) -> Tensor:
    """The tensor, bit for bit. ValueError where what is stored does not fit the entry."""
    parts = [stored[name + end] for end in PARTS[entry.form]]
    if entry.form == "sparse":
        tensor = from_sparse(entry, *parts)
    else:
        (tensor,) = parts
        types = NARROW if entry.form == "narrow" else (entry.kind,)
        if tuple(tensor.shape) != entry.shape or tensor.dtype not in types:
            raise ValueError(f"is {tensor.dtype} {tuple(tensor.shape)}, not {entry.dtype} {entry.shape}")
        tensor = tensor.to(entry.kind, copy=True)
    if size(parts) != entry.bytes:
        raise ValueError(f"takes {size(parts)} bytes, not {entry.bytes}")
    return tensor


def sparse_parts(matrix: Tensor) -> list[Tensor]:
    """Values, column ids and row starts of the entries with any bit set."""
    mask = matrix.view(BITS[matrix.element_size()]) != 0
    rows, columns = mask.nonzero(as_tuple=True)
    ids = torch.uint16 if matrix.shape[1] < 65536 else torch.int32
    starts = torch.zeros(len(matrix) + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(rows, minlength=len(matrix)).cumsum(0)
    return [matrix[mask], columns.to(ids), starts.to(torch.int32)]


def from_sparse(entry: Entry, values: Tensor, columns: Tensor, starts: Tensor) -> Tensor:
    """The matrix; its parts are checked first, so that there are as many row starts as rows to allocate."""
    n_rows, n_columns = entry.shape
    types = values.dtype, columns.dtype, starts.dtype
    fits = types == (entry.kind, torch.uint16 if n_columns < 65536 else torch.int32, torch.int32)
    fits = fits and values.dim() == columns.dim() == starts.dim() == 1 and len(starts) == n_rows + 1
    if not fits or int(starts[0]) != 0 or not int(starts[-1]) == len(values) == len(columns):
        raise ValueError(f"has sparse parts that do not describe a matrix of shape {entry.shape}")
    ends, ids = starts.numpy(), columns.numpy()
    inside = not ((ends[1:] < ends[:-1]).any() or (ids >= n_columns).any() or (ids < 0).any())
    if not inside or (within_rows(ids, ends) <= 0).any():
        raise ValueError(f"has sparse parts that do not ascend within a matrix of shape {entry.shape}")
    matrix = torch.zeros(entry.shape, dtype=entry.kind)
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


def size(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
