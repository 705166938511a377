"""Epoch plans: every row once, fillers at weight 0, the same order after a resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.tasks.batches import Examples, epoch_generator, plan_epoch
from gatewise.tasks.sources import DataError


def examples(n: int) -> Examples:
    """Row k holds the number k at its last k % 3 + 1 positions."""
    lengths = torch.arange(n) % 3 + 1
    mask = torch.arange(4) >= 4 - lengths[:, None]
    return Examples(torch.arange(n)[:, None] * mask, lengths, torch.arange(n) % 2)


def test_masks_are_true_on_the_last_positions() -> None:
    assert examples(3).mask().int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]]


def test_the_last_batch_is_partial_or_filled_at_weight_zero() -> None:
    data = examples(5)
    plan = data.epoch(batch_size=2)
    assert plan.index.tolist() == [[0, 1], [2, 3], [4, 0]]
    partial = list(data.batches(plan))
    assert [len(batch.inputs) for batch in partial] == [2, 2, 1]
    fixed = list(data.batches(plan, fixed_shape=True))
    assert [batch.weight.tolist() for batch in fixed] == [[1, 1], [1, 1], [1, 0]]
    assert fixed[2].inputs[0].tolist() == partial[2].inputs[0].tolist() == [0, 0, 4, 4]
    assert fixed[2].mask.tolist() == data.mask()[[4, 0]].tolist()


def test_a_weighted_mean_over_the_filled_batch_is_the_mean_over_the_partial_one() -> None:
    data = examples(5)
    plan = data.epoch(2, epoch_generator(0, 0))
    for partial, fixed in zip(data.batches(plan), data.batches(plan, fixed_shape=True)):
        loss = fixed.inputs.float().sum(1)
        weighted = (fixed.weight * loss).sum() / fixed.weight.sum()
        torch.testing.assert_close(weighted, partial.inputs.float().sum(1).mean())


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 60), batch=st.integers(1, 70), seed=st.integers(0, 2**32), start=st.integers(0, 4))
def test_every_row_comes_once_and_a_resumed_epoch_goes_on(n: int, batch: int, seed: int, start: int) -> None:
    data = examples(n)
    plan, again = (data.epoch(batch, epoch_generator(seed, 5)) for _ in range(2))
    assert torch.equal(plan.index, again.index)
    rows = torch.cat([plan.rows(k) for k in range(len(plan))])
    assert sorted(rows.tolist()) == list(range(n))
    assert float(plan.weight.sum()) == n
    assert plan.index.shape == (-(-n // batch), batch)
    late = list(data.batches(plan, start))
    assert [batch.inputs.tolist() for batch in late] == [
        batch.inputs.tolist() for batch in list(data.batches(again))[start:]
    ]


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
