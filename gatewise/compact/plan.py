"""Structure -> index lists: what goes where in the small network. No weight is touched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.structure import (
    EmbeddingStructure,
    LayerStructure,
    LinearStructure,
    RecurrentStructure,
    Structure,
)


@dataclass(frozen=True)
class RecurrentPlan:
    """One layer and direction. All index lists ascend, so the same structure gives the same file."""

    inputs: Tensor  # (n_in,) input columns that some live gate reads, in the layer's original numbering
    neurons: Tensor  # (K,) neurons kept
    rows: Tensor  # (R,) live gates, gate * H + neuron, in the original stacked matrices
    slots: Tensor  # (R,) the same gates as gate * K + position among the kept neurons
    recurrent: Tensor  # (n_rec,) positions among the kept neurons that some live gate of this layer reads


@dataclass(frozen=True)
class LinearPlan:
    inputs: Tensor  # (n_in,)
    outputs: Tensor  # (n_out,)


@dataclass(frozen=True)
class EmbeddingPlan:
    words: Tensor  # (V',)
    components: Tensor  # (E',)


LayerPlan = RecurrentPlan | LinearPlan | EmbeddingPlan


def make_plan(structure: Structure, tied: Mapping[str, tuple[str, ...]]) -> dict[str, LayerPlan]:
    """Index lists of every layer, by block. `tied` names, per layer, the layers that share its matrix."""
    plans: dict[str, LayerPlan] = {}
    for name, layer in structure.layers.items():
        if isinstance(layer, RecurrentStructure):
            plans[name] = plan_recurrent(layer)
        elif isinstance(layer, LinearStructure):
            plans[name] = LinearPlan(where(layer.keep_inputs), where(layer.keep_outputs))
        else:
            plans[name] = EmbeddingPlan(where(layer.keep_words), where(layer.keep_components))
    for name, others in tied.items():
        plans[name] = agree(name, others, structure)
    return plans


def plan_recurrent(layer: RecurrentStructure) -> RecurrentPlan:
    neurons = where(layer.keep_neurons)
    hidden = layer.keep_gates.shape[1]
    live = layer.keep_gates[:, neurons]  # (G, K): removed neurons have no gates
    k = len(neurons)
    slots = where(live.flatten())
    rows = slots // k * hidden + neurons[slots % k] if k else slots
    return RecurrentPlan(where(layer.keep_inputs), neurons, rows, slots, where(layer.keep_recurrent[neurons]))


def agree(name: str, others: tuple[str, ...], structure: Structure) -> LayerPlan:
    """Layers that share one matrix keep the same rows and columns: one goes only if all can do without it."""
    kept = [rows_and_columns(structure.layers[one]) for one in (name, *others)]
    rows, columns = (where(torch.stack(masks).any(0)) for masks in zip(*kept))
    if isinstance(structure.layers[name], LinearStructure):
        return LinearPlan(inputs=columns, outputs=rows)
    return EmbeddingPlan(words=rows, components=columns)


def rows_and_columns(layer: LayerStructure) -> tuple[Tensor, Tensor]:
    """What is kept of the matrix of a Linear or an Embedding."""
    if isinstance(layer, LinearStructure):
        return layer.keep_outputs, layer.keep_inputs
    assert isinstance(layer, EmbeddingStructure)
    return layer.keep_words, layer.keep_components


def where(keep: Tensor) -> Tensor:
    return keep.nonzero().flatten()
