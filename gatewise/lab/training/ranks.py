"""One run by several processes, as torchrun starts them.

    torchrun --nproc-per-node 2 -m gatewise train RECIPE

A batch is divided over the ranks, gradients are averaged, and every rank makes the same update: weights, thresholds
and cuts are functions of what all of them have. Noise is each rank's own. The first rank alone evaluates and writes.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gatewise.lab.files import RunError
from gatewise.lab.schema import RecipeError
from gatewise.lab.training.feeds import Fed, Feed

if dist.is_available():
    # Its functions have the group as a default, for good. Imported when there is one, as an optimiser does, they keep
    # gloo's threads alive, and a thread that lets go of a tensor while Python ends aborts the process.
    import torch.distributed.nn.functional

T = TypeVar("T")
# What torch says where another process is gone.
GONE = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed? ?out|socket", re.I)


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    local: int = 0  # its number on its machine

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def from_first(self, call: Callable[[], T]) -> T:
        """What the first rank computes, on every rank."""
        if self.size == 1:
            return call()
        found: list[Any] = [call() if self.is_first else None]
        dist.broadcast_object_list(found, src=0)
        answer: T = found[0]
        return answer

    def average(self, parameters: Sequence[nn.Parameter], told: Tensor) -> Tensor:
        """Gradients become their mean over the ranks; the sum of what each rank has told, (n,)."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([*(g.flatten() for g in gradients), told.to(gradients[0])])
        dist.all_reduce(flat)
        parts: list[Tensor] = list(flat.split([*(g.numel() for g in gradients), len(told)]))
        *means, total = parts
        for gradient, mean in zip(gradients, means):
            gradient.copy_(mean.view_as(gradient) / self.size)
        return total

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks."""
        if self.size == 1:
            return values
        found = values.clone()
        dist.all_reduce(found)
        return found

    def gathered(self, values: Tensor, axis: int) -> Tensor:
        """The tensors of all ranks behind one another."""
        if self.size == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts, axis)

    def own(self, values: Tensor, axis: int) -> Tensor:
        """The part of this rank."""
        return values.chunk(self.size, axis)[self.rank]

    def check_alike(self, model: nn.Module, place: str) -> None:
        """Raises on every rank where two of them do not have the same network, to the bit."""
        if self.size == 1:
            return
        content = hashlib.sha256()
        for name, tensor in model.state_dict().items():
            content.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
        number = int.from_bytes(content.digest()[:7], "big")
        ends = torch.tensor([number, -number], device=next(model.parameters()).device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if int(ends[0]) != -int(ends[1]):
            raise RunError(
                f"the {self.size} ranks do not have the same network after {place}. They must run the same version "
                "of torch on processors of one kind; the last checkpoint is from before. Go on with --resume."
            )


class Share:
    """A rank's part of every batch: its own streams of a text, its own rows of examples."""

    def __init__(self, feed: Feed, ranks: Ranks) -> None:
        if feed.batch_size % ranks.size:
            raise RecipeError(
                f"data.batch = {feed.batch_size} cannot be divided over {ranks.size} ranks. Take a multiple of their "
                "number, or another --nproc-per-node."
            )
        self.feed, self.ranks = feed, ranks
        self.n_batches, self.carries_state = feed.n_batches, feed.carries_state
        self.batch_size = feed.batch_size // ranks.size

    def reset(self, generator: torch.Generator | None) -> None:
        self.feed.reset(generator)

    def fetch(self, k: Tensor) -> Fed:
        whole = self.feed.fetch(k)
        axis = 1 if whole.mask is None else 0
        inputs, targets, weight = (
            self.ranks.own(part, axis) for part in (whole.inputs, whole.targets, whole.weight)
        )
        mask, rows = (None if part is None else self.ranks.own(part, 0) for part in (whole.mask, whole.rows))
        return Fed(inputs, targets, weight, mask, whole.weight.sum(), rows)


def is_first() -> bool:
    """Whether this process may speak for the run."""
    return int(os.environ.get("RANK", 0)) == 0


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks of this run; where one of them ends, every other one ends with a sentence."""
    if world_size() == 1:
        yield Ranks()
        return
    ranks = Ranks(int(os.environ["RANK"]), world_size(), int(os.environ.get("LOCAL_RANK", 0)))
    begun = not dist.is_initialized()
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ended)  # torchrun ends the others so
    try:
        if begun:
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        yield ranks
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RunError) or not GONE.search(str(error)):
            raise
        raise gone(ranks) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        if begun and dist.is_initialized():
            dist.destroy_process_group()


def gone(ranks: Ranks) -> RunError:
    return RunError(
        f"rank {ranks.rank} of {ranks.size}: another rank has ended, and says why if it could. The same line with "
        "--resume goes on from the last checkpoint."
    )


def ended(*_: Any) -> None:
    raise gone(Ranks(int(os.environ["RANK"]), world_size()))


def own_noise(seed: int, ranks: Ranks) -> None:
    """From here on every rank draws dropout and noise of its own; starting values were drawn alike."""
    if ranks.size > 1:
        mixed = np.random.SeedSequence([seed, ranks.rank]).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(mixed))
