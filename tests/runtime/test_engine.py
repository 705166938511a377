"""Engine and accelerate() against the compact model they were made from."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE, PLAIN, Case, build, chains
from hypothesis import given
from hypothesis import strategies as st
from networks import Net
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.runtime import bindings
from gatewise.runtime.accelerate import EngineRecurrent
from gatewise.runtime.chain import ChainError, find_chain
from gatewise.tasks.models import CharLM

try:
    bindings.native()
except bindings.NativeLibraryError:
    pytest.skip("the C kernels are not built", allow_module_level=True)

WORDS = PLAIN | {"density": 0.7, "dead": 0.2}
VECTORS = {**WORDS, "words": 0}


# The engine computes what forward() computes.


@given(case=chains(), fold=st.sampled_from([None, True, False]), threads=st.integers(1, 2))
def test_engine(case: Case, fold: bool | None, threads: int) -> None:
    """Twice in a row, the state handed on; NumPy in, NumPy out."""
    engine = gw.Engine(case.small, fold_embedding=fold, threads=threads)
    answer, state = engine(case.x)
    torch.testing.assert_close(answer, case.answer(case.x), **CLOSE)
    assert answer.is_contiguous()
    array, state = engine(case.x.numpy(), state)
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


@given(case=chains(layout="same", steps=5, batch=3), data=st.data())
def test_lengths(case: Case, data: Any) -> None:
    """Each padded sequence is what it would be alone."""
    lengths = torch.tensor([data.draw(st.integers(1, 5)) for _ in range(3)])
    answer, _ = gw.Engine(case.small)(case.x, lengths=lengths)
    for b, expected in enumerate(case.one_by_one(lengths)):
        own = answer[b : b + 1]
        if case.model.o["take"] == "all":
            batch = 0 if case.model.time else 1
            own = answer.narrow(batch, b, 1).narrow(1 - batch, 0, int(lengths[b]))
        torch.testing.assert_close(own, expected, **CLOSE)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_sequence_of_no_step_keeps_its_state(layer: type[nn.Module], bidirectional: bool) -> None:
    """It gives zeros, and the next call goes on as if this one had not been."""
    engine = gw.Engine(layer(3, 4, 2, bidirectional=bidirectional))
    x = torch.randn(5, 2, 3)
    _, state = engine(x)
    none, after = engine(x, state, lengths=[0, 5])
    assert not none[:, 0].any()
    one, other = engine(x, state)[0], engine(x, after)[0]
    assert torch.equal(other[:, 0], one[:, 0])
    assert not torch.allclose(other[:, 1], one[:, 1])


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
    model = net(lambda m, x: scores(m.fc(m.rnn(x)[0][:, -1] if last else m.rnn(x)[0]), -1))
    with torch.no_grad():
        model.fc.bias.copy_(torch.tensor([3e3, -3e3]))
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(gw.Engine(model)(x)[0], no_grad(model, x), **CLOSE)


def test_a_call_leaves_its_state_alone() -> None:
    """States are values: the same one may start any number of calls."""
    case = build(1, WORDS)
    engine = gw.Engine(case.small)
    _, state = engine(case.x)
    first, _ = engine(case.x, state)
    again, _ = engine(case.x, state)
    torch.testing.assert_close(again, first, rtol=0, atol=0)


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
    stage.kernel = spied(stage.kernel)  # type: ignore[union-attr]
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


def test_a_dense_model_is_compressed_first() -> None:
    case = build(4, WORDS)
    torch.testing.assert_close(gw.Engine(case.model)(case.x)[0], case.answer(case.x), **CLOSE)
    torch.testing.assert_close(gw.accelerate(case.model)(case.x)[0], case.answer(case.x), **CLOSE)


# What it cannot do, it says.


def test_engine_errors() -> None:
    case, vectors = build(5, WORDS), build(5, VECTORS)
    engine, other = gw.Engine(case.small), gw.Engine(vectors.small)
    with pytest.raises(ValueError, match="threads=0"):
        gw.Engine(case.small, threads=0)
    for kind in (np.float32, np.bool_):
        with pytest.raises(TypeError, match=r"integer word ids, got (float32|bool)"):
            engine(np.zeros((4, 2), kind))
    with pytest.raises(ValueError, match=r"2 axes of word ids, got shape \(4,\)"):
        engine(np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="1 axes of word ids"):
        engine.step(np.zeros((1, 4), np.int64))
    for x in (np.array([[0, 5]]), np.array([[0, -1]])):
        with pytest.raises(IndexError, match=r"word id (5|-1) at position 1 is outside 0..4"):
            engine(x)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(TypeError, match="x must be float32, got"):
            other(torch.zeros(4, 2, 3, dtype=dtype))
    for shape in ((4, 2, 2), (4, 3), (4, 2, 3, 1)):
        with pytest.raises(ValueError, match="x must have 3 axes, the last of 3"):
            other(np.zeros(shape, np.float32))
    for shape in ((0, 2, 3), (2, 0, 3)):
        with pytest.raises(ValueError, match=r"x is empty: \(.*\); it needs a sequence and a step"):
            other(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="x is empty"):
        engine.step(np.zeros(0, np.int64))
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
    with pytest.raises(TypeError, match="what an earlier call of this engine returned"):
        engine(case.x, case.state)
    wider = gw.Engine(build(5, {**WORDS, "hidden": 40, "dead": 0.0}).small)
    lstm, gru = gw.Engine(nn.LSTM(3, 8)), gw.Engine(nn.GRU(3, 16))  # as much memory, read in another way
    for one, other, x in ((engine, wider, case.x), (lstm, gru, torch.ones(4, 2, 3))):
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
    with pytest.raises(ValueError, match="axes"):
        engine.step(x[0][None])
    engine.reset()
    torch.testing.assert_close(torch.from_numpy(engine.step(x[0])), case.answer(case.x[:1])[0], **CLOSE)
    assert engine.step(x[0][:2]) is not engine.step(x[0][:2])


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


# What is a chain, and what is not.

NOT_CHAINS = {
    "residual": (lambda m, x: m.rnn(x)[0] + x, "add"),
    "pool": (lambda m, x: m.rnn(x)[0].mean(1), "mean"),
    "norm": (lambda m, x: m.norm(m.rnn(x)[0]), "LayerNorm is not a link"),
    "both": (lambda m, x: (m.rnn(x)[0], m.fc(x)), "must return one answer"),
    "own state": (lambda m, x: m.rnn(x, (x[:, 0], x[:, 0]))[0], "is not the last time step"),
    "cell state": (lambda m, x: m.rnn(x)[1][1][-1], "only the last layer's h"),
    "first step": (lambda m, x: m.rnn(x)[0][:, 0], "is not the last time step"),
    "part of the last step": (lambda m, x: m.rnn(x)[0][:, -1, :2], "is not the last time step"),
    "softmax over time": (lambda m, x: torch.softmax(m.rnn(x)[0], 1), "softmax"),
    "softmax of a squeezed answer": (
        lambda m, x: torch.softmax(m.one(m.rnn(x)[0]).squeeze(-1), -1),
        "softmax",
    ),
    "squeeze of more than one": (lambda m, x: m.fc(m.rnn(x)[0]).squeeze(-1), "squeeze"),
    "one-hot of any width": (lambda m, x: m.rnn(nn.functional.one_hot(x).float())[0], "one_hot"),
    "one-hot of an answer": (
        lambda m, x: m.rnn(nn.functional.one_hot(m.rnn(x)[0], 3).float())[0],
        "does not",
    ),
    "two steps a row": (lambda m, x: m.rnn(x)[0].reshape(-1, 8), "reshape"),
    "channels first": (lambda m, x: m.rnn(x)[0].transpose(1, 2), "the axes BCT"),
    "branch": (lambda m, x: m.rnn(x)[0] if x.sum() > 0 else x, "could not be traced"),
    "no layer": (lambda m, x: torch.relu(x), "must return one answer"),
}


def net(rule: Any) -> nn.Module:
    layers = {"fc": nn.Linear(4, 2), "one": nn.Linear(4, 1), "norm": nn.LayerNorm(4)}
    layers["drop"] = nn.Dropout1d(0.5)
    return Net(rule, rnn=nn.LSTM(3, 4, batch_first=True), **layers).eval()


@pytest.mark.parametrize("name", NOT_CHAINS)
def test_what_is_not_a_chain(name: str) -> None:
    """It raises, says where the path ends, and points to accelerate()."""
    rule, why = NOT_CHAINS[name]
    with pytest.raises(ChainError, match=rf"(?s){why}.*gatewise\.accelerate"):
        find_chain(net(rule))


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
    "one number": lambda m, x: torch.sigmoid(m.one(m.rnn(x)[0][:, -1, :]).squeeze(1)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_a_chain(name: str) -> None:
    model = net(CHAINS[name])
    model.rows = lambda y: y.view(-1, y.shape[-1])  # type: ignore[assignment]
    x = torch.randn(2, 5, 3)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(gw.Engine(model)(x)[0], expected, **CLOSE)


def test_half_precision_is_refused() -> None:
    case = build(7, VECTORS)
    for make in (gw.Engine, gw.accelerate):
        with pytest.raises(ChainError, match=r"float64.*model\.float\(\)\.cpu\(\)"):
            make(gw.compress(copy.deepcopy(case.model).double()))


def test_weights_elsewhere_are_refused() -> None:
    for make in (gw.Engine, gw.accelerate):
        with pytest.raises(ChainError, match=r"on meta; .*model\.float\(\)\.cpu\(\)"):
            make(gw.compress(nn.LSTM(3, 4)).to("meta"))


# accelerate(): any forward().


@given(case=chains())
def test_accelerate(case: Case) -> None:
    """The same call, states in their original form, in and out."""
    fast = gw.accelerate(case.small)
    torch.testing.assert_close(fast(case.x, case.state), no_grad(case.small, case.x, case.state), **CLOSE)
    assert any(isinstance(m, EngineRecurrent) for m in fast.modules())
    assert not any(isinstance(m, EngineRecurrent) for m in case.small.modules())


@given(case=chains(words=0, first=False, steps=5, batch=3), data=st.data())
def test_accelerated_layers_take_everything(case: Case, data: Any) -> None:
    """Packed in any order, masked, one sequence without a batch axis, no sequence at all."""
    slow: Any = case.small.rnn
    fast: Any = gw.accelerate(slow)
    lengths = torch.tensor([data.draw(st.integers(1, 5)) for _ in range(3)])
    packed = pack_padded_sequence(case.x, lengths, slow.batch_first, enforce_sorted=False)
    answers = []
    for rnn in (slow, fast):
        with torch.no_grad():
            out, last = rnn(packed, case.state)
        answers.append((pad_packed_sequence(out), last))
    torch.testing.assert_close(*answers, **CLOSE)
    one = case.x[0] if slow.batch_first else case.x[:, 0]
    torch.testing.assert_close(fast(one), no_grad(slow, one), **CLOSE)
    none = case.x[:0] if slow.batch_first else case.x[:, :0]
    torch.testing.assert_close(fast(none), no_grad(slow, none), **CLOSE)
    mask = torch.rand(case.x.shape[:2]) < 0.6
    with torch.no_grad():
        torch.testing.assert_close(fast(case.x, mask=mask), slow(case.x, mask=mask), **CLOSE)


def test_accelerate_any_forward() -> None:
    """Residual connections, pooling and attention are the user's; the layers inside are faster."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out, _ = m.rnn(x)
        again, _ = m.rnn2(out)
        out = out + again
        answer: Tensor = m.fc((out * torch.softmax(m.one(out), 1)).sum(1))
        return answer

    layers = {"rnn": nn.LSTM(3, 4, batch_first=True), "rnn2": nn.GRU(4, 4, batch_first=True)}
    model = Net(forward, **layers, fc=nn.Linear(4, 2), one=nn.Linear(4, 1)).eval()
    x = torch.randn(2, 5, 3)
    fast = gw.accelerate(model)
    assert sum(isinstance(m, EngineRecurrent) for m in fast.modules()) == 2
    torch.testing.assert_close(fast(x), no_grad(model, x), **CLOSE)


def test_accelerated_models_are_copied_pickled_and_loaded() -> None:
    case = build(8, VECTORS)
    fast = gw.accelerate(case.small)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(other(case.x), fast(case.x), rtol=0, atol=0)
    with torch.no_grad():
        for p in case.small.parameters():
            p.mul_(0.5)
    fast.load_state_dict(case.small.state_dict())
    torch.testing.assert_close(fast(case.x), no_grad(case.small, case.x), **CLOSE)


def test_accelerated_layers_follow_new_parameters() -> None:
    model = gw.compress(nn.GRU(3, 4))
    fast = gw.accelerate(model)
    x = torch.randn(5, 2, 3)
    for one in (model, fast):
        layer = one.layers[0]
        layer.weight_hh = nn.Parameter(0.5 * layer.weight_hh.detach())
    torch.testing.assert_close(fast(x)[0], no_grad(model, x)[0], **CLOSE)


def test_arrays_that_are_not_aligned_are_copied() -> None:
    """A view into a file or a message may start at any byte."""
    engine = gw.Engine(nn.LSTM(3, 4))
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    raw = b"?" + x.tobytes()
    odd = np.frombuffer(raw, np.float32, offset=1).reshape(x.shape)
    assert not odd.flags.aligned
    assert np.array_equal(engine(odd)[0], engine(x)[0])
    np.testing.assert_allclose([engine.step(part) for part in odd], engine(x)[0], **CLOSE)


def test_lengths_beyond_32_bits_are_refused() -> None:
    engine = gw.Engine(nn.LSTM(3, 4))
    for far in (2**32 + 3, 2**63):
        with pytest.raises(ValueError, match=rf"sequence 1 has length {far}, outside 0\.\.5"):
            engine(np.zeros((5, 2, 3), np.float32), lengths=np.array([5, far], np.uint64))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_calls_do_not_differ_by_a_bit(layer: type[nn.Module]) -> None:
    """A large layer begins its step with the half of its weights that the call before left in the cache."""
    engine = gw.Engine(layer(24, 150))
    x = torch.randn(1, 1, 24)
    _, state = engine(x)
    answers = [engine(x, state)[0] for _ in range(4)]
    for other in answers[1:]:
        assert torch.equal(other, answers[0])


def test_accelerated_layers_follow_their_parameters() -> None:
    """Changed in place, as an update of deployed weights does."""
    case = build(8, VECTORS)
    fast = gw.accelerate(case.small)
    with torch.no_grad():
        for model in (case.small, fast):
            for p in model.parameters():
                p.mul_(0.5)
    torch.testing.assert_close(fast(case.x), no_grad(case.small, case.x), **CLOSE)


@pytest.mark.parametrize("name", ["rnn", "fc"])
def test_a_new_layer_in_a_compact_model_is_compressed_too(name: str) -> None:
    """Partly compact: no layer is left slow, and none is said to be beyond compress()."""
    model = net(lambda m, x: m.fc(m.rnn(x)[0]))
    small = gw.compress(model)
    setattr(small, name, copy.deepcopy(getattr(model, name)))
    x = torch.randn(2, 5, 3)
    fast = gw.accelerate(small)
    assert isinstance(fast.rnn, EngineRecurrent)
    torch.testing.assert_close(fast(x), no_grad(model, x), **CLOSE)
    torch.testing.assert_close(gw.Engine(small)(x)[0], no_grad(model, x), **CLOSE)
    assert type(getattr(small, name)) is type(getattr(model, name))  # the argument is not changed


def test_accelerate_errors() -> None:
    """No gradient, no dropout, no other type: all of it is said."""
    case = build(9, VECTORS)
    fast: Any = gw.accelerate(case.small)
    assert not fast.training
    assert not any(p.requires_grad for p in fast.parameters())
    with pytest.raises(ValueError, match="threads=0"):
        gw.accelerate(case.small, threads=0)
    x = case.x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no gradient; use the compact model"):
        fast(x)
    with pytest.raises(RuntimeError, match="no gradient"):
        fast(case.x, tuple(part.clone().requires_grad_() for part in case.state))
    torch.testing.assert_close(no_grad(fast, x), fast(case.x), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"float32 on the CPU, got torch\.float64"):
        fast(case.x.double())
    with pytest.raises(ValueError, match="on meta"):
        fast(case.x.to("meta"))
    fast.rnn.dropout = 0.5
    with pytest.raises(RuntimeError, match=r"no dropout; call eval\(\)"):
        fast.train()(case.x)


def test_dropout_between_levels_rests_in_evaluation() -> None:
    model, x = nn.LSTM(3, 4, 2, dropout=0.5).eval(), torch.randn(5, 2, 3)
    torch.testing.assert_close(gw.accelerate(model)(x), no_grad(model, x), **CLOSE)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both say at once what is missing."""
    case = build(9, VECTORS)

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(bindings.importlib, "import_module", absent)
    for make in (gw.Engine, gw.accelerate):
        with pytest.raises(bindings.NativeLibraryError, match="need a C compiler"):
            make(case.small)


def no_grad(model: Any, *args: Any) -> Any:
    with torch.no_grad():
        return model(*args)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_is_not_copied(again: Any) -> None:
    """A copy would go on from the steps of the original."""
    with pytest.raises(TypeError, match=r"build another one from the model: gw\.Engine\(model\)"):
        again(gw.Engine(nn.LSTM(3, 4)))
