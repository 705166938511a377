"""What an engine refuses, by name and number, and that a refused call leaves it as it was."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE, VECTORS, WORDS, build
from torch import nn

import gatewise as gw
from gatewise.runtime import bindings
from gatewise.runtime.chained import ChainError

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
    for lengths in ([4], [[4, 4]], [1.0, 2.0]):
        with pytest.raises(ValueError, match="expected an integer for each of 2 sequences"):
            engine(case.x, lengths=lengths)
    for length in (5, -1):
        with pytest.raises(ValueError, match=f"sequence 1 has length {length}, outside 0..4"):
            engine(case.x, lengths=[4, length])


def test_a_forward_that_packs_needs_lengths() -> None:
    """Without them forward() raises, and padding would be read as part of the sequences."""
    case = build(0, VECTORS | {"packs": "cut"})
    engine = gw.Engine(case.small)
    with pytest.raises(TypeError, match=r"needs 'lengths'.* needs lengths=; \[4\] \* 2 if no"):
        engine(case.x)
    with pytest.raises(ValueError, match=r"sequence 1 has length 5, outside 0\.\.4"):
        engine(case.x, lengths=[4, 5])
    with pytest.raises(TypeError, match=r"or None; lengths go by name, engine\(x, lengths=\.\.\.\)"):
        engine(case.x, [4, 4])


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


def test_lengths_beyond_32_bits_are_refused() -> None:
    engine = gw.Engine(nn.LSTM(3, 4))
    for far in (2**32 + 3, 2**63):
        with pytest.raises(ValueError, match=rf"sequence 1 has length {far}, outside 0\.\.5"):
            engine(np.zeros((5, 2, 3), np.float32), lengths=np.array([5, far], np.uint64))


def test_lengths_are_the_engine_s_own() -> None:
    """Kernels read them without the GIL: what another thread writes into the caller's array must not reach them."""
    engine, given = gw.Engine(nn.LSTM(3, 4)), np.array([5, 2], np.int32)
    assert not np.shares_memory(engine._lengths(given, 2, 5), given)


@pytest.mark.parametrize("take", ["mean", "mean of answers"])
@pytest.mark.parametrize(
    "change", [lambda part: part[:-1], lambda part: part.astype(np.float64), lambda part: part.tolist()]
)
def test_a_state_that_someone_changed_is_refused(take: str, change: Any) -> None:
    """By a network and by a pool of its own: a kernel would read past its end."""
    case = build(5, {**WORDS, "take": take})
    engine = gw.Engine(case.small)
    _, state = engine(case.x)
    state.parts = (*state.parts[:-1], change(state.parts[-1]))
    with pytest.raises((TypeError, ValueError), match=r"expected|bytes-like"):
        engine(case.x, state)


def test_a_word_error_leaves_the_stream_as_it_was() -> None:
    case = build(6, WORDS)
    engine = gw.Engine(case.small)
    for bad in (False, True):
        engine.reset()
        engine.step(case.x[0])
        if bad:
            with pytest.raises(IndexError):
                engine.step(torch.tensor([0, 99]))
        last = engine.step(case.x[1])
        torch.testing.assert_close(last, case.answer(case.x[:2])[1], **CLOSE)


def test_a_first_step_that_fails_decides_nothing() -> None:
    """Neither the number of sequences nor a state: the next step is the first."""
    case = build(6, WORDS)
    engine, words = gw.Engine(case.small), case.x[0].numpy()
    with pytest.raises(IndexError):
        engine.step(np.append(words, 99))
    answer = engine.step(words)
    torch.testing.assert_close(torch.from_numpy(answer), case.answer(case.x[:1])[0], **CLOSE)


def test_a_wrong_word_before_another_layer_is_named() -> None:
    """An embedding that a linear layer reads is looked up outside the kernels, under the same rule."""
    engine = gw.Engine(build(6, {**WORDS, "first": True}).small)
    with pytest.raises(IndexError, match=r"word id 7 at position 1 is outside 0..4"):
        engine(np.array([[0, 7]]))


def test_half_precision_is_refused() -> None:
    case = build(7, VECTORS)
    for make in (gw.Engine, gw.accelerate):
        with pytest.raises(ChainError, match=r"float64.*model\.float\(\)\.cpu\(\)"):
            make(gw.compress(copy.deepcopy(case.model).double()))


def test_weights_elsewhere_are_refused() -> None:
    for make in (gw.Engine, gw.accelerate):
        with pytest.raises(ChainError, match=r"on meta; .*model\.float\(\)\.cpu\(\)"):
            make(gw.compress(nn.LSTM(3, 4)).to("meta"))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both say at once what is missing."""
    case = build(9, VECTORS)

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(bindings.importlib, "import_module", absent)
    for make in (gw.Engine, gw.accelerate):
        with pytest.raises(bindings.NativeLibraryError, match="need a C compiler"):
            make(case.small)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_is_not_copied(again: Any) -> None:
    """A copy would go on from the steps of the original."""
    with pytest.raises(TypeError, match=r"build another one from the model: gw\.Engine\(model\)"):
        again(gw.Engine(nn.LSTM(3, 4)))
