"""How much of an update the recurrence takes: time of the recurrent stack alone over time of the whole step.

The stack runs forward and backward with the weights it would get in training, made beforehand, on inputs of the
training shape; both are timed as they run in training, replayed from a graph where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.lab.models import stacks_of
from gatewise.lab.training.feeds import Feed
from gatewise.lab.training.graph import WARM_UP, Replayed
from gatewise.nn import Recurrent
from gatewise.nn.lookup import is_compact
from gatewise.nn.recurrence import Weights

REPEATS = 20


class StackAlone:
    """Forward and backward of one recurrent stack, with weights and inputs that were made beforehand."""

    def __init__(self, rnn: Recurrent, feed: Feed, device: torch.device) -> None:
        k = torch.zeros(1, dtype=torch.int64, device=device)
        batch = feed.fetch(k)
        shape = (*batch.inputs.shape[:2], rnn.input_size)
        self.rnn: Any = rnn
        self.x = torch.randn(shape, device=device, requires_grad=True)
        self.mask = batch.mask
        made = {place: rnn.weights(*place, feed.batch_size) for place in rnn.places()}
        self.weights = {place: self.leaves(w) for place, w in made.items()}
        self.inputs = [self.x]
        self.inputs += [t for w in self.weights.values() for t in vars(w).values() if t is not None]

    @staticmethod
    def leaves(w: Weights) -> Weights:
        there = {field: tensor for field, tensor in vars(w).items() if tensor is not None}
        return replace(
            w, **{field: tensor.detach().clone().requires_grad_() for field, tensor in there.items()}
        )

    def __call__(self) -> None:
        options: dict[str, Tensor] = {} if self.mask is None else {"mask": self.mask}
        self.rnn.weights = lambda layer, direction, n: self.weights[layer, direction]
        try:
            out, _ = self.rnn(self.x, **options)
            torch.autograd.grad(out.sum(), self.inputs, allow_unused=True)
        finally:
            del self.rnn.weights  # the instance's; the class has its own


def timed(call: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Seconds of a call, mean over `repeats`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / repeats


def recurrence_share(
    model: nn.Module, feed: Feed, step: Any, update: Replayed, device: torch.device
) -> float | None:
    """The fraction, or None on a CPU, where a profiler tells more. The model is left as it was found."""
    stack = only_stack(model)
    if device.type != "cuda" or update.graph is None or stack is None:
        return None
    was = model.training
    model.train()
    alone = Replayed(StackAlone(stack, feed, device), device)
    for _ in range(WARM_UP + 1):
        alone()
    recurrence = timed(alone, device, REPEATS)
    model.train(was)
    return recurrence / step_seconds(step, update, device)


def only_stack(model: nn.Module) -> Recurrent | None:
    """The one that can be timed alone: there is no other, and its weights have their original shapes."""
    stacks = stacks_of(model)
    return stacks[0] if len(stacks) == 1 and not is_compact(stacks[0]) else None


def step_seconds(step: Any, update: Replayed, device: torch.device) -> float:
    """Seconds of one replayed update. The learning rate is 0 and weights are put back, so nothing is learned."""
    kept = [p.detach().clone() for p in step.model.parameters()]
    step.begin([0.0] * step.feed.n_batches)
    seconds = timed(update, device, min(REPEATS, step.feed.n_batches))
    with torch.no_grad():
        for p, value in zip(step.model.parameters(), kept):
            p.copy_(value)
    return seconds
