"""What runs in pieces does so exactly; what would need steps to come says so by its line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.program.graph import leaves
from gatewise.runtime.graph_engine import GraphEngine, graph_engine
from gatewise.runtime.narrow import recorded

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
TIME = 7


def positions(x: Tensor) -> Tensor:
    return torch.arange(x.size(1)).view(1, -1, 1)


STREAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "mean by hand": lambda m, x: m.rnn(x)[0].sum(1) / x.size(1),
    "mean of everything": lambda m, x: m.rnn(x)[0].mean((1, 2)),
    "share of steps": lambda m, x: (m.rnn(x)[0] > 0).float().mean(1),
    "any, all": lambda m, x: ((m.rnn(x)[0] > 0.5).any(1), (m.rnn(x)[0] > -0.5).all(1)),
    "log of a sum": lambda m, x: m.rnn(x)[0].logsumexp(1),
    "counted steps": lambda m, x: m.rnn(x)[0] * positions(x),
    "sines": lambda m, x: m.rnn(x + torch.sin(positions(x) * 0.3))[0],
    "two steps back": lambda m, x: m.rnn(x)[0] + F.pad(x, (0, 0, 2, 0))[:, :-2],
    "one of two steps back": lambda m, x: m.rnn(x)[0] + F.pad(x, (0, 0, 2, 0))[:, 1:-1],
    "padding cut again": lambda m, x: m.rnn(F.pad(x, (0, 0, 2, 0))[:, 2:])[0],
    "differences": lambda m, x: m.rnn(x - F.pad(x, (0, 0, 1, 0))[:, :-1])[0],
    "moving mean": lambda m, x: m.rnn(F.conv1d(
        F.pad(x.transpose(1, 2), (2, 0)), torch.ones(4, 1, 3) / 3, groups=4).transpose(1, 2))[0],
    "chomped": lambda m, x: m.rnn(m.conv(x.transpose(1, 2))[:, :, :-2].transpose(1, 2))[0],
    "chomped behind a function": lambda m, x: m.rnn(torch.relu(m.conv(x.mT))[..., :-2].transpose(1, 2))[0],
    "two convolutions": lambda m, x: m.rnn(m.conv(m.conv(x.mT)[:, :, :-2])[:, :, :-2].transpose(1, 2))[0],
    "running sum": lambda m, x: m.rnn(x)[0].cumsum(1),
    "rows": lambda m, x: m.rnn(torch.tanh(x.reshape(-1, 4)).view(x.shape))[0],
    "outer products": lambda m, x: m.rnn(x)[0].transpose(1, 2) @ x,
    "last two layers' states": lambda m, x: torch.cat(list(m.deep(x)[1]), -1),
}  # fmt: skip

WHOLE: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "counted backwards": (lambda m, x: m.rnn(x)[0] * (x.size(1) - 1 - positions(x)), "steps to come"),
    "share of the length": (lambda m, x: m.rnn(x)[0] * positions(x) / x.size(1), "steps to come"),
    "centred": (lambda m, x: m.rnn(x)[0] - m.rnn(x)[0].mean(1, keepdim=True), "steps to come"),
    "softmax over time": (lambda m, x: m.rnn(x)[0].softmax(1), "softmax over time"),
    "logs of weights": (lambda m, x: (m.rnn(x)[0].log_softmax(1) * x).sum(1), "softmax over time"),
    "weighted sum": (lambda m, x: (m.rnn(x)[0].softmax(1) * x).sum(1), "softmax over time"),
    "weighted product": (lambda m, x: m.rnn(x)[0].softmax(1).transpose(1, 2) @ x, "softmax over time"),
    "a layer reads weighted steps": (lambda m, x: m.rnn(x * m.rnn(x)[0].softmax(1))[0], "softmax over time"),
    "first step": (lambda m, x: m.rnn(x)[0][:, 0], "some of the steps"),
    "every other step": (lambda m, x: m.rnn(x)[0][:, ::2], "some of the steps"),
    "last two steps": (lambda m, x: m.rnn(x)[0][:, -2:], "some of the steps"),
    "a step ahead": (lambda m, x: m.rnn(F.pad(x, (0, 0, 0, 1))[:, 1:])[0], "behind the last"),
    "longer": (lambda m, x: m.rnn(F.pad(x, (0, 0, 1, 0)))[0], "more steps"),
    "answers too many": (lambda m, x: F.pad(m.rnn(x)[0], (0, 0, 1, 0)), "more steps"),
    "looks ahead": (lambda m, x: m.rnn(m.conv(x.transpose(1, 2))[:, :, 1:-1].transpose(1, 2))[0], "behind the last"),
    "flipped": (lambda m, x: m.rnn(x.flip(1))[0], "turns time around"),
    "steps as channels": (lambda m, x: m.rnn(x)[0].flatten(1), "entries of"),
    "channels for steps": (lambda m, x: m.rnn(x)[0].reshape(x.size(0), 4, -1), "mixes steps"),
    "variance": (lambda m, x: m.rnn(x)[0].var(1), "all steps at once"),
    "sorted out": (lambda m, x: m.rnn(x)[0].argmax(1), "all steps at once"),
    "again from the end": (lambda m, x: m.rnn(x, m.rnn(x)[1])[0], "first state is a last one"),
    "joined in time": (lambda m, x: torch.cat([m.rnn(x)[0], x], 1), "behind each other"),
}  # fmt: skip


def engine_of(rule: Any) -> GraphEngine:
    torch.manual_seed(0)
    layers = {"rnn": nn.GRU(4, 4, batch_first=True), "deep": nn.GRU(4, 3, 2, batch_first=True)}
    model = Net(rule, **layers, conv=nn.Conv1d(4, 4, 3, padding=2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = gw.compress(model)
        made = graph_engine(small, recorded(small, (torch.zeros(2, 5, 4),)))
    assert isinstance(made, GraphEngine)
    return made


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("sizes", [[2, 1, 4], [1] * TIME, [6, 1]], ids=str)
def test_pieces(name: str, sizes: list[int]) -> None:
    engine, x = engine_of(STREAMS[name]), torch.randn(2, TIME, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = leaves(engine.model(x))
    answers, state = [], None
    for piece in x.split(sizes, dim=1):
        answer, state = engine(piece, state=state)
        answers.append(leaves(answer))
    assert state is not None
    for k, (node, leaf) in enumerate(zip(state.way.program.results, expected)):
        axis, parts = state.way.time_axis(node), [answer[k] for answer in answers]
        torch.testing.assert_close(parts[-1] if axis is None else torch.cat(parts, axis), leaf, **CLOSE)


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_steps_to_come(name: str) -> None:
    """The state of a call does not go on; whole sequences are answered."""
    rule, why = WHOLE[name]
    engine, x = engine_of(rule), torch.randn(2, TIME, 4, generator=torch.Generator().manual_seed(3))
    answer, state = engine(x)
    with torch.no_grad():
        torch.testing.assert_close(leaves(answer), leaves(engine.model(x)), **CLOSE)
    with pytest.raises(TypeError, match=rf"test_streaming.py, line \d+, .*: .*{why}"):
        engine(x, state)


def test_positions_end_where_there_are_no_more() -> None:
    torch.manual_seed(0)
    net = Net(lambda m, x: m.rnn(x + m.places.weight[: x.size(1)])[0] + x,
              rnn=nn.GRU(4, 4, batch_first=True), places=nn.Embedding(5, 4))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = gw.Engine(net.eval(), example=(torch.zeros(2, 3, 4),))
    _, state = engine(torch.zeros(2, 3, 4))
    _, state = engine(torch.zeros(2, 2, 4), state)
    with pytest.raises(ValueError, match="there are 5 positions, and this piece ends at step 6"):
        engine(torch.zeros(2, 1, 4), state)
