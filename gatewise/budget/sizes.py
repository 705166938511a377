"""Bytes of a network of which only some units stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from gatewise.masks import Masks
from gatewise.readers import ReaderGraph
from gatewise.structure import EmbeddingStructure, LinearStructure, RecurrentStructure, Structure, reachable

PRECISIONS = {"float32": 4, "int8": 1}  # bytes of a weight; biases and the scales of int8 rows are float32


def structure_of(masks: Masks, graph: ReaderGraph, kept: Mapping[str, tuple[Tensor, Tensor]]) -> Structure:
    """What a cut would leave if of the named layers only these gates (G, H) and neurons (H,) were left."""
    recurrent = dict(masks.recurrent)
    for name, (gates, neurons) in kept.items():
        own = recurrent[name]
        recurrent[name] = replace(own, gate=own.gate & gates.cpu(), neuron=own.neuron & neurons.cpu())
    return reachable(replace(masks, recurrent=recurrent), graph)


def exported_bytes(structure: Structure, masks: Masks, precision: str) -> int:
    """Of the matrices and biases that a cut leaves, dense between what is kept."""
    each, total = PRECISIONS[precision], 0
    for name, layer in structure.layers.items():
        scale = 4 if precision == "int8" else 0
        if isinstance(layer, RecurrentStructure):
            rows, kept = int(layer.keep_gates.sum()), int(layer.keep_neurons.sum())
            columns = int(layer.keep_inputs.sum()) + int(layer.keep_recurrent.sum())
            total += rows * (columns * each + 2 * scale) + 4 * kept * masks.recurrent[name].cell.n_gates
        elif isinstance(layer, LinearStructure):
            rows = int(layer.keep_outputs.sum())
            total += rows * (int(layer.keep_inputs.sum()) * each + scale + 4)
        elif isinstance(layer, EmbeddingStructure):
            total += int(layer.keep_words.sum()) * (int(layer.keep_components.sum()) * each + scale)
    return total
