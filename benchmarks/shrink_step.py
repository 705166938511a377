"""A training step of a pruned network: whole with its zeros, after gw.shrink, and a dense one of the kept widths.

Random weights in the structures of the paper's W+G+N rows; forward, loss, group lasso, backward, SGD and step(). The
contenders take turns, and processor time is counted, since others may share the machine. With 10 outputs, so that the
recurrence is most of a step, and the small one with its softmax over 10,000 words, too.

    python benchmarks/shrink_step.py
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from machine import machine_line
from structures import ROWS, Net, Row, networks
from torch import Tensor, nn

import gatewise as gw

BATCH = 20


def step_of(model: nn.Module, x: Tensor) -> Callable[[], None]:
    lasso = gw.GroupLasso(model.train(), l1=1e-5, group=1e-3)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-9)

    def step() -> None:
        optimizer.zero_grad()
        (model(x)[0].mean() + lasso.penalty()).backward()
        optimizer.step()
        lasso.step()

    return step


def contenders(row: Row) -> dict[str, Callable[[], None]]:
    made = networks(row, "whole", torch.Generator().manual_seed(0))
    x = torch.randint(row.words, (row.steps, BATCH))
    small = copy.deepcopy(made.dense)
    gw.shrink(small)
    dense = Net(row, row.size, row.neurons, "whole")
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(x)[0], made.dense.eval()(x)[0], rtol=1e-4, atol=1e-5)
    return {"with zeros": step_of(made.dense, x), "shrunk": step_of(small, x), "dense": step_of(dense, x)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(machine_line())
    print("| structure | with zeros, ms | shrunk, of that | dense of the kept widths, of that |")
    print("| --- | --- | --- | --- |")
    small, large = (row for row in ROWS if row.name in ("word small pruned", "word large"))
    for row in (replace(small, outputs=10), small, replace(large, outputs=10)):
        steps = contenders(row)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(repeats):
            for name, step in steps.items():
                start = time.process_time()
                step()
                times[name].append(time.process_time() - start)
        whole, shrunk, dense = (statistics.median(times[name]) for name in steps)
        name = f"{row.name}, {row.outputs:,} outputs"
        print(f"| {name} | {whole * 1e3:.0f} | {shrunk / whole:.2f} | {dense / whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
