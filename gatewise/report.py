"""measure(model) -> Report: what is left of a network, level by level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.masks import Masks, find_masks
from gatewise.nn.lookup import is_quantized
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import joined
from gatewise.sizes import stored_bytes
from gatewise.structure import (
    EmbeddingStructure,
    LayerStructure,
    RecurrentStructure,
    Structure,
    kept_columns,
    one_pass,
    reachable,
)
from gatewise.wording import counted

HEAD = ("layer", "kind", "weights", "non-zero", "inputs", "neurons", "live gates", "words")


@dataclass(frozen=True)
class LayerCount:
    """One row of the table. Fields that a kind of layer does not have are None."""

    kind: str  # LSTM, GRU, Embedding, Linear
    weights: int  # entries of its matrices; a parameter shared with an earlier layer counts there
    nonzero: int  # what must be stored: weights of removed units and of constant gates are zero
    nonzero_as_masked: int  # weights of constant gates count as they stand
    inputs: int | None = None
    neurons: int | None = None
    gates: Mapping[str, int] | None = None  # live gates by kind
    # Gates without a dot product that still vary (GRU candidate: tanh(b_in + r b_hn)).
    varying: int | None = None
    words: int | None = None


@dataclass(frozen=True)
class Counts:
    """Counts of every layer for one way of deciding what is removed."""

    layers: Mapping[str, LayerCount]

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers.values())

    @property
    def nonzero(self) -> int:
        return sum(layer.nonzero for layer in self.layers.values())

    @property
    def compression(self) -> float:
        """|W| / |W != 0| over matrices; no biases, no group variables. Weights of constant gates count as zero."""
        return ratio(self.weights, self.nonzero)

    @property
    def compression_as_masked(self) -> float:
        """The same with the weights of constant gates as they stand, which is what the authors' code prints."""
        return ratio(self.weights, sum(layer.nonzero_as_masked for layer in self.layers.values()))

    @property
    def neurons(self) -> dict[str, int]:
        return {name: layer.neurons for name, layer in self.layers.items() if layer.neurons is not None}

    @property
    def gates(self) -> dict[str, int]:
        return {
            name: sum(layer.gates.values()) for name, layer in self.layers.items() if layer.gates is not None
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON; None stands for an infinite compression: no weight is left."""
        return {
            "weights": self.weights,
            "nonzero": self.nonzero,
            "compression": finite(self.compression),
            "compression_as_masked": finite(self.compression_as_masked),
            "neurons": self.neurons,
            "gates": self.gates,
            "layers": {name: dict(vars(layer)) for name, layer in self.layers.items()},
        }


@dataclass(frozen=True, repr=False)
class Report(Counts):
    """The paper's one-pass counts; `fixed_point` has what compress() keeps."""

    fixed_point: Counts
    exposed: Mapping[str, str]  # recurrent layers whose neurons stay because their readers are not known
    uncounted: Mapping[str, str]  # modules with matrices that no layer of the table has
    # After the cut, as C source stores it: matrices, biases, constant gates, kept words; no code, no index lists.
    bytes: int  # of float32
    bytes_int8: int

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {
            "fixed_point": self.fixed_point.to_dict(),
            "exposed": dict(self.exposed),
            "uncounted": dict(self.uncounted),
            "bytes": self.bytes,
            "bytes_int8": self.bytes_int8,
        }

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[k]) for row in rows) for k in range(len(HEAD))]
        lines = ["  ".join(cell.ljust(w) if k < 2 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths)))
                 for row in rows]  # fmt: skip
        return "\n".join(line.rstrip() for line in [*lines, "", *self._summary()])

    def _repr_html_(self) -> str:
        """The table as a notebook shows it."""
        head, *rows = [[escape(cell) for cell in row] for row in self._rows()]
        body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
        said = "<br>".join(escape(line) for line in self._summary())
        return f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{body}</table><p>{said}</p>"

    def _rows(self) -> list[tuple[str, ...]]:
        return [HEAD] + [row_of(name, layer) for name, layer in self.layers.items()]

    def _summary(self) -> list[str]:
        after = self.fixed_point
        lines = [
            f"compression  {show(self.compression)}   as masked {show(self.compression_as_masked)}   "
            f"({self.nonzero:,} of {self.weights:,} weights)",
            f"fixed point  {show(after.compression)}   neurons {dashed(after.neurons)}   gates {dashed(after.gates)}",
            f"after a cut  {self.bytes:,} bytes of float32, {self.bytes_int8:,} of int8",
        ]
        empty = [name for name, n in after.neurons.items() if n == 0]
        lines += [f"{name}: no neuron is left, so it says the same to every input" for name in empty]
        lines += [f"{name}: neurons stay, because {why}" for name, why in self.exposed.items()]
        return lines + [f"not counted: {what}" for what in self.uncounted.values()]


def measure(model: nn.Module, readers: Stated | None = None) -> Report:
    """Counts of weights, neurons, live gates and words. Looking changes nothing.

    Works on models of either sparsifier and on any model that simply contains zeros. `readers` states who reads a
    layer where tracing cannot prove it.
    """
    graph = find_readers(model, readers)
    masks = find_masks(model)
    cut = reachable(masks, graph)
    after = count(masks, graph, cut)
    exposed = {name: why for name, why in graph.exposed.items() if name in masks.recurrent}
    now = count(masks, graph, one_pass(masks, graph))
    sizes = (stored_bytes(masks, cut, int8) for int8 in (False, True))
    return Report(now.layers, after, exposed, find_uncounted(model, masks), *sizes)


def find_uncounted(model: nn.Module, masks: Masks) -> dict[str, str]:
    """Modules whose matrices are in no row of the table: name -> `conv (Conv1d), 36 weights`."""
    known = {matrix.rpartition(".")[0] for matrix in masks.matrix}
    found = {}
    for name, module in model.named_modules():
        matrices = [p for p in module.parameters(recurse=False) if p.dim() > 1]
        inside = any(not path or name == path or name.startswith(f"{path}.") for path in known)
        if inside or not (matrices or is_quantized(module)):
            continue
        size = sum(p.numel() for p in matrices)
        what = counted(size, "weight") if matrices else "quantized"
        found[name] = f"{name or 'the model'} ({type(module).__name__}), {what}"
    return found


def count(masks: Masks, graph: ReaderGraph, structure: Structure) -> Counts:
    """Counts for one structure. A parameter used twice is stored once: what either use needs is kept."""
    keep = {name: layer.units() for name, layer in structure.layers.items()}
    stored: dict[str, Tensor] = {}
    masked: dict[str, Tensor] = {}
    for name in masks.matrix:
        live, present = kept_rows(name, masks, structure)
        columns = kept_columns(name, keep, masks.matrix, graph)
        embedding = name.rpartition(".")[0]
        if embedding in masks.words:
            columns = keep[embedding]
        body = masks.matrix[name] & columns
        first = masks.shared[name]
        stored[first] = stored.get(first, torch.zeros_like(body)) | (body & live[:, None])
        masked[first] = masked.get(first, torch.zeros_like(body)) | (body & present[:, None])
    layers: dict[str, LayerCount] = {}
    for name, layer in structure.layers.items():
        own = matrices_of(name, masks)
        numbers = [sum(int(t[m].sum()) for m in own if m in t) for t in (stored, masked)]
        weights = sum(masks.matrix[m].numel() for m in own if masks.shared[m] == m)
        layers[name] = layer_count(name, layer, masks, weights, *numbers)
    return Counts(layers)


def layer_count(
    name: str, layer: LayerStructure, masks: Masks, weights: int, nonzero: int, nonzero_as_masked: int
) -> LayerCount:
    if isinstance(layer, RecurrentStructure):
        own = masks.recurrent[name]
        return LayerCount(
            own.cell.name,
            weights,
            nonzero,
            nonzero_as_masked,
            inputs=int(layer.keep_inputs.sum()),
            neurons=int(layer.keep_neurons.sum()),
            gates={gate: int(layer.keep_gates[k].sum()) for k, gate in enumerate(own.cell.gates)},
            varying=varying_gates(layer, masks, name),
        )
    if isinstance(layer, EmbeddingStructure):
        inputs, words = int(layer.keep_components.sum()), int(layer.keep_words.sum())
        return LayerCount("Embedding", weights, nonzero, nonzero_as_masked, inputs=inputs, words=words)
    return LayerCount("Linear", weights, nonzero, nonzero_as_masked, inputs=int(layer.keep_inputs.sum()))


def varying_gates(layer: RecurrentStructure, masks: Masks, name: str) -> int:
    """GRU: with a zero row, n = tanh(b_in + r * b_hn); constant only if r is, or if b_hn is 0."""
    own = masks.recurrent[name]
    total = 0
    for gate, multiplier in own.cell.gated_recurrent.items():
        k, by = own.cell.gates.index(gate), own.cell.gates.index(multiplier)
        without_product = ~layer.keep_gates[k] & layer.keep_neurons
        total += int((without_product & layer.keep_gates[by] & own.moves[k]).sum())
    return total


def kept_rows(matrix: str, masks: Masks, structure: Structure) -> tuple[Tensor, Tensor]:
    """Rows that are stored, and rows as the authors count them: of every gate of a kept neuron."""
    for name, own in masks.recurrent.items():
        if matrix in (own.input_matrix, own.recurrent_matrix):
            layer = structure.layers[name]
            assert isinstance(layer, RecurrentStructure)
            return layer.keep_gates.flatten(), layer.keep_neurons.repeat(own.cell.n_gates)
    rows, _ = structure.layers[matrix.rpartition(".")[0]].matrices()["weight"]
    return rows, rows


def matrices_of(block: str, masks: Masks) -> list[str]:
    own = masks.recurrent.get(block)
    return [joined(block, "weight")] if own is None else [own.input_matrix, own.recurrent_matrix]


def row_of(name: str, layer: LayerCount) -> tuple[str, ...]:
    gates = "" if layer.gates is None else f"{sum(layer.gates.values())} ({kinds(layer)})"
    optional = ("" if value is None else f"{value:,}" for value in (layer.inputs, layer.neurons))
    words = "" if layer.words is None else f"{layer.words:,}"
    return (name, layer.kind, f"{layer.weights:,}", f"{layer.nonzero:,}", *optional, gates, words)


def kinds(layer: LayerCount) -> str:
    assert layer.gates is not None
    listed = " ".join(f"{gate} {n}" for gate, n in layer.gates.items())
    return f"{listed}; {layer.varying} vary without a product" if layer.varying else listed


def ratio(whole: int, part: int) -> float:
    return whole / part if part else math.inf if whole else 1.0


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def show(compression: float | None) -> str:
    """`1.49x`, `18,567x`, and `infx` where no weight is left."""
    if compression is None:
        return "infx"
    return f"{compression:,.2f}x" if compression < 1000 else f"{compression:,.0f}x"


def dashed(numbers: Mapping[str, int]) -> str:
    return "-".join(str(n) for n in numbers.values()) or "none"
