"""Windows with carried state, and chunks, worked out by hand on a few symbols."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.lab.data.batches import epoch_generator
from gatewise.lab.data.cuts import Chunks, Windows
from gatewise.lab.data.sources import DataError


def test_windows_drop_the_remainder_as_wen_does() -> None:
    """17 symbols, 2 rows of 8, windows of 3: 7 // 3 = 2 windows; symbol 16 and one target a row are lost."""
    windows = Windows(torch.arange(17), batch_size=2, steps=3)
    (x0, y0), (x1, y1) = windows.windows()
    assert x0.tolist() == [[0, 8], [1, 9], [2, 10]]
    assert y0.tolist() == [[1, 9], [2, 10], [3, 11]]
    assert x1.tolist() == [[3, 11], [4, 12], [5, 13]]  # goes on where x0 ended: the state is carried
    assert y1.tolist() == [[4, 12], [5, 13], [6, 14]]
    assert windows.n_targets == 12


def test_windows_keep_a_shorter_last_one_as_the_authors_do() -> None:
    windows = Windows(torch.arange(17), batch_size=2, steps=3, remainder="keep")
    assert len(windows) == 3
    *_, (x, y) = windows.windows()
    assert x.tolist() == [[6, 14]]
    assert y.tolist() == [[7, 15]]
    assert windows.n_targets == 14  # B * (L - 1), the divisor of the KL


def test_a_kept_window_of_fixed_shape_is_filled_at_weight_zero() -> None:
    windows = Windows(torch.arange(17), batch_size=2, steps=3, remainder="keep")
    x, y, weight = windows.stacked()
    assert x.shape == y.shape == (3, 3, 2)
    assert weight.tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert x[2, 0].tolist() == [6, 14]
    assert y[2, 0].tolist() == [7, 15]


def test_windows_of_a_stream_are_views_of_one_tensor() -> None:
    windows = Windows(torch.arange(1000), batch_size=4, steps=7)
    x, y, _ = windows.stacked()
    first, _ = next(windows.windows())
    assert x.data_ptr() == first.data_ptr() == windows.rows.data_ptr()
    assert y.data_ptr() == windows.rows[1].data_ptr()


def test_testing_word_by_word_predicts_every_symbol_but_the_first() -> None:
    """Batch 1 over the whole stream; the length of a window does not matter."""
    for steps in (1, 4, 100):
        pairs = list(Windows(torch.arange(10), 1, steps, "keep").windows())
        assert torch.cat([x for x, _ in pairs]).flatten().tolist() == list(range(9))
        assert torch.cat([y for _, y in pairs]).flatten().tolist() == list(range(1, 10))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 200), batch=st.integers(1, 7), steps=st.integers(1, 40))
def test_both_forms_of_windows_agree(n: int, batch: int, steps: int) -> None:
    """Stacked windows hold what the iterator yields."""
    if n // batch < 2:
        return
    windows = Windows(torch.arange(n), batch, steps, "keep")
    x, y, weight = windows.stacked()
    assert int(weight.sum()) * batch == windows.n_targets == batch * (n // batch - 1)
    for k, (xk, yk) in enumerate(windows.windows()):
        real = len(xk)
        assert torch.equal(x[k, :real], xk)
        assert torch.equal(y[k, :real], yk)
        assert torch.equal(yk, xk + 1)
        assert weight[k].tolist() == [1.0] * real + [0.0] * (steps - real)


def test_windows_that_do_not_fit_say_so() -> None:
    with pytest.raises(DataError, match="10 symbols in 4 rows leave 1 target a row"):
        Windows(torch.arange(10), 4, 5)
    with pytest.raises(DataError, match="remainder is 'cut'"):
        Windows(torch.arange(10), 2, 2, "cut")  # type: ignore[arg-type]
    for batch, steps in ((0, 2), (2, 0)):
        with pytest.raises(DataError, match=f"batch_size is {batch} and steps is {steps}; both must be"):
            Windows(torch.arange(10), batch, steps)


def test_chunks_in_order_from_zero_for_evaluation() -> None:
    """25 symbols in chunks of 4: 25 // 4 - 1 = 5 chunks, 3 targets each; batches of 2, the last one filled up."""
    chunks = Chunks(torch.arange(25), length=4, batch_size=2)
    assert (chunks.n_chunks, len(chunks), chunks.n_targets, chunks.max_offset) == (5, 3, 15, 5)
    plan = chunks.epoch()
    assert plan.index.tolist() == [[0, 4], [8, 12], [16, 0]]
    assert plan.weight.tolist() == [[1, 1], [1, 1], [1, 0]]
    x, y = chunks.batch(plan.index[0])
    assert x.tolist() == [[0, 4], [1, 5], [2, 6]]
    assert y.tolist() == [[1, 5], [2, 6], [3, 7]]
    x, y = chunks.batch(plan.index[2])
    assert x[:, 0].tolist() == [16, 17, 18]
    assert y[:, 0].tolist() == [17, 18, 19]


def test_a_batch_has_no_more_rows_than_there_are_chunks() -> None:
    """As with texts: a batch of ten million rows, all but 5 of weight 0, would never be computed."""
    chunks = Chunks(torch.arange(25), length=4, batch_size=10_000_000)
    assert (chunks.batch_size, len(chunks), chunks.n_targets) == (5, 1, 15)
    assert chunks.epoch().index.tolist() == [[0, 4, 8, 12, 16]]
    assert chunks.epoch(epoch_generator(0, 1)).weight.tolist() == [[1, 1, 1, 1, 1]]


def test_chunks_of_an_epoch_share_one_offset_and_each_comes_once() -> None:
    chunks = Chunks(torch.arange(25), length=4, batch_size=2)
    offsets = set()
    for epoch in range(60):
        plan = chunks.epoch(epoch_generator(0, epoch))
        first = plan.index[plan.weight == 1]
        offset = int(first.min())
        offsets.add(offset)
        assert sorted(first.tolist()) == [offset + 4 * k for k in range(5)]
        assert int(chunks.batch(first)[1].max()) < 25
    assert offsets == set(range(5))  # [0, N - chunks * L), the last excluded as in the authors' code


def test_an_epoch_depends_on_seed_and_number_only() -> None:
    """A run resumed at epoch 7 sees the chunks that an unbroken one saw there."""
    chunks = Chunks(torch.arange(1000), length=10, batch_size=8)
    unbroken = [chunks.epoch(epoch_generator(3, epoch)) for epoch in range(9)]
    resumed = chunks.epoch(epoch_generator(3, 7))
    assert torch.equal(unbroken[7].index, resumed.index)
    assert not torch.equal(unbroken[6].index, resumed.index)
    assert not torch.equal(chunks.epoch(epoch_generator(4, 7)).index, resumed.index)


def test_a_stream_too_short_for_chunks_says_so() -> None:
    with pytest.raises(DataError, match="19 symbols are too few for chunks of 10"):
        Chunks(torch.arange(19), length=10)
    with pytest.raises(DataError, match="length is 1; a chunk needs at least one input and one target"):
        Chunks(torch.arange(19), length=1)
