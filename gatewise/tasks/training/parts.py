"""A run has one part or two: [train] with a sparsifier, then [refit].

Each has an optimiser and a schedule of its own. Epochs go on counting from one part to the next; a
schedule counts those of its part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gatewise.tasks.schema import Train
from gatewise.tasks.training.assembly import Assembly
from gatewise.tasks.training.schedule import learning_rates


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
