"""Fused group-lasso sums, gradient and threshold against plain torch in float64."""

from __future__ import annotations

import pytest
import torch
from triton_device import DEVICE, INTERPRETED

from gatewise.sparsify.triton_lasso import lasso_grad, matrix_stats, threshold_

SHAPES = [(1, 1), (3, 200), (33, 129), (64, 128)] + ([] if INTERPRETED else [(10000, 200), (800, 400)])


@pytest.fixture
def mats():
    torch.manual_seed(0)
    mats = [torch.randn(shape, device=DEVICE) for shape in SHAPES]
    mats[1][1] = 0
    return mats


def test_sums_over_rows_and_columns(mats):
    row_sq, col_sq, abs_sum = matrix_stats(mats)
    assert abs_sum.shape == (len(mats),)
    for m, r, c, a in zip(mats, row_sq, col_sq, abs_sum):
        exact = m.double()
        torch.testing.assert_close(r.double(), exact.square().sum(1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(c.double(), exact.square().sum(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.double(), exact.abs().sum(), rtol=1e-5, atol=1e-5)


def test_the_same_sums_twice(mats):
    first, again = matrix_stats(mats), matrix_stats(mats)
    for a, b in zip((*first[0], *first[1], first[2]), (*again[0], *again[1], again[2])):
        assert torch.equal(a, b)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_gradient_is_its_formula(mats, as_tensor):
    """A zero weight has no sign, so L1 leaves it where it is."""
    rows = [torch.randn(m.shape[0], device=DEVICE) for m in mats]
    cols = [torch.randn(m.shape[1], device=DEVICE) for m in mats]
    l1 = [0.1 * (k + 1) for k in range(len(mats))]
    grads = lasso_grad(mats, torch.tensor(l1, device=DEVICE) if as_tensor else l1, rows, cols)
    for m, weight, r, c, grad in zip(mats, l1, rows, cols, grads):
        expected = weight * m.sign() + m * (r[:, None] + c[None, :])
        torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-6)
    half = torch.tensor(0.5, device=DEVICE)
    for grad, scaled in zip(grads, lasso_grad(mats, l1, rows, cols, half)):
        torch.testing.assert_close(scaled, grad / 2)


def test_the_threshold_cuts_what_is_below_it(mats):
    expected = [torch.where(m.abs() < 0.3, torch.zeros_like(m), m) for m in mats]
    mats[0][0, 0] = expected[0][0, 0] = float("nan")
    versions = [m._version for m in mats]
    threshold_(mats, 0.3)
    for m, e, version in zip(mats, expected, versions):
        torch.testing.assert_close(m, e, rtol=0, atol=0, equal_nan=True)
        assert m._version > version


def test_what_it_cannot_read_is_refused(mats):
    with pytest.raises(ValueError, match="contiguous"):
        matrix_stats([mats[1].mT])
