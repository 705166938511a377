"""The C kernels against the equations in float64 NumPy, on every instruction set of the machine."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatewise.runtime import bindings
from gatewise.runtime.packing import PackedLayer, pack_layer, pack_matrix

try:
    ISAS = tuple(bindings.kernels())
except bindings.NativeLibraryError:
    pytest.skip("the C kernels are not built", allow_module_level=True)

Doubles = NDArray[np.float64]
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True)
class Case:
    """A compact layer in the form that compression hands over, and the same numbers as the reference reads them."""

    cell: str
    squash: str
    n_x: int
    w_ih: Doubles  # (R, n_in)
    w_hh: Doubles  # (R, n_rec)
    slot: NDArray[np.int64]  # (R)
    bias: Doubles  # (G, K)
    bias_hn: Doubles  # (K)
    inputs: NDArray[np.int64] | None
    reads: NDArray[np.int64] | None
    scale: Doubles | None

    @property
    def n_units(self) -> int:
        return self.bias.shape[1]

    def pack(self, **options: Any) -> PackedLayer:
        return pack_layer(
            self.cell,
            self.w_ih,
            self.w_hh,
            self.slot,
            self.bias,
            self.bias_hn,
            squash=self.squash,
            inputs=self.inputs,
            reads=self.reads,
            scale=self.scale,
            **options,
        )


def make_case(
    seed: int,
    cell: str = "LSTM",
    squash: str = "sigmoid",
    n_x: int = 7,
    n_units: int = 5,
    live: float = 0.6,
    density: float = 1.0,
    subset: bool = True,
    scaled: bool = True,
) -> Case:
    rng = np.random.default_rng(seed)
    n_gates = 4 if cell == "LSTM" else 3
    slot = rng.permutation(np.flatnonzero(rng.random(n_gates * n_units) < live))
    if n_units and seed % 3 == 0:  # output-only neurons: their c moves, but not with the data
        slot = slot[slot >= (n_gates - 1) * n_units]
    inputs = rng.permutation(n_x)[: rng.integers(0, n_x + 1)] if subset else None
    reads = rng.permutation(n_units)[: rng.integers(0, n_units + 1)] if subset else None
    n_in, n_rec = n_x if inputs is None else len(inputs), n_units if reads is None else len(reads)

    def matrix(rows: int, cols: int) -> Doubles:
        w = rng.normal(size=(rows, cols)) / np.sqrt(max(cols, 1))
        return np.where(rng.random(w.shape) < density, w, 0).astype(np.float32).astype(np.float64)

    return Case(
        cell,
        squash,
        n_x,
        matrix(len(slot), n_in),
        matrix(len(slot), n_rec),
        slot,
        rng.normal(size=(n_gates, n_units)),
        rng.normal(size=n_units),
        inputs,
        reads,
        rng.normal(size=n_units) if scaled else None,
    )


def squash_reference(name: str, x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x)) if name == "sigmoid" else np.clip(0.2 * x + 0.5, 0, 1)


def reference_step(case: Case, x: Doubles, s: Doubles, c: Doubles) -> tuple[Doubles, Doubles]:
    """One step for one sequence, as the equations say it: a row that is not live is zero."""
    act = partial(squash_reference, case.squash)
    input_part, recurrent_part = np.zeros(case.bias.size), np.zeros(case.bias.size)
    input_part[case.slot] = case.w_ih @ (x if case.inputs is None else x[case.inputs])
    recurrent_part[case.slot] = case.w_hh @ (s if case.reads is None else s[case.reads])
    input_part = input_part.reshape(case.bias.shape) + case.bias
    recurrent_part = recurrent_part.reshape(case.bias.shape)
    if case.cell == "LSTM":
        i, f, g, o = input_part + recurrent_part
        c = act(f) * c + act(i) * np.tanh(g)
        return act(o) * np.tanh(c), c
    r, u = act(input_part[0] + recurrent_part[0]), act(input_part[1] + recurrent_part[1])
    n = np.tanh(input_part[2] + r * (recurrent_part[2] + case.bias_hn))
    return u * s + (1 - u) * n, c


def reference(
    case: Case,
    x: Doubles,  # (T, B, I)
    s: Doubles,  # (B, K)
    c: Doubles,  # (B, K)
    lengths: NDArray[np.int32] | None = None,
    reverse: bool = False,
) -> tuple[Doubles, Doubles, Doubles]:  # h: (T, B, K), s, c
    n_steps, n_batch = x.shape[:2]
    y, s, c = np.zeros((n_steps, n_batch, case.n_units)), s.copy(), c.copy()
    for b in range(n_batch):
        length = n_steps if lengths is None else lengths[b]
        for t in reversed(range(length)) if reverse else range(length):
            s[b], c[b] = reference_step(case, x[t, b], s[b], c[b])
            y[t, b] = s[b] * (1 if case.scale is None else case.scale)
    return y, s, c


def as_float(x: Doubles) -> NDArray[np.float32]:
    return np.ascontiguousarray(x, np.float32)


def random_states(rng: np.random.Generator, net: bindings.Network, batch: int) -> NDArray[np.float32]:
    """A state with NaN wherever nothing may be read: in the padding."""
    state = np.full(batch * net.state_size, np.nan, np.float32)
    for parts in net.states(state, batch):
        for part in parts:
            part[...] = rng.normal(size=part.shape)
    return state


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return make_case(
        draw(st.integers(0, 10_000)),
        draw(st.sampled_from(["LSTM", "GRU"])),
        draw(st.sampled_from(["sigmoid", "hard_sigmoid"])),
        n_x=draw(st.sampled_from([0, 1, 3, 20])),
        n_units=draw(st.sampled_from([0, 1, 2, 4, 8, 15, 16, 17, 33, 70])),
        live=draw(st.sampled_from([0.0, 0.1, 0.6, 1.0])),
        density=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        subset=draw(st.booleans()),
        scaled=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(
    case=cases(),
    n_steps=st.sampled_from([1, 2, 5, 40]),
    n_batch=st.sampled_from([1, 2, 3, 5, 7, 20]),
    batch_first=st.booleans(),
    form=st.sampled_from([None, "dense", "sparse", "masked"]),
    with_lengths=st.booleans(),
    threads=st.sampled_from([1, 3]),
)
def test_layer_follows_its_equations(case, n_steps, n_batch, batch_first, form, with_lengths, threads):
    """Any structure, batch and length, forwards and backwards, from any state, on every instruction set."""
    rng = np.random.default_rng(1)
    packed = case.pack(form=form)
    x = rng.normal(size=(n_steps, n_batch, case.n_x))
    lengths = rng.integers(0, n_steps + 1, n_batch).astype(np.int32) if with_lengths else None
    for isa in ISAS:
        net = bindings.Network([[packed, packed]], case.n_x, isa=isa)
        state = random_states(rng, net, n_batch)
        forward, backward = net.states(state, n_batch)
        expected = [
            reference(case, x, p[0].astype(float), p[-1].astype(float), lengths, reverse)
            for p, reverse in [(forward, False), (backward, True)]
        ]
        y = np.full((n_steps, n_batch, net.width), np.nan, np.float32)
        x_given, y_given = as_float(x), y
        if batch_first:
            x_given, y_given = as_float(x.swapaxes(0, 1)), np.ascontiguousarray(y.swapaxes(0, 1))
        net.run(x_given, state, y_given, n_steps, n_batch, batch_first, lengths, threads)
        y = y_given.swapaxes(0, 1) if batch_first else y_given
        for parts, (y_expected, s, c), half in zip([forward, backward], expected, np.split(y, 2, axis=-1)):
            np.testing.assert_allclose(half, y_expected, **TOLERANCE)
            np.testing.assert_allclose(parts[0], s, **TOLERANCE)
            if case.cell == "LSTM":
                np.testing.assert_allclose(parts[1], c, **TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_steps_of_a_stream_equal_one_sequence(cell, isa):
    """Only the order of sums may differ, so this is tighter than the contract."""
    case = make_case(4, cell, n_units=37)
    net = bindings.Network([[case.pack()]], case.n_x, isa=isa)
    x = as_float(np.random.default_rng(0).normal(size=(150, 1, case.n_x)))
    whole, single = np.empty((150, 37), np.float32), np.empty((150, 37), np.float32)
    state = net.zero_state(1)
    net.run(x, state, whole, 150, 1, False, None, 1)
    stream = net.zero_state(1)
    for t in range(150):
        net.run(x[t], stream, single[t], 1, 1, False, None, 1)
    np.testing.assert_allclose(single, whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stream, state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("subset", [False, True])
def test_large_layers_step_ahead(cell, subset, isa):
    """Half of the last layer's products come first in a step, half last, in turns; a sequence has no halves."""
    below = make_case(4, "LSTM", n_x=6, n_units=9, subset=False)
    above = make_case(4, cell, n_x=9, n_units=190, live=1.0, subset=subset)
    assert above.w_hh.size >= 1 << 16 or subset  # from where network.c does it
    alone = make_case(7, cell, n_x=6, n_units=180, live=1.0, subset=False)
    rng = np.random.default_rng(0)
    embedding, ids = as_float(rng.normal(size=(5, 6))), rng.integers(0, 5, (6, 3))
    folded = alone.pack(embedding=embedding)
    nets = (
        (bindings.Network([[below.pack()], [above.pack()]], 6, isa=isa), as_float(embedding[ids])),
        (bindings.Network([[alone.pack()]], 6, isa=isa), as_float(embedding[ids])),
        (bindings.Network([[folded]], 6, n_words=5, isa=isa), ids),
    )
    for net, x in nets:
        whole, single = np.empty((6, 3, net.width), np.float32), np.empty((6, 3, net.width), np.float32)
        state, stream = net.zero_state(3), net.zero_state(3)
        net.run(x, state, whole, 6, 3, False, np.array([6, 4, 5], np.int32), 1)
        for t in range(6):
            here = np.array([1, t < 4, t < 5], np.int32)
            net.run(np.ascontiguousarray(x[t]), stream, single[t], 1, 3, False, here, 1)
        np.testing.assert_allclose(single, whole, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(stream, state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 1), (6, 5), (16, 3), (64, 40), (65, 7), (193, 264), (300, 0), (0, 4)])
@pytest.mark.parametrize("density", [1.0, 0.2, 0.01])
def test_head_multiplies(shape, density, isa):
    """Products of every tile height, in every form, against float64."""
    rng = np.random.default_rng(0)
    rows, cols = shape
    w = np.where(rng.random(shape) < density, rng.normal(size=shape), 0)
    bias = rng.normal(size=rows)
    case = make_case(1, n_x=2, n_units=cols, live=1.0, subset=False)
    for form, tight in [("dense", False), ("dense", True), ("sparse", False), ("masked", False)]:
        head = pack_matrix(w, form, tight), as_float(bias)
        net = bindings.Network([[case.pack()]], 2, head=head, isa=isa)
        plain = bindings.Network([[case.pack()]], 2, isa=isa)
        for n_batch in range(1, 20):
            x = as_float(rng.normal(size=(2, n_batch, 2)))
            h, y = np.empty((2, n_batch, cols), np.float32), np.empty((2, n_batch, rows), np.float32)
            plain.run(x, plain.zero_state(n_batch), h, 2, n_batch, False, None, 1)
            net.run(x, net.zero_state(n_batch), y, 2, n_batch, False, None, 1)
            np.testing.assert_allclose(y, h @ w.T + bias, **TOLERANCE)


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
    assert pack_matrix(w, expands=expands).form == form


@pytest.mark.parametrize("tight", [False, True])
def test_a_matrix_too_wide_for_sparse_takes_another_form(tight):
    """Its column ids have 16 bits; the choice must not fall on what packing refuses."""
    w = np.zeros((16, 65_536), np.float32)
    w[3, -1] = 1
    assert pack_matrix(w[:, 1:], tight=tight).form == "sparse"
    assert pack_matrix(w, tight=tight).form != "sparse"
    with pytest.raises(ValueError, match="at most 65535 columns, not 65536"):
        pack_matrix(w, "sparse")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", ["sigmoid", "hard_sigmoid", "tanh", "exp"])
def test_functions_keep_their_error_bound(function, isa):
    """The bounds that vector.h states, on a fine grid, at the ends of the float range, and for NaN."""
    ends = [0.0, -0.0, 1e-40, -1e-40, 1e-10, 3e38, -3e38, np.inf, -np.inf]
    x = np.concatenate([ends, np.linspace(-95, 95, 400_001), np.geomspace(1e-8, 20, 100_001)]).astype(
        np.float32
    )
    d = x.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = {
            "sigmoid": 1 / (1 + np.exp(-d)),
            "hard_sigmoid": np.clip(0.2 * d + 0.5, 0, 1),
            "tanh": np.tanh(d),
            "exp": np.exp(np.clip(d, -87, 88)),
        }[function]
    y = np.empty_like(x)
    code = ["sigmoid", "hard_sigmoid", "tanh", "exp"].index(function)
    apply = bindings.kernels()[isa].contents.map
    apply(code, len(x), x.ctypes.data, y.ctypes.data)
    error = np.abs(y - exact)
    if function == "exp":
        assert (error / exact).max() < 2.5e-7
    else:
        assert error.max() < {"sigmoid": 1.5e-7, "hard_sigmoid": 1.5e-7, "tanh": 2e-7}[function]
    if function == "tanh":
        small = (np.abs(d) > 1e-30) & (np.abs(d) < 1)
        assert (error[small] / np.abs(exact[small])).max() < 4 * 2.0**-23
        assert y[0] == 0
    x[:3] = np.nan
    apply(code, len(x), x.ctypes.data, y.ctypes.data)
    assert np.isnan(y[:3]).all()
    assert not np.isnan(y[3:]).any()


def test_words_read_embedding_or_folded_table():
    """Lookup and product, or one row of the table: the same answer; a removed word is a zero vector."""
    rng = np.random.default_rng(0)
    n_words, width = 11, 6
    embedding = rng.normal(size=(4, width)).astype(np.float32)
    remap = np.array([-1, 2, -1, 0, 1, 3, -1, -1, 0, 0, 1], np.int32)
    ids = rng.integers(0, n_words, (9, 5))
    full = np.zeros((n_words, width))
    full[remap >= 0] = embedding[remap[remap >= 0]]
    for seed, cell in [(1, "LSTM"), (2, "GRU")]:
        case = make_case(seed, cell, n_x=width, n_units=18)
        zero = np.zeros((5, 18))
        expected, *_ = reference(case, full[ids], zero, zero)
        for isa in ISAS:
            looked_up = bindings.Network(
                [[case.pack()]], width, n_words=n_words, remap=remap, embedding=embedding, isa=isa
            )
            folded = bindings.Network(
                [[case.pack(embedding=embedding)]], width, n_words=n_words, remap=remap, isa=isa
            )
            for net in (looked_up, folded):
                y = np.full((5, 9, 18), np.nan, np.float32)
                net.run(np.ascontiguousarray(ids.T), net.zero_state(5), y, 9, 5, True, None, 2)
                np.testing.assert_allclose(y.swapaxes(0, 1), expected, **TOLERANCE)
            with pytest.raises(IndexError, match=r"word id 11 at position 1 is outside 0\.\.10"):
                net.run(
                    np.array([3, n_words]),
                    net.zero_state(1),
                    np.empty((2, 18), np.float32),
                    2,
                    1,
                    False,
                    None,
                    1,
                )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("final", [False, True])
def test_chain_of_levels_and_head(final, isa):
    """Two bidirectional levels of different widths and a softmax, with lengths, on one thread and on several."""
    rng = np.random.default_rng(0)
    widths, n_steps, n_batch = (5, 9, 17, 3), 8, 21
    cases = [
        make_case(7, n_x=4, n_units=widths[0]),
        make_case(8, "GRU", n_x=4, n_units=widths[1]),
        make_case(10, "GRU", n_x=14, n_units=widths[2]),
        make_case(11, squash="hard_sigmoid", n_x=14, n_units=widths[3]),
    ]
    w, bias = rng.normal(size=(50, 20)), rng.normal(size=50)
    x = rng.normal(size=(n_steps, n_batch, 4))
    lengths = rng.integers(1, n_steps + 1, n_batch).astype(np.int32)

    flow = x
    for level in (cases[:2], cases[2:]):
        runs = [
            reference(
                case,
                flow,
                np.zeros((n_batch, case.n_units)),
                np.zeros((n_batch, case.n_units)),
                lengths,
                d == 1,
            )
            for d, case in enumerate(level)
        ]
        flow = np.concatenate([run[0] for run in runs], axis=-1)
        last = np.concatenate([run[1] * case.scale for run, case in zip(runs, level)], axis=-1)
    logits = (last if final else flow) @ w.T + bias
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)

    packed = [case.pack() for case in cases]
    net = bindings.Network(
        [packed[:2], packed[2:]], 4, head=(pack_matrix(w), as_float(bias)), softmax=True, final=final, isa=isa
    )
    for threads in (1, 4):
        for batch_first in (False, True):
            y = np.full(expected.shape, np.nan, np.float32)
            x_given = as_float(x)
            if batch_first:
                x_given = as_float(x.swapaxes(0, 1))
                y = y if final else np.ascontiguousarray(y.swapaxes(0, 1))
            net.run(x_given, net.zero_state(n_batch), y, n_steps, n_batch, batch_first, lengths, threads)
            y = y.swapaxes(0, 1) if batch_first and not final else y
            np.testing.assert_allclose(y, expected, **TOLERANCE)


@pytest.mark.parametrize("n", [1, 5, 16, 33])
def test_softmax(n):
    rng = np.random.default_rng(n)
    y = as_float(30 * rng.normal(size=(3, n)))
    expected = np.exp(y - y.max(axis=1, keepdims=True).astype(float))
    expected /= expected.sum(axis=1, keepdims=True)
    for isa in ISAS:
        probabilities = y.copy()
        bindings.softmax(probabilities, isa)
        np.testing.assert_allclose(probabilities, expected, rtol=2e-6, atol=1e-30)


def test_calls_from_many_threads_do_not_meet():
    """Scratch memory belongs to one call at a time."""
    case = make_case(5, n_x=20, n_units=60)
    net = bindings.Network([[case.pack()]], 20)
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


def test_smaller_parts_need_no_more_scratch():
    """Threads share scratch out by the largest part of a batch."""
    layer = bindings._layer(make_case(1, "GRU", n_units=20).pack())
    size = bindings.kernels()["scalar"].contents.layer_scratch
    for steps in (1, 7, 200):
        sizes = [size(ctypes.addressof(layer), steps, n) for n in range(1, 200)]
        assert sizes == sorted(sizes)


def test_addresses_stand_for_arrays():
    case = make_case(2)
    net = bindings.Network([[case.pack()]], 7)
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
        ({"x": np.zeros((3, 7), np.float32)}, ValueError, "x: expected 14 items, got 21"),
        ({"state": np.zeros(3, np.float32)}, ValueError, "state: expected 32 items, got 3"),
        ({"y": np.zeros((2, 7), np.float32).T}, ValueError, "not C-contiguous"),
        ({"lengths": np.array([3], np.int32)}, ValueError, r"sequence 0 has length 3, outside 0\.\.2"),
        ({"steps": 0}, ValueError, "steps: expected a number from 1 on, got 0"),
    ],
)
def test_wrong_arrays_are_refused(change, error, match):
    case = make_case(2)
    net = bindings.Network([[case.pack()]], 7)
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


def test_wrong_structures_are_refused():
    """The kernels do not look at an index twice, so packing must."""
    case = make_case(4, n_x=7, n_units=5, live=1.0)
    with pytest.raises(ValueError, match="different numbers from 0 to 19"):
        replace(case, slot=np.zeros_like(case.slot)).pack()
    for neuron in (5, -1):
        with pytest.raises(ValueError, match="neurons from 0 to 4"):
            replace(case, reads=np.full(case.w_hh.shape[1], neuron)).pack()
    for entry in (99, -1):
        with pytest.raises(ValueError, match=r"reads entry .* of an input of 7"):
            bindings.Network([[replace(case, inputs=np.full(case.w_ih.shape[1], entry)).pack()]], 7)
    with pytest.raises(ValueError, match="expected 5 columns and 3 biases, got 5, 2"):
        bindings.Network([[case.pack()]], 7, head=(pack_matrix(np.ones((3, 5))), np.zeros(2, np.float32)))
    with pytest.raises(ValueError, match="this machine cannot run 'mmx': expected one of"):
        bindings.Network([[case.pack()]], 7, isa="mmx")
    with pytest.raises(ValueError, match="remap: expected 2 rows from -1 to 3"):
        bindings.Network(
            [[case.pack(embedding=np.zeros((4, 7)))]], 7, n_words=2, remap=np.array([0, 4], dtype=np.int32)
        )


def test_tables_that_do_not_fit_are_refused():
    case = make_case(4, n_x=7, n_units=5, live=1.0)
    vectors = np.zeros((4, 7), np.float32)
    with pytest.raises(ValueError, match="level 0 reads vectors, but its embedding is folded into a table"):
        bindings.Network([[case.pack(embedding=vectors)]], 7, n_words=4, embedding=vectors)
    with pytest.raises(ValueError, match="embedding: expected 7 columns, got 6"):
        bindings.Network([[case.pack()]], 7, n_words=4, embedding=np.zeros((4, 6), np.float32))
    directions = [case.pack(embedding=np.zeros((rows, 7))) for rows in (4, 3)]
    with pytest.raises(ValueError, match="do not have as many rows"):
        bindings.Network([directions], 7, n_words=4)


def test_structs_match_their_headers():
    native = bindings.native()
    assert ctypes.sizeof(bindings._Layer) == native.LAYER_BYTES
    assert ctypes.sizeof(bindings._Network) == native.NETWORK_BYTES


def test_missing_library_says_what_to_do(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gatewise.runtime._native", None)
    with pytest.raises(bindings.NativeLibraryError, match="C compiler"):
        bindings.native()
