"""Everyday decoders, which read their own answers: by greedy_decode, and by a loop of one's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gatewise as gw
from everyday.table import everyday, words


@everyday(words(2, 5, of=9))
class SpellingToSounds(nn.Module):
    """With the sounds given it is trained, without it speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.sounds = nn.Embedding(9, 6), nn.Embedding(7, 6)
        self.encoder, self.decoder = nn.GRU(6, 8, batch_first=True), nn.GRU(6, 8, batch_first=True)
        self.fc = nn.Linear(8, 7)
        nn.init.normal_(self.fc.weight)

    def forward(self, spelled: Tensor, sounds: Tensor | None = None) -> Tensor:
        _, h = self.encoder(self.letters(spelled))
        if sounds is not None:
            scores: Tensor = self.fc(self.decoder(self.sounds(sounds), h)[0])
            return scores
        return gw.nn.greedy_decode(self.sounds, self.decoder, self.fc, h, start=1, end=2, longest=6)


@everyday(words(2, 4, of=9))
class DecoderOfTwoLayers(nn.Module):
    """The encoder reads both ways; a bridge makes the first states of it."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.sounds = nn.Embedding(9, 5), nn.Embedding(8, 5)
        self.encoder = nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(12, 16)
        self.decoder = nn.LSTM(5, 8, num_layers=2)
        self.fc = nn.Linear(8, 8)
        nn.init.normal_(self.fc.weight)

    def forward(self, spelled: Tensor) -> Tensor:
        _, (h, _) = self.encoder(self.letters(spelled))
        first = torch.tanh(self.bridge(torch.cat([h[0], h[1]], -1))).view(-1, 2, 8).transpose(0, 1)
        state = first.contiguous(), torch.zeros_like(first)
        return gw.nn.greedy_decode(self.sounds, self.decoder, self.fc, state, start=0, end=3, longest=5)


@everyday(words(2, 5, of=9))
class GreedyLoopOfOnesOwn(nn.Module):
    """A fixed number of steps around a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.sounds = nn.Embedding(9, 6), nn.Embedding(7, 4)
        self.encoder, self.cell = nn.GRU(6, 8, batch_first=True), nn.GRUCell(4, 8)
        self.fc = nn.Linear(8, 7)
        nn.init.normal_(self.fc.weight)

    def forward(self, spelled: Tensor) -> Tensor:
        h = self.encoder(self.letters(spelled))[1][-1]
        y = torch.full((spelled.shape[0],), 1, dtype=torch.long)
        answers = []
        for _ in range(4):
            h = self.cell(self.sounds(y), h)
            y = self.fc(h).argmax(-1)
            answers.append(y)
        return torch.stack(answers, 1)


@everyday(words(2, 5, of=9))
class ContinuedText(nn.Module):
    """A language model that reads a beginning and goes on by itself; its head shares the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm = nn.Embedding(9, 6), nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.fc = nn.Linear(6, 9, bias=False)
        self.fc.weight = self.emb.weight

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        out, state = self.lstm(self.emb(text))
        more = gw.nn.greedy_decode(self.emb, self.lstm, self.fc, state, start=4, end=0, longest=5)
        return self.fc(out), more
