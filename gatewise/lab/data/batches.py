"""Which rows make up which batch, decided once per epoch and kept on the device.

    plan.index[k]   rows of batch k, (B,); every batch has the same size, so one CUDA graph serves all
    plan.weight[k]  1 for a real row, 0 for a filler of the last batch
    loss of a batch = sum(weight * loss of a row) / sum(weight)

The order of epoch e is drawn from (seed, e) alone: a run resumed at (epoch, batch) sees what an unbroken one saw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gatewise.lab.data.sources import DataError

SPLITS = ("train", "valid", "test")  # of every data set


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A CPU generator that depends on (seed, epoch) and on nothing drawn before.

    On the CPU on purpose: the order of a run is then the same on every device.
    """
    mixed = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed))


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch as index rows of equal length."""

    index: Tensor  # (batches, B) int64
    weight: Tensor  # (batches, B) float32: 1 for a real row, 0 for a filler


def plan_epoch(rows: Tensor, batch_size: int) -> EpochPlan:
    """Cut `rows` (N,) into batches in the order given; the last one is filled up with rows of weight 0."""
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}; it must be at least 1.")
    n_rows = len(rows)
    if n_rows == 0:
        raise DataError("there are no rows to make batches of: the data set is empty.")
    n_batches = -(-n_rows // batch_size)
    # Fillers are real rows again: any valid index does, their weight is 0.
    slots = torch.arange(n_batches * batch_size, device=rows.device)
    index = rows[slots % n_rows].view(n_batches, batch_size)
    weight = (slots < n_rows).float().view(n_batches, batch_size)
    return EpochPlan(index, weight)


@dataclass(frozen=True)
class Batch:
    """One batch of sequences; mask True means a real step, weight 0 a filler row."""

    inputs: Tensor  # (B, T) ids, or (B, T, I) numbers
    targets: Tensor  # (B,) classes; (B, O) or (B, T, O) numbers
    mask: Tensor  # (B, T) bool
    weight: Tensor  # (B,) float32


@dataclass(frozen=True)
class Examples:
    """A whole data set as tensors: sequences padded on the left, so that every one ends at the last position.

        mask[n, t] = t >= T - lengths[n]

    A classifier reads the state after the last step; on masked steps the state must stay what it was, zero.
    """

    inputs: Tensor  # (N, T) int64, or (N, T, I) float32
    lengths: Tensor  # (N,) int64, at least 1
    targets: (
        Tensor  # (N,) int64 classes; (N, O) or (N, T, O) float32 numbers; (N, L) or (N, K, L) int64 phonemes
    )

    def __len__(self) -> int:
        return len(self.inputs)

    def mask(self, index: Tensor | None = None) -> Tensor:
        """(N, T) bool, or (B, T) for the rows of `index`; True on real steps."""
        lengths = self.lengths if index is None else self.lengths[index]
        steps = self.inputs.shape[1]
        return torch.arange(steps, device=lengths.device) >= steps - lengths[:, None]

    def to(self, device: torch.device | str) -> Examples:
        """The same rows on another device; from there on batches are made without the host."""
        return replace(
            self,
            inputs=self.inputs.to(device),
            lengths=self.lengths.to(device),
            targets=self.targets.to(device),
        )

    def select(self, index: Tensor) -> Examples:
        """The data set of the given rows only."""
        return Examples(self.inputs[index], self.lengths[index], self.targets[index])

    def epoch(self, batch_size: int, generator: torch.Generator | None = None) -> EpochPlan:
        """A fresh permutation of all rows, or their own order without a generator (evaluation)."""
        n = len(self)
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        return plan_epoch(order.to(self.inputs.device), batch_size)

    def batch(self, index: Tensor, weight: Tensor | None = None) -> Batch:
        """The rows of `index` (B,); only device operations, so it can be part of a captured graph."""
        if weight is None:
            weight = torch.ones(len(index), device=self.inputs.device)
        return Batch(self.inputs[index], self.targets[index], self.mask(index), weight)
