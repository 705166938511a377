"""Drawn graphs through every back end: compact, engine, its pieces, ONNX, compiled C."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from compiled import STRICT, run
from drawn_graphs import Graph, graphs
from hypothesis import given, settings
from test_onnx_programs import Session
from torch import Tensor

import gatewise as gw
from gatewise.program.graph import leaves

DRAWN = (8, 10_000)  # usual and --long
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}  # sums in another order, through several layers


class Campaign:
    """Counts what each back end answered; what one refuses it says with a ValueError."""

    def __init__(self, folder: Path, kernels: list[Path]) -> None:
        self.folder, self.kernels = folder, kernels
        self.graphs, self.same, self.refused = 0, Counter[str](), Counter[str]()

    @torch.no_grad()
    def __call__(self, graph: Graph) -> None:
        self.graphs += 1
        inputs = graph.arguments(2, 5)
        model = graph.model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layers whose readers are not known
            small = gw.compress(model)
        expected = leaves(model(*inputs))
        torch.testing.assert_close(leaves(small(*inputs)), expected, **CLOSE)
        for name, form in {"engine": self.engine, "ONNX": self.onnx, "C": self.c}.items():
            try:
                answer = form(small, graph, inputs)
            except (ValueError, TypeError):
                self.refused[name] += 1
            else:
                torch.testing.assert_close(answer or expected, expected, **CLOSE)
                self.same[name] += 1

    def engine(self, small: Any, graph: Graph, inputs: tuple[Tensor, ...]) -> list[Any]:
        return leaves(gw.Engine(small, example=inputs)(*inputs)[0])

    def onnx(self, small: Any, graph: Graph, inputs: tuple[Tensor, ...]) -> list[Any]:
        session = Session(small, self.folder, example=inputs)
        return session(*inputs)

    def c(self, small: Any, graph: Graph, inputs: tuple[Tensor, ...]) -> list[Any]:
        """The export checks itself, against the answers that the compact model gave."""
        folder = self.folder / "c"
        weights = ("float32", "int8")[self.graphs % 2]
        gw.export.to_c(small, folder, weights=weights, example=inputs)
        program = self.folder / "check"
        run("gcc", *STRICT, "-O0", "-o", program, "check.c", "model.c", *self.kernels, "-lm", cwd=folder)
        assert "passed" in run(program, cwd=folder)
        return []

    def __str__(self) -> str:
        forms = ", ".join(f"{name} {self.same[name]} ({self.refused[name]} refused)" for name in self.same)
        return f"{self.graphs} drawn graphs, the same answers: compact {self.graphs}, {forms}"


def test_drawn_programs(tmp_path: Path, kernels: list[Path], pytestconfig: Any, campaign: Any) -> None:
    """A back end answers as forward() does, or says that it cannot."""
    check = Campaign(tmp_path, kernels)

    @settings(max_examples=DRAWN[pytestconfig.getoption("--long")], derandomize=True)
    @given(graph=graphs())
    def every_back_end(graph: Graph) -> None:
        check(graph)

    every_back_end()
    assert not check.refused["engine"]
    campaign(str(check))
