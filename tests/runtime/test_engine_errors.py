"""What an engine refuses, by name and number, and that a refused call leaves it as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chains import CLOSE, VECTORS, WORDS, build
from torch import nn

import gatewise as gw

pytest.importorskip("gatewise.runtime._native", reason="the C kernels are not built")


def test_engine_errors() -> None:
    case, vectors = build(5, WORDS), build(5, VECTORS)
    engine, other = gw.Engine(case.small), gw.Engine(vectors.small)
    for threads in (0, 1.5):
        with pytest.raises(ValueError, match=f"threads={threads} must be a whole number"):
            gw.Engine(case.small, threads=threads)
    for kind in (np.float32, np.bool_):
        with pytest.raises(TypeError, match=r"integer word ids, got (float32|bool)"):
            engine(np.zeros((4, 2), kind))
    with pytest.raises(
        ValueError, match=r"x must be word ids \(T, B\), got shape \(4,\); one alone is \(T, 1\)\."
    ):
        engine(np.zeros(4, np.int64))
    for wrong in (np.zeros((1, 4), np.int64), 3):
        with pytest.raises(ValueError, match=r"x must be word ids \(B,\), got shape"):
            engine.step(wrong)
    for x in (np.array([[0, 5]]), np.array([[0, -1]])):
        with pytest.raises(IndexError, match=r"word id (5|-1) at position 1 is outside 0..4"):
            engine(x)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(TypeError, match=r"x must be float32, got \w+; x\.float\(\) converts it"):
            other(torch.zeros(4, 2, 3, dtype=dtype))
    with pytest.raises(TypeError, match=r"got float64; x\.astype\(np\.float32\) converts it"):
        other(np.zeros((4, 2, 3)))
    with pytest.raises(ValueError, match=r"x must be \(B, 3\), got shape \(3,\); one alone is \(1, 3\)\."):
        other.step(np.zeros(3, np.float32))
    for shape in ((4, 2, 2), (4, 3), (4, 2, 3, 1)):
        with pytest.raises(ValueError, match=r"x must be \(T, B, 3\), got shape"):
            other(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=r"x is empty: \(0, 2, 3\); it needs a step"):
        other(np.zeros((0, 2, 3), np.float32))
    with pytest.raises(ValueError, match="x is on meta; the engine runs on the CPU"):
        other(torch.zeros(4, 2, 3, device="meta"))
    with pytest.raises(ValueError, match="x requires a gradient"):
        other(torch.zeros(4, 2, 3, requires_grad=True))
    with torch.no_grad():
        other(torch.zeros(4, 2, 3, requires_grad=True))


def test_errors_of_states_and_lengths() -> None:
    case = build(5, WORDS)
    engine = gw.Engine(case.small)
    _, state = engine(case.x)
    with pytest.raises(ValueError, match="state is of 2 sequences, x of 1"):
        engine(case.x[:, :1], state)
    with pytest.raises(ValueError, match="state is of 1 sequence, x of 2"):
        engine(case.x, engine.zero_state(1))
    with pytest.raises(TypeError, match="what an earlier call of this engine returned"):
        engine(case.x, case.state)
    wider = gw.Engine(build(5, {**WORDS, "hidden": 40, "dead": 0.0}).small)
    # As much memory, read in another way.
    lstm, gru = gw.Engine(nn.LSTM(3, 8)), gw.Engine(nn.GRU(3, 16))
    mean, top = (gw.Engine(build(5, {**WORDS, "take": take}).small) for take in ("mean", "max"))
    later = gw.Engine(build(5, {**WORDS, "take": "mean of answers"}).small)
    for one, other, x in (
        (engine, wider, case.x),
        (lstm, gru, torch.ones(4, 2, 3)),
        (mean, top, case.x),
        (mean, later, case.x),
        (later, mean, case.x),
    ):
        with pytest.raises(TypeError, match="what an earlier call of this engine returned"):
            one(x, other.zero_state(2))
    again = gw.Engine(case.small)
    torch.testing.assert_close(again(case.x, state)[0], engine(case.x, state)[0])
    engine.step(case.x[0])
    with pytest.raises(ValueError, match=r"had 2 sequences before, now 1; call reset\(\)"):
        engine.step(case.x[0, :1])
    with pytest.raises(
        TypeError, match=r"lengths is no argument of the engine.*; .* pack them in forward\(\)"
    ):
        engine(case.x, lengths=[4, 4])


def test_lengths_of_a_forward_that_packs() -> None:
    """Kernels would read behind an array; and forward() raises, too."""
    engine, x = gw.Engine(build(0, VECTORS | {"packs": "cut"}).small), torch.randn(4, 2, 3)
    with pytest.raises(TypeError, match=r"forward\(\) needs lengths"):
        engine(x)
    for lengths in ([4], [[4, 4]]):
        with pytest.raises(ValueError, match=r"lengths: expected shape|x: expected shape"):
            engine(x, lengths)
    for far in (5, 0, -1, 2**32 + 3):
        with pytest.raises(ValueError, match=f"1 has length {far}"):
            engine(x, np.array([4, far]))


def test_two_directions_take_whole_sequences() -> None:
    """What comes from behind is not there yet: a piece would get an answer, but not that of its sequence."""
    cases = {take: build(0, VECTORS | {"bidirectional": True, "take": take}) for take in ("last", "all")}
    for case in cases.values():
        with pytest.raises(
            TypeError, match=r"step\(\): rnn reads sequences in both directions.* engine\(x\)"
        ):
            gw.Engine(case.small).step(case.x[0])
    with pytest.raises(TypeError, match=r"step\(\): the model reads sequences in both directions"):
        gw.Engine(nn.GRU(3, 4, bidirectional=True)).step(torch.zeros(2, 3))
    engine = gw.Engine(cases["last"].small)
    with pytest.raises(TypeError, match="state: rnn reads sequences in both directions"):
        engine(cases["last"].x, engine.zero_state(2))
    # Where forward() takes a state it says what it means: where both directions begin.
    case = cases["all"]
    engine, (_, between) = gw.Engine(case.small), case.small(case.x)
    expected, _ = case.small(case.x, between)
    torch.testing.assert_close(engine(case.x, engine(case.x)[1])[0], expected.detach(), **CLOSE)
