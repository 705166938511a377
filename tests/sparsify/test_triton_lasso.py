"""Fused group-lasso sums, slopes, gradient and threshold against plain torch in float64."""

from __future__ import annotations

import pytest
import torch
from triton_device import DEVICE, INTERPRETED

from gatewise.sparsify.plan import EPS, Plan
from gatewise.sparsify.triton_lasso import gradient, matrix_stats, threshold_, value_and_slopes

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


def some_plan(mats, n_groups, each):
    """Groups of `each` random lines, some of them absent; lambdas as a budget may have turned them."""
    n_lines = sum(sum(m.shape) for m in mats)
    groups = torch.rand(n_groups, n_lines + 1).argsort(1)[:, :each]
    l1 = tuple(0.1 * k for k in range(len(mats)))
    plan = Plan(0.7, l1, groups, [tuple(m.shape) for m in mats], torch.zeros(n_groups, dtype=torch.int64))
    plan.factors, plan.l1_factor = torch.rand(n_groups), torch.tensor(1.5)
    return plan.on(mats[0].device, torch.float32)


def written_out(plan, mats):
    """The penalty line by line, in float64."""
    lines = torch.cat(
        [s for m in mats for s in (m.square().sum(1), m.square().sum(0))] + [mats[0].new_zeros(1)]
    )
    norms = (lines[plan.groups].sum(1) + EPS).sqrt()
    absolute = sum(weight * m.abs().sum() for m, weight in zip(mats, plan.l1))
    return plan.l1_factor.double() * absolute + 0.7 * (plan.factors.double() * norms).sum()


@pytest.mark.parametrize(("n_groups", "each"), [(0, 1), (5, 3), (600, 2)])
def test_value_and_gradient_are_those_of_autograd(mats, n_groups, each):
    """New or added to what is there, scaled or not; a zero weight has no sign, so L1 leaves it where it is."""
    plan = some_plan(mats, n_groups, each)
    exact = [m.double().requires_grad_() for m in mats]
    value, slopes = value_and_slopes(plan, mats)
    expected = written_out(plan, exact)
    expected.backward()
    torch.testing.assert_close(value.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert slopes[-1] == 0
    half = torch.tensor(0.5, device=DEVICE)
    for k, (m, e) in enumerate(zip(mats, exact)):
        new = gradient(plan, k, m, slopes, half, None)
        torch.testing.assert_close(new.double(), e.grad / 2, rtol=1e-4, atol=1e-5)
        there = torch.randn_like(m)
        before, version = there.double(), there._version
        assert gradient(plan, k, m, slopes, None, there) is there
        assert there._version > version
        torch.testing.assert_close(there.double(), before + e.grad, rtol=1e-4, atol=1e-5)


def test_the_threshold_cuts_what_is_below_it(mats):
    expected = [torch.where(m.abs() < 0.3, torch.zeros_like(m), m) for m in mats]
    mats[0][0, 0] = expected[0][0, 0] = float("nan")
    versions = [m._version for m in mats]
    threshold_(mats, 0.3)
    for m, e, version in zip(mats, expected, versions):
        torch.testing.assert_close(m, e, rtol=0, atol=0, equal_nan=True)
        assert m._version > version


@pytest.mark.parametrize("aligned", [True, False])
def test_rows_that_begin_anywhere(aligned):
    """Four values at once where all rows allow it, else one: the answer is the same."""
    store = torch.randn(40 * 36 + 1, device=DEVICE)
    w = store[: 40 * 36].view(40, 36) if aligned else store[1:].view(40, 36)
    rows, cols, _ = matrix_stats([w])
    torch.testing.assert_close(rows[0], w.square().sum(1))
    torch.testing.assert_close(cols[0], w.square().sum(0))


def test_what_it_cannot_read_is_refused(mats):
    with pytest.raises(ValueError, match="contiguous"):
        matrix_stats([mats[1].mT])
