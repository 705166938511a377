"""Matrices that are worked on block by block, against the formulas for whole ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gatewise.sparsify.matrices import BLOCK, gradient, matrix_stats, value_and_slopes
from gatewise.sparsify.plan import EPS, Plan

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
    shapes = [(len(w), w.shape[1]) for w in matrices]
    lines = torch.cat(
        [
            torch.ones(n, dtype=torch.bool) * is_in
            for r, c in shapes
            for n, is_in in ((r, in_row_groups), (c, True))
        ]
    )
    groups = lines.nonzero()  # one line each
    plan = Plan(1.0, (0.3, 0.0), groups, shapes, torch.zeros(len(groups), dtype=torch.int64))
    _, slopes = value_and_slopes(plan, matrices)
    twice = torch.tensor(2.0, dtype=torch.float64)
    for k, (w, l1) in enumerate(zip(matrices, plan.l1)):
        down = 1 / (w.square().sum(0) + EPS).sqrt()
        across = in_row_groups / (w.square().sum(1, keepdim=True) + EPS).sqrt()
        expected = l1 * w.sign() + w * (across + down)
        close(gradient(plan, k, w, slopes, twice, None), 2 * expected)
        close(gradient(plan, k, w, slopes, None, w.clone()), w + expected)
