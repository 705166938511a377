"""Values that meet: residuals, skips, several inputs, several answers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyday.table import everyday, numbers, words


@everyday(numbers(3, 5, 4))
class ResidualSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out + x)


@everyday(numbers(3, 5, 4))
class InputSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.fc = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(torch.cat([out, x], dim=-1))


@everyday(words(3, 6, of=11))
class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 5)
        self.rnn = nn.LSTM(5, 7, batch_first=True)
        self.intent = nn.Linear(7, 3)
        self.slots = nn.Linear(7, 4)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        out, (h, _) = self.rnn(self.emb(tokens))
        return self.intent(h[-1]), self.slots(out)


@everyday(numbers(2, 6, 3))
class HeadsByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 6, num_layers=2, batch_first=True)
        self.heads = nn.ModuleDict({"price": nn.Linear(6, 1), "volume": nn.Linear(6, 2)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out, _ = self.rnn(x)
        return {name: head(out[:, -1]) for name, head in self.heads.items()}


class Forecast(NamedTuple):
    mean: Tensor
    deviation: Tensor


@everyday(numbers(3, 7, 2))
class MeanAndDeviation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 6, batch_first=True)
        self.mu = nn.Linear(6, 1)
        self.sigma = nn.Linear(6, 1)

    def forward(self, series: Tensor) -> Forecast:
        out, _ = self.lstm(series)
        mean = self.mu(out).squeeze(-1)
        deviation = nn.functional.softplus(self.sigma(out)).squeeze(-1) + 1e-3
        return Forecast(mean, deviation)


@everyday(words(3, 5, of=13), words(3, 5, of=6))
class WordsAndTags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_emb = nn.Embedding(13, 5)
        self.tag_emb = nn.Embedding(6, 2)
        self.rnn = nn.LSTM(7, 6, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(12, 4)

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        x = torch.cat((self.word_emb(words), self.tag_emb(tags)), dim=2)
        out, _ = self.rnn(x)
        return self.fc(out)


@everyday(numbers(3, 5, 4), numbers(3, 2))
class StaticBeside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.fc1 = nn.Linear(8, 5)
        self.fc2 = nn.Linear(5, 1)

    def forward(self, x: Tensor, static: Tensor) -> Tensor:
        _, (h_n, _) = self.rnn(x)
        joint = torch.cat([h_n[-1], static], dim=1)
        return torch.sigmoid(self.fc2(torch.relu(self.fc1(joint))))


@everyday(numbers(3, 5, 4), numbers(3, 2))
class StaticAtEveryStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(2, 4)
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor, static: Tensor) -> Tensor:
        out, _ = self.rnn(x + self.project(static).unsqueeze(1))
        return self.fc(out)


@everyday(numbers(3, 5, 4), numbers(3, 2))
class StaticRepeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 5, batch_first=True)
        self.fc = nn.Linear(5, 1)

    def forward(self, x: Tensor, static: Tensor) -> Tensor:
        repeated = static.unsqueeze(1).expand(-1, x.size(1), -1)
        out, _ = self.rnn(torch.cat([x, repeated], dim=-1))
        return self.fc(out[:, -1, :])


@everyday(numbers(2, 6, 3))
class SkipAcrossLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(3, 5, batch_first=True)
        self.second = nn.LSTM(5, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, _ = self.first(x)
        b, _ = self.second(a)
        return self.fc(a + b)


@everyday(numbers(2, 6, 3))
class WeightedLayers(nn.Module):
    """A learned mixture of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(3, 5, batch_first=True)
        self.second = nn.GRU(5, 5, batch_first=True)
        self.mix = nn.Parameter(torch.zeros(2))
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, _ = self.first(x)
        b, _ = self.second(a)
        weights = torch.softmax(self.mix, dim=0)
        return self.fc(weights[0] * a + weights[1] * b)


@everyday(numbers(2, 6, 5))
class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 5, batch_first=True)
        self.gate = nn.Linear(5, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        g = torch.sigmoid(self.gate(x))
        return self.fc(g * out + (1 - g) * x)


@everyday(numbers(3, 4, 5))
class StackedAnswers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 6, batch_first=True)
        self.low = nn.Linear(6, 2)
        self.high = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return torch.stack([self.low(out), self.high(out)], dim=-1)


@everyday(words(2, 6, of=9))
class TiedWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 5)
        self.rnn = nn.LSTM(5, 5, num_layers=2, batch_first=True, dropout=0.2)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(5, 9)
        self.fc.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.rnn(self.drop(self.emb(tokens)))
        return torch.log_softmax(self.fc(self.drop(out)) * 0.5, dim=-1)


@everyday(words(2, 6, of=9))
class TiedByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 5)
        self.rnn = nn.GRU(5, 5, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(9))

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.rnn(self.emb(tokens))
        return nn.functional.linear(out, self.emb.weight, self.bias)


@everyday(numbers(2, 6, 3))
class Siblings(nn.Module):
    """Two recurrent layers side by side, fast and slow."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.fc = nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        fast, _ = self.lstm(x)
        slow, _ = self.gru(x)
        return self.fc(torch.cat([fast[:, -1], slow[:, -1]], dim=1))


@everyday(words(3, 5, of=12), words(3, 4, of=12))
class Siamese(nn.Module):
    """One encoder reads two texts."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, 4)
        self.rnn = nn.LSTM(4, 6, batch_first=True)

    def encode(self, tokens: Tensor) -> Tensor:
        _, (h, _) = self.rnn(self.emb(tokens))
        return h[-1]

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.exp(-torch.sum(torch.abs(self.encode(left) - self.encode(right)), dim=1))
