"""What is stored comes back bit for bit, and what describes no tensor is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewise.export.saved.schema import SchemaError
from gatewise.export.saved.storage import Entry, decode, encode


@given(rows=st.integers(0, 9), columns=st.integers(0, 9), density=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
       dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))  # fmt: skip
def test_storage_is_bit_exact_and_never_larger(
    rows: int, columns: int, density: float, dtype: torch.dtype
) -> None:
    """Also for -0.0 and NaN; sparse only where it is smaller."""
    matrix = (torch.randn(rows, columns) * (torch.rand(rows, columns) < density)).to(dtype)
    if matrix.numel() > 2:
        matrix.view(-1)[0], matrix.view(-1)[1] = -0.0, float("nan")
    entry, stored = encode("w", matrix)
    back = decode("w", entry, stored)
    assert back.dtype == dtype
    assert (
        torch.equal(back.view(torch.uint8), matrix.view(torch.uint8))
        if columns
        else back.shape == matrix.shape
    )
    nonzero = (
        int((matrix.view(torch.uint8).view(rows, columns, -1) != 0).any(-1).sum()) if matrix.numel() else 0
    )
    sparse_bytes = nonzero * (matrix.element_size() + 2) + 4 * (rows + 1)
    assert entry.bytes == min(entry.dense_bytes, sparse_bytes)
    assert (entry.form == "sparse") == (sparse_bytes < entry.dense_bytes)


def test_wide_matrices_have_wide_column_ids() -> None:
    matrix = torch.zeros(2, 65_537)
    matrix[1, 65_536] = 1.5
    entry, stored = encode("w", matrix)
    assert stored["w:columns"].dtype == torch.int32
    assert torch.equal(decode("w", entry, stored), matrix)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("columns", [7, 7]),
        ("columns", [-1, 2]),
        ("columns", [1]),
        ("starts", [0, 2, 1, 2]),
        ("starts", [1, 1, 1, 2]),
        ("starts", [0, 1, 2]),
    ],
    ids=[
        "a column too far",
        "a column before the first",
        "a column too few",
        "a row that ends before it begins",
        "a first row that begins late",
        "a row too few",
    ],
)
def test_sparse_parts_that_describe_no_matrix_are_refused(part: str, content: list[int]) -> None:
    """Two entries of a (3, 7) matrix, in rows 0 and 2."""
    matrix = torch.zeros(3, 7)
    matrix[0, 1] = matrix[2, 2] = 1
    entry, stored = encode("w", matrix)
    assert entry.form == "sparse"
    stored[f"w:{part}"] = torch.tensor(content).to(stored[f"w:{part}"].dtype)
    with pytest.raises(ValueError, match=r"do not (describe|ascend within) a matrix of shape \(3, 7\)"):
        decode("w", entry, stored)


@pytest.mark.parametrize(
    ("content", "dtype"),
    [
        ([0, 255], torch.uint8),
        ([-1, 127], torch.int8),
        ([-1, 128], torch.int16),
        ([0, 256], torch.int16),
        ([-1, 32_768], torch.int32),
        ([0, 2**31], torch.int64),
    ],
)
def test_an_index_list_takes_the_narrowest_type(content: list[int], dtype: torch.dtype) -> None:
    """Also with the -1 of a removed word, which no unsigned type holds."""
    entry, stored = encode("rows", torch.tensor(content))
    assert stored["rows"].dtype == dtype
    back = decode("rows", entry, stored)
    assert back.dtype == torch.int64
    assert back.tolist() == content


@pytest.mark.parametrize("change", [{"form": "packed"}, {"dtype": "float31"}, {"dtype": "nn"}])
def test_an_entry_of_another_version_is_refused(change: dict[str, str]) -> None:
    fields = encode("w", torch.ones(3, 7))[0].to_dict()
    with pytest.raises(SchemaError, match=r"tensors\.w\.(form|dtype) must be one of .*, not '"):
        Entry.read("tensors.w", fields | change)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [3, 8]},
        {"shape": [3, -7]},
        {"shape": [3, 7.0]},
        {"shape": [3, True]},
        {"shape": [math.inf]},
        {"shape": [10**30]},
        {"shape": [1] * 100},
        {"shape": 21},
        {"dense_bytes": 83},
        {"bytes": "84"},
        {"form": "sparse", "shape": [21]},
        {"form": "narrow"},
    ],
)
def test_an_entry_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """Shapes are what is allocated, so they are checked before anything is."""
    fields = encode("w", torch.ones(3, 7))[0].to_dict()
    with pytest.raises(SchemaError, match=r"tensors\.w"):
        Entry.read("tensors.w", fields | change)


def test_a_column_twice_in_a_row_is_refused() -> None:
    """Which of the two values the matrix gets would be anyone's guess."""
    matrix = torch.zeros(3, 70)
    matrix[0, 1] = matrix[0, 4] = matrix[2, 2] = 1
    entry, stored = encode("w", matrix)
    stored["w:columns"] = torch.tensor([4, 4, 2]).to(torch.uint16)
    with pytest.raises(ValueError, match="do not ascend within"):
        decode("w", entry, stored)


def test_dense_numbers_of_another_type_are_refused() -> None:
    entry, stored = encode("w", torch.ones(3, 7))
    with pytest.raises(ValueError, match=r"is torch\.float64 \(3, 7\), not float32 \(3, 7\)"):
        decode("w", entry, {"w": stored["w"].double()})
