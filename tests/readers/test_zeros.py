"""Whether a unit that is always zero reaches its reader as zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from everyday_patterns import EVERYDAY
from networks import Net
from patterns import LENGTHS, E, H, V
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatewise.readers import find_readers


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("relu", True),
        ("tanh", True),
        ("sigmoid", False),
        ("masked max", False),
        ("max pooling", True),
        ("one reader, two ways", False),
        ("residual sum", False),
    ],
)
def test_zero_stays_zero_or_not(name: str, keeps: bool) -> None:
    """A unit that is always zero reaches a reader as zero through relu, and as 0.5 through a sigmoid."""
    graph = find_readers(EVERYDAY[name].build())
    assert {read.keeps_zero for read in graph.reads_by("fc.weight")} == {keeps}


@pytest.mark.parametrize(
    ("rule", "keeps"),
    [
        (lambda h: 2 * h, True),
        (lambda h: h / 3, True),
        (lambda h: h - 3, False),
        (lambda h: 3 / (h + 2), False),
        (lambda h: 3 / h, False),
        (lambda h: h.logsumexp(0), False),
        (lambda h: h.softmax(0), False),
        (lambda h: h.clamp(0.5, 1), False),
        (lambda h: h.cos(), False),
        (lambda h: h.masked_fill(h > 9, 0.0), True),
        (lambda h: h.masked_fill(h > 9, 1.0), False),
        (lambda h: h.amax(0), True),
    ],
)
def test_only_factors_and_dividends_keep_zero(rule: Callable[[Any], Any], keeps: bool) -> None:
    """A neuron that is always zero may be dropped from what multiplies it, never from what divides by it."""
    model = Net(lambda m, x: m.fc(rule(m.rnn(x)[0])), rnn=nn.LSTM(E, H), fc=nn.Linear(H, V))
    assert [read.keeps_zero for read in find_readers(model).reads if read.matrix == "fc.weight"] == [keeps]


@pytest.mark.parametrize(
    ("act", "keeps"), [(nn.Hardtanh(0.2, 1.0), False), (nn.Hardtanh(), True), (nn.BatchNorm1d(H), False)]
)
def test_a_layer_may_move_zero(act: nn.Module, keeps: bool) -> None:
    model = Net(lambda m, x: m.fc(m.act(m.rnn(x)[0][-1])), rnn=nn.LSTM(E, H), act=act, fc=nn.Linear(H, 2))
    assert [read.keeps_zero for read in find_readers(model).reads_by("fc.weight")] == [keeps]


class Padded(nn.Module):
    def __init__(self, padding: float) -> None:
        super().__init__()
        self.rnn, self.fc, self.padding = nn.LSTM(E, H), nn.Linear(H, 2), padding

    def forward(self, x: Any) -> Any:
        packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        return self.fc(pad_packed_sequence(self.rnn(packed)[0], padding_value=self.padding)[0])


@pytest.mark.parametrize(("padding", "keeps"), [(0.0, True), (1.0, False)])
def test_padding_may_move_zero(padding: float, keeps: bool) -> None:
    """A neuron that is always zero is 1 in the padding, if that is what it is padded with."""
    found = find_readers(Padded(padding)).reads_by("fc.weight")
    assert [read.keeps_zero for read in found] == [keeps]


def one_more(m: Any, h: Any) -> Any:
    name = h
    h += 1
    return name


@pytest.mark.parametrize(
    "rule",
    [
        one_more,
        lambda m, h: (h.sigmoid_(), h)[1],
        lambda m, h: (m.act(h), h)[1],
        lambda m, h: (F.hardtanh(h, 0.2, 1.0, inplace=True), h)[1],
        lambda m, h: (h.clamp_(0.2, 1.0), h)[1],
    ],
)
def test_what_is_written_in_place_shows_under_the_old_name(rule: Callable[[Any, Any], Any]) -> None:
    act = nn.Hardtanh(0.2, 1.0, inplace=True)
    model = Net(lambda m, x: m.fc(rule(m, m.rnn(x)[0])), rnn=nn.LSTM(E, H), act=act, fc=nn.Linear(H, 2))
    assert [read.keeps_zero for read in find_readers(model).reads_by("fc.weight")] == [False]
