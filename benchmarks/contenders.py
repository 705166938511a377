"""Contenders of the inference benchmarks: a network in torch, our engine and C, as plain calls; rivals.py has others.

With `carry` a call hands its state to the next one, as a step does; else every call begins at zero. Calls take turns
with the inputs `xs`: several of them, so that an input is fresh, or one again and again.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import HERE, KERNELS
from onnxruntime.quantization import QuantType, quantize_dynamic
from rivals import RIVALS, LeftOut, Runtime, fixed, last_line, rival_call
from structures import Net, Row, networks, thick
from torch import Tensor, nn

import gatewise as gw
from gatewise.runtime import bindings
from gatewise.runtime.arrangement import aligned

ENGINE, FOLDED, C, C_FOLDED = "engine", "engine, folded", "C", "C, folded"
DENSE, SHRUNK, INT8, UNFOLDED = "onnx dense", "onnx shrunk", "onnx int8 dense", "engine, gates not folded"
FRESH = 8  # inputs that take turns
# Whether calls carry their state on, how many sequences, how many inputs.
SITUATIONS = {
    "step": (True, 1, FRESH),
    "step, same input": (True, 1, 1),
    "sequence": (False, 1, FRESH),
    "sequence, same input": (False, 1, 1),
    "batch 20": (False, 20, FRESH),
}
Calls = dict[str, Callable[[], Any]]


def torch_call(net: Net, xs: Sequence[Tensor], carry: bool) -> Callable[[], Any]:
    state: list[Any] = [None]
    fresh = cycle(xs).__next__

    def call() -> Any:
        with torch.inference_mode():
            y, last = net(fresh(), state[0])
        state[0] = last if carry else None
        return y, last

    return call


def engine_call(engine: gw.Engine, xs: Sequence[np.ndarray], carry: bool) -> Callable[[], Any]:
    if not carry:
        fresh = cycle(xs).__next__
        return lambda: engine(fresh())
    engine.reset()
    step, fresh = engine.step, cycle([x[0] for x in xs]).__next__
    return lambda: (step(fresh())[None],)


class CCall:
    """The compiled function of a network on arrays that are ready; repeat(n) makes n calls in C."""

    def __init__(
        self, engine: gw.Engine, xs: Sequence[np.ndarray], carry: bool, repeating: ctypes.CDLL
    ) -> None:
        network, final, (steps, batch) = engine.stages[0].network, engine.stages[0].final, xs[0].shape[:2]
        shape = (batch, network.width) if final else (steps, batch, network.width)
        native, struct = ctypes.CDLL(bindings.native().__file__), ctypes.byref(network._keep[0])
        needed = repeating.scratch_floats(native.gw_network_scratch, struct, steps, batch, engine.threads)
        self.y = aligned(np.zeros(shape), np.float32)
        data, state = np.stack(xs), network.zero_state(batch)
        scratch = aligned(np.zeros(needed), np.float32)
        x_at, y_at, state_at, scratch_at = (
            ctypes.c_void_p(a.ctypes.data) for a in (data, self.y, state, scratch)
        )
        inputs = (None, x_at) if data.dtype == np.int64 else (x_at, None)
        self.keep = data, state, scratch, network, native
        self.function, self.arguments = repeating.repeat, (
            native.gw_network_run, struct, steps, batch, len(xs), *inputs, state_at, 0 if carry else state.size, y_at,
            network.width, engine.threads, scratch_at,
        )  # fmt: skip

        self.n = 0

    def repeat(self, n: int) -> None:
        self.function(self.n, n, *self.arguments)
        self.n += n

    def __call__(self) -> Any:
        self.repeat(1)
        return (self.y,)


@cache
def repeating() -> ctypes.CDLL | None:
    """repeat.c, compiled; None without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-std=c99", "-O2", "-shared", "-fPIC", f"-I{KERNELS}"]
        try:
            subprocess.run(["cc", *flags, str(HERE / "repeat.c"), "-o", f"{folder}/repeat.so"], check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        library = ctypes.CDLL(f"{folder}/repeat.so")
    library.scratch_floats.restype = ctypes.c_size_t
    return library


def c_call(engine: gw.Engine, xs: Sequence[np.ndarray], carry: bool) -> Callable[[], Any] | None:
    library = repeating()
    return None if library is None or len(engine.stages) > 1 else CCall(engine, xs, carry, library)


class Bench:
    """One row, part and number of threads: all contenders built, in all situations."""

    def __init__(self, row: Row, part: str, threads: int, folder: Path, generator: torch.Generator) -> None:
        self.row, self.part, self.threads, self.folder = row, part, threads, folder
        self.nets = networks(row, part, generator)
        self.compact = compact = gw.compress(self.nets.shrunk)
        self.engines = {ENGINE: gw.Engine(compact, threads=threads, fold_embedding=False)}
        self.engines[UNFOLDED] = gw.Engine(self.nets.unfolded, threads=threads, fold_embedding=False)
        if self.nets.dense.emb is not None:
            self.engines[FOLDED] = gw.Engine(compact, threads=threads, fold_embedding=True)
        self.graphs: dict[tuple[str, bool], Path] = {}
        for name, net in (("dense", thick(self.nets.dense)), ("shrunk", self.nets.shrunk)):
            for states in (True, False):
                self.graphs[name, states] = gw.export.to_onnx(
                    net, folder / f"{name} {states}.onnx", states=states
                )

    def inputs(
        self, situation: str, generator: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:  # of the dense network, and of those that read kept inputs only
        carry, batch, n = SITUATIONS[situation]
        nets, frame = self.nets, (n, 1 if carry else self.row.steps, batch)
        if nets.dense.emb is not None:
            x = narrow = nets.words[torch.randint(0, len(nets.words), frame, generator=generator)]
        elif self.row.words:
            x = torch.randn(*frame, self.row.size, generator=generator)
            narrow = x[..., nets.inputs].contiguous()
        else:
            letters = torch.randint(0, self.row.size, frame, generator=generator)
            x = narrow = nn.functional.one_hot(letters, self.row.size).float()
        return list(x), list(narrow)

    def contenders(
        self, situation: str, generator: torch.Generator, rivals: Sequence[str] = tuple(RIVALS)
    ) -> tuple[Calls, dict[str, str]]:
        """Calls by name, and why rivals do not take part."""
        carry = SITUATIONS[situation][0]
        x, narrow = self.inputs(situation, generator)
        arrays = {"dense": [a.numpy() for a in x], "shrunk": [a.numpy() for a in narrow]}
        found: Calls = {
            "torch dense": torch_call(self.nets.dense, x, carry),
            "torch shrunk": torch_call(self.nets.shrunk, narrow, carry),
        }
        left_out: dict[str, str] = {}
        for size, xs in arrays.items():
            graph = fixed(self.graphs[size, carry], *xs[0].shape[:2])
            for rival in rivals:
                try:
                    found[f"{rival} {size}"] = rival_call(rival, graph, self.threads, xs, carry)
                except LeftOut as why:
                    left_out[f"{rival} {size}"] = str(why)
            if size == "dense":
                small = graph.with_name(f"int8 {graph.name}")
                quantize_dynamic(graph, small, weight_type=QuantType.QInt8)
                found[INT8] = Runtime(small, self.threads).call(xs, carry)
        for name, engine in self.engines.items():
            found[name] = engine_call(engine, arrays["shrunk"], carry)
            direct = None if name == UNFOLDED else c_call(engine, arrays["shrunk"], carry)
            if direct is not None:
                found[C if name == ENGINE else C_FOLDED] = direct
        return found, left_out

    def compare(self, contenders: Calls, left_out: dict[str, str]) -> float:
        """Removes rivals that give another answer, says so, and returns how far int8 is off."""
        answers: dict[str, np.ndarray] = {}
        for name, call in contenders.items():
            try:
                for _ in range(3):  # the third has a state behind it
                    answer = call()
                value = self.nets.read(answer) if "dense" in name else np.asarray(answer[0])
            except Exception as error:
                if not is_rival(name):
                    raise
                left_out[name] = f"fails: {last_line(error)}"
                continue
            answers[name] = value.reshape(-1).copy()
        int8 = answers.pop(INT8)
        expected = answers["torch dense"]
        for name, value in answers.items():
            if value.shape != expected.shape or not np.allclose(value, expected, 1e-3, 1e-4):
                off = np.abs(value - expected).max() if value.shape == expected.shape else np.inf
                if not is_rival(name):
                    raise AssertionError(f"{name} is off by {off:.1e}")
                left_out[name] = f"gives another answer, off by {off:.1e}"
        for name in left_out:
            contenders.pop(name, None)
        return float(np.abs(int8 - expected).max())

    def work(self) -> tuple[float, float]:
        """Multiplications and bytes of weights of a step's recurrent part, as the engine does it."""
        products, read = 0, 0
        below = self.row.kept_inputs or self.row.size
        for kept, live in zip(self.row.neurons, self.row.gates):
            products += live * (below + kept)
            read += 4 * live * (below + kept + 1)
            below = kept
        return products, read


def is_rival(name: str) -> bool:
    return name.rsplit(" ", 1)[0] in RIVALS
