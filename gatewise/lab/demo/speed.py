"""How long a word takes: the dense network and the compressed one in torch, and the compressed one in C."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.demo.model import State
from gatewise.runtime.bindings import NativeLibraryError

Step = Callable[[Tensor], Tensor]  # word (1,) -> logits (1, V); the state is remembered


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """At most n threads; the caller's number is given back."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, n))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def microseconds_per_word(dense: nn.Module, small: nn.Module, words: Tensor) -> dict[str, float | None]:
    """Median time of one step on one thread, after a check that engine and compressed network agree.

    Contenders take turns word by word, so a slow moment of the machine falls on all of them. Without the compiled
    part of the package there is no engine, and its time is None.
    """
    contenders: dict[str, Step] = {"dense": stepper(dense), "compressed": stepper(small)}
    with suppress(NativeLibraryError):
        contenders["engine"] = gw.Engine(small).step
    times: dict[str, list[int]] = {name: [] for name in contenders}
    with torch_threads(1):
        for word in words.view(-1, 1):
            logits = {}
            for name, step in contenders.items():
                started = time.perf_counter_ns()
                logits[name] = step(word)
                times[name].append(time.perf_counter_ns() - started)
            if "engine" in logits:
                torch.testing.assert_close(logits["engine"], logits["compressed"], rtol=1e-4, atol=1e-4)
    found: dict[str, float | None] = {"engine": None}
    return found | {name: statistics.median(ns[len(ns) // 10 :]) / 1000 for name, ns in times.items()}


def stepper(model: nn.Module) -> Step:
    model.eval()
    state: State | None = None

    def step(word: Tensor) -> Tensor:
        nonlocal state
        logits, state = model(word[None], state)
        result: Tensor = logits[0]
        return result

    return step
