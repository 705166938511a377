"""A model worth saving, sparse or variational, and a file that is edited behind our back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.saved.file import model_file, packed, read_file


class Tagger(nn.Module):
    def __init__(self, hidden: int = 6, tied: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, hidden, padding_idx=0)
        self.rnn = nn.LSTM(hidden, hidden, 2)
        self.fc = nn.Linear(hidden, 11)
        if tied:
            self.fc.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.fc(self.rnn(self.emb(ids))[0])
        return out


IDS = torch.arange(22).view(11, 2) % 11


@torch.no_grad()
def sparse(model: nn.Module, share: float = 0.7) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(torch.rand_like(parameter) > share)
    return model.eval()


def variational(model: nn.Module) -> nn.Module:
    gw.Variational(model, n_train=3, vocabulary=["emb"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_log_sigma"):
                parameter.copy_(torch.where(torch.rand_like(parameter) < 0.5, -9.0, 9.0))
    return model.eval()


def change(path: Path, **fields: Any) -> None:
    """Edit a config and correct the sum: what a program, not an accident, would do."""
    file = model_file(path)
    config, stored = read_file(file)
    file.write_bytes(packed(stored, config | fields, file))
