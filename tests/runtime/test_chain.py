"""Which models are chains of layers, and which only look like one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Net, lstm_net
from torch import nn

import gatewise as gw
from gatewise.runtime.chain import ChainError, find_chain

E, H = 3, 4


def kinds(model: nn.Module) -> list[str]:
    return [step.name if step.kind == "pointwise" else step.kind for step in find_chain(model).steps]


NOT_CHAINS: dict[str, tuple[Callable[..., Any], str]] = {
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
    "one-hot of any width": (lambda m, x: m.rnn(F.one_hot(x).float())[0], "one_hot"),
    "one-hot of an answer": (
        lambda m, x: m.rnn(F.one_hot(m.rnn(x)[0], 3).float())[0],
        "does not",
    ),
    "two steps a row": (lambda m, x: m.rnn(x)[0].reshape(-1, 8), "reshape"),
    "channels first": (lambda m, x: m.rnn(x)[0].transpose(1, 2), "the axes BCT"),
    "branch": (lambda m, x: m.rnn(x)[0] if x.sum() > 0 else x, "could not be traced"),
    "no layer": (lambda m, x: torch.relu(x), "must return one answer"),
}


@pytest.mark.parametrize("name", NOT_CHAINS)
def test_what_is_not_a_chain(name: str) -> None:
    """It raises, says where the path ends, and points to accelerate()."""
    rule, why = NOT_CHAINS[name]
    with pytest.raises(ChainError, match=rf"(?s){why}.*gatewise\.accelerate"):
        find_chain(lstm_net(rule, one=nn.Linear(H, 1), norm=nn.LayerNorm(H)).eval())


def relu_in_place(m: Any, x: Any) -> Any:
    out, _ = m.rnn(x)
    out.relu_()
    return m.fc(out)


def relu_by_argument(m: Any, x: Any) -> Any:
    out, _ = m.rnn(x)
    F.relu(out, inplace=True)
    return m.fc(out)


def relu_by_module(m: Any, x: Any) -> Any:
    out, _ = m.rnn(x)
    m.act(out)
    return m.fc(out)


def relu_by_name(m: Any, x: Any) -> Any:
    return m.fc(torch.relu(input=m.rnn(x)[0]))


@pytest.mark.parametrize("forward", [relu_in_place, relu_by_argument, relu_by_module, relu_by_name])
def test_a_function_that_writes_into_its_argument_is_a_link(forward: Callable[..., Any]) -> None:
    model = lstm_net(forward, act=nn.ReLU(inplace=True))
    assert kinds(model) == ["recurrent", "relu", "linear"]


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(1)], ids=["random", "numpy", "torch"]
)
def test_a_forward_that_draws_random_numbers_is_refused(
    draw: Callable[[], Any], request: pytest.FixtureRequest
) -> None:
    """Only the way that tracing happened to go would be run, every time."""

    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        return m.fc(out.relu() if draw() < 0.5 else out)

    kind = request.node.callspec.id
    with pytest.raises(ChainError, match=rf"draws random numbers \({kind}\).*accelerate"):
        find_chain(lstm_net(forward))


def test_a_view_of_what_was_overwritten_is_refused() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        last = out[:, -1]
        out.relu_()
        return m.fc(last)

    with pytest.raises(ChainError, match=r"relu_: it overwrites a tensor"):
        find_chain(lstm_net(forward))


class ZeroState(nn.Module):
    """Makes its own state, of zeros, when none is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(E, H, batch_first=True), nn.Linear(H, 2)

    def forward(self, x: Any, state: Any = None) -> Any:
        first = x.new_zeros(1, x.shape[0], H) if state is None else state
        out, state = self.rnn(x, first)
        return self.fc(out), state


class AnotherFunction(ZeroState):
    def forward(self, x: Any, state: Any = None) -> Any:
        out, after = self.rnn(x, state)
        return self.fc(out.relu() if state is None else out), after


def test_zeros_for_a_state_that_is_not_given_are_no_other_function() -> None:
    assert kinds(ZeroState()) == ["recurrent", "linear"]


@pytest.mark.parametrize("write", [lambda h: h.fill_(1.0), lambda h: h[0].add_(1.0)])
def test_zeros_that_were_written_to_are_no_zeros(write: Any) -> None:
    def forward(m: Any, x: Any) -> Any:
        first = x.new_zeros(1, x.shape[0], H)
        write(first)
        return m.fc(m.rnn(x, first)[0])

    with pytest.raises(ChainError, match=r"rnn: its initial state is computed by forward"):
        find_chain(lstm_net(forward))


def test_another_function_without_a_state_is_refused() -> None:
    with pytest.raises(ChainError, match="another function when it is called without state"):
        find_chain(AnotherFunction())


def test_the_branch_of_training_is_not_taken() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        return m.fc(out.tanh() if m.training else out)

    model = lstm_net(forward).train()
    assert kinds(model) == ["recurrent", "linear"]
    assert model.training


def test_a_hook_is_refused() -> None:
    model = lstm_net(lambda m, x: m.fc(m.rnn(x)[0]))
    model.fc.register_forward_hook(lambda module, given, out: 2 * out)
    with pytest.raises(ChainError, match=r"fc: a hook may change"):
        find_chain(model)


def test_packing_points_to_lengths() -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.fc = nn.GRU(E, H), nn.Linear(H, 2)

        def forward(self, x: Any, lengths: Any) -> Any:
            _, h = self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
            return self.fc(h[-1])

    with pytest.raises(ChainError, match=r"forward\(\) leaves packing out; then engine\(x, lengths="):
        find_chain(Packs())


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.fc(m.rnn(x.to(torch.int32).float())[0]),
        lambda m, x: m.fc(m.rnn(x)[0]).to(torch.bool),
        lambda m, x: m.fc(m.rnn(x)[0]).to(dtype=torch.float64),
        lambda m, x: torch.softmax(m.fc(m.rnn(x)[0]), -1, dtype=torch.float64),
        lambda m, x: m.rnn(m.emb(x.to(torch.uint8)))[0],
        lambda m, x: m.rnn(m.emb(x))[0].to(x.dtype),
    ],
)
def test_a_cast_that_changes_numbers_is_refused(forward: Callable[..., Any]) -> None:
    with pytest.raises(ChainError, match=r"a cast to .* changes what it is given"):
        find_chain(lstm_net(forward, emb=nn.Embedding(9, E)))


def test_casts_that_change_nothing_are_no_links() -> None:
    def forward(m: Any, x: Any) -> Any:
        out = m.rnn(m.emb(x.to(x.device).to(torch.int32).to(torch.int64)))[0].to(torch.float32)
        return m.fc(out.to(out.dtype).to("cpu"))

    assert kinds(lstm_net(forward, emb=nn.Embedding(9, E))) == ["embedding", "recurrent", "linear"]


def test_dropout_that_evaluation_keeps_is_refused() -> None:
    """F.dropout is active unless it is told of the mode."""
    with pytest.raises(ChainError, match=r"active in evaluation, too, without training=self\.training"):
        find_chain(lstm_net(lambda m, x: m.fc(F.dropout(m.rnn(x)[0], 0.5))))
    model = lstm_net(lambda m, x: m.fc(F.dropout(m.rnn(x)[0], 0.5, m.training)))
    assert kinds(model) == ["recurrent", "linear"]


@pytest.mark.parametrize("scores", [nn.Softmax(dim=-1), nn.LogSoftmax(dim=2)])
def test_scores_by_module(scores: nn.Module) -> None:
    model = lstm_net(lambda m, x: m.scores(m.fc(m.rnn(x)[0])), scores=scores)
    assert kinds(model) == ["recurrent", "linear", type(scores).__name__.lower().replace("logs", "log_s")]
    x = torch.randn(2, 5, E)
    torch.testing.assert_close(gw.Engine(model.eval())(x)[0], model(x))


def test_the_last_state_of_one_layer_is_its_first() -> None:
    assert kinds(lstm_net(lambda m, x: m.fc(m.rnn(x)[1][0][0]))) == ["recurrent", "last_state", "linear"]
    two = Net(lambda m, x: m.fc(m.rnn(x)[1][0][0]), rnn=nn.LSTM(E, H, 2), fc=nn.Linear(H, 2))
    with pytest.raises(ChainError, match=r"only the last layer's h"):
        find_chain(two)


@pytest.mark.parametrize(
    "join",
    [
        lambda h, other: torch.cat([h[-1], h[-2]], 1),
        lambda h, other: torch.cat([h[-1], h[-1]], 1),
        lambda h, other: torch.cat([h[-2], h[-1]], 0),
        lambda h, other: torch.cat([h[-2], other[-1]], 1),
    ],
    ids=["backward first", "one of them twice", "one below the other", "of two layers"],
)
def test_last_states_that_do_not_stand_side_by_side_are_refused(join: Callable[..., Any]) -> None:
    """The engine hands them on as [forward, backward] of one layer."""
    layers = {name: nn.LSTM(E, H, bidirectional=True) for name in ("rnn", "two")}
    model = Net(lambda m, x: m.fc(join(m.rnn(x)[1][0], m.two(x)[1][0])), **layers, fc=nn.Linear(2 * H, 2))
    with pytest.raises(ChainError, match=r"cat\(\) joins anything but"):
        find_chain(model)


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda m, x: m.two(m.rnn(x)[0])[0], "two: it takes for time what another layer takes for the batch"),
        (lambda m, x: m.cell(m.rnn(x)[0][:, -1]), "cell: a single-step cell leaves the loop"),
        (
            lambda m, x: [m.cell(x[:, t]) for t in range(x.size(1))],
            "an input says. Cells in a loop run in torch",
        ),
        (lambda m, x: m.gated(x, mask=x.new_zeros(2, 5))[0], "gated: its mask is computed by forward"),
        (lambda m, x: m.rnn(m.emb(m.rnn(m.emb(x))[0]))[0], "emb: Embedding is not a link"),
        (lambda m, x: m.rnn(F.one_hot(m.emb(x), E))[0], "one_hot.. of anything but the input"),
    ],
    ids=["batch and time", "a cell", "a loop", "a mask", "an embedding of an answer", "one-hot of vectors"],
)
def test_layers_that_a_chain_cannot_hold_are_refused(forward: Callable[..., Any], why: str) -> None:
    layers = {"two": nn.GRU(H, H), "cell": nn.GRUCell(H, H), "gated": gw.nn.LSTM(E, H, batch_first=True)}
    with pytest.raises(ChainError, match=why):
        find_chain(lstm_net(forward, **layers, emb=nn.Embedding(9, E)))


def test_a_part_of_one_directions_state_is_refused() -> None:
    both = Net(lambda m, x: m.rnn(x)[1][0][-1][:, 0:2], rnn=nn.LSTM(E, H, bidirectional=True))
    with pytest.raises(ChainError, match=r"of a state"):
        find_chain(both)
