"""Ways in which models hand neurons on, written as functions of a network's layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from networks import Net
from torch import Tensor, nn

import gatewise as gw

T, B, V, E, H = 5, 3, 7, 3, 4
LENGTHS = torch.tensor([5, 2, 4])
TURNED = torch.tensor([3, 0, 1, 2])

Make = Callable[[], nn.Module]


def ids() -> Tensor:
    return torch.randint(V, (T, B))


def texts() -> Tensor:
    return torch.randn(T, B, E)


emb: Make = partial(nn.Embedding, V, E)
lstm: Make = partial(nn.LSTM, E, H)
gru: Make = partial(nn.GRU, E, H)
bidirectional: Make = partial(nn.LSTM, E, H, bidirectional=True)


def linear(width: int = H, outputs: int = 2) -> Make:
    return partial(nn.Linear, width, outputs)


class Pattern(NamedTuple):
    build: Make
    exposed: set[str] = {"fc"}  # noqa: RUF012  (never changed)
    x: Callable[[], Any] = ids


def made(
    forward: Callable[..., Any],
    *exposed: str,
    x: Callable[[], Any] = texts,
    net: type[Net] = Net,
    **layers: Make,
) -> Pattern:
    """Every test builds the layers anew, from its own seed. `fc` gives the answer: it is always exposed."""
    return Pattern(
        lambda: net(forward, **{name: make() for name, make in layers.items()}), {"fc", *exposed}, x
    )


def words(forward: Callable[..., Any], *exposed: str, net: type[Net] = Net, **layers: Make) -> Pattern:
    """Layers emb, rnn and fc, and others that are named."""
    return made(forward, *exposed, x=ids, net=net, **{"emb": emb, "rnn": lstm, "fc": linear()} | layers)


def numbers(
    forward: Callable[..., Any], *exposed: str, x: Callable[[], Any] = texts, **layers: Make
) -> Pattern:
    """Layers rnn, a GRU, and fc, and others that are named."""
    return made(forward, *exposed, x=x, **{"rnn": gru, "fc": linear()} | layers)


def head(rule: Callable[..., Any], *exposed: str, rnn: Make = lstm, width: int = H) -> Pattern:
    """emb -> rnn -> rule(output) -> fc"""
    return words(lambda m, x: m.fc(rule(m.rnn(m.emb(x))[0])), *exposed, rnn=rnn, fc=linear(width))


def state_head(rule: Callable[..., Any], *exposed: str, rnn: Make = lstm, width: int = H) -> Pattern:
    """emb -> rnn -> rule(h_n) -> fc"""

    def forward(m: Any, x: Any) -> Any:
        _, state = m.rnn(m.emb(x))
        return m.fc(rule(state[0] if isinstance(m.rnn, nn.LSTM | gw.nn.LSTM) else state))

    return words(forward, *exposed, rnn=rnn, fc=linear(width))


def two_heads(rule: Callable[[Any, Any], Any], *exposed: str) -> Pattern:
    """rnn and top side by side, their outputs joined by a rule, read by fc"""
    return made(lambda m, x: m.fc(rule(m.rnn(x)[0], m.top(x)[0])), *exposed, rnn=lstm, top=gru, fc=linear())
