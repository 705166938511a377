"""Which models are chains of layers, and which only look like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import Net
from torch import nn

from gatewise.runtime.chain import ChainError, find_chain

E, H = 3, 4


def made(forward: Callable[..., Any], **layers: nn.Module) -> nn.Module:
    return Net(forward, rnn=nn.LSTM(E, H, batch_first=True), fc=nn.Linear(H, 2), **layers)


def kinds(model: nn.Module) -> list[str]:
    return [step.name if step.kind == "pointwise" else step.kind for step in find_chain(model).steps]


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
    model = made(forward, act=nn.ReLU(inplace=True))
    assert kinds(model) == ["recurrent", "relu", "linear"]


def test_a_view_of_what_was_overwritten_is_refused() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        last = out[:, -1]
        out.relu_()
        return m.fc(last)

    with pytest.raises(ChainError, match=r"relu_: it overwrites a tensor"):
        find_chain(made(forward))


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


def test_another_function_without_a_state_is_refused() -> None:
    with pytest.raises(ChainError, match="another function when it is called without state"):
        find_chain(AnotherFunction())


def test_the_branch_of_training_is_not_taken() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        return m.fc(out.tanh() if m.training else out)

    model = made(forward).train()
    assert kinds(model) == ["recurrent", "linear"]
    assert model.training


def test_a_hook_is_refused() -> None:
    model = made(lambda m, x: m.fc(m.rnn(x)[0]))
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

    with pytest.raises(ChainError, match=r"take lengths= instead"):
        find_chain(Packs())
