"""A trained network cut to a budget at once, before a refit."""

from __future__ import annotations

from gatewise.budget import Budget
from gatewise.lab.data.batches import epoch_generator
from gatewise.lab.schema import Recipe, RecipeError
from gatewise.lab.training.step import TrainStep
from gatewise.sparsify import GroupLasso

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
