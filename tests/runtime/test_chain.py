"""Which models are chains of layers, and which only look like one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chains import chain_of, check_answers
from networks import Net, lstm_net, pair
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.runtime.chained import ChainError

E, H = 3, 4


def kinds(model: nn.Module) -> list[str]:
    return [link.name if link.kind == "pointwise" else link.kind for link in chain_of(model).links]


NOT_CHAINS: dict[str, Callable[..., Any]] = {
    "residual": lambda m, x: m.rnn(x)[0] + x,
    "mean over channels": lambda m, x: m.rnn(x)[0].mean(2),
    "mean over the batch": lambda m, x: m.rnn(x)[0].mean(0),
    "mean over both": lambda m, x: m.rnn(x)[0].mean((0, 1)),
    "mean over everything": lambda m, x: m.rnn(x)[0].mean(),
    "mean over rows": lambda m, x: m.rnn(x)[0].flatten(0, 1).mean(0),
    "mean that keeps its axis": lambda m, x: m.rnn(x)[0].mean(1, keepdim=True),
    "mean of another type": lambda m, x: m.rnn(x)[0].mean(1, dtype=torch.float64),
    "mean of the input": lambda m, x: m.rnn(x.mean(1))[0],
    "mean beside the layer": lambda m, x: (m.rnn(x), x.tanh().mean(1))[1],
    "last step beside the layer": lambda m, x: (m.rnn(x), x.tanh()[:, -1])[1],
    "maximum of everything": lambda m, x: m.rnn(x)[0].max(),
    "maximum of two": lambda m, x: torch.max(m.rnn(x)[0], m.rnn(x)[0]),
    "where the maximum is": lambda m, x: m.rnn(x)[0].max(1).indices,
    "sum over channels": lambda m, x: m.rnn(x)[0].sum(2),
    "sum by a number": lambda m, x: m.rnn(x)[0].sum(1) / 5,
    "sum by the batch": lambda m, x: m.rnn(x)[0].sum(1) / x.size(0),
    "sum by a size that is rounded": lambda m, x: torch.div(
        m.rnn(x)[0].sum(1), x.size(1), rounding_mode="floor"
    ),
    "steps by the number of steps": lambda m, x: m.rnn(x)[0] / x.size(1),
    "minimum": lambda m, x: m.rnn(x)[0].min(1)[0],
    "pool to two steps": lambda m, x: F.adaptive_max_pool1d(m.rnn(x)[0].transpose(1, 2), 2).squeeze(-1),
    "pool over channels": lambda m, x: m.pool(m.rnn(x)[0]).squeeze(-1),
    "pool with its axis": lambda m, x: m.pool(m.rnn(x)[0].transpose(1, 2)),
    "pool whose axis is read": lambda m, x: m.one(m.pool(m.rnn(x)[0].transpose(1, 2))),
    "pool of one sequence or many": lambda m, x: m.pool(m.rnn(x)[0].transpose(1, 2)).squeeze(),
    "pool beside the state": lambda m, x: ((out := m.rnn(x))[0].mean(1), out[1]),
    "norm": lambda m, x: m.norm(m.rnn(x)[0]),
    "both": lambda m, x: (m.rnn(x)[0], m.fc(x)),
    "own state": lambda m, x: m.rnn(x, (x[:, 0], x[:, 0]))[0],
    "cell state": lambda m, x: m.rnn(x)[1][1][-1],
    "first step": lambda m, x: m.rnn(x)[0][:, 0],
    "part of the last step": lambda m, x: m.rnn(x)[0][:, -1, :2],
    "softmax over time": lambda m, x: torch.softmax(m.rnn(x)[0], 1),
    "softmax of a squeezed answer": lambda m, x: torch.softmax(m.one(m.rnn(x)[0]).squeeze(-1), -1),
    "squeeze of more than one": lambda m, x: m.fc(m.rnn(x)[0]).squeeze(-1),
    "one-hot of any width": lambda m, x: m.rnn(F.one_hot(x).float())[0],
    "one-hot of an answer": lambda m, x: m.rnn(F.one_hot(m.rnn(x)[0], 3).float())[0],
    "two steps a row": lambda m, x: m.rnn(x)[0].reshape(-1, 8),
    "channels first": lambda m, x: m.rnn(x)[0].transpose(1, 2),
    "branch": lambda m, x: m.rnn(x)[0] if x.sum() > 0 else x,
    "no layer": lambda m, x: torch.relu(x),
    "half of the batch": lambda m, x: m.rnn(x)[0][: x.size(0) // 2, -1],
    "some channels": lambda m, x: m.rnn(x)[0][:, -1, : x.size(1) - 1],
    "axes that a size says": lambda m, x: m.rnn(x)[0].transpose(0, x.size(1) - 4),
    "no such axes": lambda m, x: m.rnn(x)[0].permute(0, 1, 2, 3),
    "a part that a size says": lambda m, x: m.rnn(x)[x.size(1) - 5],
}


@pytest.mark.parametrize("name", NOT_CHAINS)
def test_what_is_not_a_chain(name: str) -> None:
    """Whatever becomes of it, the answer is torch's."""
    layers = {"one": nn.Linear(H, 1), "norm": nn.InstanceNorm1d(H), "pool": nn.AdaptiveAvgPool1d(1)}
    check_answers(lstm_net(NOT_CHAINS[name], **layers).eval(), torch.randn(2, 5, E))


class TakesANumber(nn.Module):
    """A function of (net, x, number)"""

    def __init__(self, rule: Callable[..., Any]) -> None:
        super().__init__()
        self.rule, self.rnn = rule, nn.LSTM(E, H, batch_first=True)

    def forward(self, x: Any, k: Any) -> Any:
        return self.rule(self, x, k)


@pytest.mark.parametrize(
    "rule",
    [
        lambda m, x, k: m.rnn(x)[0][:k, -1],
        lambda m, x, k: m.rnn(x)[0].sum(1, keepdim=k),
        lambda m, x, k: m.rnn(x)[0].max(1, k)[0],
        lambda m, x, k: F.dropout(m.rnn(x)[0], 0.5, k),
        lambda m, x, k: m.rnn(x)[0].sum(1) / x.size(k),
    ],
)
def test_a_number_that_only_a_call_knows_is_not_one_that_was_left_out(rule: Callable[..., Any]) -> None:
    with pytest.raises(ChainError):
        chain_of(TakesANumber(rule))


def test_sizes_by_a_slice() -> None:
    def forward(m: Any, x: Any) -> Any:
        batch, steps = x.shape[:2]
        return m.fc(m.rnn(x)[0].reshape(-1, H)).view(batch, steps, 2)

    assert chain_of(lstm_net(forward)).output_axes == "BTC"


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
        chain_of(lstm_net(forward))


def test_a_view_of_what_was_overwritten_is_refused() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        last = out[:, -1]
        out.relu_()
        return m.fc(last)

    with pytest.raises(
        ChainError, match=r"test_chain.py, line \d+, .*it writes into a tensor, and uses another view"
    ):
        chain_of(lstm_net(forward))


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

    with pytest.raises(ChainError):
        chain_of(lstm_net(forward))
    check_answers(lstm_net(forward), torch.randn(2, 5, E))


def test_another_function_without_a_state_is_refused() -> None:
    with pytest.raises(ChainError, match="another function when it is called without state"):
        chain_of(AnotherFunction())
    x, first = torch.randn(2, 5, E), torch.randn(1, 2, H)
    model = AnotherFunction()
    for given in ((x,), (x, first)):
        torch.testing.assert_close(gw.Engine(model)(*given)[0], model(*given)[0].detach())


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
    with pytest.raises(ChainError, match=r"a hook on fc may see or change it"):
        chain_of(model)


class Packs(nn.Module):
    """A forward() of one's own on packed sequences, the batch first: a function of (net, x, lengths)."""

    def __init__(self, rule: Callable[..., Any]) -> None:
        super().__init__()
        self.rule, self.rnn, self.two = rule, nn.GRU(E, H, batch_first=True), nn.GRU(H, H, batch_first=True)
        self.fc, self.act = nn.Linear(H, 2), nn.Identity()

    def forward(self, x: Any, lengths: Any) -> Any:
        return self.rule(self, x, lengths)

    def out(self, x: Any, lengths: Any, **options: Any) -> Any:
        """Padded output of the first layer."""
        return pad_packed_sequence(self.rnn(pack(x, lengths))[0], batch_first=True, **options)[0]


def pack(x: Any, lengths: Any, **options: Any) -> Any:
    return pack_padded_sequence(x, lengths, **({"batch_first": True, "enforce_sorted": False} | options))


def padded(x: Any) -> Any:
    return pad_packed_sequence(x, batch_first=True)


def ends(out: Any, lengths: Any) -> Any:
    return out[torch.arange(out.size(0)), lengths - 1]


def again(m: Any, x: Any, lengths: Any) -> Any:
    """Packed, padded, packed with what padding said of the lengths, and padded as long as x."""
    out, same = pair(padded(m.rnn(pack(x, lengths))[0]))
    packed = m.two(pack(torch.sigmoid(out), same))[0]
    return m.fc(pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0])


def mean_in_place(m: Any, x: Any, lengths: Any) -> Any:
    out, same = pair(padded(m.rnn(pack(x, lengths))[0]))
    total = torch.relu(out).sum(dim=1)
    total /= same.to(out.device, out.dtype).unsqueeze(-1)
    return m.fc(total)


PACKED: dict[str, Callable[..., Any]] = {
    "last state": lambda m, x, n: m.fc(m.rnn(pack(x, n))[1][-1]),
    "sorted": lambda m, x, n: m.fc(m.rnn(pack(x, n, enforce_sorted=True))[1][-1]),
    "by name": lambda m, x, n: m.fc(m.rnn(pack_padded_sequence(lengths=n, input=x, batch_first=True))[1][-1]),
    "lengths on the CPU": lambda m, x, n: m.fc(m.rnn(pack(x, n.cpu()))[1][-1]),
    "a list": lambda m, x, n: m.fc(m.rnn(pack(x, n.tolist()))[1][-1]),
    "whole numbers": lambda m, x, n: m.fc(m.rnn(pack(x, n.to("cpu", torch.int64)))[1][-1]),
    "padded": lambda m, x, n: m.fc(m.out(x, n)),
    "padded to x": lambda m, x, n: m.fc(m.out(x, n, total_length=x.shape[1])),
    "the other axis first": lambda m, x, n: m.fc(pad_packed_sequence(m.rnn(pack(x, n))[0])[0]),
    "rows": lambda m, x, n: m.fc(m.out(x, n)).flatten(0, 1),
    "last step of each": lambda m, x, n: m.fc(ends(m.out(x, n), n)),
    "padding that was read": lambda m, x, n: m.two(pack(m.rnn(x)[0], n))[1][-1],
    "padding that was read, and cut": lambda m, x, n: m.fc(padded(pack(m.rnn(x)[0], n))[0]),
    "packed once for two layers": lambda m, x, n: m.fc(m.two(m.rnn(pack(x, n))[0])[1][-1]),
    "packed again": again,
    "sum": lambda m, x, n: m.fc(m.out(x, n).sum(1)),
    "sum of a function": lambda m, x, n: m.fc(m.out(x, n, total_length=x.size(1)).tanh().sum(1)),
    "mean": lambda m, x, n: m.fc(m.out(x, n).sum(1) / n.unsqueeze(1)),
    "mean by index": lambda m, x, n: m.fc(m.out(x, n).sum(1) / n[:, None].float()),
    "mean by the last index": lambda m, x, n: m.fc(m.out(x, n).sum(1) / n[..., None].int()),
    "mean by view": lambda m, x, n: m.fc(m.out(x, n).sum(1).div(n.view(-1, 1))),
    "mean by reshape": lambda m, x, n: torch.div(m.out(x, n).sum(1), n.reshape((-1, 1)).cpu()),
    "mean by what is never 0": lambda m, x, n: m.fc(
        m.out(x, n).sum(1) / torch.unsqueeze(n.clamp(min=1), dim=1)
    ),
    "mean in place": mean_in_place,
    "mean of channels first": lambda m, x, n: m.fc(m.out(x, n).transpose(1, 2).sum(-1) / n[:, None]),
    "maximum": lambda m, x, n: m.fc(m.out(x, n, padding_value=LOWEST).max(dim=1).values),
    "maximum of channels first": lambda m, x, n: m.fc(
        F.adaptive_max_pool1d(m.out(x, n, padding_value=LOWEST).transpose(1, 2), 1).squeeze(-1)
    ),
    "maximum behind relu": lambda m, x, n: m.fc(m.out(x, n).relu().max(1)[0]),
    "last step before -inf": lambda m, x, n: ends(m.out(x, n, padding_value=LOWEST), n),
    "-inf that is packed": lambda m, x, n: m.two(pack(m.out(x, n, padding_value=LOWEST), n))[1][-1],
    "from zeros": lambda m, x, n: m.fc(m.rnn(pack(x, n), x.new_zeros(1, x.size(0), H))[1][-1]),
}


@pytest.mark.parametrize("name", PACKED)
def test_packing_is_no_link(name: str) -> None:
    """A chain has one length for all; with lengths of their own sequences run as a graph."""
    model = Packs(PACKED[name]).eval()
    with pytest.raises(ChainError):
        chain_of(model)
    x, lengths = torch.randn(3, 6, E), torch.tensor([5, 2, 1])
    with torch.no_grad():
        expected = model(x, lengths)
    answer, _ = gw.Engine(model)(x, lengths)
    torch.testing.assert_close(answer, expected)


def test_a_layer_of_which_the_last_state_is_read_writes_no_steps() -> None:
    """A batch of padded texts took longer, for answers that nobody reads."""
    (way,) = gw.Engine(Packs(PACKED["last state"]).eval()).ways
    (layer,) = way.prepared.layers.values()
    assert layer.no_steps


def written(n: Any) -> Any:
    """Another name for the same tensor, which is then not what was given."""
    same = n.cpu()
    same.clamp_(min=2)
    return n


def reordered(n: Any) -> Any:
    numbers = n.tolist()
    numbers.sort()
    return numbers


def filled(n: Any) -> Any:
    index = n - 1
    index.fill_(0)
    return index


def raised(n: Any) -> Any:
    n.add_(1)
    return n


LOWEST = -math.inf
NOT_PACKED: dict[str, Callable[..., Any]] = {
    "with its lengths": lambda m, x, n: (m.fc(m.out(x, n)), n),
    "constant lengths": lambda m, x, n: m.rnn(pack(x, torch.tensor([3, 2])))[1][-1],
    "other lengths": lambda m, x, n: m.rnn(pack(x, n.clamp(min=2)))[1][-1],
    "lengths in one byte": lambda m, x, n: m.rnn(pack(x, n.to(torch.int8)))[1][-1],
    "a part of the lengths": lambda m, x, n: m.rnn(pack(x, n[0]))[1][-1],
    "lengths that are written to": lambda m, x, n: m.rnn(pack(x, written(n)))[1][-1],
    "a sorted list": lambda m, x, n: m.rnn(pack(x, reordered(n)))[1][-1],
    "a sorted batch": lambda m, x, n: m.rnn(pack(x[n.argsort()], reordered(n)))[1][-1],
    "a flag that is computed": lambda m, x, n: m.rnn(pack(x, n, enforce_sorted=n.sum() > 3))[1][-1],
    "lengths as a state": lambda m, x, n: m.rnn(pack(x, n), n)[1][-1],
    "padding that is read": lambda m, x, n: m.two(m.out(x, n))[1][-1],
    "padding in the answer": lambda m, x, n: m.fc(m.two(m.out(x, n))[0]),
    "a head that is packed": lambda m, x, n: padded(pack(m.fc(m.out(x, n)), n))[0],
    "other padding": lambda m, x, n: m.out(x, n, padding_value=1.0),
    "low padding": lambda m, x, n: m.out(x, n, padding_value=-1e9).amax(1),
    "a constant length": lambda m, x, n: m.out(x, n, total_length=9),
    "the batch as a length": lambda m, x, n: m.out(x, n, total_length=x.size(0)),
    "the length of what was cut": lambda m, x, n: pad_packed_sequence(
        m.two(pack(m.out(x, n), n))[0], True, total_length=m.out(x, n).size(1)
    )[0],
    "the last column": lambda m, x, n: m.fc(m.out(x, n)[:, -1]),
    "the last but one": lambda m, x, n: m.fc(m.out(x, n)[torch.arange(x.size(0)), n - 2]),
    "batch and time swapped": lambda m, x, n: m.fc(m.out(x, n)[n - 1, torch.arange(x.size(0))]),
    "an index that is written to": lambda m, x, n: m.fc(m.out(x, n)[torch.arange(x.size(0)), filled(n)]),
    "mean over padding": lambda m, x, n: m.fc(m.out(x, n).mean(1)),
    "mean over padding as long as x": lambda m, x, n: m.fc(m.out(x, n, total_length=x.size(1)).mean(1)),
    "mean over -inf": lambda m, x, n: m.fc(m.out(x, n, padding_value=LOWEST).mean(1)),
    "maximum over zeros": lambda m, x, n: m.fc(m.out(x, n).max(1)[0]),
    "maximum behind a function": lambda m, x, n: m.out(x, n).relu().tanh().amax(1),
    "maximum of answers": lambda m, x, n: m.fc(m.out(x, n)).relu().amax(1),
    "sum of sigmoid(0)": lambda m, x, n: m.fc(m.out(x, n).sigmoid().sum(1)),
    "sum of answers": lambda m, x, n: m.fc(m.out(x, n)).sum(1) / n[:, None],
    "sum of scores": lambda m, x, n: m.out(x, n).softmax(-1).sum(1),
    "sum of -inf": lambda m, x, n: m.out(x, n, padding_value=LOWEST).sum(1),
    "-inf in a layer": lambda m, x, n: m.fc(m.out(x, n, padding_value=LOWEST)).amax(1),
    "-inf in a function": lambda m, x, n: m.out(x, n, padding_value=LOWEST).tanh().amax(1),
    "-inf in the answer": lambda m, x, n: m.out(x, n, padding_value=LOWEST),
    "sum by the longest": lambda m, x, n: m.out(x, n).sum(1) / m.out(x, n).size(1),
    "sum by the length of x": lambda m, x, n: m.out(x, n).sum(1) / x.size(1),
    "sum by a row": lambda m, x, n: m.out(x, n).sum(1) / n,
    "sum by three axes": lambda m, x, n: m.out(x, n).sum(1) / n[:, None][:, None],
    "sum by other lengths": lambda m, x, n: m.out(x, n).sum(1) / (n + 1)[:, None],
    "sum by longer lengths": lambda m, x, n: m.out(x, n).sum(1) / n.clamp(min=2)[:, None],
    "sum by cut lengths": lambda m, x, n: m.out(x, n).sum(1) / n.clamp(1, 2)[:, None],
    "sum by lengths in one byte": lambda m, x, n: m.out(x, n).sum(1) / n.to(torch.int8)[:, None],
    "sum by lengths in float64": lambda m, x, n: m.out(x, n).sum(1) / n.to(torch.float64)[:, None],
    "sum by lengths that are written to": lambda m, x, n: (
        m.out(x, n).sum(1) / raised(n.clamp(min=1))[:, None]
    ),
    "sum that is rounded": lambda m, x, n: torch.div(m.out(x, n).sum(1), n[:, None], rounding_mode="trunc"),
    "sum by lengths, channels first": lambda m, x, n: m.out(x, n).permute(2, 0, 1).sum(2) / n[:, None],
    "answers by lengths": lambda m, x, n: m.fc(m.out(x, n).sum(1)) / n[:, None],
    "mean twice": lambda m, x, n: m.out(x, n).sum(1) / n[:, None] / n[:, None],
    "never packed, by lengths": lambda m, x, n: m.fc(m.rnn(x)[0].sum(1) / n[:, None]),
    "sum beside the state": lambda m, x, n: (padded((out := m.rnn(pack(x, n)))[0])[0].sum(1), out[1]),
    "packed data": lambda m, x, n: m.fc(m.rnn(pack(x, n))[0].data),
    "a part of what is packed": lambda m, x, n: m.rnn(pack(x, n))[0][-1],
    "a layer on what is packed": lambda m, x, n: m.rnn(m.act(pack(x, n)))[1][-1],
    "packed as it is returned": lambda m, x, n: m.rnn(pack(x, n))[0],
    "packed beside the answer": lambda m, x, n: (
        m.fc(m.rnn(pack(x, n))[1][-1]),
        m.two(m.rnn(pack(x, n))[0])[0],
    ),
    "channels in the middle": lambda m, x, n: m.rnn(pack(x.transpose(1, 2), n))[1][-1],
    "never packed": lambda m, x, n: m.fc(padded(m.rnn(x)[0])[0]),
    "other data for the lengths": lambda m, x, n: m.rnn(pack(x, setattr(n, "data", n.clamp(min=2)) or n))[1][
        -1
    ],
}


@pytest.mark.parametrize("name", NOT_PACKED)
def test_packing_that_is_no_chain(name: str) -> None:
    """A chain would end sequences, or fill up behind them, in another way."""
    check_answers(Packs(NOT_PACKED[name]).eval(), torch.randn(3, 6, E), lengths=torch.tensor([5, 2, 1]))


class PacksIfAsked(Packs):
    def forward(self, x: Any, lengths: Any = None) -> Any:
        return self.rule(self, x, lengths)


def test_lengths_that_can_be_left_out() -> None:
    """Each way to call forward() is another function, perhaps."""

    def forward(m: Any, x: Any, lengths: Any) -> Any:
        return m.fc(m.rnn(x)[0] if lengths is None else m.out(x, lengths))

    def mean(m: Any, x: Any, n: Any) -> Any:
        return m.rnn(x)[0].mean(1) if n is None else m.out(x, n).sum(1) / n[:, None]

    def other(m: Any, x: Any, n: Any) -> Any:
        return m.fc(m.rnn(x)[0].relu() if n is None else m.out(x, n))

    x, lengths = torch.randn(3, 6, E), torch.tensor([5, 2, 1])
    for rule in (forward, mean, other):
        model = PacksIfAsked(rule).eval()
        engine = gw.Engine(model)
        torch.testing.assert_close(engine(x)[0], model(x))
        torch.testing.assert_close(engine(x, lengths)[0], model(x, lengths))
        pieces = [engine.step(x[:, t]) for t in range(6)]
        torch.testing.assert_close(pieces[-1], model(x) if rule is mean else model(x)[:, -1])


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.fc(m.rnn(x.to(torch.int32).float())[0]),
        lambda m, x: m.fc(m.rnn(x)[0]).to(torch.bool),
        lambda m, x: m.fc(m.rnn(x)[0]).to(dtype=torch.float64),
        lambda m, x: torch.softmax(m.fc(m.rnn(x)[0]), -1, dtype=torch.float64),
        lambda m, x: m.rnn(m.emb(x.to(torch.uint8)))[0],
        lambda m, x: m.rnn(m.emb(x))[0].to(x.dtype),
        lambda m, x: m.rnn(m.emb(x))[0].to(torch.zeros(1, dtype=torch.float16)).float(),
    ],
)
def test_a_cast_changes_numbers_as_it_does_in_torch(forward: Callable[..., Any]) -> None:
    """Or is refused, where it holds fewer of them."""
    torch.manual_seed(0)
    model = lstm_net(forward, emb=nn.Embedding(9, E)).eval()
    x = torch.randint(0, 9, (2, 5)) if "emb" in forward.__code__.co_names else 3 * torch.randn(2, 5, E)
    check_answers(model, x)


def test_a_cast_to_fewer_numbers_is_refused() -> None:
    with pytest.raises(ChainError, match=r"a cast to torch\.bfloat16 changes what it is given"):
        gw.Engine(lstm_net(lambda m, x: m.fc(m.rnn(x)[0].to(torch.bfloat16).float())))


def test_a_state_that_forward_keeps_is_refused() -> None:
    """The second call of such a model goes on from there; an engine would begin again."""

    def forward(m: Any, x: Any) -> Any:
        out, m.carried = m.rnn(x, m.carried)
        return m.fc(out)

    model = lstm_net(forward)
    model.carried = None
    with pytest.raises(
        ChainError, match="it stores a tensor of the call in carried, for the next call to read"
    ):
        chain_of(model)


def test_casts_that_change_nothing_are_no_links() -> None:
    def forward(m: Any, x: Any) -> Any:
        out = m.rnn(m.emb(x.to(x.device).to(torch.int32).to(torch.int64)))[0].to(torch.float32)
        return m.fc(out.to(out.dtype).to("cpu"))

    assert kinds(lstm_net(forward, emb=nn.Embedding(9, E))) == ["embedding", "recurrent", "linear"]


def test_dropout_that_evaluation_keeps_is_refused() -> None:
    """F.dropout is active unless it is told of the mode."""
    with pytest.raises(ChainError, match="it drops values in evaluation, too"):
        chain_of(lstm_net(lambda m, x: m.fc(F.dropout(m.rnn(x)[0], 0.5))))
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
        chain_of(two)
    check_answers(two, torch.randn(5, 2, E))


def test_the_last_step_is_taken_before_what_works_on_every_step() -> None:
    """So that a head reads one step and not all of them."""
    model = lstm_net(lambda m, x: m.fc(torch.relu(m.rnn(x)[0]))[:, -1])
    assert kinds(model) == ["recurrent", "last_step", "relu", "linear"]


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
def test_last_states_that_do_not_stand_side_by_side(join: Callable[..., Any]) -> None:
    """The engine hands them on as [forward, backward] of one layer."""
    layers = {name: nn.LSTM(E, H, bidirectional=True) for name in ("rnn", "two")}
    model = Net(lambda m, x: m.fc(join(m.rnn(x)[1][0], m.two(x)[1][0])), **layers, fc=nn.Linear(2 * H, 2))
    with pytest.raises(ChainError):
        chain_of(model)
    check_answers(model, torch.randn(5, 2, E))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.two(m.rnn(x)[0])[0],
        lambda m, x: m.cell(m.rnn(x)[0][:, -1]),
        lambda m, x: m.cell(m.wide(x[:, 0]), m.cell(m.wide(x[:, 1]))),
        lambda m, x: [m.cell(m.wide(x[:, t])) for t in range(x.size(1))],
        lambda m, x: m.gated(x, mask=x.new_zeros(2, 5).bool())[0],
        lambda m, x: m.rnn(F.one_hot(m.emb(x.long().abs()).long().abs(), E)[:, :, 0].float())[0],
    ],
    ids=["batch and time", "a cell", "steps written out", "a loop", "a mask", "one-hot of vectors"],
)
def test_layers_that_a_chain_cannot_hold(forward: Callable[..., Any]) -> None:
    layers = {
        "two": nn.GRU(H, H), "cell": nn.GRUCell(H, H), "gated": gw.nn.LSTM(E, H, batch_first=True),
        "wide": nn.Linear(E, H), "emb": nn.Embedding(9, E),
    }  # fmt: skip
    model = lstm_net(forward, **layers).eval()
    with pytest.raises(ChainError):
        chain_of(model)
    check_answers(model, torch.randn(2, 5, E))


def test_a_part_of_one_directions_state() -> None:
    both = Net(lambda m, x: m.rnn(x)[1][0][-1][:, 0:2], rnn=nn.LSTM(E, H, bidirectional=True))
    with pytest.raises(ChainError):
        chain_of(both)
    check_answers(both, torch.randn(5, 2, E))


@pytest.mark.parametrize("layer", [nn.Linear(E, H), nn.RNN(E, H), nn.LSTM(E, H, proj_size=2)])
def test_a_model_without_a_layer_of_gates_is_told_so(layer: nn.Module) -> None:
    """Alone, where tracing would stumble over its own code, or in a model; accelerate() could do nothing for it."""
    for model in (layer, nn.Sequential(layer)):
        with pytest.raises(ChainError, match=r"no LSTM or GRU layer .* not a chain of layers"):
            chain_of(model)
