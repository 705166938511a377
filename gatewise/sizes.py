"""Bytes of a network after the cut, as the C source stores its numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatewise.masks import Masks
from gatewise.readers.graph import joined
from gatewise.structure import EmbeddingStructure, LinearStructure, RecurrentStructure, Structure

SLICE, BLOCK = 16, 16  # rows of a sparse or masked slice; neurons of a kernel's block
MOST_COLUMNS = np.iinfo(np.uint16).max  # of a sparse matrix
FLOAT = 4


def form_bytes(per_row: NDArray[np.int64], columns: int, weight_bytes: int) -> dict[str, int]:
    """Bytes of a matrix with so many non-zeros in each row, by the form it may be stored in.

    dense    every weight
    masked   a bit for every weight, and the non-zeros
    sparse   a column for every non-zero; rows by sixteens, filled up to the longest of them

    One without zeros is dense: what a mask would save is the padding, for which every weight would take longer.
    """
    rows = len(per_row)
    slices, entries = -(-rows // SLICE), int(per_row.sum())
    found = {"dense": (rows * columns + SLICE) * weight_bytes}
    if entries == rows * columns:
        return found
    found["masked"] = entries * weight_bytes + 2 * slices * columns + 4 * (slices + 1)
    if columns <= MOST_COLUMNS:
        filled = int(np.sort(per_row)[::-1][::SLICE].sum()) * SLICE
        found["sparse"] = filled * (weight_bytes + 2) + 4 * (slices + 1 + rows)
    return found


def matrix_bytes(kept: Tensor, int8: bool) -> int:  # (rows, columns) bool: not zero
    """In the smallest of its forms; in int8 with a scale for each row, but not of a single column."""
    rows, columns = kept.shape
    if not rows:
        return 0
    as_bytes = int8 and columns > 1
    per_row = kept.sum(1).numpy()
    scales = FLOAT * rows if as_bytes else 0
    return min(form_bytes(per_row, columns, 1 if as_bytes else FLOAT).values()) + scales


def stored_bytes(masks: Masks, structure: Structure, int8: bool) -> int:
    """Matrices, biases, constant gates and the list of kept words; without code, index lists, z_h and descriptions.

    What C folds (an embedding into the layer that reads it, a normalisation into a matrix) is counted as it stands.
    """
    recurrent = sum(recurrent_bytes(name, masks, structure, int8) for name in masks.recurrent)
    total = recurrent
    groups: dict[str, list[str]] = {}
    for name, layer in structure.layers.items():
        if not isinstance(layer, RecurrentStructure):
            weight = joined(name, "weight")
            # Variables of words are folded into an embedding, which then has a matrix of its own.
            first = weight if name in masks.word_variables else masks.shared[weight]
            groups.setdefault(first, []).append(name)
        if isinstance(layer, LinearStructure):
            total += FLOAT * int(layer.keep_outputs.sum())
        elif isinstance(layer, EmbeddingStructure) and not layer.keep_words.all():
            words = len(layer.keep_words)
            total += int(layer.keep_words.sum()) * (2 if words <= 1 << 16 else 4)
    return total + sum(shared_bytes(names, masks, structure, int8) for names in groups.values())


def shared_bytes(names: Iterable[str], masks: Masks, structure: Structure, int8: bool) -> int:
    """One matrix of one or several Linear and Embedding layers: what any of them keeps."""
    kept = []
    for name in names:
        kept.append((masks.matrix[joined(name, "weight")], *structure.layers[name].matrices()["weight"]))
    weight, rows, columns = (torch.stack(parts).any(0) for parts in zip(*kept))
    return matrix_bytes(weight[rows][:, columns], int8)


def recurrent_bytes(name: str, masks: Masks, structure: Structure, int8: bool) -> int:
    own, layer = masks.recurrent[name], structure.layers[name]
    assert isinstance(layer, RecurrentStructure)
    rows, gates = layer.keep_gates.flatten(), own.cell.n_gates
    inputs = masks.matrix[own.input_matrix][rows][:, layer.keep_inputs]
    reads = masks.matrix[own.recurrent_matrix][:, layer.keep_recurrent]
    # A gate that another one multiplies has its recurrent half apart.
    apart = torch.tensor([gate in own.cell.gated_recurrent for gate in own.cell.gates])
    apart = apart.repeat_interleave(layer.keep_gates.shape[1]) & rows
    matrices = inputs, reads[rows & ~apart], reads[apart]
    blocks = -(-int(layer.keep_neurons.sum()) // BLOCK)
    constants = (gates + len(own.cell.gated_recurrent)) * blocks * BLOCK * FLOAT + 2 * gates * blocks
    biases = FLOAT * (int(rows.sum()) + int(apart.sum()))
    return sum(matrix_bytes(matrix, int8) for matrix in matrices) + constants + biases
