"""What a call of the kernels takes, what it refuses, and that calls do not meet."""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from kernel_cases import ISAS, TOLERANCE, as_float, make_case, reference
from numpy.typing import NDArray

from gatewise.runtime import bindings
from gatewise.runtime.arrangement import arrange_matrix


def test_calls_from_many_threads_do_not_meet():
    """Scratch memory belongs to one call at a time."""
    case = make_case(5, n_x=20, n_units=60)
    net = bindings.Network([[case.arranged()]], 20)
    x = as_float(np.random.default_rng(0).normal(size=(50, 8, 20)))
    answers = [np.empty((50, 8, 60), np.float32) for _ in range(6)]

    def work(y: NDArray[np.float32]) -> None:
        for _ in range(20):
            net.run(x, net.zero_state(8), y, 50, 8, False, None, 1)

    workers = [threading.Thread(target=work, args=(y,)) for y in answers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for y in answers[1:]:
        np.testing.assert_array_equal(y, answers[0])


def test_a_step_is_a_run_of_one_step():
    """Or nothing at all, where x is not what the kernels read: then the state stays as it was."""
    net = bindings.Network([[make_case(5, n_x=20, n_units=60).arranged()]], 20)
    x = as_float(np.random.default_rng(0).normal(size=(2, 20)))
    expected, y, state = net.zero_state(2), np.empty((2, 60), np.float32), net.zero_state(2)
    how = (state.ctypes.data, 2, 1, np.empty, (2, 60), np.float32)
    for _ in range(3):
        net.run(x, expected, y, 1, 2, False, None, 1)
        np.testing.assert_array_equal(net.step(x, how), y)
    for other in (
        x.astype(np.float64),
        x[:1],
        x.T,
        x.reshape(20, 2),
        x[None],
        x.ravel(),
        x.ctypes.data,
        None,
    ):
        assert net.step(other, how) is None
    np.testing.assert_array_equal(state, expected)
    with pytest.raises(ValueError, match="y: expected 120 items, got 60"):
        net.step(x, (*how[:4], (1, 60), np.float32))
    with pytest.raises(ValueError, match="state: the address is 0"):
        net.step(x, (0, *how[1:]))
    with pytest.raises(TypeError, match="a tuple of 6"):
        net.step(x, how[1:])


def test_smaller_parts_need_no_more_scratch():
    """Threads share scratch out by the largest part of a batch."""
    layer = bindings._layer(make_case(1, "GRU", n_units=20).arranged())
    size = bindings.kernels()["scalar"].contents.layer_scratch
    for steps in (1, 7, 200):
        sizes = [size(ctypes.addressof(layer), steps, n) for n in range(1, 200)]
        assert sizes == sorted(sizes)


class Batch(ctypes.Structure):
    """gw_batch"""

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in ("steps", "size", "reverse", "phase")),
        *((name, ctypes.c_void_p) for name in ("lengths", "order")),
        ("ahead", ctypes.c_int32),
    ]


class Steps(ctypes.Structure):
    """gw_steps"""

    _fields_: ClassVar = [("data", ctypes.c_void_p), ("time", ctypes.c_ssize_t), ("batch", ctypes.c_ssize_t)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("forms", list(itertools.permutations(("dense", "sparse", "masked"))))
def test_a_layer_stays_within_the_scratch_it_asks_for(forms, cell, isa):
    """Whichever of its matrices needs the most."""
    case = make_case(5, cell, n_x=3, n_units=20, live=1.0, subset=False)
    arranged = case.arranged()
    matrices = zip(("w_ih", "w_hh", "w_hn"), forms)
    joint = arranged.w_hh.rows
    rows = np.argsort(case.slot)
    dense = {"w_ih": case.w_ih[rows], "w_hh": case.w_hh[rows][:joint], "w_hn": case.w_hh[rows][joint:]}
    arranged = replace(arranged, **{name: arrange_matrix(dense[name], form) for name, form in matrices})
    layer, kernels = bindings._layer(arranged), bindings.kernels()[isa].contents
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 8)(kernels.layer_run)
    for steps, size in ((1, 1), (1, 4), (3, 5), (1, 20)):
        needed = kernels.layer_scratch(ctypes.addressof(layer), steps, size)
        scratch = np.full(needed + 5000, 7, np.float32)
        x, y = np.ones((steps, size, 3), np.float32), np.empty((steps, size, 20), np.float32)
        state = np.zeros((2, size, 32), np.float32)
        given = Steps(x.ctypes.data, 3 * size, 3), Steps(y.ctypes.data, 20 * size, 20)
        batch = Batch(steps, size)
        first, second = (ctypes.addressof(part) for part in given)
        run(ctypes.addressof(layer), ctypes.addressof(batch), first, None, state[0].ctypes.data, state[1].ctypes.data,
            second, scratch.ctypes.data)  # fmt: skip
        assert (scratch[needed:] == 7).all()
        zero = np.zeros((size, 20))
        np.testing.assert_allclose(y, reference(case, x.astype(float), zero, zero)[0], **TOLERANCE)


def test_more_threads_than_before_get_their_own_scratch():
    """Each part of a batch has a kernel's scratch to itself, more than one call of one thread had."""
    case = make_case(5, n_x=20, n_units=200, live=1.0)
    net = bindings.Network([[case.arranged()]], 20)
    x = as_float(np.random.default_rng(0).normal(size=(30, 64, 20)))
    answers = [np.empty((30, 64, 200), np.float32) for _ in range(2)]
    for threads, y in zip((1, 16), answers):
        net.run(x, net.zero_state(64), y, 30, 64, False, None, threads)
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-5, atol=1e-6)


def test_addresses_stand_for_arrays():
    case = make_case(2)
    net = bindings.Network([[case.arranged()]], 7)
    x = as_float(np.ones((1, 7)))
    y, by_address = np.empty((1, 5), np.float32), np.empty((1, 5), np.float32)
    state = net.zero_state(1)
    net.run(x, net.zero_state(1), y, 1, 1, False, None, 1)
    net.run(x.ctypes.data, state.ctypes.data, by_address.ctypes.data, 1, 1, False, None, 1)
    np.testing.assert_array_equal(y, by_address)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"x": np.zeros((2, 7))}, TypeError, "x: expected float32, got items of format 'd'"),
        ({"x": np.zeros((2, 7), np.int32)}, TypeError, "x: expected float32, got items of format 'i'"),
        ({"x": 0}, ValueError, "x: the address is 0"),
        ({"x": np.zeros((3, 7), np.float32)}, ValueError, "x: expected 14 items, got 21"),
        ({"state": np.zeros(3, np.float32)}, ValueError, "state: expected 32 items, got 3"),
        ({"y": np.zeros((2, 7), np.float32).T}, ValueError, "not C-contiguous"),
        ({"y": np.frombuffer(bytes(40), np.float32)}, ValueError, "read-only"),
        ({"lengths": np.array([3], np.int32)}, ValueError, r"sequence 0 has length 3, outside 0\.\.2"),
        ({"lengths": np.array([-1], np.int32)}, ValueError, r"sequence 0 has length -1, outside 0\.\.2"),
        ({"steps": 0}, ValueError, "steps: expected a number from 1 on, got 0"),
        ({"steps": 2**32 + 2}, ValueError, "steps: expected a number from 1 on, got 4294967298"),
        ({"steps": 2**16, "batch": 2**16}, ValueError, r"steps \* batch = 4294967296 is more than 2\^31 - 1"),
    ],
)
def test_wrong_arrays_are_refused(change, error, match):
    case = make_case(2)
    net = bindings.Network([[case.arranged()]], 7)
    call = {
        "x": np.zeros((2, 7), np.float32),
        "state": net.zero_state(1),
        "y": np.zeros((2, 5), np.float32),
        "steps": 2,
        "batch": 1,
        "batch_first": False,
        "lengths": None,
        "threads": 1,
    }
    with pytest.raises(error, match=match):
        net.run(*(call | change).values())


def test_structs_match_their_headers():
    native = bindings.native()
    assert ctypes.sizeof(bindings._Layer) == native.LAYER_BYTES
    assert ctypes.sizeof(bindings._Network) == native.NETWORK_BYTES


def test_missing_library_says_what_to_do(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gatewise.runtime._native", None)
    with pytest.raises(bindings.NativeLibraryError, match="C compiler"):
        bindings.native()
