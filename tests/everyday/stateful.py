"""States that forward() makes, takes or hands over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everyday.table import everyday, numbers, words


@everyday(words(2, 6, of=9), words(2, 4, of=8))
class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(9, 4)
        self.target = nn.Embedding(8, 3)
        self.encoder = nn.LSTM(4, 6, batch_first=True)
        self.decoder = nn.LSTM(3, 6, batch_first=True)
        self.fc = nn.Linear(6, 8)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        _, state = self.encoder(self.source(src))
        out, _ = self.decoder(self.target(tgt), state)
        return self.fc(out)


@everyday(numbers(2, 6, 3), numbers(2, 4, 2))
class HistoryAndFuture(nn.Module):
    """Forecasts: what is known of the future goes on from the state of the past."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(3, 5, num_layers=2, batch_first=True)
        self.decoder = nn.GRU(2, 5, num_layers=2, batch_first=True)
        self.fc = nn.Linear(5, 1)

    def forward(self, history: Tensor, future: Tensor) -> Tensor:
        _, hidden = self.encoder(history)
        out, _ = self.decoder(future, hidden)
        return self.fc(out).squeeze(-1)


@everyday(numbers(3, 6, 4))
class ZerosByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.num_layers = 5, 2
        self.lstm = nn.LSTM(4, 5, 2, batch_first=True)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(x.device)
        c0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(x.device)
        out, _ = self.lstm(x, (h0, c0))
        return self.fc(out[:, -1, :])


@everyday(numbers(3, 6, 4))
class LearnedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h0 = nn.Parameter(torch.zeros(1, 1, 5))
        self.c0 = nn.Parameter(torch.zeros(1, 1, 5))
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        b = x.size(0)
        state = (self.h0.expand(-1, b, -1).contiguous(), self.c0.repeat(1, b, 1))
        out, _ = self.rnn(x, state)
        return self.fc(out)


@everyday(numbers(3, 6, 4), numbers(3, 2))
class StateFromStatic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.init = nn.Linear(2, 5)
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor, static: Tensor) -> Tensor:
        h0 = torch.tanh(self.init(static)).unsqueeze(0)
        out, _ = self.rnn(x, h0)
        return self.fc(out)


@everyday(numbers(3, 4), numbers(3, 5))
class OneStepOfCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(x, h)
        return self.fc(h), h


@everyday(words(2, 6, of=9), (numbers(2, 2, 5), numbers(2, 2, 5)))
class StateInAndOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 4)
        self.rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(5)
        self.fc = nn.Linear(5, 9)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, state = self.rnn(self.emb(tokens), state)
        return self.fc(self.norm(out) + out), state


@everyday(numbers(2, 6, 4))
class BridgedStates(nn.Module):
    """Both directions of an encoder are mixed into the first state of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(10, 6)
        self.decoder = nn.GRU(10, 6, batch_first=True)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, h = self.encoder(x)
        h = torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=-1))).unsqueeze(0)
        out, h = self.decoder(out, h)
        return self.fc(torch.relu(out))
