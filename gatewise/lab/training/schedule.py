"""The learning rate of every update; see `gatewise.lab.schema.Train` for the formulas."""

from __future__ import annotations

from gatewise.lab.schema import Train


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
