"""A step captured once in a CUDA graph and replayed: one launch instead of hundreds.

The first calls run as they are, on a stream of their own: they are part of the training, and let kernels compile and
optimisers make their state. Then the step is captured. Where that is not possible (no CUDA, an operation that waits
for the device) every call runs as it is, and `why_not` says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from gatewise.nn.recurrence import replayed

WARM_UP = 3


class Replayed:
    """Call it as you would call `step`."""

    def __init__(self, step: Callable[[], None], device: torch.device, enabled: bool = True) -> None:
        self.step = step
        self.why_not = "" if enabled else "switched off"
        if device.type != "cuda":
            self.why_not = f"there are none on {device.type}"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
            return
        if self.why_not or self.stream is None:
            self.step()
            return
        if self.calls < WARM_UP:
            self.calls += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream), quiet(), replayed():
                self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        self.capture()
        self()

    def capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with quiet(), replayed(), torch.cuda.graph(graph, stream=self.stream):
                self.step()
        except RuntimeError as error:
            torch.cuda.synchronize()
            said = str(error).strip().splitlines() or [type(error).__name__]
            self.why_not = said[0][:200]
            return
        self.graph = graph


class quiet(warnings.catch_warnings):
    """cuDNN would like the weights in one block; sampled weights are new tensors in every batch."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", message=".*single contiguous chunk of memory.*")
