"""What drives each neuron and who reads it: the strongest words, inputs and readers, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gatewise.lab.analyse.gate_map import GateMap, LayerMap
from gatewise.nn.lookup import cell_of, ending, is_embedding, matrix_of, weights_of, word_scale_of
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import joined

ROWS_AT_ONCE = 256  # of a product with all words

Link = tuple[str, float]  # a name and a weight, or a word and what it adds to a gate


@dataclass(frozen=True)
class Reading:
    """One layer that reads a neuron."""

    reader: str
    weights: int  # that are not zero
    strongest: tuple[Link, ...]


@dataclass(frozen=True)
class NeuronLinks:
    """One kept neuron."""

    bias: tuple[float, ...]  # by gate, both halves added
    inputs: Mapping[str, tuple[Link, ...]]  # live gate -> what drives it from below, the largest first
    recurrent: Mapping[str, tuple[Link, ...]]  # live gate -> neurons of the own layer
    readers: tuple[Reading, ...]


@torch.no_grad()
def find_links(
    model: nn.Module,
    gates: GateMap,
    *,
    symbols: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    readers: Stated | None = None,
    n: int = 6,
) -> dict[str, list[NeuronLinks]]:
    """The links of every kept neuron of every layer, in the order of the gate map.

    A layer that reads an embedding is driven by words: word w adds (Wx_k e_w)_j to gate k of neuron j. Elsewhere the
    weights themselves are listed.

    Args:
        symbols: what the ids mean, row by row of the embedding, or input by input where ids are one-hot.
        outputs: names of what the last layer scores.
        n: how many links per gate and per reader.
    """
    graph = find_readers(model, readers)
    matrices, block_of = all_matrices(model, graph)
    layer_of = {matrix: gates[name] for matrix, name in block_of.items() if name in gates}
    found = {}
    for name, layer in gates.items():
        block = graph.blocks[name]
        module = model.get_submodule(block.module)
        assert block.place is not None
        cell = cell_of(module)
        assert cell is not None
        end = ending(module, *block.place)
        own = joined(block.module, "weight_hh" + end)
        below = joined(block.module, "weight_ih" + end)
        drive, names = driving(model, below, matrices, graph, symbols)
        inputs = strongest_rows(matrices[below], drive, names, layer, n)
        recurrent = strongest_rows(matrices[own], None, [f"{name} {j}" for j in range(layer.width)], layer, n)
        w = weights_of(module, *block.place)
        zero = torch.zeros(cell.n_gates * layer.width)
        biases = [cell.split(zero if b is None else b.detach().cpu().float()) for b in (w.b_ih, w.b_hh)]
        bias = (biases[0] + biases[1])[:, layer.neurons].T.tolist()
        read = readings(layer, layer_of, graph, matrices, outputs, n)
        found[name] = [
            NeuronLinks(tuple(bias[k]), inputs[k], recurrent[k], tuple(read[k]))
            for k in range(len(layer.neurons))
        ]
    return found


def all_matrices(model: nn.Module, graph: ReaderGraph) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every matrix by name, as evaluation uses it, z of inputs and gates multiplied in, on the CPU; and its block."""
    found: dict[str, Tensor] = {}
    block_of: dict[str, str] = {}
    for name, block in graph.blocks.items():
        module = model.get_submodule(block.module)
        if block.place is None:
            own = {"weight": matrix_of(module)}
        else:
            w = replace(weights_of(module, *block.place), neuron_scale=None).fold()
            end = ending(module, *block.place)
            own = {"weight_ih" + end: w.w_ih, "weight_hh" + end: w.w_hh}
        for parameter, matrix in own.items():
            found[joined(block.module, parameter)] = matrix.detach().cpu().float()
            block_of[joined(block.module, parameter)] = name
    return found, block_of


def driving(
    model: nn.Module,
    matrix: str,
    matrices: Mapping[str, Tensor],
    graph: ReaderGraph,
    symbols: Sequence[str] | None,
) -> tuple[Tensor | None, Sequence[str]]:
    """The vectors (V, I) of the words that drive a matrix, or None; and the names of words or columns."""
    width = matrices[matrix].shape[1]
    reads = graph.reads_by(matrix)
    source = graph.blocks[reads[0].block].module if len(reads) == 1 and reads[0].width == width else None
    if source is not None and is_embedding(embedding := model.get_submodule(source)):
        vectors = matrices[joined(source, "weight")]
        scale = word_scale_of(embedding)
        if scale is not None:
            vectors = vectors * scale.detach().cpu().float()[:, None]
        n = len(vectors)
        known = list(symbols or ())
        return vectors, [*known, *(f"word {k}" for k in range(len(known), n))]
    if not reads and symbols is not None and len(symbols) == width:
        return None, symbols
    names = [f"input {c}" for c in range(width)]
    for read in reads:
        for c in range(read.width):
            names[read.column + c] = f"{read.block} {read.unit + c}"
    return None, names


def strongest_rows(
    matrix: Tensor, vectors: Tensor | None, names: Sequence[str], layer: LayerMap, n: int
) -> list[dict[str, tuple[Link, ...]]]:
    """For every kept neuron and live gate the n links that are largest in size, the most positive first."""
    found: list[dict[str, tuple[Link, ...]]] = [{} for _ in layer.neurons]
    rows = [(k, j) for k in range(len(layer.gates)) for j in range(len(layer.neurons)) if layer.live[k, j]]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        values = matrix[[k * layer.width + int(layer.neurons[j]) for k, j in part]]
        if vectors is not None:
            values = values @ vectors.T
        for (k, j), links in zip(part, top(values, names, n)):
            found[j][layer.gates[k]] = links
    return found


def top(values: Tensor, names: Sequence[str], n: int) -> list[tuple[Link, ...]]:
    """The n entries of each row that are largest in size and not zero, the most positive first."""
    at = values.abs().topk(min(n, values.shape[1])).indices
    picked = values.gather(1, at)
    return [
        tuple(sorted(((names[i], v) for i, v in zip(row, value) if v != 0), key=lambda link: -link[1]))
        for row, value in zip(at.tolist(), picked.tolist())
    ]


def readings(
    layer: LayerMap,
    layer_of: Mapping[str, LayerMap],
    graph: ReaderGraph,
    matrices: Mapping[str, Tensor],
    outputs: Sequence[str] | None,
    n: int,
) -> list[list[Reading]]:
    """Who reads each kept neuron: only weights of live gates count, and columns that are not zero."""
    found: list[list[Reading]] = [[] for _ in layer.neurons]
    for read in graph.reads_of(layer.name):
        matrix = matrices[read.matrix]
        labels, reader = row_names(read.matrix, len(matrix), layer_of, outputs)
        inside = [
            (j, read.column + neuron - read.unit)
            for j, neuron in enumerate(layer.neurons.tolist())
            if read.unit <= neuron < read.unit + read.width
        ]
        rows = torch.tensor([r for r, label in enumerate(labels) if label], dtype=torch.int64)
        columns = matrix[rows][:, [c for _, c in inside]].T
        kept = [labels[r] for r in rows.tolist()]
        counts = (columns != 0).sum(1).tolist()
        if not kept:
            continue
        for (j, _), count, links in zip(inside, counts, top(columns, kept, n)):
            if count:
                found[j].append(Reading("its own layer" if reader == layer.name else reader, count, links))
    return found


def row_names(
    matrix: str, n_rows: int, layer_of: Mapping[str, LayerMap], outputs: Sequence[str] | None
) -> tuple[list[str], str]:
    """What each row of a reading matrix computes, empty for a gate that is not live; and the block it belongs to."""
    layer = layer_of.get(matrix)
    if layer is not None:
        labels = [""] * n_rows
        for k, j in layer.live.nonzero().tolist():
            neuron = int(layer.neurons[j])
            labels[k * layer.width + neuron] = f"{layer.gates[k]} of {layer.name} {neuron}"
        return labels, layer.name
    named = outputs is not None and len(outputs) == n_rows
    return list(outputs or ()) if named else [f"output {r}" for r in range(n_rows)], matrix.rpartition(".")[0]
