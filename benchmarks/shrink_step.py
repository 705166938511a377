"""A training step of a pruned network: whole with its zeros, after gw.shrink, and a dense one of the kept widths.

Random weights in the structures of the paper's W+G+N rows; forward, loss, group lasso, backward, SGD and step(). The
contenders take turns, and processor time is counted, since others may share the machine. With 10 outputs, so that the
recurrence is most of a step, and the small one with its softmax over 10,000 words, too.

    python benchmarks/shrink_step.py
    python benchmarks/shrink_step.py --device cuda    # a step is one CUDA graph, and the clock is the device's
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
from gatewise.lab.training.graph import Replayed, use_tf32

BATCH = 20


def step_of(model: nn.Module, x: Tensor) -> Callable[[], None]:
    model.to(x.device)
    lasso = gw.GroupLasso(model.train(), l1=1e-5, group=1e-3)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-9)

    def step() -> None:
        optimizer.zero_grad()
        (model(x)[0].mean() + lasso.penalty()).backward()
        optimizer.step()
        lasso.step()

    return Replayed(step, x.device)


def contenders(row: Row, device: torch.device) -> dict[str, Callable[[], None]]:
    made = networks(row, "whole", torch.Generator().manual_seed(0))
    x = torch.randint(row.words, (row.steps, BATCH))
    small = copy.deepcopy(made.dense)
    gw.shrink(small)
    dense = Net(row, row.size, row.neurons, "whole")
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(x)[0], made.dense.eval()(x)[0], rtol=1e-4, atol=1e-5)
    x = x.to(device)
    return {"with zeros": step_of(made.dense, x), "shrunk": step_of(small, x), "dense": step_of(dense, x)}


def seconds(step: Callable[[], None], device: torch.device) -> float:
    """Of the processor, or of the GPU."""
    if device.type == "cpu":
        start = time.process_time()
        step()
        return time.process_time() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    repeats, device = arguments.repeats, torch.device(arguments.device)
    torch.set_num_threads(1)
    if device.type == "cuda":
        use_tf32()
    print(machine_line(device.type))
    print("| structure | with zeros, ms | shrunk, of that | dense of the kept widths, of that |")
    print("| --- | --- | --- | --- |")
    small, large = (row for row in ROWS if row.name in ("word small pruned", "word large"))
    rows = [replace(small, outputs=10), small, replace(large, outputs=10)]
    rows += [large] * (device.type == "cuda")  # whose softmax takes minutes on a processor
    for row in rows:
        steps = contenders(row, device)
        for step in steps.values():
            for _ in range(5 * (device.type == "cuda")):
                step()  # until it is captured
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(repeats):
            for name, step in steps.items():
                times[name].append(seconds(step, device))
        whole, shrunk, dense = (statistics.median(times[name]) for name in steps)
        name = f"{row.name}, {row.outputs:,} outputs"
        print(f"| {name} | {whole * 1e3:.3g} | {shrunk / whole:.2f} | {dense / whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
