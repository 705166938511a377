"""Engine against the compact model that it was made from: calls, steps, lengths, states, threads and arrays."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chains import (
    CLOSE,
    PLAIN,
    VECTORS,
    WORDS,
    Case,
    build,
    chains,
    packed_chains,
    three_lengths,
)
from hypothesis import given
from hypothesis import strategies as st
from networks import lstm_net, no_grad
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.models import CharLM

pytest.importorskip("gatewise.runtime._native", reason="the C kernels are not built")


@given(case=chains(), fold=st.sampled_from([None, True, False]), threads=st.integers(1, 2))
def test_engine(case: Case, fold: bool | None, threads: int) -> None:
    """Twice in a row, the state handed on; NumPy in, NumPy out."""
    engine = gw.Engine(case.small, fold_embedding=fold, threads=threads)
    answer, state = engine(case.x)
    torch.testing.assert_close(answer, case.answer(case.x), **CLOSE)
    assert answer.is_contiguous()
    carries = case.model.o["take"] == "all" or not case.model.o["bidirectional"]
    array, state = engine(case.x.numpy(), state if carries else None)
    assert isinstance(array, np.ndarray)
    if case.model.o["take"] == "all" and case.model.rnn2 is None and not case.model.o["bidirectional"]:
        with torch.no_grad():
            _, between = case.small(case.x)
        torch.testing.assert_close(torch.from_numpy(array), case.answer(case.x, between), **CLOSE)


@given(case=chains(bidirectional=False, steps=4), by_call=st.booleans())
def test_streaming(case: Case, by_call: bool) -> None:
    """T calls of one step equal one call of T steps, through step() and through explicit states."""
    engine = gw.Engine(case.small)
    parts, state = [], None
    for _ in range(2):  # and reset() forgets
        engine.reset()
        parts, state = [], None
        for x in case.x.split(1, case.model.time):
            if by_call:
                part, state = engine(x.contiguous(), state)
            else:
                part = engine.step(x.squeeze(case.model.time))
            parts.append(part)
    expected = case.answer(case.x)
    if case.model.o["take"] != "all":
        torch.testing.assert_close(parts[-1], expected, **CLOSE)
    elif case.plain:
        join = torch.cat if by_call else torch.stack
        torch.testing.assert_close(join(parts, case.model.time), expected, **CLOSE)


@pytest.mark.parametrize("order", ["rising", "falling", "drawn", "equal"])
def test_many_lengths_in_any_order(order: str) -> None:
    """The kernels sort sequences by length: whatever order they come in, each gets the answer it has alone."""
    lengths = {
        "rising": torch.arange(1, 601) // 7,
        "falling": torch.arange(600, 0, -1) // 7,
        "drawn": torch.randint(0, 86, (600,)),
        "equal": torch.full((600,), 3),
    }[order]
    lengths, x = lengths.clamp(min=1), torch.randn(87, 600, 1)
    case = build(3, VECTORS | {"packs": "whole", "batch": 600, "size": 1})
    engine = gw.Engine(case.small)
    answer, _ = engine(x, lengths)
    for b in range(0, 600, 37):
        alone, _ = engine(x[:, b : b + 1], lengths[b : b + 1])
        torch.testing.assert_close(answer[:, b : b + 1], alone)


@given(case=packed_chains(), lengths=three_lengths)
def test_packing(case: Case, lengths: Tensor) -> None:
    """A forward() that packs: its answer at every position, those behind the ends too, and for as many of them."""
    engine = gw.Engine(case.small)
    expected = no_grad(case.small, case.x, lengths)
    answer, _ = engine(case.x, lengths)
    torch.testing.assert_close(answer, expected[0] if isinstance(expected, tuple) else expected, **CLOSE)
    array, _ = engine(case.x.numpy(), lengths=lengths.numpy().astype(np.uint8))
    np.testing.assert_array_equal(array, answer.numpy())


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_that_go_on(batch_first: bool) -> None:
    """The state is that at the end of each sequence, so a second call reads on from there."""
    case = build(3, VECTORS | {"packs": "cut", "batch": 3, "batch_first": batch_first})
    engine = gw.Engine(case.small)
    first, second = torch.tensor([2, 1, 3]), torch.tensor([1, 4, 2])
    _, between = no_grad(case.small, case.x, first)
    _, state = engine(case.x, first)
    expected, _ = no_grad(case.small, case.x, second, between)
    torch.testing.assert_close(engine(case.x, second, state)[0], expected, **CLOSE)


@pytest.mark.parametrize("scores", ["tanh", "sigmoid"])
def test_a_removed_channel_goes_through_every_function(scores: str) -> None:
    """A neuron with z = 0 is 0, then sigmoid(0), then a function of that."""
    case = build(0, {**PLAIN, "bayes": True, "head": False, "between": "sigmoid", "scores": scores})
    engine = gw.Engine(case.small)
    assert len(engine.narrow.kept) < engine.narrow.width
    torch.testing.assert_close(engine(case.x)[0], case.answer(case.x, masked=True), **CLOSE)


@pytest.mark.parametrize("scores", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("last", [False, True])
def test_large_scores_do_not_overflow(scores: Any, last: bool) -> None:
    model = lstm_net(lambda m, x: scores(m.fc(m.rnn(x)[0][:, -1] if last else m.rnn(x)[0]), -1)).eval()
    with torch.no_grad():
        model.fc.bias.copy_(torch.tensor([3e3, -3e3]))
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(gw.Engine(model)(x)[0], no_grad(model, x), **CLOSE)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_one_hot_is_a_column_of_the_input_matrix(cell: str) -> None:
    """A character picks a row of a table, no product; the removed inputs and gates are those of compress()."""
    torch.manual_seed(0)
    model = CharLM(7, 6, cell=cell)
    with torch.no_grad():
        model.rnn.weight_ih_l0[:, 2] = 0  # nobody reads this character
        for weight in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            weight[6:9] = 0  # constant gates
        model.fc.weight[:, 1] = model.rnn.weight_hh_l0[:, 1] = 0  # a neuron that nobody reads
    small = gw.compress(model)
    ids = torch.randint(0, 7, (5, 3))
    for fold in (None, False):
        engine = gw.Engine(small, fold_embedding=fold)
        (layer,) = engine.stages[0].network.levels[0]
        assert layer.w_ih.cols == 0
        assert layer.table.shape == (7, layer.w_ih.rows)
        answer, _ = engine(ids)
        with torch.no_grad():
            expected, _ = small(ids)
        torch.testing.assert_close(answer, expected, **CLOSE)
        torch.testing.assert_close(torch.stack([engine.step(x) for x in ids]), expected, **CLOSE)
        for wrong in (7, -1):
            with pytest.raises(IndexError, match=rf"word id {wrong} at position 1 is outside 0..6"):
                engine(np.array([[0, wrong]]))


def test_a_dense_model_is_compressed_first() -> None:
    case = build(4, WORDS)
    torch.testing.assert_close(gw.Engine(case.model)(case.x)[0], case.answer(case.x), **CLOSE)
    torch.testing.assert_close(gw.accelerate(case.model)(case.x)[0], case.answer(case.x), **CLOSE)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_a_wrapped_model_is_the_model_inside(wrap: Any) -> None:
    model, x = lstm_net(lambda m, x: m.fc(m.rnn(x)[0][:, -1])).eval(), torch.randn(2, 5, 3)
    torch.testing.assert_close(gw.Engine(wrap(model))(x)[0], model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_call_leaves_its_state_alone() -> None:
    """States are values: the same one may start any number of calls."""
    case = build(1, WORDS)
    engine = gw.Engine(case.small)
    _, state = engine(case.x)
    first, _ = engine(case.x, state)
    again, _ = engine(case.x, state)
    torch.testing.assert_close(again, first, rtol=0, atol=0)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_calls_do_not_differ_by_a_bit(layer: type[nn.Module]) -> None:
    """A large layer begins its step with the half of its weights that the call before left in the cache."""
    engine = gw.Engine(layer(24, 150))
    x = torch.randn(1, 1, 24)
    _, state = engine(x)
    answers = [engine(x, state)[0] for _ in range(4)]
    for other in answers[1:]:
        assert torch.equal(other, answers[0])


def test_threads_do_not_meet() -> None:
    """One engine, several callers, each with a state of its own; large enough that the kernels let others run."""
    case = build(2, {**WORDS, "size": 40, "hidden": 60, "density": 1.0, "dead": 0.0})
    engine = gw.Engine(case.small)
    inputs = [torch.randint(0, 5, (20, 2), generator=torch.Generator().manual_seed(k)) for k in range(4)]

    def twice(k: int) -> Tensor:
        one, state = engine(inputs[k])
        return torch.cat([one, engine(inputs[k], state)[0]])

    expected = [twice(k) for k in range(4)]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(5):
            if not torch.equal(twice(k), expected[k]):
                wrong.append(k)

    callers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_kernels_are_told_of_the_threads() -> None:
    """Of a call, of a first step and of the next, and of an accelerated layer."""
    told: list[int] = []

    def spied(kernel: Any) -> Any:
        return lambda *args: (told.append(args[-1]), kernel(*args))

    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    engine = gw.Engine(model, threads=3)
    (stage,) = engine.stages
    stage.kernel, step = spied(stage.kernel), stage.step  # type: ignore[union-attr]
    stage.step = lambda x, how: (told.append(how[2]), step(x, how))[1]  # type: ignore[union-attr]
    engine(x)
    for part in x.numpy()[:2]:
        engine.step(part)
    fast: Any = gw.accelerate(model, threads=3)
    fast.network.run = spied(fast.network.run)
    fast(x)
    assert told == [3, 3, 3, 3]


def test_arrays_of_every_layout() -> None:
    """A strided array and narrower integers are taken; the answer has the type of the question."""
    vectors, words = build(3, VECTORS), build(3, WORDS)
    strided = vectors.x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(gw.Engine(vectors.small)(strided)[0], vectors.answer(vectors.x), **CLOSE)
    for kind in (np.int32, np.uint8, np.int64):
        array, _ = gw.Engine(words.small)(words.x.numpy().astype(kind))
        assert isinstance(array, np.ndarray)
        torch.testing.assert_close(torch.from_numpy(array), words.answer(words.x), **CLOSE)
    listed, _ = gw.Engine(words.small)(words.x.tolist())
    assert isinstance(listed, np.ndarray)


def test_arrays_that_are_not_aligned_are_copied() -> None:
    """A view into a file or a message may start at any byte."""
    engine = gw.Engine(nn.LSTM(3, 4))
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    raw = b"?" + x.tobytes()
    odd = np.frombuffer(raw, np.float32, offset=1).reshape(x.shape)
    assert not odd.flags.aligned
    assert np.array_equal(engine(odd)[0], engine(x)[0])
    np.testing.assert_allclose([engine.step(part) for part in odd], engine(x)[0], **CLOSE)


@pytest.mark.parametrize("options", [WORDS, VECTORS])
def test_repeated_steps_take_anything(options: dict[str, Any]) -> None:
    """Arrays like the first take a short way; others must find the same state, and be checked as ever."""
    case = build(6, {**options, "steps": 5})
    engine = gw.Engine(case.small)
    x = case.x.numpy()
    wide = np.repeat(x[2], 2, axis=0)[::2]
    other = x[3].astype(np.int32) if options["words"] else torch.from_numpy(x[3])
    assert not wide.flags.c_contiguous
    given = (x[0], x[1], wide, other, x[4])
    answer = np.stack([np.asarray(engine.step(one)) for one in given])
    torch.testing.assert_close(torch.from_numpy(answer), case.answer(case.x), **CLOSE)
    with pytest.raises(ValueError, match="call reset"):
        engine.step(x[0][:1])
    with pytest.raises(TypeError, match="x must be"):
        engine.step(x[0].astype(np.float64))
    with pytest.raises(ValueError, match=r"x must be .*, got shape"):
        engine.step(x[0][None])
    engine.reset()
    torch.testing.assert_close(torch.from_numpy(engine.step(x[0])), case.answer(case.x[:1])[0], **CLOSE)
    assert engine.step(x[0][:2]) is not engine.step(x[0][:2])


CHAINS = {
    "transposed input": lambda m, x: m.rnn(x.transpose(0, 1))[0],
    "permuted input": lambda m, x: m.rnn(x.permute(1, 0, 2))[0],
    "function first": lambda m, x: m.rnn(torch.tanh(x))[0],
    "rows by number": lambda m, x: m.fc(m.rnn(x)[0].reshape(-1, 4)),
    "rows by size": lambda m, x: m.fc(m.rnn(x)[0].reshape(-1, m.rnn(x)[0].size(2))),
    "rows by shape": lambda m, x: m.rows(m.fc(m.rnn(x)[0])),
    "flattened": lambda m, x: m.fc(m.rnn(x)[0].flatten(0, 1)),
    "flattened, from the end": lambda m, x: m.fc(m.rnn(x)[0].flatten(0, -2)),
    "function in place": lambda m, x: m.fc(m.rnn(x)[0].tanh_()),
    "dropout by module": lambda m, x: m.fc(m.drop(m.rnn(x)[0])),
    "dropout of features": lambda m, x: m.fc(torch.feature_dropout(m.rnn(x)[0], 0.5, m.training)),
    "batch comes second": lambda m, x: m.fc(m.rnn(x)[0]).transpose(0, 1).reshape(-1, 2),
    "scores by number": lambda m, x: torch.log_softmax(m.fc(m.rnn(x)[0]), dim=2),
    "scores of the last": lambda m, x: torch.softmax(m.fc(m.rnn(x)[0][:, -1]), dim=1),
    "mean": lambda m, x: m.fc(m.rnn(x)[0].mean(1)),
    "mean by name": lambda m, x: m.fc(torch.mean(input=m.rnn(x)[0], dim=1)),
    "mean from the end": lambda m, x: m.fc(m.rnn(x)[0].mean(axis=-2, keepdim=False)),
    "mean over a list": lambda m, x: m.fc(m.rnn(x)[0].mean([1])),
    "mean of time first": lambda m, x: m.fc(m.rnn(x)[0].transpose(0, 1).mean(0)),
    "mean of scores": lambda m, x: torch.softmax(m.fc(m.rnn(x)[0]), -1).mean(1),
    "mean of one number": lambda m, x: torch.sigmoid(m.one(m.rnn(x)[0]).squeeze(-1).mean(1)),
    "mean as a sum": lambda m, x: m.fc(m.rnn(x)[0].sum(1) / x.size(1)),
    "mean as a sum by name": lambda m, x: torch.div(m.one(m.rnn(x)[0]).squeeze(-1).sum(1), x.shape[1]),
    "sum": lambda m, x: m.fc(m.rnn(x)[0].sum(1)),
    "sum of scores": lambda m, x: torch.sum(torch.softmax(m.fc(m.rnn(x)[0]), -1), dim=1),
    "maximum": lambda m, x: m.fc(m.rnn(x)[0].amax(1)),
    "maximum by name": lambda m, x: m.fc(torch.amax(m.rnn(x)[0], dim=1)),
    "first of max": lambda m, x: m.fc(m.rnn(x)[0].max(1)[0]),
    "first of max by name": lambda m, x: m.fc(torch.max(m.rnn(x)[0], 1)[0]),
    "values of max": lambda m, x: m.fc(m.rnn(x)[0].max(dim=1).values.relu()),
    "max of channels first": lambda m, x: m.fc(m.rnn(x)[0].transpose(1, 2).max(-1)[0]),
    "adaptive maximum": lambda m, x: m.fc(F.adaptive_max_pool1d(m.rnn(x)[0].transpose(1, 2), 1).squeeze(-1)),
    "adaptive mean": lambda m, x: m.fc(
        F.adaptive_avg_pool1d(m.rnn(x)[0].tanh().permute(0, 2, 1), output_size=1).squeeze(2)
    ),
    "adaptive by module": lambda m, x: m.fc(m.drop(m.pool(m.rnn(x)[0].transpose(1, 2)).flatten(1))),
    "one number": lambda m, x: torch.sigmoid(m.one(m.rnn(x)[0][:, -1, :]).squeeze(1)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_a_chain(name: str) -> None:
    layers = {"one": nn.Linear(4, 1), "drop": nn.Dropout1d(0.5), "pool": nn.AdaptiveMaxPool1d(1)}
    model = lstm_net(CHAINS[name], **layers).eval()
    model.rows = lambda y: y.view(-1, y.shape[-1])  # type: ignore[assignment]
    x = torch.randn(2, 5, 3)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(gw.Engine(model)(x)[0], expected, **CLOSE)


@pytest.mark.parametrize("as_given", [torch.Tensor.numpy, torch.clone])
def test_calls_again(as_given: Any) -> None:
    """A second call of the same shape takes a shorter way: the same answer and state, and other calls in between."""
    torch.manual_seed(0)
    model = nn.GRU(3, 5)
    x, other = torch.randn(4, 2, 3), torch.randn(2, 1, 3)
    with torch.no_grad():
        expected, last = model(x)
        longer = model(x, last)[0]
    engine = gw.Engine(model)
    for _ in range(3):
        y, state = engine(as_given(x))
        assert type(y) is type(as_given(x))
        torch.testing.assert_close(torch.as_tensor(y), expected)
        again, _ = engine(as_given(x), state)
        torch.testing.assert_close(torch.as_tensor(again), longer)
        with pytest.raises(ValueError, match="state is of 2 sequences, x of 1"):
            engine(as_given(other), state)
    with pytest.raises(TypeError, match="x must be float32"):
        engine(as_given(x.double()))
    with pytest.raises(TypeError, match="state must be what an earlier call of this engine returned"):
        engine(as_given(x), gw.Engine(nn.GRU(3, 6))(as_given(x))[1])
    steps = [torch.as_tensor(engine.step(as_given(row))) for row in x]
    torch.testing.assert_close(torch.stack(steps), expected)
