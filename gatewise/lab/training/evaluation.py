"""Quality and counts of the network as it would be used: noise-free, everything below its threshold at zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gatewise.lab.training.feeds import CarriedState, Feed
from gatewise.lab.training.graph import Replayed
from gatewise.lab.training.objectives import Objective
from gatewise.masks import find_masks
from gatewise.nn.lookup import evaluating
from gatewise.readers import ReaderGraph
from gatewise.report import Counts, count
from gatewise.structure import one_pass


class EvaluationStep:
    """One batch of a split, added to the sums of the objective."""

    def __init__(self, model: nn.Module, objective: Objective, feed: Feed, device: torch.device) -> None:
        self.model, self.objective, self.feed = model, objective, feed
        self.k = torch.zeros(1, dtype=torch.int64, device=device)
        self.sums = torch.zeros(objective.n_sums, dtype=torch.float64, device=device)
        self.state = CarriedState(model, feed.batch_size, device) if feed.carries_state else None

    def begin(self) -> None:
        self.k.zero_()
        self.sums.zero_()
        if self.state is not None:
            self.state.zero()

    @torch.no_grad()
    def __call__(self) -> None:
        batch = self.feed.fetch(self.k)
        output, after = self.objective.run(
            self.model, batch, None if self.state is None else self.state.given()
        )
        if self.state is not None:
            self.state.keep(after)
        self.sums += self.objective.sums(output, batch)
        self.k += 1


class Evaluator:
    """Call it for the qualities on a split; the model's mode is left as it was."""

    def __init__(
        self, model: nn.Module, objective: Objective, feed: Feed, device: torch.device, graph: bool = True
    ) -> None:
        self.model, self.objective = model, objective
        self.step = EvaluationStep(model, objective, feed, device)
        self.run = Replayed(self.step, device, graph)

    def __call__(self) -> dict[str, float]:
        with evaluating(self.model):
            self.step.begin()
            for _ in range(self.step.feed.n_batches):
                self.run()
            sums = self.step.sums.tolist()  # the only wait for the device
        return self.objective.judge(*sums)


def live_counts(model: nn.Module, graph: ReaderGraph) -> Counts:
    """The paper's one-pass counts, with a reader graph that was traced before."""
    masks = find_masks(model)
    return count(masks, graph, one_pass(masks, graph))


def short_counts(counts: Counts) -> dict[str, Any]:
    """What a line of metrics holds: compression, neurons, and live gates by kind."""
    gates: Mapping[str, Any] = {
        name: dict(layer.gates) for name, layer in counts.layers.items() if layer.gates is not None
    }
    return {
        "compression": counts.compression,
        "compression_as_masked": counts.compression_as_masked,
        "nonzero": counts.nonzero,
        "neurons": counts.neurons,
        "gates": gates,
    }
