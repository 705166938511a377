"""Batches by number, made where the data lives.

    feed.reset(generator)   draw the order of an epoch; without a generator the order of the data
    feed.fetch(k)           batch k, k an int64 tensor (1,) on the device

A captured CUDA graph cannot see a Python number change, so the number of the batch is a tensor that the step itself
counts up; then an epoch is nothing but replays. Every batch of a feed has the same shape; weight 0 marks fillers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gatewise.lab.data.batches import Batch, EpochPlan, Examples
from gatewise.lab.data.cuts import Chunks, Remainder, Windows
from gatewise.lab.data.pronunciation import PAD
from gatewise.lab.models import State, stack_of


@dataclass(frozen=True)
class Fed:
    """One batch. `weight` has the shape of the losses: one per target of a language model, else per sequence."""

    inputs: Tensor  # (T, B) ids; (B, T) ids; (B, T, I) numbers
    targets: Tensor  # (T, B); (B,) classes; (B, O) or (B, T, O) numbers; (B, L) or (B, K, L) phonemes
    weight: Tensor  # (T, B); (B,); (B, T); (B, L)
    mask: Tensor | None = None  # (B, T) bool, True on real steps
    whole: Tensor | None = None  # sum of the weights on all ranks, where several share the batch
    rows: Tensor | None = None  # (B,) which examples these are, where a batch is made of whole examples


class Feed(Protocol):
    n_batches: int
    batch_size: int
    carries_state: bool  # from batch to batch, zero at the start of an epoch

    def reset(self, generator: torch.Generator | None) -> None: ...

    def fetch(self, k: Tensor) -> Fed: ...


class WindowFeed:
    """Contiguous windows in order; the state goes on from one to the next."""

    carries_state = True

    def __init__(self, windows: Windows) -> None:
        self.n_batches, self.batch_size = len(windows), windows.batch_size
        self.inputs, self.targets, self.weight = windows.stacked()

    def reset(self, generator: torch.Generator | None) -> None:
        """Nothing is drawn: the text has one order."""

    def fetch(self, k: Tensor) -> Fed:
        inputs, targets, weight = (t.index_select(0, k)[0] for t in (self.inputs, self.targets, self.weight))
        return Fed(inputs, targets, weight[:, None].expand(-1, self.batch_size))


class PlannedFeed:
    """Independent rows in an order drawn for each epoch, kept in one place that a graph can read."""

    carries_state = False
    index: Tensor  # (batches, B)
    weight: Tensor  # (batches, B)

    def draw(self, generator: torch.Generator | None) -> EpochPlan:
        raise NotImplementedError

    def start(self) -> None:
        plan = self.draw(None)
        self.index, self.weight = plan.index.clone(), plan.weight
        self.n_batches, self.batch_size = plan.index.shape

    def reset(self, generator: torch.Generator | None) -> None:
        self.index.copy_(self.draw(generator).index)

    def row(self, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.index.index_select(0, k)[0], self.weight.index_select(0, k)[0]


class ChunkFeed(PlannedFeed):
    """Chunks of text, each from a zero state."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self.start()

    def draw(self, generator: torch.Generator | None) -> EpochPlan:
        return self.chunks.epoch(generator)

    def fetch(self, k: Tensor) -> Fed:
        first, weight = self.row(k)
        inputs, targets = self.chunks.batch(first)
        return Fed(inputs, targets, weight.expand(len(inputs), -1))


class ExampleFeed(PlannedFeed):
    """Sequences with their masks: texts with classes, or series of numbers."""

    def __init__(self, examples: Examples, batch_size: int) -> None:
        self.examples, self.wanted = examples, min(batch_size, len(examples))
        self.start()

    def draw(self, generator: torch.Generator | None) -> EpochPlan:
        return self.examples.epoch(self.wanted, generator)

    def fetch(self, k: Tensor) -> Fed:
        rows, weight = self.row(k)
        batch = self.examples.batch(rows, weight)
        return Fed(batch.inputs, batch.targets, self.weights(batch), batch.mask, rows=rows)

    def weights(self, batch: Batch) -> Tensor:
        if batch.targets.dim() == 3:  # something to predict at every real step
            return batch.weight[:, None] * batch.mask
        return batch.weight


class WordFeed(ExampleFeed):
    """Words with a pronunciation each, one weight per phoneme; or with all that they have, one weight per word."""

    def weights(self, batch: Batch) -> Tensor:
        if batch.targets.dim() == 2:
            return batch.weight[:, None] * (batch.targets != PAD)
        return batch.weight


def evaluation_windows(
    stream: Tensor, batch: int, steps: int, remainder: Remainder, at_once: int
) -> WindowFeed:
    """The targets of Windows(stream, batch, steps, remainder), in windows of about `at_once` symbols.

    The state is carried on, so longer windows give the same sum with fewer calls.
    """
    cut = Windows(stream, batch, steps, remainder)
    rows = cut.rows[: cut.n_steps + 1]
    longer = max(1, min(at_once // batch, cut.n_steps))
    return WindowFeed(Windows(rows.t().reshape(-1), batch, longer, "keep"))


class CarriedState:
    """In one place, which a captured step reads and writes."""

    def __init__(self, model: nn.Module, batch_size: int, device: torch.device) -> None:
        rnn = stack_of(model)
        shape = (rnn.num_layers, batch_size, rnn.hidden_size)
        self.parts = [torch.zeros(shape, device=device) for _ in range(rnn.cell.n_states)]

    def given(self) -> State:
        return tuple(self.parts) if len(self.parts) > 1 else self.parts[0]

    def keep(self, after: State | None) -> None:
        assert after is not None
        for part, new in zip(self.parts, [after] if isinstance(after, Tensor) else after):
            part.copy_(new.detach())

    def zero(self) -> None:
        for part in self.parts:
            part.zero_()
