"""`make check` of exports with every compiler, for another processor, under valgrind: slow repeats, with --long."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import ARM, run, variety
from everyday import EVERYDAY, thinned
from torch import nn

import gatewise as gw

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:.*keeps|.*stays as it is")]

# Kernels apart and inside; matrices dense, masked and sparse; a model that is no chain; a step of a decoder.
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "LSTM": (lambda: (variety(0).small, None), "float32"),
    "LSTM, int8": (lambda: (variety(0).small, None), "int8"),
    "GRU, hard gates": (lambda: (variety(1).small, None), "float32"),
    "two directions, int8": (lambda: (variety(3).small, None), "int8"),
    "LSTM of 40": (lambda: (nn.LSTM(33, 40), None), "float32"),
    "convolution": (lambda: EVERYDAY["convolution in front"](), "int8"),
    "decoder": (lambda: EVERYDAY["spelling to sounds"](), "float32"),
}
AARCH64 = "aarch64-linux-gnu-gcc"
WAYS: dict[str, tuple[str, str, str]] = {  # compiler, flags, what runs the program
    "gcc": ("gcc", "-O2 -march=native", ""),
    "gcc, fast math": ("gcc", "-O2 -march=native -ffast-math", ""),
    "clang": ("clang", "-O2 -march=native", ""),
    "clang, fast math": ("clang", "-O2 -march=native -ffast-math", ""),
    "aarch64": (AARCH64, "-O2 -static", "qemu-aarch64"),
    "aarch64, fast math": (AARCH64, "-O2 -static -ffast-math", "qemu-aarch64"),
    # It knows no AVX-512, and how many vectors are read behind an array is the same with narrower ones.
    "valgrind, AVX2": ("gcc", "-O1 -g -mavx2 -mfma", "valgrind -q --error-exitcode=9"),
    "valgrind, single floats": ("gcc", "-O1 -g -DGW_LANES=1", "valgrind -q --error-exitcode=9"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_make_check_everywhere(way: str, name: str, tmp_path: Path) -> None:
    """The golden vectors are met whoever compiles, and no byte is read that was not written."""
    compiler, flags, runner = WAYS[way]
    for tool in (compiler, *runner.split()[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    make, weights = MODELS[name]
    (model, example), folder = make(), tmp_path / "m"
    gw.export.to_c(gw.compress(thinned(model)), folder, weights=weights, example=example)
    run("make", "build/check", f"CC={compiler}", f"OPTIMIZE={flags}", cwd=folder)
    assert "passed" in run(*runner.split(), folder / "build" / "check", cwd=folder)


BOARD = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "cortex_board.py"))
CORTEX = {"cortex-m4": "-mfpu=fpv4-sp-d16", "cortex-m7": "-mfpu=fpv5-sp-d16"}  # an M7 runs both


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("processor", CORTEX)
def test_make_check_on_a_cortex_m(processor: str, name: str, tmp_path: Path) -> None:
    """There products are written in assembler, and gates read a table: QEMU runs both."""
    for tool in (ARM, "qemu-system-arm"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    make, weights = MODELS[name]
    (model, example), folder = make(), tmp_path / "m"
    gw.export.to_c(gw.compress(thinned(model)), folder, weights=weights, example=example)
    (folder / "board.ld").write_text(BOARD["BOARD"])
    (folder / "start.c").write_text(BOARD["START"])
    flags = f"-mcpu={processor} -mthumb -mfloat-abi=hard {CORTEX[processor]} -Os"
    linked = "-nostartfiles -T board.ld --specs=rdimon.specs start.c"
    run("make", "build/check", f"CC={ARM}", f"OPTIMIZE={flags} {linked}", cwd=folder)
    board = "-M mps2-an500 -nographic -semihosting-config enable=on,target=native -kernel build/check"
    assert "passed" in run("qemu-system-arm", *board.split(), cwd=folder)
