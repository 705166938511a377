"""Functions and classes that pack sequences, in a file of their own, with the names imported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence as pack
from torch.nn.utils.rnn import pad_packed_sequence


def last_states(rnn: Any, x: Tensor) -> Tensor:
    ends = torch.full((x.size(0),), x.size(1))
    _, h_n = rnn(pack(x, ends, batch_first=True, enforce_sorted=False))
    return h_n[-1]


class Base(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(3, hidden, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.full((x.size(0),), x.size(1))
        out, _ = self.rnn(pack(x, ends, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(out, batch_first=True, total_length=x.size(1))[0]


class Inherited(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(super().forward(x))


def inherited(hidden: int) -> Any:
    return Inherited(hidden).eval()
