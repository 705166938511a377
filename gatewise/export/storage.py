"""How a tensor lies in a file: dense, sparse or narrow, by a fixed rule on stored bytes.

    matrix (2-D, floating)  sparse where that takes fewer bytes: values of the non-zero entries row by row, their
                            column ids (uint16 below 65,536 columns, else int32) and row starts (int32)
    index list (int64)      the narrowest integer type that holds its smallest and largest value
    everything else         as it is

The rule looks at numbers alone, so a model gives the same file on every machine. Nothing is rounded: an entry is
zero only if all its bits are, so that -0.0 comes back as -0.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)
PARTS = {"dense": ("",), "narrow": ("",), "sparse": (":values", ":columns", ":starts")}


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

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Entry:
        entry = Entry(
            tuple(int(n) for n in fields["shape"]),
            str(fields["dtype"]),
            str(fields["form"]),
            int(fields["bytes"]),
            int(fields["dense_bytes"]),
        )
        if entry.form not in PARTS or not isinstance(getattr(torch, entry.dtype, None), torch.dtype):
            raise ValueError(f"form {entry.form!r} with dtype {entry.dtype!r} is not known")
        return entry


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
    dtype = getattr(torch, entry.dtype)
    parts = [stored[name + end] for end in PARTS[entry.form]]
    if entry.form == "sparse":
        return from_sparse(entry, dtype, *parts)
    (tensor,) = parts
    if tuple(tensor.shape) != entry.shape or (entry.form == "dense" and tensor.dtype != dtype):
        raise ValueError(f"is {tensor.dtype} {tuple(tensor.shape)}, not {entry.dtype} {entry.shape}")
    return tensor.to(dtype)


def sparse_parts(matrix: Tensor) -> list[Tensor]:
    """Values, column ids and row starts of the entries with any bit set."""
    mask = matrix.view(BITS[matrix.element_size()]) != 0
    rows, columns = mask.nonzero(as_tuple=True)
    ids = torch.uint16 if matrix.shape[1] < 65536 else torch.int32
    starts = torch.zeros(len(matrix) + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(rows, minlength=len(matrix)).cumsum(0)
    return [matrix[mask], columns.to(ids), starts.to(torch.int32)]


def from_sparse(entry: Entry, dtype: torch.dtype, values: Tensor, columns: Tensor, starts: Tensor) -> Tensor:
    matrix = torch.zeros(entry.shape, dtype=dtype)
    ids, ends = columns.to(torch.int64), starts.to(torch.int64)
    counts = ends.diff()
    fits = len(ends) == len(matrix) + 1 and int(ends[0]) == 0 and int(ends[-1]) == len(values) == len(ids)
    if not fits or (counts < 0).any() or ((ids < 0) | (ids >= matrix.shape[1])).any():
        raise ValueError(f"has sparse parts that do not describe a matrix of shape {entry.shape}")
    rows = torch.repeat_interleave(torch.arange(len(matrix)), counts)
    matrix[rows, ids] = values
    return matrix


def size(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
