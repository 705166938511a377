"""The C kernels against the equations in float64 NumPy, on every instruction set of the machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import ISAS, TOLERANCE, as_float, cases, make_case, random_states, reference

from gatewise.runtime import bindings
from gatewise.runtime.arrangement import arrange_matrix


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
    arranged = case.arranged(form=form)
    x = rng.normal(size=(n_steps, n_batch, case.n_x))
    lengths = rng.integers(0, n_steps + 1, n_batch).astype(np.int32) if with_lengths else None
    for isa in ISAS:
        net = bindings.Network([[arranged, arranged]], case.n_x, isa=isa)
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
    net = bindings.Network([[case.arranged()]], case.n_x, isa=isa)
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
@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("steps", [1, 3])
def test_both_ways_through_the_weights_give_the_same_bits(cell, weights, steps, isa):
    """Calls walk forwards and backwards in turn; a row's sum does not notice when it is made."""
    case = make_case(6, cell, n_units=160)
    net = bindings.Network([[case.arranged(weights=weights)]], case.n_x, isa=isa)
    x = as_float(np.random.default_rng(0).normal(size=(steps, 1, case.n_x)))
    before = random_states(np.random.default_rng(1), net, 1)
    found = []
    for _ in range(2):
        state, y = before.copy(), np.empty((steps, 160), np.float32)
        net.run(x, state, y, steps, 1, False, None, 1)
        found.append((y, state))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])


@pytest.mark.parametrize("isa", ISAS)
def test_a_matrix_beyond_the_caches(isa):
    """From 8 MB on a lone vector meets several panels at a time; rows are left over."""
    case, rows = make_case(7, n_x=2, n_units=37), 57_001
    rng = np.random.default_rng(0)
    w, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, 37), rows))
    x = as_float(rng.normal(size=(1, 1, 2)))
    state, answers = np.empty((1, 37), np.float32), np.empty((1, rows), np.float32)
    for y, head in ((state, None), (answers, (arrange_matrix(w, "dense"), bias))):
        net = bindings.Network([[case.arranged()]], 2, head=head, isa=isa)
        net.run(x, net.zero_state(1), y, 1, 1, False, None, 1)
    np.testing.assert_allclose(answers, state.astype(np.float64) @ w.T + bias, **TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("entries", [0, 1, 8, 9])
def test_vectors_that_are_nearly_empty(cell, entries, isa):
    """Of letters, zeros and a one, only the columns that count are read: up to 8 of them, alone and in a sequence."""
    case = make_case(5, cell, n_x=40, n_units=37, subset=False)
    rng = np.random.default_rng(0)
    x = np.zeros((6, 1, case.n_x))
    for t in range(6):
        x[t, 0, rng.permutation(case.n_x)[:entries]] = rng.normal(size=entries)
    net = bindings.Network([[case.arranged(form="dense")]], case.n_x, isa=isa)
    zeros = np.zeros((1, case.n_units))
    expected, *_ = reference(case, x, zeros, zeros, None, False)
    for steps in (1, 6):
        y, state = np.empty((6, case.n_units), np.float32), net.zero_state(1)
        for t in range(0, 6, steps):
            net.run(as_float(x[t : t + steps]), state, y[t : t + steps], steps, 1, False, None, 1)
        np.testing.assert_allclose(y, expected[:, 0], **TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("subset", [False, True])
def test_large_layers_step_ahead(cell, subset, isa):
    """Half of the last layer's products come first in a step, half last, in turns; a sequence has no halves.

    On two threads, each of which begins at its own sequences.
    """
    below = make_case(4, "LSTM", n_x=6, n_units=9, subset=False)
    above = make_case(4, cell, n_x=9, n_units=190, live=1.0, subset=subset)
    assert above.w_hh.size >= 1 << 16 or subset  # from where network.c does it
    alone = make_case(7, cell, n_x=6, n_units=180, live=1.0, subset=False)
    rng = np.random.default_rng(0)
    embedding, ids = as_float(rng.normal(size=(5, 6))), rng.integers(0, 5, (6, 9))
    folded = alone.arranged(embedding=embedding)
    nets = (
        (bindings.Network([[below.arranged()], [above.arranged()]], 6, isa=isa), as_float(embedding[ids])),
        (bindings.Network([[alone.arranged()]], 6, isa=isa), as_float(embedding[ids])),
        (bindings.Network([[folded]], 6, n_words=5, isa=isa), ids),
        (
            bindings.Network(
                [[below.arranged(embedding=embedding)], [above.arranged()]], 6, n_words=5, isa=isa
            ),
            ids,
        ),
    )
    for net, x in nets:
        whole, single = np.empty((6, 9, net.width), np.float32), np.empty((6, 9, net.width), np.float32)
        state, stream = net.zero_state(9), net.zero_state(9)
        net.run(x, state, whole, 6, 9, False, np.array([6, 4, 5] * 3, np.int32), 1)
        for t in range(6):
            here = np.array([1, t < 4, t < 5] * 3, np.int32)
            net.run(np.ascontiguousarray(x[t]), stream, single[t], 1, 9, False, here, 2)
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
        head = arrange_matrix(w, form, tight), as_float(bias)
        net = bindings.Network([[case.arranged()]], 2, head=head, isa=isa)
        plain = bindings.Network([[case.arranged()]], 2, isa=isa)
        for n_batch in range(1, 20):
            x = as_float(rng.normal(size=(2, n_batch, 2)))
            h, y = np.empty((2, n_batch, cols), np.float32), np.empty((2, n_batch, rows), np.float32)
            plain.run(x, plain.zero_state(n_batch), h, 2, n_batch, False, None, 1)
            net.run(x, net.zero_state(n_batch), y, 2, n_batch, False, None, 1)
            np.testing.assert_allclose(y, h @ w.T + bias, **TOLERANCE)


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
                [[case.arranged()]], width, n_words=n_words, remap=remap, embedding=embedding, isa=isa
            )
            folded = bindings.Network(
                [[case.arranged(embedding=embedding)]], width, n_words=n_words, remap=remap, isa=isa
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
@pytest.mark.parametrize("final", bindings.FINAL)
def test_chain_of_levels_and_head(final, isa):
    """Two bidirectional levels of different widths and a softmax, with lengths, on one thread and on several; every
    step, or one vector for a sequence."""
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
    there = np.arange(n_steps)[:, None, None] < lengths[:, None]
    top = {
        "": flow,
        "last_state": last,
        "mean": flow.sum(axis=0) / lengths[:, None],  # zeros behind the ends
        "max": flow.max(axis=0, where=there, initial=-np.inf),
        "sum": flow.sum(axis=0),
    }[final]
    logits = top @ w.T + bias
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)

    arranged = [case.arranged() for case in cases]
    net = bindings.Network(
        [arranged[:2], arranged[2:]],
        4,
        head=(arrange_matrix(w), as_float(bias)),
        softmax=True,
        final=final,
        isa=isa,
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


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", ["sigmoid", "hard_sigmoid", "tanh", "exp"])
def test_functions_keep_their_error_bound(function, isa):
    """The bounds that functions.h states, on a fine grid, at the ends of the float range, and for NaN."""
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


def pooled(name, state, *steps):
    """One number of one sequence, after some steps."""
    memory, y = as_float(np.array(state)), np.empty((1, 1), np.float32)
    x = as_float(np.array(steps)[:, None, None])
    bindings.pool(name, x, memory, y, len(steps))
    return float(y[0, 0]), memory.tolist()


def test_a_mean_does_not_fade():
    """Floats count up to 2^24; from there on a step weighs as much as that one did."""
    full = 2.0**24
    mean, (done, _) = pooled("mean", [full, 1.0], *[3.0] * 1000)
    assert done == full
    assert mean == pytest.approx(1 + 2000 / full, rel=1e-6)
    assert pooled("mean", [2.0, 4.0], 1.0) == (3.0, [3.0, 3.0])


def test_a_sum_does_not_drift():
    """Of a million equal steps, which floats that are added up one by one miss by a hundredth."""
    total, (done, mean) = pooled("sum", [0.0, 0.0], *[0.1] * 1_000_000)
    assert (done, mean) == (1e6, pytest.approx(0.1, rel=1e-6))
    assert total == pytest.approx(1e5, rel=1e-6)
    assert pooled("sum", [2.0, 4.0], 1.0) == (9.0, [3.0, 3.0])


def test_a_maximum_may_be_of_negative_numbers():
    """Nothing is pooled before the first step, whatever the state holds; NaN stays, as in torch."""
    assert pooled("max", [0.0, 0.0], -3.0, -2.0) == (-2.0, [2.0, -2.0])
    assert pooled("max", [2.0, -1.0], -3.0, -2.0) == (-1.0, [4.0, -1.0])
    assert np.isnan(pooled("max", [1.0, 5.0], 1.0, np.nan, 9.0)[0])


@pytest.mark.parametrize("n", [1, 5, 16, 33, 200])
@pytest.mark.parametrize("mean", [0, 1e3, 1e5])
def test_layer_norm(n, mean):
    """However large the mean is beside the differences, they keep the digits that they came with."""
    rng = np.random.default_rng(n)
    x = as_float(mean + rng.normal(size=(4, n)))
    centred = x - x.mean(axis=1, keepdims=True, dtype=float)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    for isa in ISAS:
        y = x.copy()
        bindings.layer_norm(y, 1e-5, isa)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("n", [1, 5, 16, 33])
def test_softmax(n):
    rng = np.random.default_rng(n)
    # The last rows have two large scores, everywhere in turn and in one lane of a vector. Unless the larger one is
    # taken away first, exp() of both is as large as it gets, and they look alike.
    large = 200 * np.eye(n) + 190 * np.roll(np.eye(n), 16, axis=1)
    y = as_float(np.concatenate([30 * rng.normal(size=(3, n)), large]))
    expected = np.exp(y - y.max(axis=1, keepdims=True).astype(float))
    expected /= expected.sum(axis=1, keepdims=True)
    for isa in ISAS:
        probabilities = y.copy()
        bindings.softmax(probabilities, isa)
        np.testing.assert_allclose(probabilities, expected, rtol=2e-6, atol=1e-30)
