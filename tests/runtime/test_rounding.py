"""gw.Engine(weights=...): the kernels, and the engine around them, equal the same rounded numbers as floats."""

from __future__ import annotations

import copy
import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from kernel_cases import ISAS, TOLERANCE, as_float, cases, make_case, reference
from torch import nn

import gatewise as gw
from gatewise.compact import CompactLayer, CompactLinear
from gatewise.runtime import bindings
from gatewise.runtime.arrangement import arrange_matrix
from gatewise.runtime.rounding import joined, rounded


def test_words_hold_the_first_column_lowest() -> None:
    w = np.array([[1.0, -2.0, 0.5], [0.0, 127.0, -127.0]], np.float32)
    words, scale = joined(w)
    np.testing.assert_array_equal(scale, np.float32([2 / 127, 1]))
    assert hex(words[1, 0]) == "0xff0180"


def answer(net: bindings.Network, x: np.ndarray, width: int, threads: int = 1) -> np.ndarray:
    steps, batch = x.shape[:2]
    y = np.full((steps, batch, width), np.nan, np.float32)
    net.run(x, net.zero_state(batch), y, steps, batch, False, None, threads)
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 2), (16, 3), (65, 7), (193, 264), (300, 0), (0, 4)])
def test_products(shape: tuple[int, int], isa: str) -> None:
    rng = np.random.default_rng(0)
    rows, cols = shape
    w, bias = rng.normal(size=shape).astype(np.float32), rng.normal(size=rows).astype(np.float32)
    case = make_case(1, n_x=2, n_units=cols, live=1.0, subset=False)
    plain = bindings.Network([[case.arranged()]], 2, isa=isa)
    arranged = arrange_matrix(w, weights="int8")
    assert arranged.nbytes < 4 * w.size or w.size < 1000
    net = bindings.Network([[case.arranged()]], 2, head=(arranged, bias), isa=isa)
    for batch in (1, 3, 5):
        x = as_float(rng.normal(size=(2, batch, 2)))
        expected = answer(plain, x, cols) @ rounded(w, "int8").astype(np.float64).T + bias
        np.testing.assert_allclose(answer(net, x, rows), expected, **TOLERANCE)


KERNEL = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32),
    *(ctypes.c_void_p, ctypes.c_ssize_t) * 2,
    ctypes.c_void_p,
)


def product(w: np.ndarray, x: np.ndarray, isa: str) -> np.ndarray:
    """gw_product() of one vector with int8 weights."""
    (rows, cols), struct = w.shape, bindings._matrix(arranged := arrange_matrix(w, "dense", weights="int8"))
    y, bias, scratch = (np.zeros(n, np.float32) for n in (rows, rows, 64 * cols + 256))
    kernel = ctypes.cast(bindings.kernels_of(isa).contents.product, KERNEL)
    memory = [a.ctypes.data for a in (bias, x, y, scratch)]
    kernel(ctypes.addressof(struct), memory[0], 1, memory[1], cols, memory[2], rows, memory[3])
    assert arranged.form == "dense"
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [0.0, 1e-35, 1e-4, 0.2, 3.0, 250.0, 1e4, 1e30])
def test_inputs_of_any_size(size: float, isa: str) -> None:
    """Digits of x carry what floats do, or floats are taken: errors are those of a sum in float32, whose largest
    entry has one, too."""
    rng = np.random.default_rng(1)
    w = rng.normal(size=(70, 130)).astype(np.float32)
    x = (np.clip(rng.normal(size=130), -2, 2) * size / 2).astype(np.float32)
    for largest in (size, min(size, 1) * 100):
        w[:, 5], x[5] = 0, largest  # nobody reads it
        exact = rounded(w, "int8").astype(np.float64)
        error = np.abs(product(w, x, isa) - exact @ x)
        floats = 2.0**-21 * np.abs(exact) @ np.abs(x)
        assert (error <= floats + 2.0**-23 * min(abs(x).max(), 1) * np.abs(exact).sum(1)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_what_is_no_number_stays_none(strange: float, isa: str) -> None:
    w, x = np.ones((70, 130), np.float32), np.ones(130, np.float32)
    x[7] = strange
    np.testing.assert_array_equal(product(w, x, isa), np.full(70, strange, np.float32))


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_layers(case) -> None:
    """Every structure, down to none; the order of rows decides the scales, so both see them sorted."""
    order = np.argsort(case.slot)
    bytes_of = {
        name: rounded(getattr(case, name)[order].astype(np.float32), "int8").astype(np.float64)
        for name in ("w_ih", "w_hh")
    }
    small = type(case)(**{**vars(case), **bytes_of, "slot": case.slot[order]})
    x = np.random.default_rng(0).normal(size=(4, 2, case.n_x)).astype(np.float32)
    zero = np.zeros((2, case.n_units))
    expected, *_ = reference(small, x.astype(np.float64), zero, zero)
    for isa in ISAS:
        net = bindings.Network([[case.arranged(weights="int8")]], case.n_x, isa=isa)
        np.testing.assert_allclose(answer(net, x, case.n_units), expected, **TOLERANCE)


class Tagger(nn.Module):
    """A chain, or with `skip` a graph."""

    def __init__(self, cell: type[nn.Module], skip: bool) -> None:
        super().__init__()
        self.emb, self.rnn, self.skip = nn.Embedding(30, 20), cell(20, 150, num_layers=2), skip
        self.fc = nn.Linear(150, 70)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.emb(x)
        y, _ = self.rnn(e)
        return self.fc(torch.relu(y) + y if self.skip else y)


def as_rounded(model: nn.Module) -> nn.Module:
    small = copy.deepcopy(gw.compress(model))
    for module in small.modules():
        for name in ("weight_ih", "weight_hh", "weight"):
            known = isinstance(module, CompactLayer | CompactLinear)
            if known and isinstance(matrix := getattr(module, name, None), torch.Tensor):
                matrix.data = torch.from_numpy(rounded(matrix.detach().numpy(), "int8"))
    return small


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_engines(cell: type[nn.Module], skip: bool) -> None:
    """Whole sequences, batches in threads, and streams."""
    torch.manual_seed(0)
    model = Tagger(cell, skip).eval()
    x = torch.randint(0, 30, (6, 9))
    with torch.no_grad():
        expected = as_rounded(model)(x)
    engine = gw.Engine(model, weights="int8", threads=2, fold_embedding=False)
    torch.testing.assert_close(engine(x)[0], expected, rtol=1e-4, atol=1e-5)
    steps = torch.stack([engine.step(row) for row in x])
    torch.testing.assert_close(steps, expected, rtol=1e-4, atol=1e-5)
    assert (engine(x)[0] - gw.Engine(model)(x)[0]).abs().max() > 1e-4  # it did round


def test_other_names_are_refused() -> None:
    for model in (nn.LSTM(3, 4), Tagger(nn.GRU, True)):
        with pytest.raises(ValueError, match=r"weights='int4' must be one of float32, int8"):
            gw.Engine(model, weights="int4")
