"""Weights of one byte: how many times faster than in float32 the engine runs the paper's structures.

One thread, batch 1, called from Python; a step carries its state on, a sequence begins at zero. Engines take turns,
with fresh inputs. Quality is rounded_weights.py's question.

    python benchmarks/narrow_weights.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from contenders import FRESH, engine_call
from machine import machine_line
from structures import ROWS, Row, networks
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.timing import ratio, take_turns

WEIGHTS = ("float32", "int8")
ASKED = (
    ("char PTB", "recurrent"),
    ("word small Bayes", "recurrent"),
    ("word large", "recurrent"),
    ("word large", "whole"),
)


def input_of(row: Row, part: str, steps: int, generator: torch.Generator) -> Tensor:
    """Words, letters as vectors, or numbers."""
    if part == "whole":
        return torch.randint(0, row.words, (steps, 1), generator=generator)
    if not row.words:
        return nn.functional.one_hot(
            torch.randint(0, row.size, (steps, 1), generator=generator), row.size
        ).float()
    return torch.randn(steps, 1, row.kept_inputs or row.size, generator=generator)


def measure(row: Row, part: str, steps: int, seconds: float) -> str:
    generator = torch.Generator().manual_seed(0)
    small = gw.compress(networks(row, part, generator).shrunk)
    xs = [input_of(row, part, steps, generator).numpy() for _ in range(FRESH)]
    calls = {
        weights: engine_call(gw.Engine(small, threads=1, weights=weights), xs, steps == 1)
        for weights in WEIGHTS
    }
    times = take_turns(calls, seconds, time.process_time)
    said = [f"float32 {statistics.median(times['float32']) * 1e6:.1f} us"]
    said += [f"{weights} {ratio(times['float32'], times[weights]):.2f}x" for weights in WEIGHTS[1:]]
    return ", ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line())
    rows = {row.name: row for row in ROWS}
    for name, part in ASKED:
        for situation, steps in (("step", 1), ("sequence", rows[name].steps)):
            print(
                f"{name}, {part}, {situation}: {measure(rows[name], part, steps, args.seconds)}", flush=True
            )


if __name__ == "__main__":
    main()
