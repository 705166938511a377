"""The two ways of cutting a stream of symbols into batches.

    Windows     B contiguous rows read side by side, T steps at a time, the state carried from window to window
    Chunks      independent pieces of L symbols from a random offset, shuffled, each starting from a zero state

Both hold whole tensors that live where the stream lives, so batches are views or lookups made on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from gatewise.lab.data.batches import EpochPlan, plan_epoch
from gatewise.lab.data.sources import DataError
from gatewise.wording import counted

Remainder = Literal["drop", "keep"]


class Windows:
    """A stream as B contiguous rows of L = N // B symbols, read T steps at a time; the state goes on from window
    to window and is zero at the start of an epoch.

        inputs[k]  = rows[k*T : k*T + T]          (T, B)
        targets[k] = rows[k*T + 1 : k*T + T + 1]

    The L - 1 targets of a row rarely divide by T. "drop" leaves the rest out: (L - 1) // T windows, as in Wen's code
    and the pruning runs. "keep" adds one shorter window, as in the authors' Bayesian code.

    The pruning runs are tested word by word over the whole stream: batch_size=1, "keep" (any T gives the same sum).
    """

    def __init__(self, ids: Tensor, batch_size: int, steps: int, remainder: Remainder = "drop") -> None:
        if remainder not in ("drop", "keep"):
            raise DataError(f"remainder is {remainder!r}; it must be 'drop' or 'keep'.")
        if batch_size < 1 or steps < 1:
            raise DataError(f"batch_size is {batch_size} and steps is {steps}; both must be at least 1.")
        length = len(ids) // batch_size
        n_full, rest = divmod(max(length - 1, 0), steps)
        self.n_windows = n_full + (remainder == "keep" and rest > 0)
        if self.n_windows == 0:
            raise DataError(
                f"{counted(len(ids), 'symbol')} in {counted(batch_size, 'row')} leave "
                f"{counted(max(length - 1, 0), 'target')} a row, too few for a window of {steps}. Decrease "
                "batch_size or steps, or keep the remainder; in a recipe data.batch (data.test_batch), data.steps "
                "and data.remainder. Or give a longer text."
            )
        self.batch_size, self.steps = batch_size, steps
        self.n_steps = length - 1 if remainder == "keep" else n_full * steps  # targets in a row
        self.n_targets = batch_size * self.n_steps
        # (L, B): a window is then one contiguous block of memory, and inputs and targets are views of the same rows.
        self.rows = ids[: batch_size * length].view(batch_size, length).t().contiguous()

    def __len__(self) -> int:
        return self.n_windows

    def windows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Views (inputs, targets), each (T, B); a kept last one has fewer steps."""
        for k in range(self.n_windows):
            first, last = k * self.steps, min((k + 1) * self.steps, self.n_steps)
            yield self.rows[first:last], self.rows[first + 1 : last + 1]

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """All windows at one shape, for a CUDA graph: inputs and targets (n, T, B), weight (n, T) float32.

        A kept last window is filled up with symbol 0 at weight 0; its state is not used any more, as the epoch ends.
        Otherwise these are views, no copy.
        """
        n, steps, total = self.n_windows, self.steps, self.n_windows * self.steps
        rows = self.rows[: self.n_steps + 1]
        if total > self.n_steps:
            rows = torch.cat([rows, rows.new_zeros(total - self.n_steps, self.batch_size)])
        weight = (torch.arange(total, device=rows.device) < self.n_steps).float().view(n, steps)
        shape = (n, steps, self.batch_size)
        return rows[:total].view(shape), rows[1 : total + 1].view(shape), weight


class Chunks:
    """A stream cut into independent chunks of L symbols, each read from a zero state.

        number of chunks = N // L - 1                      one chunk of slack, so that the cut can move
        training    first = offset + L * k, k shuffled     offset drawn from [0, N - chunks * L) once per epoch
        evaluation  first = L * k in order                 the slack is left out here too, as with the authors

    A chunk has L - 1 inputs and L - 1 targets: the step from one chunk to the next is never predicted.
    """

    def __init__(self, ids: Tensor, length: int = 100, batch_size: int = 64) -> None:
        if length < 2:
            raise DataError(f"length is {length}; a chunk needs at least one input and one target, so 2.")
        self.n_chunks = len(ids) // length - 1
        if self.n_chunks < 1:
            raise DataError(
                f"{len(ids):,} symbols are too few for chunks of {length}: two chunks' worth is the least, "
                f"{2 * length:,}. Take a shorter length, in a recipe data.chunk, or a longer text."
            )
        # No more rows than chunks: fillers of weight 0 cost as much as real rows.
        self.ids, self.length, self.batch_size = ids, length, min(batch_size, self.n_chunks)
        self.max_offset = len(ids) - self.n_chunks * length
        self.n_batches = -(-self.n_chunks // self.batch_size)
        self.n_targets = self.n_chunks * (length - 1)
        self._ahead = torch.arange(length, device=ids.device)[:, None]

    def __len__(self) -> int:
        return self.n_batches

    def epoch(self, generator: torch.Generator | None = None) -> EpochPlan:
        """First symbols of the chunks: shuffled from a random offset, or in order from 0 without a generator."""
        if generator is None:
            first = torch.arange(self.n_chunks) * self.length
        else:
            offset = torch.randint(self.max_offset, (), generator=generator)
            first = torch.randperm(self.n_chunks, generator=generator) * self.length + offset
        return plan_epoch(first.to(self.ids.device), self.batch_size)

    def batch(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (L - 1, B), of the chunks that begin at `first` (B,); device operations only."""
        chunk = self.ids[first + self._ahead]  # (L, B)
        return chunk[:-1], chunk[1:]
