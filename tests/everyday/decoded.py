"""Everyday decoders, which read their own answers: one step to loop over, and a loop of a fixed number of steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everyday.table import everyday, numbers, words


@everyday(words(2, of=7), numbers(1, 2, 8), numbers(2, 5, 8))
class SpellingToSounds(nn.Module):
    """The sound behind one, and the next state: a decoder that looks at letters which an encoder has read."""

    def __init__(self) -> None:
        super().__init__()
        self.sounds, self.decoder = nn.Embedding(7, 6), nn.GRU(6, 8, batch_first=True)
        self.fc, self.vote = nn.Linear(8, 7), nn.Linear(8, 7)
        nn.init.normal_(self.fc.weight)

    def forward(self, sound: Tensor, h: Tensor, letters: Tensor) -> tuple[Tensor, Tensor]:
        out, h = self.decoder(self.sounds(sound).unsqueeze(1), h)
        shares = (out @ letters.mT).softmax(-1)
        return (self.fc(out) + shares @ self.vote(letters)).squeeze(1).argmax(-1), h


@everyday(words(2, 4, of=9))
class DecoderOfTwoLayers(nn.Module):
    """The encoder reads both ways; a bridge makes the first states of it, from which it takes the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.sounds = nn.Embedding(9, 5), nn.Embedding(8, 5)
        self.encoder = nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(12, 16)
        self.decoder = nn.LSTM(5, 8, num_layers=2)
        self.fc = nn.Linear(8, 8)
        nn.init.normal_(self.fc.weight)

    def forward(self, spelled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, (h, _) = self.encoder(self.letters(spelled))
        first = torch.tanh(self.bridge(torch.cat([h[0], h[1]], -1))).view(-1, 2, 8).transpose(0, 1)
        state = first.contiguous(), torch.zeros_like(first)
        start = torch.zeros(1, spelled.shape[0], dtype=torch.long)
        out, (h, c) = self.decoder(self.sounds(start), state)
        return self.fc(out[0]).argmax(-1), h, c


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
    """A language model that reads a beginning and says what comes next; its head shares the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm = nn.Embedding(9, 6), nn.LSTM(6, 6, num_layers=2, batch_first=True)
        self.fc = nn.Linear(6, 9, bias=False)
        self.fc.weight = self.emb.weight

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.fc(self.lstm(self.emb(text))[0])
        return scores, scores[:, -1].argmax(-1)
