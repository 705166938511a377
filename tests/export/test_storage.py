"""What is stored comes back bit for bit, and what describes no tensor is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewise.export.saved.schema import SchemaError
from gatewise.export.saved.storage import Forms, blanks, decode, encode, size


@given(rows=st.integers(0, 9), columns=st.integers(0, 9), density=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
       dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))  # fmt: skip
def test_storage_is_bit_exact_and_never_larger(
    rows: int, columns: int, density: float, dtype: torch.dtype
) -> None:
    """Also for -0.0 and NaN; sparse only where it is smaller."""
    matrix = (torch.randn(rows, columns) * (torch.rand(rows, columns) < density)).to(dtype)
    if matrix.numel() > 2:
        matrix.view(-1)[0], matrix.view(-1)[1] = -0.0, float("nan")
    stored, forms = encode({"w": matrix})
    back = decode(stored, forms)["w"]
    assert back.dtype == blanks(stored, forms)["w"].dtype == dtype
    assert back.shape == blanks(stored, forms)["w"].shape
    assert (
        torch.equal(back.view(torch.uint8), matrix.view(torch.uint8))
        if columns
        else back.shape == matrix.shape
    )
    nonzero = (
        int((matrix.view(torch.uint8).view(rows, columns, -1) != 0).any(-1).sum()) if matrix.numel() else 0
    )
    sparse_bytes = nonzero * (matrix.element_size() + 2) + 4 * (rows + 1)
    assert size(stored.values()) == min(matrix.nbytes, sparse_bytes)
    assert ("w" in forms.sparse) == (sparse_bytes < matrix.nbytes)


def test_wide_matrices_have_wide_column_ids() -> None:
    matrix = torch.zeros(2, 65_537)
    matrix[1, 65_536] = 1.5
    stored, forms = encode({"w": matrix})
    assert stored["w:columns"].dtype == torch.int32
    assert torch.equal(decode(stored, forms)["w"], matrix)


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
    stored, forms = encode({"w": matrix})
    assert forms.sparse == {"w": [3, 7]}
    stored[f"w:{part}"] = torch.tensor(content).to(stored[f"w:{part}"].dtype)
    with pytest.raises(SchemaError, match=r"do not (describe|ascend within) a matrix of shape \(3, 7\)"):
        decode(stored, forms)


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
    stored, forms = encode({"rows": torch.tensor(content)})
    assert stored["rows"].dtype == dtype
    back = decode(stored, forms)["rows"]
    assert back.dtype == torch.int64
    assert back.tolist() == content


@pytest.mark.parametrize(
    "forms",
    [
        Forms({"w": [3]}),
        Forms({"w": [3, 7, 1]}),
        Forms({"w": [2**40, 2**40]}),
        Forms({"v": [3, 7]}),
        Forms({"i": [3, 7]}),
        Forms({"w": [3, 7]}, ["w"]),
        Forms({}, ["v"]),
        Forms({}, ["wide"]),
    ],
)
def test_forms_that_cannot_be_are_refused(forms: Forms) -> None:
    """Shapes are what is allocated, so they are checked before anything is."""
    matrix = torch.zeros(3, 7)
    stored, _ = encode({"w": matrix, "i": torch.ones(3, 7, dtype=torch.int32), "wide": torch.tensor([2**40])})
    with pytest.raises((SchemaError, RuntimeError, LookupError)):
        blanks(stored, forms)


def test_a_column_twice_in_a_row_is_refused() -> None:
    """Which of the two values the matrix gets would be anyone's guess."""
    matrix = torch.zeros(3, 70)
    matrix[0, 1] = matrix[0, 4] = matrix[2, 2] = 1
    stored, forms = encode({"w": matrix})
    stored["w:columns"] = torch.tensor([4, 4, 2]).to(torch.uint16)
    with pytest.raises(SchemaError, match="do not ascend within"):
        decode(stored, forms)
