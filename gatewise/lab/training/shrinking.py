"""Cuts between epochs.

train.shrink_every: what was removable at the ends of so many epochs in a row is cut out of what trains.
start.run: a trained network is cut to a budget at once, before a refit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from gatewise.budget import Budget
from gatewise.compact import cut
from gatewise.lab.data.batches import epoch_generator
from gatewise.lab.schema import Recipe, RecipeError
from gatewise.lab.training.step import TrainStep
from gatewise.masks import find_masks
from gatewise.readers import ReaderGraph, find_readers
from gatewise.sparsify import GroupLasso
from gatewise.sparsify.layers import is_variational
from gatewise.sparsify.settled import settle
from gatewise.structure import (
    EmbeddingStructure,
    LayerStructure,
    LinearStructure,
    RecurrentStructure,
    Structure,
    reachable,
)

KINDS: dict[frozenset[str], type[LayerStructure]] = {
    frozenset(f.name for f in fields(kind)): kind
    for kind in (RecurrentStructure, LinearStructure, EmbeddingStructure)
}


class Shrinking:
    """Looks at the end of every epoch, and cuts after every `every` of them; 0: never."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.looks = 0  # since the last cut
        self.seen: Structure | None = None  # what had to stay at one of them
        self.kept: Structure | None = None  # what the last cut has left

    def after_epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer, graph: ReaderGraph) -> bool:
        """Cut what was removable at every look, when so many are over; whether there was anything."""
        if not self.every:
            return False
        now = reachable(find_masks(model), graph)
        self.seen = now if self.seen is None else self.seen | now
        self.looks += 1
        if self.looks < self.every:
            return False
        optimizer.zero_grad(set_to_none=True)  # gradients live in the memory of a captured step
        return self._cut(model, optimizer, self.seen, graph)

    def cut_all(self, model: nn.Module) -> None:
        """Everything that is removable now, where nothing may grow again: before a refit, and its optimiser."""
        if is_variational(model):
            settle(model)
        graph = find_readers(model)
        self._cut(model, None, reachable(find_masks(model), graph), graph)

    def _cut(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, left: Structure, graph: ReaderGraph
    ) -> bool:
        self.seen, self.looks = None, 0
        if not any(bool(own.keep_gates.any()) for own in left.recurrent().values()):
            return False  # nothing would be left to train
        replaced = cut(model, optimizer, left, graph)
        self.kept = left if replaced else self.kept
        return bool(replaced)

    def again(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> bool:
        """The last cut, in a model that was built anew; whether there was one."""
        if self.kept is None:
            return False
        if is_variational(model):
            settle(model)
        return bool(cut(model, optimizer, self.kept))

    def state_dict(self) -> dict[str, Any]:
        return {
            "looks": self.looks,
            "seen": None if self.seen is None else as_tensors(self.seen),
            "kept": None if self.kept is None else as_tensors(self.kept),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.looks = int(state["looks"])
        self.seen, self.kept = (
            None if state[key] is None else from_tensors(state[key]) for key in ("seen", "kept")
        )


def as_tensors(structure: Structure) -> dict[str, dict[str, torch.Tensor]]:
    return {name: dict(vars(layer)) for name, layer in structure.layers.items()}


def from_tensors(layers: Mapping[str, Mapping[str, torch.Tensor]]) -> Structure:
    return Structure({name: KINDS[frozenset(masks)](**masks) for name, masks in layers.items()})


HEARD = 50  # batches: enough to tell units apart, and seconds even on a CPU


def cut_to(recipe: Recipe, step: TrainStep) -> Budget:
    """Set at once to zero what does not fit: units that the loss of some batches misses least, or small weights."""
    budget = recipe.budget
    try:
        once = Budget(
            GroupLasso(step.model, "W+G+N", l1=1.0, group=1.0),
            steps=1,
            precision=budget.precision,
            **budget.wanted(),
        )
    except ValueError as error:
        raise RecipeError(f"[budget] {error}") from error
    if once.kind != "weights":
        step.feed.reset(epoch_generator(recipe.train.seed, 0))
        hear(once, step)
    once.step()
    return once


def hear(budget: Budget, step: TrainStep) -> None:
    """The first batches of an epoch; several ranks hear all of each batch."""
    step.begin([0.0] * step.feed.n_batches)
    for _ in range(min(HEARD, step.feed.n_batches)):
        loss, _, _, after = step.forward()
        step.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if step.ranks is not None:
            step.ranks.average(step.parameters, step.wish)
        budget.listen()
        step.k += 1
        if step.state is not None:
            step.state.keep(after)
    step.optimizer.zero_grad(set_to_none=True)
