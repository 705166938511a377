"""A trained network that says what its pupil should have answered: distillation.

    loss = (1 - share) * l(output, target) + share * l(output, teacher's output)

l is the task's own loss. Of classes, words and phonemes the teacher's probabilities are the target.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gatewise.tasks.data.encoding import Corpus
from gatewise.tasks.schema import Teaching
from gatewise.tasks.training.carried import CarriedState
from gatewise.tasks.training.earlier import network_of
from gatewise.tasks.training.feeds import Fed, Feed
from gatewise.tasks.training.objectives import Objective


class Teacher:
    def __init__(self, model: nn.Module, share: float, feed: Feed, device: torch.device) -> None:
        self.model, self.share = model.to(device).eval().requires_grad_(False), share
        self.state = CarriedState(model, feed.batch_size, device) if feed.carries_state else None

    def shared(self, losses: Tensor, output: Tensor, batch: Fed, objective: Objective) -> Tensor:
        """The losses of a batch, with the teacher's share."""
        with torch.no_grad():
            answer, after = objective.run(
                self.model, batch, None if self.state is None else self.state.given()
            )
            if self.state is not None:
                self.state.keep(after)
        return torch.lerp(losses, objective.differences(output, answer), self.share)


def make_teacher(teaching: Teaching, corpus: Corpus, feed: Feed, device: torch.device) -> Teacher | None:
    """The network of a finished run of the same symbols, from its folder."""
    if teaching.run is None:
        return None
    return Teacher(network_of("teacher.run", teaching.run, corpus), teaching.share, feed, device)
