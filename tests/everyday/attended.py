"""Attention: over the steps of one sequence, between two, and gates over channels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyday.table import everyday, numbers, words


@everyday(words(3, 6, of=11))
class AttentionPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.score = nn.Linear(6, 1)
        self.fc = nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.rnn(self.emb(tokens))
        weights = torch.softmax(self.score(out), dim=1)
        return self.fc((weights * out).sum(dim=1))


@everyday(numbers(3, 6, 4))
class AdditiveAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(10, 7)
        self.query = nn.Parameter(torch.randn(7))
        self.fc = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = self.rnn(x)
        scores = torch.tanh(self.proj(out)) @ self.query
        alpha = F.softmax(scores, dim=-1)
        context = torch.bmm(alpha.unsqueeze(1), out).squeeze(1)
        return self.fc(context), alpha


@everyday(numbers(3, 6, 4))
class AttentionByState(nn.Module):
    """Scores of every step against the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        output, (final, _) = self.lstm(x)
        hidden = final.squeeze(0)
        weights = torch.bmm(output, hidden.unsqueeze(2)).squeeze(2)
        soft = F.softmax(weights, 1)
        context = torch.bmm(output.transpose(1, 2), soft.unsqueeze(2)).squeeze(2)
        return self.fc(context)


@everyday(words(2, 6, of=9), words(2, 4, of=8))
class AttentionBetween(nn.Module):
    """An encoder, a decoder that starts from its state, and attention between their answers."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(9, 4)
        self.target = nn.Embedding(8, 3)
        self.encoder = nn.GRU(4, 6, batch_first=True)
        self.decoder = nn.GRU(3, 6, batch_first=True)
        self.fc = nn.Linear(12, 8)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory, h = self.encoder(self.source(src))
        out, _ = self.decoder(self.target(tgt), h)
        scores = torch.bmm(out, memory.transpose(1, 2)) / math.sqrt(out.size(-1))
        context = torch.bmm(torch.softmax(scores, dim=-1), memory)
        return self.fc(torch.cat([out, context], dim=-1))


@everyday(numbers(2, 5, 6))
class SelfAttention(nn.Module):
    """Two heads of scaled dot products over what the layer says."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, batch_first=True)
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
        self.v = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        b, t, _ = out.shape
        q, k, v = (layer(out).view(b, t, 2, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attention = torch.softmax(q @ k.transpose(-2, -1) * 0.5, dim=-1)
        mixed = (attention @ v).transpose(1, 2).reshape(b, t, 8)
        return self.norm(out + mixed)


@everyday(numbers(2, 6, 3))
class ByEinsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 5, batch_first=True)
        self.queries = nn.Parameter(torch.randn(2, 5))

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        scores = torch.einsum("bth,qh->bqt", out, self.queries).softmax(dim=-1)
        return torch.einsum("bqt,bth->bqh", scores, out).flatten(1)


@everyday(numbers(2, 7, 4))
class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.down = nn.Linear(6, 3)
        self.up = nn.Linear(3, 6)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        scale = torch.sigmoid(self.up(torch.relu(self.down(out.mean(dim=1)))))
        return self.fc(out * scale.unsqueeze(1))
