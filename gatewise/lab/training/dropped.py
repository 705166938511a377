"""Weights that are left out of an update at random: of recurrent matrices single ones, of an embedding whole words.

    w' = w m / (1 - p),  m = 1 with probability 1 - p, else 0, drawn anew for every update
    dL/dw = dL/dw' m / (1 - p)

The network computes with w' in the memory of w, so any layer can be trained so, compact ones included. Outside of
forward and backward pass w stands there: penalties, cuts and checkpoints know of nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gatewise.lab.models import stacks_of
from gatewise.lab.schema import Train


class Matrix(NamedTuple):
    weight: Tensor
    kept: Tensor  # w, while w' stands in its place
    factor: Tensor  # m / (1 - p): of every weight, or of every row
    p: float


class DroppedWeights:
    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.matrices = matrices

    @torch.no_grad()
    def draw(self) -> None:
        """Before the forward pass."""
        for weight, kept, factor, p in self.matrices:
            kept.copy_(weight)
            weight.mul_(factor.bernoulli_(1 - p).div_(1 - p))

    @torch.no_grad()
    def give_back(self) -> None:
        """After the backward pass of the loss, and before that of a penalty."""
        for weight, kept, factor, _ in self.matrices:
            weight.copy_(kept)
            if weight.grad is not None:
                weight.grad.mul_(factor)


def dropped_weights(model: nn.Module, settings: Train) -> DroppedWeights:
    """Those that [train] leaves out: nothing, unless it says so."""
    recurrent = [
        weight
        for stack in stacks_of(model)
        for name, weight in stack.named_parameters()
        if "weight_hh" in name and weight.requires_grad
    ]
    emb = getattr(model, "emb", None)
    words = [emb.weight] if isinstance(emb, nn.Embedding) else []
    return DroppedWeights(
        [
            Matrix(weight, torch.empty_like(weight), torch.empty_like(factors), p)
            for weight, factors, p in (
                *((weight, weight, settings.drop_recurrent) for weight in recurrent),
                *((weight, weight[:, :1], settings.drop_words) for weight in words),
            )
            if p
        ]
    )
