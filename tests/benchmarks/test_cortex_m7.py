"""The exported C on a Cortex-M7, as QEMU runs it: there the products are written for its registers."""

import importlib
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOOLS = "arm-none-eabi-gcc", "qemu-system-arm"


@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {' and '.join(TOOLS)}")
@pytest.mark.parametrize(
    ("cell", "hidden", "optimise"),
    [
        (nn.LSTM, 16, "-Os"),
        pytest.param(nn.LSTM, 3, "-O2", marks=pytest.mark.long),
        pytest.param(nn.LSTM, 19, "-O3", marks=pytest.mark.long),
        pytest.param(nn.GRU, 16, "-O2", marks=pytest.mark.long),
        pytest.param(nn.GRU, 37, "-Os", marks=pytest.mark.long),
    ],
)
def test_answers_of_a_cortex_m7_are_torchs(cell, hidden, optimise, tmp_path, monkeypatch):
    """Counting compares the answers first: rows and columns in blocks of 16 and 4, and what is left of both."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    torch.manual_seed(0)
    model = importlib.import_module("tiny_c").Tiny(cell, hidden).eval()
    assert importlib.import_module("cortex_m7").instructions(model, tmp_path / "m", optimise) > 0
