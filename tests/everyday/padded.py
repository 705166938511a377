"""Sequences of several lengths: packed, masked, or read at their ends."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from everyday.table import everyday, lengths, numbers, words


@everyday(words(3, 6, of=11), lengths(4, 6, 2))
class PackedStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4, padding_idx=0)
        self.rnn = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(10, 2)

    def forward(self, text: Tensor, text_lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.emb(text), text_lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.rnn(packed)
        return self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1))


@everyday(numbers(3, 6, 4), lengths(4, 6, 2))
class PackedTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, num_layers=2, batch_first=True)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.size(1))
        return self.fc(out)


@everyday(numbers(3, 6, 4), lengths(4, 6, 2))
class PackedResidualMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        out = self.norm(out + x[:, : out.size(1)])
        mask = torch.arange(out.size(1))[None, :] < lengths[:, None]
        out = out.masked_fill(~mask.unsqueeze(-1), 0.0)
        return self.fc(out.sum(1) / lengths.unsqueeze(1))


@everyday(numbers(3, 6, 4), lengths(4, 6, 2))
class MaskedMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        mask = (torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)).float().unsqueeze(-1)
        return self.fc((out * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))


@everyday(words(3, 6, of=11), lengths(4, 6, 2))
class MaskedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.score = nn.Linear(6, 1, bias=False)
        self.fc = nn.Linear(6, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        out, _ = self.rnn(self.emb(tokens))
        scores = self.score(torch.tanh(out)).squeeze(-1)
        mask = torch.arange(tokens.size(1)).unsqueeze(0) >= lengths.unsqueeze(1)
        scores = scores.masked_fill(mask, float("-inf"))
        weights = torch.softmax(scores, dim=1).unsqueeze(-1)
        return self.fc(torch.sum(weights * out, dim=1))


@everyday(numbers(3, 6, 4), lengths(4, 6, 2))
class LastOfEach(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        last = out[torch.arange(out.size(0)), lengths - 1]
        return self.fc(last) + last.sum(dim=1, keepdim=True)


@everyday(numbers(3, 6, 4), lengths(4, 6, 2))
class LastByGather(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        idx = (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.size(2))
        return self.fc(out.gather(1, idx).squeeze(1))


@everyday(words(3, 6, of=7))
class PaddingWord(nn.Module):
    """The padding of a text says where it ends; here it may be anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 4, padding_idx=0)
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).unsqueeze(-1)
        out, _ = self.rnn(self.emb(tokens))
        out = torch.where(mask, out, torch.full_like(out, -1e9))
        return self.fc(out.max(dim=1).values)
