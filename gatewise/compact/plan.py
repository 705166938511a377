"""Structure -> index lists: what goes where in the small network. No weight is touched here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gatewise.structure import RecurrentStructure, Structure


@dataclass(frozen=True)
class RecurrentPlan:
    """One layer and direction. All index lists ascend, so the same structure gives the same file."""

    inputs: Tensor  # (n_in,) input columns that some live gate reads, in the layer's original numbering
    neurons: Tensor  # (K,) neurons kept
    slots: Tensor  # (R,) live gates, as gate * K + position among the kept neurons
    recurrent: Tensor  # (n_rec,) positions among the kept neurons that some live gate of this layer reads


class MatrixPlan(NamedTuple):
    """A Linear layer, or an embedding."""

    rows: Tensor  # (R,) outputs, or words
    columns: Tensor  # (C,) inputs, or components


LayerPlan = RecurrentPlan | MatrixPlan


def make_plan(structure: Structure, tied: Mapping[str, tuple[str, ...]]) -> dict[str, LayerPlan]:
    """Index lists of every layer, by block. `tied` names, per layer, the layers that share its matrix."""
    return {
        name: plan_recurrent(layer)
        if isinstance(layer, RecurrentStructure)
        else agree((name, *tied.get(name, ())), structure)
        for name, layer in structure.layers.items()
    }


def plan_recurrent(layer: RecurrentStructure) -> RecurrentPlan:
    neurons = where(layer.keep_neurons)
    live = layer.keep_gates[:, neurons]  # (G, K): removed neurons have no gates
    recurrent = where(layer.keep_recurrent[neurons])
    return RecurrentPlan(where(layer.keep_inputs), neurons, where(live.flatten()), recurrent)


def agree(names: Iterable[str], structure: Structure) -> MatrixPlan:
    """Layers that share one matrix keep the same rows and columns: one goes only if all can do without it."""
    kept = (structure.layers[name].matrices()["weight"] for name in names)
    return MatrixPlan(*(where(torch.stack(masks).any(0)) for masks in zip(*kept)))


def where(keep: Tensor) -> Tensor:
    return keep.nonzero().flatten()
