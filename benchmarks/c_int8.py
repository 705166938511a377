"""What int8 weights cost in time: a step of the exported C, int8 over float32, by compiler flags and density.

A GRU layer of random weights and a classifier behind it; the density decides in which form a matrix is stored (dense,
bits and non-zeros, columns and non-zeros). Both programs take turns; each time is the lowest tenth of their blocks.

    python benchmarks/c_int8.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from machine import machine_line
from torch import Tensor, nn

import gatewise as gw

FLAGS = ("-O2", "-O3", "-O2 -march=native")
DENSITIES = (1.0, 0.3, 0.05)
ROUNDS = 7
TIMER = r"""
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>
#include "model.h"

int main(void) {
    enum { BLOCKS = 20, STEPS = 500 };
    static model_state state;
    static float x[MODEL_WIDTH_X], y[MODEL_WIDTH_Y];
    double best = 1e9;
    model_reset(&state);
    for (int b = 0; b < BLOCKS; b++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int t = 0; t < STEPS; t++) {
            x[t % MODEL_WIDTH_X] = (float)(t % 7) / 7;
            model_run(&state, 1, x, y);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        const double took = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
        if (took / STEPS < best) best = took / STEPS;
    }
    printf("%.4f\n", best);
    return 0;
}
"""


class Sensor(nn.Module):
    def __init__(self, hidden: int, density: float) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(9, hidden, batch_first=True), nn.Linear(hidden, 6)
        for weight in (self.rnn.weight_ih_l0, self.rnn.weight_hh_l0):
            weight.data *= torch.rand_like(weight) < density

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


def program(model: nn.Module, folder: Path, weights: str, flags: str) -> Path:
    gw.export.to_c(model, folder, weights=weights)
    (folder / "timer.c").write_text(TIMER)
    made = folder / "timer"
    sources = ["timer.c", "model.c", "gw.c", "words.c"]
    command = ["cc", "-std=c99", "-ffp-contract=fast", *flags.split(), "-o", str(made), *sources, "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return made


def ratio(hidden: int, density: float, flags: str) -> tuple[float, float]:
    """Microseconds of a step in float32 and in int8."""
    torch.manual_seed(0)
    model = gw.compress(Sensor(hidden, density).eval())
    with tempfile.TemporaryDirectory() as folder:
        both = [program(model, Path(folder) / weights, weights, flags) for weights in ("float32", "int8")]
        times = [[float(subprocess.check_output(path)) for path in both] for _ in range(ROUNDS)]
    plain, rounded = (min(column) for column in zip(*times))
    return plain, rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=128)
    hidden = parser.parse_args().hidden
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(machine_line())
    print("| weights kept | flags | float32, us a step | int8 | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for density in DENSITIES:
        for flags in FLAGS:
            plain, rounded = ratio(hidden, density, flags)
            print(
                f"| {density:.0%} | {flags} | {plain:.2f} | {rounded:.2f} | {rounded / plain:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
