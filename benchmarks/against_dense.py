"""Is a network cut to a budget better than a smaller dense one? Six classes of noisy waves, a GRU of 48, Adam.

    python benchmarks/against_dense.py weights --seeds 2
    python benchmarks/against_dense.py gates --seeds 2

Dense networks of several widths, and for each a network of 48 neurons that is cut to as many weights, or gates:
36 epochs with a budget, then 24 of a refit. All train for 60 epochs, with a rate that falls to zero in each part.
Quality is that of validation, means over seeds; about 15 seconds a run on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import Any

import torch
from choose_penalty import BATCH, CHANNELS, CLASSES, waves
from machine import machine_line
from torch import Tensor, nn
from torch.nn import functional as F

import gatewise as gw

WIDE, EPOCHS, SPARSE_EPOCHS, RATE = 48, 60, 36, 5e-3
WIDTHS = (4, 6, 8, 12, 16)
Data = tuple[Tensor, Tensor]


class Sensor(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(CHANNELS, hidden, batch_first=True), nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


def fit(model: nn.Module, data: Data, epochs: int, sparsifier: Any = None, budget: Any = None) -> None:
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = RATE * (1 - epoch / epochs)
        for rows in torch.randperm(len(x)).split(BATCH):
            penalty = sparsifier.penalty() if sparsifier is not None else 0.0
            optimizer.zero_grad()
            (F.cross_entropy(model(x[rows]), y[rows]) + penalty).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            for what in (sparsifier, budget):
                if what is not None:
                    what.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    return (model.eval()(data[0]).argmax(1) == data[1]).float().mean().item()


def dense(hidden: int, train: Data, valid: Data) -> tuple[float, gw.Report]:
    model = Sensor(hidden)
    fit(model, train, EPOCHS)
    return accuracy(model, valid), gw.measure(model)


def cut(size: dict[str, int], train: Data, valid: Data) -> tuple[float, gw.Report]:
    model = Sensor(WIDE)
    sparsifier = gw.GroupLasso(model, l1=2.5e-5, group=2.5e-4, threshold=1e-3)
    updates = SPARSE_EPOCHS * -(-len(train[0]) // BATCH)
    fit(model, train, SPARSE_EPOCHS, sparsifier, gw.Budget(sparsifier, steps=updates, **size))
    fit(model.train(), train, EPOCHS - SPARSE_EPOCHS, gw.Refit(model))
    return accuracy(model, valid), gw.measure(model)


def told(runs: list[tuple[float, gw.Report]]) -> str:
    neurons, gates = (
        statistics.mean(sum(getattr(report, what).values()) for _, report in runs)
        for what in ("neurons", "gates")
    )
    spread = statistics.pstdev(right for right, _ in runs)
    weights = statistics.mean(report.nonzero for _, report in runs)
    mean = statistics.mean(right for right, _ in runs)
    return f"{neurons:.1f} | {gates:.1f} | {weights:,.0f} | {mean:.1%} +- {spread:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("budget", choices=("weights", "gates"))
    parser.add_argument("--seeds", type=int, default=3, help="means of so many runs")
    arguments = parser.parse_args()
    kind, seeds = arguments.budget, arguments.seeds
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    train, valid = waves(1500, 1), waves(3000, 2)
    print(machine_line())
    print(
        f"| {kind} | dense: neurons | gates | weights | accuracy | cut: neurons | gates | weights | accuracy |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for hidden in WIDTHS:
        sizes = {"weights": gw.measure(Sensor(hidden)).weights, "gates": 3 * hidden}
        rows: dict[Any, list[tuple[float, gw.Report]]] = {dense: [], cut: []}
        for seed in range(seeds):
            torch.manual_seed(seed)
            rows[dense].append(dense(hidden, train, valid))
            torch.manual_seed(seed)
            rows[cut].append(cut({kind: sizes[kind]}, train, valid))
        print(f"| {sizes[kind]:,} | {told(rows[dense])} | {told(rows[cut])} |", flush=True)


if __name__ == "__main__":
    main()
