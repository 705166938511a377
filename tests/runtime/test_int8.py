"""Matrices of bytes with one scale per row: the kernels equal the same numbers as floats."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import ISAS, TOLERANCE, as_float, make_case, reference

from gatewise.runtime import bindings
from gatewise.runtime.arrangement import Form, arrange_matrix
from gatewise.runtime.rounding import quantize

FORMS: tuple[Form, ...] = ("dense", "sparse", "masked")


def as_read(w: np.ndarray) -> np.ndarray:
    """What the bytes stand for."""
    codes, scale = quantize(w)
    return codes.astype(np.float64) * scale[:, None]


def test_no_sign_turns_at_the_end_of_float32() -> None:
    """A denormal scale is rounded, and a code above 127 would come out negative."""
    w = np.array([[2.66e-43, 1e-44]], np.float32)
    assert quantize(w)[0].min() >= 0


def test_a_row_is_at_most_half_a_step_off() -> None:
    w = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    w[3] = 0
    codes, scale = quantize(w)
    assert codes.dtype == np.int8
    assert (np.abs(codes).max(axis=1)[scale > 0] == 127).all()
    assert (np.abs(as_read(w) - w) <= scale[:, None] * 0.5001).all()
    assert not as_read(w)[3].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 1), (6, 5), (16, 3), (64, 40), (65, 7), (193, 264), (300, 0), (0, 4)])
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_products(shape: tuple[int, int], density: float, isa: str) -> None:
    rng = np.random.default_rng(0)
    rows, cols = shape
    w = np.where(rng.random(shape) < density, rng.normal(size=shape), 0)
    bias = rng.normal(size=rows)
    case = make_case(1, n_x=2, n_units=cols, live=1.0, subset=False)
    plain = bindings.Network([[case.arranged()]], 2, isa=isa)
    for form, tight in [*((form, False) for form in FORMS), ("dense", True), (None, True)]:
        head = arrange_matrix(w, form, tight, int8=True), as_float(bias)
        assert head[0].nbytes < 4 * w.size or w.size < 1000
        net = bindings.Network([[case.arranged()]], 2, head=head, isa=isa)
        for n_batch in (1, 5):
            x = as_float(rng.normal(size=(2, n_batch, 2)))
            h, y = np.empty((2, n_batch, cols), np.float32), np.empty((2, n_batch, rows), np.float32)
            plain.run(x, plain.zero_state(n_batch), h, 2, n_batch, False, None, 1)
            net.run(x, net.zero_state(n_batch), y, 2, n_batch, False, None, 1)
            np.testing.assert_allclose(y, h @ as_read(w).T + bias, **TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("form", FORMS)
def test_layers(cell: str, form: Form, isa: str) -> None:
    case = make_case(5, cell, n_units=37, density=1.0 if form == "dense" else 0.3)
    order = np.argsort(case.slot)
    expected_case = type(case)(
        **{
            **vars(case),
            "w_ih": as_read(case.w_ih[order]),
            "w_hh": as_read(case.w_hh[order]),
            "slot": case.slot[order],
        }
    )
    x = np.random.default_rng(0).normal(size=(6, 3, case.n_x)).astype(np.float32)
    zero = np.zeros((3, 37))
    expected, *_ = reference(expected_case, x.astype(np.float64), zero, zero)
    net = bindings.Network([[case.arranged(form=form, int8=True)]], case.n_x, isa=isa)
    y = np.full((6, 3, 37), np.nan, np.float32)
    net.run(x, net.zero_state(3), y, 6, 3, False, None, 1)
    np.testing.assert_allclose(y, expected, **TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_a_folded_table(isa: str) -> None:
    """A removed word still is the bias alone; every other row has its own scale."""
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(4, 7)).astype(np.float32)
    remap = np.array([-1, 2, -1, 0, 1, 3], np.int32)
    ids = rng.integers(0, 6, (9, 2))
    case = make_case(1, n_x=7, n_units=18)
    exact, rough = case.arranged(embedding=embedding), case.arranged(embedding=embedding, int8=True)
    assert exact.table is not None
    as_floats = type(exact)(
        **{**vars(exact), "table": as_read(exact.table).astype(np.float32), "w_hh": rough.w_hh}
    )
    answers = []
    for layer in (as_floats, rough):
        net = bindings.Network([[layer]], 7, n_words=6, remap=remap, isa=isa)
        y = np.full((9, 2, 18), np.nan, np.float32)
        net.run(ids, net.zero_state(2), y, 9, 2, False, None, 1)
        answers.append(y)
    np.testing.assert_allclose(answers[1], answers[0], **TOLERANCE)


def test_the_fewest_bytes() -> None:
    """tight chooses the smallest form, for floats and for bytes; in between that is bits and what they stand for."""
    rng = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.2, 0.5, 1.0):
        w = np.where(rng.random((50, 60)) < density, rng.normal(size=(50, 60)), 0)
        for int8 in (False, True):
            chosen = arrange_matrix(w, None, True, int8).nbytes
            sizes = {form: arrange_matrix(w, form, True, int8).nbytes for form in FORMS}
            assert chosen == min(sizes.values())
            assert sizes["masked"] == chosen or density not in (0.2, 0.5)


def test_a_single_column_stays_float() -> None:
    """Its scales would take as many bytes as it does."""
    assert arrange_matrix(np.ones((9, 1)), int8=True).scale is None
    case = make_case(1, n_x=7, n_units=2, live=0.3)
    assert len(case.slot) == 1
    assert case.arranged(embedding=np.ones((4, 7)), int8=True).table_scale is None
