"""Instructions that a step of a tiny network takes on a Cortex-M7: our C, run by QEMU, which counts them.

QEMU's board mps2-an500 has a Cortex-M7 with its floating-point unit. With -icount shift=0 an instruction takes a
nanosecond of its clock, which the program reads from SysTick: 40 instructions a tick. It is a count, not a time: a
Cortex-M7 starts up to two instructions a cycle, but waits for results, branches and memory. Answers are compared with
torch's first.

    python benchmarks/cortex_m7.py        needs arm-none-eabi-gcc with newlib, and qemu-system-arm
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from cortex_board import BOARD, START
from tiny_c import Tiny, states_of
from torch import nn

import gatewise as gw

STEPS, COMPARED, TICK = 2000, 8, 40  # timed steps, steps whose answers are printed, instructions of a tick
CLOCKS = {"STM32H7": 480e6, "i.MX RT1170": 1e9}  # parts with a Cortex-M7
RATE, SHARE = 48_000, 8  # samples a second, of whose time a step may take 1 / SHARE
FLAGS = (
    "-mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16 -std=c99 -ffp-contract=fast -nostartfiles "
    "-T board.ld --specs=rdimon.specs -w"
).split()
QEMU = "qemu-system-arm -M mps2-an500 -nographic -icount shift=0 -semihosting-config enable=on,target=native".split()
PROGRAM = """
#include "model.h"
#include <stdio.h>

static model_state state;
static float x[STEPS], y[MODEL_WIDTH_Y_0];
static volatile uint32_t *const systick = (volatile uint32_t *)0xe000e010; /* control, reload, value */

int main(void) {
    uint32_t before, after;
    for (int t = 0; t < STEPS; t++) x[t] = (float)(t % 7) / 4 - 0.75f;
    model_reset(&state);
    for (int t = 0; t < COMPARED; t++) {
        model_step(&state, x + t, y, STATES);
        for (int j = 0; j < MODEL_WIDTH_Y_0; j++) printf("%d ", (int)(y[j] * 1e6f));
    }
    systick[1] = 0xffffff;
    systick[2] = 0;
    systick[0] = 5; /* on, the processor's clock */
    before = systick[2];
    for (int t = 0; t < STEPS; t++) model_step(&state, x + t, y, STATES);
    after = systick[2];
    printf("ticks %lu\\n", (unsigned long)((before - after) & 0xffffff));
    return 0;
}
"""


def instructions(model: nn.Module, folder: Path, optimise: str) -> float:
    """Of a step, the loop around it included, by QEMU's count."""
    gw.export.to_c(model, folder, specialise=True)
    program = (
        PROGRAM.replace("STATES", states_of(model))
        .replace("STEPS", str(STEPS))
        .replace("COMPARED", str(COMPARED))
    )
    (folder / "board.ld").write_text(BOARD)
    (folder / "start.c").write_text(START)
    (folder / "program.c").write_text(program)
    command = [
        "arm-none-eabi-gcc",
        *FLAGS,
        optimise,
        "start.c",
        "program.c",
        "model.c",
        "-o",
        "program.elf",
        "-lm",
    ]
    subprocess.run(command, cwd=folder, check=True)
    run = subprocess.run(
        [*QEMU, "-kernel", "program.elf"], cwd=folder, check=True, capture_output=True, text=True, timeout=120
    )
    *answers, ticks = re.findall(r"-?\d+", run.stdout)
    x = torch.tensor([(t % 7) / 4 - 0.75 for t in range(COMPARED)]).reshape(-1, 1, 1)
    with torch.no_grad():
        expected = model(x)[0].numpy().ravel()
    np.testing.assert_allclose(np.array(answers, float) / 1e6, expected, rtol=1e-4, atol=1e-5)
    return int(ticks) * TICK / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimise", nargs="*", default=["3", "2", "s"], help="levels, as after -O")
    args = parser.parse_args()
    for part, clock in CLOCKS.items():
        cycles = clock / RATE / SHARE
        print(
            f"1 / {SHARE} of a sample at {RATE} Hz is {cycles:.0f} cycles of an {part} at {clock / 1e6:.0f} MHz"
        )
    for cell in (nn.LSTM, nn.GRU):
        for hidden in (8, 16):
            torch.manual_seed(0)
            model = Tiny(cell, hidden).eval()
            found = []
            for optimise in (f"-O{level}" for level in args.optimise):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(f"{optimise} {instructions(model, Path(folder) / 'm', optimise):.0f}")
            print(f"{cell.__name__} 1 -> {hidden}: instructions a step " + ", ".join(found))


if __name__ == "__main__":
    main()
