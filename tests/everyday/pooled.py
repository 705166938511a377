"""Whole sequences in one vector: means, maxima, last steps and states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyday.table import everyday, numbers, words


@everyday(words(3, 6, of=11))
class MeanAndMax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)
        self.rnn = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(20, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.rnn(self.emb(tokens))
        avg_pool = torch.mean(out, 1)
        max_pool, _ = torch.max(out, 1)
        return self.fc(torch.cat([avg_pool, max_pool], 1))


@everyday(words(3, 6, of=11))
class MaxOfBothDirections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)
        self.rnn = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(10, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.rnn(self.emb(tokens))
        pooled = F.max_pool1d(out.permute(0, 2, 1), out.size(1)).squeeze(2)
        return self.fc(pooled)


@everyday(numbers(3, 5, 4))
class AdaptiveMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(self.pool(out.transpose(1, 2)).flatten(1))


@everyday(numbers(3, 5, 4))
class SqueezedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, h_n = self.rnn(x)
        return self.fc(h_n.squeeze(0))


@everyday(numbers(3, 5, 4))
class LastStateOfLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.fc = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, (h_n, _) = self.rnn(x)
        return self.fc(F.relu(h_n[-1])).view(-1)


@everyday(words(3, 6, of=10))
class StatesOfBothDirections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 3)
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(10, 2)

    def forward(self, text: Tensor) -> Tensor:
        embedded = self.dropout(self.emb(text))
        _, (hidden, _cell) = self.lstm(embedded)
        hidden = self.dropout(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))
        return self.fc(hidden)


@everyday(numbers(3, 5, 4))
class StateAndCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.rnn(x)
        return self.fc(torch.cat([h[0], c[0]], dim=-1))


@everyday(numbers(3, 6, 2))
class LastStepKept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(2, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out[:, -1:])


@everyday(numbers(4, 3, 2))
class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(2, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return F.log_softmax(self.fc(out[-1]), dim=1)


@everyday(numbers(3, 6, 4))
class FirstAndLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        forward, backward = out.chunk(2, dim=-1)
        return self.fc(torch.cat([forward[:, -1], backward[:, 0]], dim=-1))


@everyday(numbers(3, 6, 4))
class DirectionsAdded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        out = out[:, :, :5] + out[:, :, 5:]
        return self.fc(torch.tanh(out)).mean(dim=1)


@everyday(numbers(3, 6, 4))
class LayersSeparated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.layers = 5, 2
        self.rnn = nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.rnn(x)
        h = h.view(self.layers, 2, x.size(0), self.hidden)[-1]
        return self.fc(h.transpose(0, 1).reshape(x.size(0), -1))
