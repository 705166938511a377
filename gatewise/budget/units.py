"""All gates and neurons of some layers in a row, and which of them stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """One recurrent layer and direction."""

    name: str
    gates: int  # G
    width: int  # H
    stays: bool = False  # its neurons, since nobody knows who reads them; gates may go


@dataclass(frozen=True)
class Kept:
    """True: the unit stays."""

    gates: Tensor  # (all gates,)
    neurons: Tensor  # (all neurons,)

    def __and__(self, other: Kept) -> Kept:
        return Kept(self.gates & other.gates, self.neurons & other.neurons)


class Units:
    """Gates layer by layer, in each gate * H + neuron; neurons layer by layer."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = tuple(layers)
        self.n_gates = sum(layer.gates * layer.width for layer in self.layers)
        self.n_neurons = sum(layer.width for layer in self.layers)
        starts = torch.tensor([0, *(layer.width for layer in self.layers)]).cumsum(0)
        owners = [
            torch.arange(layer.width).repeat(layer.gates) + start for layer, start in zip(self.layers, starts)
        ]
        self.owner = torch.cat([*owners, starts[:0]])  # (all gates,) the neuron of each
        fixed = [torch.full((layer.width,), layer.stays) for layer in self.layers]
        self.stays = torch.cat([*fixed, starts[:0].bool()])  # (all neurons,)

    def by_layer(self, gates: Tensor, neurons: Tensor) -> dict[str, tuple[Tensor, Tensor]]:  # (G, H), (H,)
        gate_parts = gates.split([layer.gates * layer.width for layer in self.layers])
        neuron_parts = neurons.split([layer.width for layer in self.layers])
        return {
            layer.name: (g.view(layer.gates, layer.width), n)
            for layer, g, n in zip(self.layers, gate_parts, neuron_parts)
        }

    def of_gates(self, gates: Tensor) -> Kept:
        """These gates, and the neurons that have one of them or stay in any case."""
        owner = self.owner.to(gates.device)
        count = torch.zeros(self.n_neurons, device=gates.device).index_add_(0, owner, gates.float())
        return Kept(gates, (count > 0) | self.stays.to(gates.device))

    def of_neurons(self, neurons: Tensor) -> Kept:
        """These neurons with all their gates."""
        return Kept(neurons[self.owner.to(neurons.device)], neurons)


def strongest(scores: Tensor, n: int) -> Tensor:
    """The n largest; of equal ones the first, so that every rank of a parallel run chooses the same."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep[scores.argsort(descending=True, stable=True)[:n]] = True
    return keep


def strongest_of_layers(scores: Tensor, n: int, sizes: Sequence[int], least: float) -> Tensor:
    """The n largest, but of every layer at least this part of what it would have if all gave alike.

    Strengths of layers that learn at different times are hard to compare: an encoder may look weak while its decoder
    still learns what follows what.
    """
    floors = [strongest(part, int(least * n * len(part) / len(scores))) for part in scores.split(list(sizes))]
    return strongest(scores + torch.cat(floors) * (scores.max() + 1), n)
