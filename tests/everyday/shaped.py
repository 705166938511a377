"""What is done to sequences around a layer: convolutions, functions, normalisations, shifts, splits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyday.table import everyday, numbers, words


@everyday(numbers(2, 8, 3))
class ConvolutionInFront(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 5, kernel_size=3, padding=1)
        self.rnn = nn.LSTM(5, 6, batch_first=True)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x.permute(0, 2, 1))).permute(0, 2, 1)
        out, _ = self.rnn(x)
        return self.fc(out[:, -1, :])


@everyday(numbers(2, 3, 9))
class ConvolutionAndPool(nn.Module):
    """Channels come first, and every second step is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, stride=2)
        self.bn = nn.BatchNorm1d(4)
        self.pool = nn.MaxPool1d(2)
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn(self.conv(x))))
        out, _ = self.rnn(x.transpose(1, 2))
        return self.fc(out.mean(1))


@everyday(numbers(2, 7, 4))
class CausalConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, dilation=2, groups=2)
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(F.pad(x.transpose(1, 2), (4, 0))).transpose(1, 2)
        out, _ = self.rnn(x + torch.tanh(y))
        return self.fc(out)


@everyday(numbers(2, 7, 4))
class LearnedGain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.tensor([0.1, -0.2, 0.3, 0.0]))
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn((x - self.mean) * self.gain)
        return self.fc(out * 0.5)


@everyday(numbers(2, 7, 4))
class Activations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 5), nn.SiLU())
        self.rnn = nn.LSTM(5, 6, batch_first=True)
        self.out = nn.Sequential(nn.Linear(6, 5), nn.ELU(), nn.Dropout(0.1), nn.Linear(5, 3), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(self.inp(x))
        return self.out(out)


@everyday(numbers(2, 6, 4))
class MoreActivations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.fc1 = nn.Linear(6, 5)
        self.fc2 = nn.Linear(5, 4)
        self.fc3 = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(F.hardtanh(x))
        out = F.leaky_relu(self.fc1(out), 0.1)
        out = F.gelu(self.fc2(out), approximate="tanh")
        return torch.clamp(self.fc3(out), -0.5, 0.5)


@everyday(numbers(2, 6, 4))
class GatedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 8)
        self.glu = nn.GLU(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.glu(self.fc(out))


@everyday(numbers(2, 6, 4))
class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(4)
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.norm2 = nn.LayerNorm(6)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(self.norm1(x))
        return self.fc(F.relu(self.norm2(out)))


@everyday(numbers(2, 6, 4))
class BatchNormalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.bn = nn.BatchNorm1d(5)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        out = self.bn(out.transpose(1, 2)).transpose(1, 2)
        return self.fc(out)


@everyday(numbers(2, 6, 4))
class PartsOfChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 7, batch_first=True)
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        a, b = torch.split(out, [3, 4], dim=-1)
        return self.left(a) * torch.sigmoid(self.right(b))


@everyday(numbers(2, 6, 4))
class BothWaysByFlip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fwd = nn.GRU(4, 5, batch_first=True)
        self.bwd = nn.GRU(4, 3, batch_first=True)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, _ = self.fwd(x)
        b, _ = self.bwd(torch.flip(x, dims=[1]))
        return self.fc(torch.cat([a, b.flip(1)], dim=-1))


@everyday(numbers(2, 6, 4))
class ShiftedByOne(nn.Module):
    """Every step sees the answer before."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        before = F.pad(out, (0, 0, 1, 0))[:, :-1]
        return self.fc(torch.cat([out, before], dim=-1))


@everyday(numbers(2, 6, 4))
class Differences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 5, batch_first=True)
        self.fc = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        change = torch.zeros_like(x)
        change[:, 1:] = x[:, 1:] - x[:, :-1]
        out, _ = self.rnn(torch.cat([x, change], dim=-1))
        return self.fc(out).squeeze(-1)


@everyday(words(2, 6, of=7))
class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(7, 5, batch_first=True)
        self.fc = nn.Linear(5, 7)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.rnn(F.one_hot(ids, num_classes=7).float())
        return self.fc(out).reshape(-1, 7)


@everyday(words(2, 6, of=9))
class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 4)
        self.pos = nn.Parameter(torch.randn(1, 20, 4))
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.emb(tokens) + self.pos[:, : tokens.size(1)]
        out, _ = self.rnn(x)
        return self.fc(out)


@everyday(words(2, 6, of=9))
class PositionsByEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 4)
        self.pos = nn.Embedding(20, 4)
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        out, _ = self.rnn(self.emb(tokens) + self.pos(positions))
        return self.fc(out)


@everyday(numbers(2, 5, 3, 2))
class FramesOfPictures(nn.Module):
    """Every step is a small picture, made a vector first."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 4)
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.fc2 = nn.Linear(5, 2)

    def forward(self, frames: Tensor) -> Tensor:
        b, t = frames.shape[:2]
        x = F.relu(self.fc1(frames.view(b * t, -1)))
        out, _ = self.rnn(x.view(b, t, -1))
        return self.fc2(out[:, -1])
