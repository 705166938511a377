"""The networks of the inference benchmarks: random weights in exactly the structures of the paper's W+G+N rows.

    dense       every size as before sparsification, zeros in the row's structure
    shrunk      removed neurons cut out, constant gates kept as zero rows: what neuron removal alone gives
    unfolded    the shrunk one with weights in those rows that are too small to matter, so that nothing folds

All three compute the same function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gatewise as gw


@dataclass(frozen=True)
class Row:
    """A W+G+N row of the paper: sizes before, and what is kept."""

    name: str
    words: int  # 0: vectors come in
    size: int  # of the first layer's input
    hidden: int
    neurons: tuple[int, ...]
    gates: tuple[int, ...]
    steps: int
    outputs: int
    kept_words: int = 0
    kept_inputs: int = 0  # 0: all
    classifies: bool = False  # answers at the last step
    hard: bool = False  # hard-sigmoid gates


ROWS = (
    Row(
        "IMDb", 20003, 300, 128, (4,), (6,), 200, 1, kept_words=305, kept_inputs=1, classifies=True, hard=True
    ),
    Row(
        "AGNews",
        20003,
        300,
        512,
        (14,),
        (39,),
        100,
        4,
        kept_words=2295,
        kept_inputs=46,
        classifies=True,
        hard=True,
    ),
    Row("char PTB", 0, 50, 1000, (404,), (1563,), 99, 50),
    Row("word small Bayes", 10000, 200, 200, (52, 108), (197, 349), 35, 10000),
    Row("word small pruned", 10000, 200, 200, (64, 115), (193, 442), 35, 10000),
    Row("word large", 10000, 1500, 1500, (252, 394), (881, 1418), 35, 10000),
)


class Net(nn.Module):
    """Embedding, one recurrent layer after the other, the last layer with its softmax; `part` says what of it."""

    def __init__(self, row: Row, size: int, widths: tuple[int, ...], part: str) -> None:
        super().__init__()
        self.classifies, self.outputs = row.classifies, row.outputs
        self.emb = nn.Embedding(row.words, size) if row.words and part != "recurrent" else None
        make = partial(gw.nn.LSTM, gate_activation="hard_sigmoid") if row.hard else nn.LSTM
        self.rnns = nn.ModuleList(make(i, o) for i, o in zip((size, *widths), widths))
        self.fc = nn.Linear(widths[-1], row.outputs) if part == "whole" else None

    def forward(self, x: Tensor, states: Any = None) -> Any:
        x = x if self.emb is None else self.emb(x)
        lasts = []
        for rnn, first in zip(self.rnns, self.firsts(states)):
            x, last = rnn(x, first)
            lasts.append(last)
        if self.fc is None:
            return x, lasts
        y = self.fc(x[-1] if self.classifies else x)
        y = torch.sigmoid(y) if self.outputs == 1 else torch.softmax(y, -1)
        return y, lasts

    def firsts(self, states: Any) -> Any:
        """One for every layer; taken apart, so that a recording sees how many there are."""
        if states is None:
            return [None] * len(self.rnns)
        if len(self.rnns) == 1:
            (one,) = states
            return [one]
        one, two = states
        return [one, two]


@dataclass
class Networks:
    """The dense network with zeros in the row's structure, and the shrunk one: the same function."""

    dense: Net
    shrunk: Net
    unfolded: (
        Net  # the shrunk one, its constant gates given weights too small to matter, so that nothing folds
    )
    neurons: Tensor  # kept in the last layer
    inputs: Tensor
    words: Tensor

    def read(self, answer: Any) -> Any:
        """The kept channels of the dense network's answer."""
        first = np.asarray(answer[0])
        return first if self.dense.fc is not None else first[..., self.neurons.numpy()]


def networks(row: Row, part: str, generator: torch.Generator) -> Networks:
    def some(n: int, k: int) -> Tensor:
        return torch.randperm(n, generator=generator)[:k].sort().values

    inputs = some(row.size, row.kept_inputs or row.size)
    words = some(row.words, row.kept_words or row.words)
    dense = Net(row, row.size, (row.hidden,) * len(row.neurons), part).eval()
    shrunk, unfolded = (Net(row, len(inputs), row.neurons, part).eval() for _ in range(2))
    with torch.no_grad():
        for p in dense.parameters():
            size = p.shape[1] if p.dim() == 2 else 1
            p.copy_(torch.randn(p.shape, generator=generator) / max(size, 1) ** 0.5)
        if dense.emb is not None:
            keep = torch.zeros(row.words, 1).index_fill_(0, words, 1)
            dense.emb.weight.mul_(keep)
            for net in (shrunk, unfolded):
                net.emb.weight.copy_(dense.emb.weight[:, inputs])
        below = inputs
        for k, (kept, live) in enumerate(zip(row.neurons, row.gates)):
            neurons = some(row.hidden, kept)
            rows = (torch.arange(4)[:, None] * row.hidden + neurons).flatten()
            alive = live_gates(kept, live, generator)
            cut(dense.rnns[k], rows[~alive], below, neurons)
            for net, least in ((shrunk, 0.0), (unfolded, 1e-20)):
                copy_rows(dense.rnns[k], net.rnns[k], rows, below, neurons, ~alive, least)
            below = neurons
        if dense.fc is not None:
            unread = torch.ones(row.hidden).index_fill_(0, below, 0).bool()
            dense.fc.weight[:, unread] = 0
            for net in (shrunk, unfolded):
                net.fc.weight.copy_(dense.fc.weight[:, below])
                net.fc.bias.copy_(dense.fc.bias)
    return Networks(dense, shrunk, unfolded, below, inputs, words)


def live_gates(neurons: int, live: int, generator: torch.Generator) -> Tensor:
    """Output gates first, as in the paper's models, the rest at random."""
    order = torch.cat(
        [torch.arange(3 * neurons, 4 * neurons), torch.randperm(3 * neurons, generator=generator)]
    )
    return torch.zeros(4 * neurons, dtype=torch.bool).index_fill_(0, order[:live], True)


def cut(rnn: nn.Module, constant: Tensor, inputs: Tensor, neurons: Tensor) -> None:
    for weight, read in ((rnn.weight_ih_l0, inputs), (rnn.weight_hh_l0, neurons)):
        keep = torch.zeros(weight.shape[1]).index_fill_(0, read, 1)
        weight.mul_(keep)
        weight[constant] = 0


def copy_rows(
    dense: nn.Module,
    small: nn.Module,
    rows: Tensor,
    inputs: Tensor,
    neurons: Tensor,
    constant: Tensor,
    least: float,
) -> None:
    small.weight_ih_l0.copy_(dense.weight_ih_l0[rows][:, inputs])
    small.weight_hh_l0.copy_(dense.weight_hh_l0[rows][:, neurons])
    for name in ("bias_ih_l0", "bias_hh_l0"):
        getattr(small, name).copy_(getattr(dense, name)[rows])
    for weight in (small.weight_ih_l0, small.weight_hh_l0):
        weight[constant] = least


def thick(net: Net) -> Net:
    """The dense network with no exact zero left, so that its export stays dense; the answer is the same."""
    with torch.no_grad():
        for p in net.parameters():
            p[p == 0] = 1e-20
    return net


def check_counts(compact: nn.Module, row: Row) -> None:
    layers = [layer for rnn in compact.rnns for layer in rnn.layers]
    counts = tuple(layer.kept for layer in layers), tuple(len(layer.slots) for layer in layers)
    assert counts == (row.neurons, row.gates), counts
