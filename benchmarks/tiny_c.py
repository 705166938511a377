"""A step of a tiny network in C: our export, its kernels apart and inside the model's file, beside emx-onnx-cgen's.

Dense LSTM and GRU of 8, 16 and 32 neurons that read one number. Everything is compiled with -O3 -march=native, and
called in a loop in C that hands it one of eight inputs in turn; emx-onnx-cgen's with -ffast-math, too. All answers
are compared first, then contenders take turns. "emx" is left out where it is not installed.

    python benchmarks/tiny_c.py [--cc clang]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from machine import machine_line
from rivals import LeftOut, addresses, fixed, graph_of, repeat_source, sizes_of, tool, zero_states
from torch import nn

import gatewise as gw
from gatewise.lab.timing import take_turns

INPUTS, CALLS = 8, 1000
FLAGS = "-O3 -march=native -ffp-contract=fast -w -shared -fPIC".split()
OURS = """
static model_state state;
void begin(void) { model_reset(&state); }
void repeat(int first, int n, const float *x, float *y) {
    for (int i = first; i < first + n; i++) model_step(&state, x + i % INPUTS, y, STATES);
}
"""


class Tiny(nn.Module):
    def __init__(self, cell: type[nn.Module], hidden: int) -> None:
        super().__init__()
        self.rnn = cell(1, hidden)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.rnn(x, state)


def states_of(model: nn.Module) -> str:
    """Last states, which nobody wants."""
    return "NULL, NULL" if isinstance(model.rnn, nn.LSTM) else "NULL"


class Ours:
    """CALLS steps of our export at each call."""

    def __init__(self, model: nn.Module, folder: Path, inside: bool, cc: str, x: np.ndarray) -> None:
        gw.export.to_c(model, folder, specialise=inside)
        source = '#include "model.c"\n' + OURS.replace("INPUTS", str(INPUTS)).replace(
            "STATES", states_of(model)
        )
        (folder / "repeat.c").write_text(source)
        kernels = [] if inside else ["gw.c", "words.c"]
        tool([cc, *FLAGS, "repeat.c", *kernels, "-o", "repeat.so", "-lm"], folder / "repeat.so")
        self.library = ctypes.CDLL(str(folder / "repeat.so"))
        self.library.begin()
        self.y = np.zeros(model.rnn.hidden_size, np.float32)
        self.keep, self.n = x, 0

    def __call__(self, calls: int = CALLS) -> np.ndarray:
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (self.keep, self.y))
        self.library.repeat(self.n, calls, *pointers)
        self.n += calls
        return self.y


class Emx:
    """The same of emx-onnx-cgen's."""

    def __init__(self, model: nn.Module, folder: Path, fast: bool, cc: str, x: np.ndarray) -> None:
        folder.mkdir()
        path = fixed(gw.export.to_onnx(model, folder / "open.onnx", states=True), 1, 1)
        graph = onnx.load(path)
        for node in graph.graph.node:  # of the GRU it does not take "direction", which is "forward" anyway
            kept = [a for a in node.attribute if a.name != "direction"]
            del node.attribute[:]
            node.attribute.extend(kept)
        onnx.save(graph, path)
        tool([sys.executable, "-m", "emx_onnx_cgen", "compile", str(path), "model.c"], folder / "model.c")
        states = len(graph_of(path).input) - 1
        (folder / "repeat.c").write_text(repeat_source(states))
        flags = [*FLAGS, "-ffast-math"] if fast else FLAGS
        tool([cc, *flags, "repeat.c", "-o", "repeat.so", "-lm"], folder / "repeat.so")
        self.library = ctypes.CDLL(str(folder / "repeat.so"))
        self.y, *after = (np.zeros(sizes_of(value), np.float32) for value in graph_of(path).output)
        before, self.xs = list(zero_states(path).values()), [x[i : i + 1].copy() for i in range(INPUTS)]
        self.keep, self.n = (before, after), 0
        self.arguments = addresses(self.xs), INPUTS, addresses(before), addresses(after)

    def __call__(self, calls: int = CALLS) -> np.ndarray:
        self.library.repeat(self.n, calls, *self.arguments, ctypes.c_void_p(self.y.ctypes.data), 1)
        self.n += calls
        return self.y.reshape(-1)


def contenders(cell: type[nn.Module], hidden: int, cc: str, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x = Tiny(cell, hidden).eval(), np.random.default_rng(0).normal(size=INPUTS).astype(np.float32)
    found: dict[str, Any] = {
        "kernels apart": Ours(model, folder / "apart", False, cc, x),
        "inside": Ours(model, folder / "inside", True, cc, x),
    }
    for name, fast in (("emx, -ffast-math", True), ("emx", False)):
        try:
            found[name] = Emx(model, folder / name.replace(", ", ""), fast, cc, x)
        except LeftOut as why:
            print(f"{name} is left out: {why}")
    answers = {name: call(5).copy() for name, call in found.items()}
    for name, answer in answers.items():
        np.testing.assert_allclose(answer, answers["inside"], rtol=1e-4, atol=1e-5, err_msg=name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    args = parser.parse_args()
    print(machine_line())
    print(f"{args.cc}, nanoseconds a step, median [lowest]")
    for cell, hidden in ((nn.LSTM, 8), (nn.LSTM, 16), (nn.LSTM, 32), (nn.GRU, 8), (nn.GRU, 16), (nn.GRU, 32)):
        with tempfile.TemporaryDirectory() as folder:
            found = contenders(cell, hidden, args.cc, Path(folder))
            times = take_turns(found, args.seconds, time.process_time)
        said = {
            name: f"{statistics.median(t) / CALLS * 1e9:.0f} [{min(t) / CALLS * 1e9:.0f}]"
            for name, t in times.items()
        }
        print(f"{cell.__name__} 1 -> {hidden}: " + ", ".join(f"{name} {text}" for name, text in said.items()))


if __name__ == "__main__":
    main()
