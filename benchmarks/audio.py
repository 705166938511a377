"""Audio effects: how many times faster than real time a small recurrent network is, one step a sample at 48 kHz.

LSTM and GRU of 8 to 96 neurons and a linear layer behind them, dense, one sample in and one out, as guitar amplifiers
and pedals are modelled. A plug-in is handed blocks of 64 samples; the state goes on from block to block. One thread;
what all contenders answer is compared first, then they take turns. "C" is the exported source with -O3 -march=native.

    python benchmarks/audio.py --json benchmarks/results/audio.json

As a remark: RTNeural reports 49.2 (LSTM) and 68.4 (GRU) times real time for one layer of 16 -> 16 with sizes fixed at
compile time, on an Apple M2 (its pull request 108); that is another machine and a wider input.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine_line
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.timing import same_answers, take_turns

RATE, BLOCK = 48_000, 64
SIZES = (8, 16, 32, 64, 96)
LIBRARY = '#include "model.h"\nsize_t state_bytes(void) { return sizeof(model_state); }\n'


class Effect(nn.Module):
    def __init__(self, cell: type[nn.Module], hidden: int) -> None:
        super().__init__()
        self.rnn, self.fc = cell(1, hidden), nn.Linear(hidden, 1)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        y, state = self.rnn(x, state)
        return self.fc(y), state


def torch_blocks(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    state: list[Any] = [None]

    def call() -> Any:
        with torch.inference_mode():
            y, state[0] = model(x, state[0])
        return y

    return call


def engine_blocks(model: nn.Module, x: np.ndarray) -> Callable[[], Any]:
    engine, state = gw.Engine(model), [None]

    def call() -> Any:
        y, state[0] = engine(x, state[0])
        return y

    return call


def c_blocks(model: nn.Module, x: np.ndarray, folder: Path) -> Callable[[], Any] | None:
    """The exported C as a library; None without a compiler."""
    gw.export.to_c(model, folder)
    (folder / "library.c").write_text(LIBRARY)
    sources = ["model.c", "library.c", "gw.c", "words.c"]
    flags = "-std=c99 -O3 -march=native -ffp-contract=fast -shared -fPIC".split()
    try:
        subprocess.run(["cc", *flags, "-o", "effect.so", *sources, "-lm"], cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    library = ctypes.CDLL(str(folder / "effect.so"))
    library.state_bytes.restype = ctypes.c_size_t
    state = ctypes.create_string_buffer(library.state_bytes())
    y = np.empty_like(x)
    library.model_reset(state)
    states = [None] * (2 if isinstance(model.rnn, nn.LSTM) else 1)  # the last ones, which nobody wants
    given = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), *states

    def call() -> Any:
        library.model_run(state, len(x), *given)
        return y.copy()

    return call


def measure(cell: type[nn.Module], hidden: int, seconds: float) -> dict[str, float]:
    """Times real time, of each contender."""
    torch.manual_seed(0)
    model, x = Effect(cell, hidden).eval(), torch.randn(BLOCK, 1, 1)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "C": c_blocks(model, x.numpy(), Path(folder) / "m"),
            "engine": engine_blocks(model, x.numpy()),
            "torch": torch_blocks(model, x),
        }
        contenders = {name: call for name, call in found.items() if call is not None}
        same_answers(contenders)
        times = take_turns(contenders, seconds, time.process_time)
    return {name: BLOCK / RATE / statistics.median(blocks) for name, blocks in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line())
    print(
        f"times real time at {RATE:,} Hz, blocks of {BLOCK}\n\n| | C | engine | torch |\n| --- | --- | --- | --- |"
    )
    results = []
    for cell in (nn.LSTM, nn.GRU):
        for hidden in SIZES:
            found = measure(cell, hidden, args.seconds)
            results.append({"cell": cell.__name__, "hidden": hidden, "times_real_time": found})
            row = " | ".join(f"{found.get(name, float('nan')):.1f}" for name in ("C", "engine", "torch"))
            print(f"| {cell.__name__} {hidden} | {row} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_line(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
