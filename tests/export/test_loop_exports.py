"""Loops around cells in ONNX Runtime, in compiled C and in a race: what torch gives, for any length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from chains import CLOSE
from compiled import Compiled
from loops import CELLS, LOOPS, OTHERS, I, cells_of, example, looped

import gatewise as gw
from gatewise.export.c.rounded import rounded_model
from gatewise.lab.timing import dense_original

CASES = [(name, cell) for name in LOOPS for cell in cells_of(name)]


@pytest.mark.parametrize(("name", "cell"), CASES)
def test_onnx(name: str, cell: str, tmp_path: Path) -> None:
    model = looped(LOOPS[name], cell, zeros="some")
    path = gw.export.to_onnx(model, tmp_path / "loop.onnx")
    session = onnxruntime.InferenceSession(str(path))
    for steps in range(1, 10):
        x = example(model, steps, batch=steps % 3 + 1)
        with torch.no_grad():
            expected = model(x)
        (got,) = session.run(["y"], {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), expected, **CLOSE)


@pytest.mark.parametrize("name", [name for name, (_, why) in OTHERS.items() if not why])
def test_onnx_of_loops_that_are_no_chains(name: str, tmp_path: Path) -> None:
    model = looped(OTHERS[name][0])
    session = onnxruntime.InferenceSession(str(gw.export.to_onnx(model, tmp_path / "loop.onnx")))
    for steps in (3, 7):
        x = torch.randn(3, steps, I)
        with torch.no_grad():
            expected = model(x)
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for one, other in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(torch.from_numpy(one), other, **CLOSE)


@pytest.mark.parametrize(("name", "cell"), CASES)
def test_c(name: str, cell: str, kernels: list[Path], tmp_path: Path) -> None:
    """At once and step by step; the golden vectors of the export were checked when it was written."""
    model = looped(LOOPS[name], cell, zeros="bayes")
    compiled = Compiled(gw.compress(model), tmp_path, kernels)
    assert compiled.streams
    for steps in range(1, 10):
        x = example(model, steps, batch=1)
        with torch.no_grad():
            expected = model(x)
        one = x.squeeze(1 if name.startswith("time_first") else 0).numpy()
        whole = compiled.run(compiled.instance(), one)
        np.testing.assert_allclose(whole, expected.numpy().reshape(whole.shape), **CLOSE)
        state = compiled.instance()
        parts = np.stack([compiled.step(state, part) for part in one])
        np.testing.assert_allclose(parts[-1:] if compiled.final else parts, whole, **CLOSE)


@pytest.mark.parametrize("cell", CELLS)
def test_int8_and_the_dense_original(cell: str) -> None:
    """What else looks for the layers of a chain finds those in loops."""
    model = looped(LOOPS["two_cells"], cell, zeros="some")
    small = gw.compress(model)
    x = example(model, 5, 2)
    with torch.no_grad():
        near = rounded_model(small)(x)
        assert 0 < (near - small(x)).abs().max() < 0.1
    dense = dense_original(small)
    assert type(dense.cell) is CELLS[cell]
    assert dense.cell.weight_hh.shape == model.cell.weight_hh.shape


@pytest.mark.parametrize("cell", CELLS)
def test_a_cells_parameters_are_those_of_a_layer(cell: str) -> None:
    """The way out that docs/export.md has for loops that are refused."""
    one = CELLS[cell](3, 4)
    layer = getattr(torch.nn, cell)(one.input_size, one.hidden_size, bias=one.bias)
    layer.load_state_dict({f"{name}_l0": tensor for name, tensor in one.state_dict().items()})
    x, state = torch.randn(5, 2, 3), None
    for x_t in x:
        state = one(x_t, state)
    last = state if cell == "GRU" else state[0]
    torch.testing.assert_close(layer(x)[0][-1], last)
