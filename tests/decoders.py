"""Random models that read words and answer with symbols, reading their own answers."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from everyday.table import thinned
from hypothesis import assume
from hypothesis import strategies as st
from networks import OURS, TORCH
from torch import Tensor, nn

import gatewise as gw

WAYS = ("plain", "bridge", "both ways", "learned", "tied", "attention")
SYMBOLS, START, END = 7, 1, 2


class Speller(nn.Module):
    """Letters (B, T) -> symbols (B, longest); with `targets`, scores of every step behind given symbols."""

    def __init__(
        self, way: str, cell: str, hidden: int, layers: int, own: bool, batch_first: bool, longest: int
    ) -> None:
        super().__init__()
        self.way, self.batch_first, self.longest = way, batch_first, longest
        kind: Any = (OURS if own else TORCH)[cell]
        width = hidden if way == "tied" else 3
        both = way == "both ways" or (way == "attention" and hidden % 2 == 0)
        self.letters = nn.Embedding(9, 4)
        self.encoder = kind(4, hidden, layers, batch_first=batch_first, bidirectional=both)
        self.bridge = nn.Linear(hidden, hidden) if way == "bridge" else None
        self.first = nn.Parameter(torch.zeros(layers, 1, hidden)) if way == "learned" else None
        self.phones = nn.Embedding(SYMBOLS, width)
        self.decoder = kind(width, hidden, layers, batch_first=batch_first)
        self.fc = nn.Linear(hidden, SYMBOLS)
        if way == "tied":
            self.fc.weight = self.phones.weight
        if way == "attention":
            self.query, read = nn.Linear(hidden, 3, bias=layers == 1), hidden * (1 + both)
            self.key, self.vote = nn.Linear(read, 3), nn.Linear(read, SYMBOLS)

    def state(self, words: Tensor) -> Any:
        return self.read(words)[1]

    def read(self, words: Tensor) -> tuple[Tensor, Any]:
        x = self.letters(words)
        y, last = self.encoder(x if self.batch_first else x.transpose(0, 1))
        state = tuple(map(self.crossed, last)) if isinstance(last, tuple) else self.crossed(last)
        return y if self.batch_first else y.transpose(0, 1), state

    def crossed(self, state: Tensor) -> Tensor:
        if self.encoder.bidirectional:
            return state[::2] + state[1::2]
        if self.bridge is not None:
            return torch.tanh(self.bridge(state))
        return state if self.first is None else state + self.first

    def forward(self, words: Tensor, targets: Tensor | None = None) -> Tensor:
        seen, state = self.read(words)
        attention = None
        if self.way == "attention":
            attention = gw.nn.Attention(self.query, self.key(seen), self.vote(seen))
        if targets is not None:
            x = self.phones(targets)
            y = self.decoder(x if self.batch_first else x.transpose(0, 1), state)[0]
            y = y if self.batch_first else y.transpose(0, 1)
            scores: Tensor = self.fc(y)
            return scores if attention is None else scores + attention(y)
        return gw.nn.greedy_decode(
            self.phones, self.decoder, self.fc, state, start=START, end=END, longest=self.longest,
            attention=attention,
        )  # fmt: skip


class Reader(nn.Module):
    """What a Speller has read: the first state of its decoder, and with attention keys and votes."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, words: Tensor) -> tuple[Any, ...]:
        seen, state = self.whole.read(words)
        looks = self.whole.way == "attention"
        return (state, self.whole.key(seen), self.whole.vote(seen)) if looks else (state,)


class Step(nn.Module):
    """One step of its decoder, as one writes it: the symbols behind these, and the next state."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(
        self, symbols: Tensor, state: Any, keys: Tensor | None = None, votes: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        whole = self.whole
        x = whole.phones(symbols)
        y, state = whole.decoder(x[:, None] if whole.batch_first else x[None], state)
        y = y if whole.batch_first else y.transpose(0, 1)
        scores = whole.fc(y)
        if keys is not None:
            scores = scores + (whole.query(y) @ keys.mT).softmax(-1) @ votes
        return scores[:, 0].argmax(-1), state


def speller(**changed: Any) -> Speller:
    torch.manual_seed(0)
    usual = {"way": "plain", "cell": "GRU", "hidden": 6, "layers": 1, "own": False, "batch_first": True}
    model = Speller(**(usual | {"longest": 6} | changed)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.9)
    return model


@dataclass(frozen=True)
class Case:
    """A model with zeros, words, and what it answers."""

    model: Speller
    words: Tensor
    answer: Tensor

    @property
    def small(self) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gw.compress(self.model)


@st.composite
def spellers(draw: st.DrawFn, way: str | None = None) -> Case:
    """Models whose answers no rounding changes."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    model = Speller(
        draw(st.sampled_from(WAYS)) if way is None else way,
        draw(st.sampled_from(("GRU", "LSTM"))),
        hidden=draw(st.integers(1, 9)),
        layers=draw(st.integers(1, 2)),
        own=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        longest=draw(st.integers(1, 9)),
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.9)
        thinned(model, seed=draw(st.integers(0, 99)))
        if draw(st.booleans()):
            model.phones.weight[draw(st.integers(0, SYMBOLS - 1))] = 0
        if draw(st.booleans()):
            model.fc.bias[draw(st.integers(0, SYMBOLS - 1))] = 0
        words = torch.randint(9, (draw(st.integers(1, 5)), draw(st.integers(1, 6))))
        answer = model(words)
        assume(margin(model, words, answer) > 1e-3)
    return Case(model, words, answer)


@torch.no_grad()
def margin(model: Speller, words: Tensor, answer: Tensor) -> float:
    """By how much the best symbol beats the second, where that matters: up to the first end of each answer."""
    exact = copy.deepcopy(model).double()
    given = torch.cat([torch.full_like(answer[:, :1], START), answer[:, :-1]], 1)
    best, second = exact(words, given).topk(2, -1).values.unbind(-1)
    asked = torch.cat([torch.zeros_like(answer[:, :1]), (answer == END)[:, :-1].long()], 1).cumsum(1) == 0
    return float((best - second)[asked].min())
