"""Epoch plans: every row once, fillers at weight 0, the same order after a resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.lab.data.batches import Examples, epoch_generator, plan_epoch
from gatewise.lab.data.sources import DataError


def examples(n: int) -> Examples:
    """Row k holds the number k at its last k % 3 + 1 positions."""
    lengths = torch.arange(n) % 3 + 1
    mask = torch.arange(4) >= 4 - lengths[:, None]
    return Examples(torch.arange(n)[:, None] * mask, lengths, torch.arange(n) % 2)


def test_masks_are_true_on_the_last_positions() -> None:
    assert examples(3).mask().int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]]


def test_the_last_batch_is_filled_at_weight_zero() -> None:
    data = examples(5)
    plan = data.epoch(batch_size=2)
    assert plan.index.tolist() == [[0, 1], [2, 3], [4, 0]]
    assert plan.weight.tolist() == [[1, 1], [1, 1], [1, 0]]
    last = data.batch(plan.index[2], plan.weight[2])
    assert last.inputs.tolist() == [[0, 0, 4, 4], [0, 0, 0, 0]]
    assert last.mask.tolist() == data.mask()[[4, 0]].tolist()
    assert last.weight.tolist() == [1, 0]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 60), batch=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_every_row_comes_once_and_a_resumed_epoch_is_the_same(n: int, batch: int, seed: int) -> None:
    data = examples(n)
    plan, again = (data.epoch(batch, epoch_generator(seed, 5)) for _ in range(2))
    assert torch.equal(plan.index, again.index)
    assert sorted(plan.index[plan.weight == 1].tolist()) == list(range(n))
    assert float(plan.weight.sum()) == n
    assert plan.index.shape == (-(-n // batch), batch)


def test_epochs_and_seeds_give_different_orders() -> None:
    orders = {
        tuple(torch.randperm(20, generator=epoch_generator(seed, epoch)).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_empty_data_and_impossible_sizes_are_refused() -> None:
    with pytest.raises(DataError, match="batch_size is 0"):
        plan_epoch(torch.arange(3), 0)
    with pytest.raises(DataError, match="empty"):
        plan_epoch(torch.arange(0), 4)
