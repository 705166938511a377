"""The network of an earlier run, which begins another one, or says what its pupil should have answered: distillation.

    loss = (1 - share) * l(output, target) + share * l(output, teacher's output)

l is the task's own loss. Of classes, words and phonemes the teacher's probabilities are the target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gatewise.export import attached, load
from gatewise.lab import recipe as recipes
from gatewise.lab.data.encoding import ENCODING, Corpus, content_of, encoding_of
from gatewise.lab.files import RECIPE, RunError, model_of
from gatewise.lab.models import TaskModel
from gatewise.lab.schema import Recipe, Teaching
from gatewise.lab.training.feeds import CarriedState, ExampleFeed, Fed, Feed
from gatewise.lab.training.objectives import Objective
from gatewise.lab.training.ranks import Share

# Of [model], what a trained network has; the rest is about its training or its start.
BUILT = ("hidden", "embedding", "layers", "cell", "bidirectional", "backwards", "attention", "gates")


def network_of(key: str, run: str, corpus: Corpus) -> TaskModel:
    """The network in the folder of a finished run of the same symbols; `key` of the recipe names it.

    Raises:
        RunError: there is no such run, or it reads and answers with others.
    """
    file = model_of(run)
    known = attached(file).get(ENCODING)
    if known != content_of(encoding_of(corpus)):
        what = "reads other symbols, or answers with others, than this run does"
        raise RunError(
            f"{key} = {run!r}: its network {'does not say what its symbols are' if known is None else what}. Name a "
            "finished run of the same data."
        )
    model = load(file)
    if not isinstance(model, TaskModel):
        raise RunError(f"{key} = {run!r}: holds a {type(model).__name__}, which no recipe makes.")
    return model


def first_network(recipe: Recipe, corpus: Corpus) -> TaskModel:
    """The network of start.run, which is one of the [model] that this recipe tells of.

    Raises:
        RunError: as in network_of(), or the other run had another [model].
    """
    run = str(recipe.start.run)
    model = network_of("start.run", run, corpus)
    told = model_of(run).parent / RECIPE
    if told.is_file():
        was = recipes.load(told).model
        for key in BUILT:
            here, there = getattr(recipe.model, key), getattr(was, key)
            if here != there:
                raise RunError(
                    f"start.run = {run!r}: its network has model.{key} = {there!r}, this recipe {here!r}. [start] "
                    f"takes that network as it is: say model.{key} = {there!r}, or name another run."
                )
    return model


REMEMBERED = 2**28  # numbers at the most, a gigabyte


class Teacher:
    def __init__(self, model: nn.Module, share: float, feed: Feed, device: torch.device) -> None:
        self.model, self.share = model.to(device).eval().requires_grad_(False), share
        self.state = CarriedState(model, feed.batch_size, device) if feed.carries_state else None
        self.answers: Tensor | None = None  # (N, ...) to all examples

    def shared(self, losses: Tensor, output: Tensor, batch: Fed, objective: Objective) -> Tensor:
        """The losses of a batch, with the teacher's share."""
        if self.answers is None or batch.rows is None:
            answer = self.asked(batch, objective)
        else:
            answer = self.answers.index_select(0, batch.rows)
        return torch.lerp(losses, objective.differences(output, answer), self.share)

    @torch.no_grad()
    def asked(self, batch: Fed, objective: Objective) -> Tensor:
        answer, after = objective.run(self.model, batch, None if self.state is None else self.state.given())
        if self.state is not None:
            self.state.keep(after)
        return answer

    def remember(self, feed: Feed, objective: Objective) -> None:
        """Answers to whole examples are the same in every epoch: ask once, unless they take too much memory."""
        if not isinstance(feed, ExampleFeed):
            return
        feed.reset(None)
        for k in range(feed.n_batches):
            batch = feed.fetch(torch.full((1,), k, device=feed.index.device))
            answer = self.asked(batch, objective)
            if self.answers is None:
                shape = (len(feed.examples), *answer.shape[1:])
                if math.prod(shape) > REMEMBERED:
                    return
                self.answers = answer.new_empty(shape)
            assert batch.rows is not None
            self.answers[batch.rows] = answer


def make_teacher(
    teaching: Teaching, corpus: Corpus, feed: Feed, objective: Objective, device: torch.device
) -> Teacher | None:
    """The network of a finished run of the same symbols, from its folder."""
    if teaching.run is None:
        return None
    teacher = Teacher(network_of("teacher.run", teaching.run, corpus), teaching.share, feed, device)
    teacher.remember(feed.feed if isinstance(feed, Share) else feed, objective)
    return teacher
