"""Sparse parts that describe no matrix are refused."""

from __future__ import annotations

import pytest
import torch

from gatewise.export.storage import decode, encode


@pytest.mark.parametrize(
    ("part", "content"),
    [("columns", [7, 7]), ("starts", [0, 2, 1, 2]), ("starts", [1, 1, 1, 2])],
    ids=["a column too far", "a row that ends before it begins", "a first row that begins late"],
)
def test_sparse_parts_that_describe_no_matrix_are_refused(part: str, content: list[int]) -> None:
    """Two entries of a (3, 7) matrix, in rows 0 and 2."""
    matrix = torch.zeros(3, 7)
    matrix[0, 1] = matrix[2, 2] = 1
    entry, stored = encode("w", matrix)
    assert entry.form == "sparse"
    stored[f"w:{part}"].copy_(torch.tensor(content))
    with pytest.raises(ValueError, match=r"do not describe a matrix of shape \(3, 7\)"):
        decode("w", entry, stored)
