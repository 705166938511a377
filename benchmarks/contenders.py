"""Contenders of the inference benchmarks: a network in torch, ONNX Runtime, our engine and C, as plain calls.

With `carry` a call hands its state to the next one, as a step does; else every call begins at zero.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from machine import HERE, KERNELS
from structures import Net
from torch import Tensor

import gatewise as gw
from gatewise.runtime import bindings
from gatewise.runtime.packing import aligned


def torch_call(net: Net, x: Tensor, carry: bool) -> Callable[[], Any]:
    state: list[Any] = [None]

    def call() -> Any:
        with torch.inference_mode():
            y, last = net(x, state[0])
        state[0] = last if carry else None
        return y, last

    return call


def onnx_session(path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnx_call(session: Any, x: np.ndarray, carry: bool) -> Callable[[], Any]:
    names = [y.name for y in session.get_outputs()]
    first, *states = session.get_inputs()
    feed = {first.name: x}
    for given in states:
        feed[given.name] = np.zeros([1 if not isinstance(n, int) else n for n in given.shape], np.float32)
    back = {given.name: 1 + k for k, given in enumerate(states)}  # they come back in the order they go in

    def call() -> Any:
        answer = session.run(names, feed)
        for name, k in back.items():
            feed[name] = answer[k]
        return answer

    return call if carry else lambda: session.run(names, feed)


def engine_call(engine: gw.Engine, x: np.ndarray, carry: bool) -> Callable[[], Any]:
    if not carry:
        return lambda: engine(x)
    engine.reset()
    step = engine.step
    first = x[0]
    return lambda: (step(first)[None],)


class CCall:
    """The compiled function of a network on arrays that are ready; repeat(n) makes n calls in C."""

    def __init__(self, engine: gw.Engine, x: np.ndarray, carry: bool, repeating: ctypes.CDLL) -> None:
        network, final, (steps, batch) = engine.stages[0].network, engine.stages[0].final, x.shape[:2]
        shape = (batch, network.width) if final else (steps, batch, network.width)
        native, struct = ctypes.CDLL(bindings.native().__file__), ctypes.byref(network._keep[0])
        needed = repeating.scratch_floats(native.gw_network_scratch, struct, steps, batch, engine.threads)
        self.y = aligned(np.zeros(shape), np.float32)
        data, state = np.ascontiguousarray(x), network.zero_state(batch)
        scratch = aligned(np.zeros(needed), np.float32)
        x_at, y_at, state_at, scratch_at = (
            ctypes.c_void_p(a.ctypes.data) for a in (data, self.y, state, scratch)
        )
        inputs = (None, x_at) if data.dtype == np.int64 else (x_at, None)
        self.keep = data, state, scratch, network, native
        self.function, self.arguments = repeating.repeat, (
            native.gw_network_run, struct, steps, batch, *inputs, state_at, 0 if carry else state.size, y_at,
            network.width, engine.threads, scratch_at,
        )  # fmt: skip

    def repeat(self, n: int) -> None:
        self.function(n, *self.arguments)

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


def c_call(engine: gw.Engine, x: np.ndarray, carry: bool) -> Callable[[], Any] | None:
    library = repeating()
    return None if library is None or len(engine.stages) > 1 else CCall(engine, x, carry, library)
