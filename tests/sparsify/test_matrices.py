"""Matrices that are worked on block by block, against the formulas for whole ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gatewise.sparsify.matrices import BLOCK, lasso_grad, matrix_stats

close = torch.testing.assert_close


@pytest.fixture
def matrices() -> list[Tensor]:
    """Several blocks of rows, the last one shorter, and rows that are longer than a block."""
    assert 2 * 700 < BLOCK < 70_000
    return [torch.randn(shape, dtype=torch.float64) for shape in ((300, 700), (3, 70_000))]


def test_sums_are_those_of_all_blocks(matrices: list[Tensor]) -> None:
    rows, columns, absolute = matrix_stats(matrices)
    close(rows, [w.square().sum(1) for w in matrices])
    close(columns, [w.square().sum(0) for w in matrices])
    close(absolute, torch.stack([w.abs().sum() for w in matrices]))


@pytest.mark.parametrize("in_row_groups", [True, False])
def test_every_block_has_its_gradient(matrices: list[Tensor], in_row_groups: bool) -> None:
    """scale * (l1 sign(w) + w (row_slope_i + column_slope_j)), with l1 and without; softmax rows are no group."""
    rows = [torch.rand(len(w), dtype=w.dtype) * in_row_groups for w in matrices]
    columns = [torch.rand(w.shape[1], dtype=w.dtype) for w in matrices]
    l1 = [0.3, 0.0]
    expected = [
        2 * (slope * w.sign() + w * (across[:, None] + down))
        for w, slope, across, down in zip(matrices, l1, rows, columns)
    ]
    close(lasso_grad(matrices, l1, rows, columns, torch.tensor(2.0, dtype=torch.float64)), expected)
