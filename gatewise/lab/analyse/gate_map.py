"""Which gates of which neurons are live, and the numbers that the others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.layout import Cell
from gatewise.nn.cells import SQUASHES
from gatewise.nn.lookup import cell_of, gate_activation_of, weights_of
from gatewise.nn.recurrence import Weights
from gatewise.readers import Stated
from gatewise.readers.graph import find_blocks
from gatewise.structure import Structure

CONSTANT = "-"  # the pattern of a neuron without a live gate


@dataclass(frozen=True)
class LayerMap:
    """One recurrent layer and direction; K columns, one for each kept neuron in the order of `neurons`.

    Every gate of a kept neuron is exactly one of three:

        live      a dot product:  act_k(Wx x + Wh h + b)
        constant  the number act_k(b)
        varying   no dot product, yet not constant: GRU's n = tanh(b_in + r * b_hn) where r is live and b_hn is not 0
    """

    name: str
    cell: str
    gates: tuple[str, ...]
    width: int  # neurons before anything was removed
    neurons: Tensor  # (K,) int64: their numbers in the layer
    live: Tensor  # (G, K) bool
    constant: Tensor  # (G, K) float; NaN where the gate is live or varying
    cut: bool = False  # what a cut leaves: the fixed point, which can be less than the paper's count

    @property
    def varying(self) -> Tensor:  # (G, K) bool
        return ~self.live & self.constant.isnan()

    @property
    def patterns(self) -> list[str]:
        """The live gates of each neuron in their order: "ifgo", "o", or "-" if none is."""
        columns = self.live.T.tolist()
        return ["".join(g for g, on in zip(self.gates, column) if on) or CONSTANT for column in columns]

    def select(self, columns: Sequence[int]) -> LayerMap:
        """The given columns, in the given order."""
        at = torch.tensor(columns, dtype=torch.int64)
        return replace(self, neurons=self.neurons[at], live=self.live[:, at], constant=self.constant[:, at])

    def by_pattern(self) -> LayerMap:
        """Neurons with many live gates first, equal patterns side by side; otherwise in the order of the layer."""
        key = list(zip((-self.live.sum(0)).tolist(), self.patterns, self.neurons.tolist()))
        return self.select(sorted(range(len(key)), key=key.__getitem__))

    def sample(self, n: int, seed: int = 0) -> LayerMap:
        """n neurons drawn at random, in the order of the layer; all of them if there are no more."""
        if n < 0:
            raise ValueError(f"{self.name}: a sample of {n} neurons; give a number from 0 on.")
        drawn = torch.randperm(len(self.neurons), generator=torch.Generator().manual_seed(seed))[:n]
        return self.select(sorted(drawn.tolist()))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON; None stands for a gate that has no constant."""
        constant = [
            [None if missing else value for value, missing in zip(*pair)]
            for pair in zip(self.constant.tolist(), self.constant.isnan().tolist())
        ]
        return {
            "cell": self.cell,
            "gates": list(self.gates),
            "width": self.width,
            "neurons": self.neurons.tolist(),
            "live": self.live.tolist(),
            "constant": constant,
            "patterns": self.patterns,
        }


GateMap = Mapping[str, LayerMap]  # the recurrent layers by name, in the order of the network


def map_gates(model: nn.Module, readers: Stated | None = None, *, fixed_point: bool = False) -> GateMap:
    """The gates of every kept neuron, for any model that measure() takes. Looking changes nothing.

    What is kept is the paper's one-pass count, or with `fixed_point` what can reach the output. Of a compressed model
    nothing else is left.
    """
    structure = Structure.from_weights(model, readers, fixed_point=fixed_point).recurrent()
    if not structure:
        raise ValueError(
            f"{type(model).__name__} has no recurrent layer with gates, so there is nothing to map."
        )
    layers = {}
    for block in find_blocks(model).values():
        if block.name not in structure or block.place is None:
            continue
        module = model.get_submodule(block.module)
        cell = cell_of(module)
        assert cell is not None
        keep = structure[block.name].keep_neurons
        live = structure[block.name].keep_gates
        number = constants(cell, weights_of(module, *block.place), gate_activation_of(module), live)
        neurons = keep.nonzero().flatten()
        cut = fixed_point or getattr(module, "is_compact", False)
        layers[block.name] = LayerMap(
            block.name, cell.name, cell.gates, block.width, neurons, live[:, keep], number[:, keep], cut
        )
    return layers


@torch.no_grad()
def constants(cell: Cell, weights: Weights, gate_activation: str, live: Tensor) -> Tensor:  # (G, H)
    """act_k(b_ih + b_hh) of every gate without a product, NaN where the gate moves."""
    zero = torch.zeros(live.numel())
    b_ih, b_hh = (cell.split(zero if b is None else b.cpu().float()) for b in (weights.b_ih, weights.b_hh))
    squash = SQUASHES[gate_activation]
    act = {gate: torch.tanh if gate in cell.tanh_gates else squash for gate in cell.gates}
    rows = []
    for k, gate in enumerate(cell.gates):
        moves = live[k]
        recurrent = b_hh[k]
        if gate in cell.gated_recurrent:
            j = cell.gates.index(cell.gated_recurrent[gate])
            recurrent = act[cell.gates[j]](b_ih[j] + b_hh[j]) * b_hh[k]
            moves = moves | (live[j] & (b_hh[k] != 0))
        rows.append(act[gate](b_ih[k] + recurrent).masked_fill(moves, torch.nan))
    return torch.stack(rows)
