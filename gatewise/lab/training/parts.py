"""A run has one part or two: [train] with a sparsifier, then [refit].

Each has an optimiser and a schedule of its own; see `gatewise.lab.schema.Train` for the formulas. Epochs go on
counting from one part to the next; a schedule counts those of its part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gatewise.lab.schema import Train
from gatewise.lab.training.assembly import Assembly


@dataclass(frozen=True)
class Part:
    """What trains now; between two epochs a run may take another one."""

    name: str  # "train" or "refit"
    settings: Train
    made: Assembly
    first: int = 1  # its first epoch, in those of the run

    @property
    def last(self) -> int:
        return self.first + self.settings.epochs - 1

    def rates(self, epoch: int) -> list[float]:
        """Learning rates of all updates of an epoch of the run."""
        return learning_rates(self.settings, epoch - self.first + 1, self.made.feeds.train.n_batches)


@dataclass
class Position:
    """Where a run stands."""

    epoch: int = 1  # the one that runs, or will
    step: int = 0  # updates of it that are done
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    best_epoch: int = 0
    best_value: float = 0.0
    waited: int = 0  # evaluations since the best one
    done: bool = False  # patience ended the part
    part: str = "train"
    first: int = 1  # epoch of the part
    before: dict[str, Any] = field(default_factory=dict)  # the refit: the result that it began with
    best: dict[str, Tensor] = field(default_factory=dict)

    def note(self, value: float, part: Part) -> None:
        """The quality on validation after this epoch: the best so far, or one more that is not."""
        rises, t = part.made.objective.higher_is_better, part.settings
        better = value > self.best_value if rises else value < self.best_value
        if (self.best_epoch or self.best) and not better:  # the best may be a network of another run
            self.waited += 1
            self.done = t.keep == "best" and t.patience is not None and self.waited >= t.patience
            return
        self.set_best(self.epoch, value, part)

    def set_best(self, epoch: int, value: float, part: Part) -> None:
        self.best_epoch, self.best_value, self.waited, self.best = epoch, value, 0, {}
        if part.settings.keep == "best":
            state = part.made.model.state_dict()
            self.best = {name: tensor.detach().clone() for name, tensor in state.items()}


def learning_rates(train: Train, epoch: int, updates: int) -> list[float]:
    """Of the `updates` updates of an epoch, counted from 1."""
    rates = [train.lr * factor for factor in factors(train, epoch, updates)]
    numbers = range((epoch - 1) * updates + 1, epoch * updates + 1)
    return [rate * min(1.0, u / max(1, train.warm_up)) for rate, u in zip(rates, numbers)]


def factors(train: Train, epoch: int, updates: int) -> list[float]:
    """What the schedule multiplies the learning rate with."""
    if train.schedule == "linear":
        # After 0 epochs it falls from the first update on; the last update still moves a little.
        first, last = train.after * updates, train.epochs * updates
        before = range((epoch - 1) * updates, epoch * updates)  # how many updates came before each
        return [min(1.0, (last - u) / (last - first)) for u in before]
    exponent = {
        "constant": 0,
        "power": max(epoch - train.after, 0),
        "stairs": (epoch - 1) // train.after if train.after else 0,
    }[train.schedule]
    return [train.decay**exponent] * updates
