"""The learning rate of every update; see `gatewise.tasks.recipe.Train` for the formulas."""

from __future__ import annotations

from gatewise.tasks.recipe import Train


def learning_rates(train: Train, epoch: int, updates: int) -> list[float]:
    """Of the `updates` updates of an epoch, counted from 1."""
    if train.schedule == "linear":
        # After 0 epochs it falls from the first update on; the last update still moves a little.
        first, last = train.after * updates, train.epochs * updates
        at = ((epoch - 1) * updates + k for k in range(updates))
        return [train.lr * min(1.0, (last - u) / (last - first)) for u in at]
    exponent = {
        "constant": 0,
        "power": max(epoch - train.after, 0),
        "stairs": (epoch - 1) // train.after if train.after else 0,
    }[train.schedule]
    return [train.lr * train.decay**exponent] * updates
