"""A refusal shows the line of forward() that it is about."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.program import ways
from gatewise.runtime.chained import ChainError


class FirstStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.read(out)

    def read(self, out: Tensor) -> Tensor:
        return self.head(out[out[..., 0] > 0])


def test_the_line_is_that_of_the_function_which_forward_calls() -> None:
    with pytest.raises(
        ChainError,
        match=r'^test_lines\.py, line \d+, "return self\.head\(out\[out\[\.\.\., 0\] > 0\]\)": it takes the values',
    ):
        gw.Engine(FirstStep())


def test_a_long_line_is_cut() -> None:
    class Long(FirstStep):
        def read(self, out: Tensor) -> Tensor:
            return torch.nn.functional.hardtanh(torch.fft.rfft(out[:, -1]).abs(), -0.25, 0.25)

    with pytest.raises(
        ChainError, match=r'line \d+, "return torch.{68}\.\.\.": fft_rfft\(\) is not an operation'
    ):
        gw.Engine(Long())


def test_without_source_the_operation_is_named() -> None:
    names: dict[str, Any] = {"FirstStep": FirstStep}
    exec("class Typed(FirstStep):\n    def read(self, out):\n        return out[out > 0]\n", names)
    with pytest.raises(ChainError, match=r"^it takes the values where a mask is true"):
        gw.Engine(names["Typed"]())


def test_an_analysis_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public models kept GroupLasso busy for minutes; what an analysis does not know costs neurons."""
    monkeypatch.setattr(ways, "LONGEST", -1)
    with pytest.warns(UserWarning, match=r"neurons stay, because .* \(to follow it takes longer than -1 s\)"):
        gw.GroupLasso(FirstStep())


def test_what_forward_raises_is_shown_with_its_line() -> None:
    class Branch(FirstStep):
        def read(self, out: Tensor) -> Tensor:
            if out.mean() > 0:
                out = -out
            return self.head(out[:, -1])

    said = r'test_lines\.py, line \d+, "if out\.mean\(\) > 0:": an `if` or `while` asks for a value'
    with pytest.raises(ChainError, match=said):
        gw.Engine(Branch())
    with pytest.warns(UserWarning, match=said):
        gw.GroupLasso(Branch())
