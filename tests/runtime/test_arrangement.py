"""The form in which a matrix is stored, and the structures that arranging refuses for the kernels."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import make_case

from gatewise.runtime import bindings
from gatewise.runtime.arrangement import HUGE_PAGE, LARGE_ARRAY, aligned, arrange_matrix


@pytest.mark.parametrize(
    ("shape", "density", "expands", "form"),
    [
        ((100, 100), 0.3, True, "dense"),  # in cache: nothing beats streaming it
        ((3000, 100), 0.3, True, "masked"),
        ((3000, 100), 0.3, False, "dense"),
        ((3000, 100), 0.7, True, "dense"),
        ((3000, 100), 0.02, True, "sparse"),
        ((3000, 100), 0.06, True, "sparse"),
        ((100, 100), 0.06, True, "dense"),
    ],
)
def test_the_form_that_is_expected_to_be_fastest(shape, density, expands, form):
    rng = np.random.default_rng(0)
    w = np.where(rng.random(shape) < density, 1.0, 0.0)
    assert arrange_matrix(w, expands=expands).form == form


def test_only_avx512_expands():
    """Elsewhere the masked form is taken apart bit by bit."""
    assert not bindings.expands() or next(iter(bindings.kernels())) in ("vnni", "avx512")


@pytest.mark.parametrize("tight", [False, True])
def test_a_matrix_too_wide_for_sparse_takes_another_form(tight):
    """Its column ids have 16 bits; the choice must not fall on what arranging refuses."""
    w = np.zeros((16, 65_536), np.float32)
    w[3, -1] = 1
    assert arrange_matrix(w[:, 1:], tight=tight).form == "sparse"
    assert arrange_matrix(w, tight=tight).form != "sparse"
    with pytest.raises(ValueError, match="at most 65535 columns, not 65536"):
        arrange_matrix(w, "sparse")


def test_wrong_structures_are_refused():
    """The kernels do not look at an index twice, so arranging must."""
    case = make_case(4, n_x=7, n_units=5, live=1.0)
    with pytest.raises(ValueError, match="different numbers from 0 to 19"):
        replace(case, slot=np.zeros_like(case.slot)).arranged()
    for neuron in (5, -1):
        with pytest.raises(ValueError, match="neurons from 0 to 4"):
            replace(case, reads=np.full(case.w_hh.shape[1], neuron)).arranged()
    for entry in (99, -1):
        with pytest.raises(ValueError, match=r"reads entry .* of an input of 7"):
            bindings.Network([[replace(case, inputs=np.full(case.w_ih.shape[1], entry)).arranged()]], 7)
    with pytest.raises(ValueError, match="expected 5 columns and 3 biases, got 5, 2"):
        bindings.Network(
            [[case.arranged()]], 7, head=(arrange_matrix(np.ones((3, 5))), np.zeros(2, np.float32))
        )
    with pytest.raises(ValueError, match="this machine cannot run 'mmx': expected one of"):
        bindings.Network([[case.arranged()]], 7, isa="mmx")
    with pytest.raises(ValueError, match="remap: expected 2 rows from -1 to 3"):
        bindings.Network(
            [[case.arranged(embedding=np.zeros((4, 7)))]],
            7,
            n_words=2,
            remap=np.array([0, 4], dtype=np.int32),
        )


WHOLE = make_case(4, n_x=7, n_units=5, live=1.0, subset=False)  # 20 rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": "RNN"}, "cell 'RNN' with 'sigmoid': expected one of"),
        ({"squash": "relu"}, "cell 'LSTM' with 'relu'"),
        ({"cell": "GRU"}, "bias: a GRU has 3 gates, not 4"),
        ({"w_ih": WHOLE.w_ih[1:]}, "slot has 20 rows, w_ih 19 and w_hh 20"),
        ({"w_hh": np.repeat(WHOLE.w_hh, 2, axis=0)}, "slot has 20 rows, w_ih 20 and w_hh 40"),
        ({"slot": WHOLE.slot + 1}, "different numbers from 0 to 19"),
        ({"slot": WHOLE.slot - 1}, "different numbers from 0 to 19"),
        ({"w_hh": WHOLE.w_hh[:, 1:]}, "w_hh has 4 columns, but 5 neurons are read"),
        ({"reads": np.arange(4)}, "w_hh has 5 columns, but 4 neurons are read"),
        ({"inputs": np.arange(6)}, "w_ih has 7 columns, but 6 inputs are read"),
        ({"bias_hn": np.zeros(4)}, "one number for each of 5 neurons"),
        ({"scale": np.ones(6)}, "one number for each of 5 neurons"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(WHOLE, **change).arranged()


def test_tables_that_do_not_fit_are_refused():
    case = make_case(4, n_x=7, n_units=5, live=1.0)
    vectors = np.zeros((4, 7), np.float32)
    with pytest.raises(ValueError, match="level 0 reads vectors, but its embedding is folded into a table"):
        bindings.Network([[case.arranged(embedding=vectors)]], 7, n_words=4, embedding=vectors)
    with pytest.raises(ValueError, match="embedding: expected 7 columns, got 6"):
        bindings.Network([[case.arranged()]], 7, n_words=4, embedding=np.zeros((4, 6), np.float32))
    directions = [case.arranged(embedding=np.zeros((rows, 7))) for rows in (4, 3)]
    with pytest.raises(ValueError, match="do not have as many rows"):
        bindings.Network([directions], 7, n_words=4)


def test_the_environment_names_the_instruction_set(monkeypatch):
    """Benchmarks without the widest vectors run on the machine that has them."""
    last = list(bindings.kernels())[-1]
    monkeypatch.setenv("GATEWISE_ISA", last)
    assert bindings.kernels_of(None).contents.isa.decode() == last
    assert not bindings.expands()
    monkeypatch.setenv("GATEWISE_ISA", "mmx")
    with pytest.raises(ValueError, match="cannot run 'mmx'"):
        bindings.kernels_of(None)


@pytest.mark.parametrize("extra", [-4, 0, 4])
def test_where_arrays_begin(extra):
    """At a cache line; a large one at a huge page, where the system lets a program ask for some."""
    source = np.arange((LARGE_ARRAY + extra) // 4, dtype=np.float32)
    copy = aligned(source, np.float32)
    np.testing.assert_array_equal(copy, source)
    huge = extra >= 0 and hasattr(mmap, "MADV_HUGEPAGE")
    assert copy.ctypes.data % (HUGE_PAGE if huge else 64) == 0


@pytest.mark.parametrize(("cols", "last"), [(128, 16), (2048, 1)])
def test_a_large_matrix_is_not_padded(cols, last):
    """A step reads all of it from a farther cache; a small one has whole vectors."""
    w = np.random.default_rng(0).standard_normal((65, cols)).astype(np.float32)
    arranged = arrange_matrix(w, "dense")
    assert arranged.last == last
    tail = arranged.values[64 * cols : (64 + last) * cols].reshape(cols, last)
    np.testing.assert_array_equal(tail[:, 0], w[64])
