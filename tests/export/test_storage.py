"""What is stored comes back bit for bit, and what describes no tensor is refused."""

from __future__ import annotations

import pytest
import torch

from gatewise.export.storage import decode, encode


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
    stored[f"w:{part}"] = torch.tensor(content, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"do not describe a matrix of shape \(3, 7\)"):
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


def test_dense_numbers_of_another_type_are_refused() -> None:
    entry, stored = encode("w", torch.ones(3, 7))
    with pytest.raises(ValueError, match=r"is torch\.float64 \(3, 7\), not float32 \(3, 7\)"):
        decode("w", entry, {"w": stored["w"].double()})
