"""States are made by engines alone and can be pickled; empty batches, and inputs that are not finite."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from networks import Classifier, tagger
from torch import Tensor, nn

import gatewise as gw
from gatewise.runtime.engine import EngineState
from gatewise.runtime.graph_engine import GraphEngine


class Two(nn.Module):
    """No chain: two layers side by side, and a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.GRU(3, 4, batch_first=True), nn.LSTM(3, 4, batch_first=True)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cat([self.a(x)[0], self.b(x)[0]], -1)).cumsum(1)


class Reader(nn.Module):
    """Words, of which the last or the mean is scored."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = nn.Embedding(5, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        y = self.rnn(self.emb(x))[0]
        return self.fc(y.mean(1) if self.mean else y[:, -1]).squeeze(-1)


def chain() -> nn.Module:
    return tagger(nn.GRU(3, 4, batch_first=True))


@pytest.mark.parametrize("make", [chain, Two])
@pytest.mark.parametrize("carried", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_state_can_be_pickled(make: Any, carried: Any) -> None:
    """A stream goes on in another process, with an engine of the same model."""
    model, x = make().eval(), torch.randn(2, 7, 3)
    first, second = gw.Engine(model), gw.Engine(model)
    before, state = first(x[:, :4])
    after, _ = second(x[:, 4:], carried(state))
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([before, after], 1), model(x), rtol=1e-4, atol=1e-5)


def test_a_state_of_another_model_is_refused() -> None:
    """It is told by what it remembers, since the engine that made it may be gone."""
    _, state = gw.Engine(Two())(torch.randn(2, 3, 3))
    other = gw.Engine(Classifier())
    assert not isinstance(other, GraphEngine)
    with pytest.raises(TypeError, match="state must be what an earlier call of this engine returned"):
        other(torch.zeros(2, 3, dtype=torch.int64), state)


def test_a_state_is_not_put_together_by_hand() -> None:
    """States of two batches that were joined ran, and were wrong by 0.07: memory is not sequence by sequence."""
    _, state = gw.Engine(chain())(torch.randn(2, 3, 3))
    assert not hasattr(state, "parts")
    with pytest.raises(TypeError, match=r"A state is made by an engine.* begin together"):
        EngineState(4, (np.zeros(16, np.float32),), state.shape)


CASES: list[tuple[Any, Tensor]] = [
    (lambda: tagger(nn.LSTM(3, 4)), torch.zeros(5, 0, 3)),
    (chain, torch.zeros(0, 5, 3)),
    (lambda: tagger(nn.GRU(3, 4, bidirectional=True)), torch.zeros(5, 0, 3)),
    (lambda: Reader(False), torch.zeros(0, 5, dtype=torch.int64)),
    (lambda: Reader(True), torch.zeros(0, 5, dtype=torch.int64)),
    (Two, torch.zeros(0, 5, 3)),
]


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(("make", "x"), CASES)
def test_an_empty_batch_has_an_empty_answer(make: Any, x: Tensor, as_array: bool) -> None:
    """As in torch: the last batch of a filter may have nothing in it."""
    model = make().eval()
    engine, expected = gw.Engine(model), model(x)
    for _ in range(2):  # a repeated call has a shorter way
        answer, state = engine(x.numpy() if as_array else x)
        assert isinstance(answer, np.ndarray) == as_array
        assert tuple(answer.shape) == tuple(expected.shape)
        assert torch.as_tensor(answer).dtype == expected.dtype
        assert state.batch == 0


@pytest.mark.parametrize("make", [chain, Two])
def test_an_empty_step_leaves_the_stream_as_it_is(make: Any) -> None:
    model = make().eval()
    engine, x = gw.Engine(model), torch.randn(1, 2, 3)
    assert engine.step(torch.zeros(0, 3)).shape == (0, 2)
    if make is Two:
        engine.reset()
    with torch.no_grad():
        torch.testing.assert_close(engine.step(x[:, 0]), model(x)[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [chain, Two])
def test_what_is_not_finite_is_refused_if_asked(make: Any) -> None:
    """One NaN stays in the state for ever; then all answers are NaN."""
    model = make()
    bad, good = torch.tensor([[float("nan"), 0, 0]]), torch.ones(1, 3)
    poisoned, checked = gw.Engine(model), gw.Engine(model, check=True)
    poisoned.step(bad)
    assert not poisoned.step(good).isfinite().any()
    first = checked.step(good)
    for call in (lambda: checked.step(bad), lambda: checked.step(bad.numpy()), lambda: checked(bad[None])):
        with pytest.raises(ValueError, match="not finite: they would stay in the state"):
            call()
    assert checked.step(good).isfinite().all()
    checked.reset()
    torch.testing.assert_close(checked.step(good), first, rtol=0, atol=0)


def test_a_printed_engine_says_how_its_weights_are_stored() -> None:
    """That of int8 and that of float32 looked alike, and answer differently."""
    for model in (chain(), Two()):
        assert "int8 weights" in repr(gw.Engine(model, weights="int8"))
        assert "float32 weights" in repr(gw.Engine(model))


def test_a_number_of_threads_may_come_from_numpy() -> None:
    x = torch.randn(2, 3, 3)
    model = chain()
    torch.testing.assert_close(gw.Engine(model, threads=np.int64(1))(x)[0], gw.Engine(model)(x)[0])
