"""Compact layers from what a file says: built from the lengths of their index lists; then the lists are checked."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactLayer, CompactLinear, CompactRecurrent
from gatewise.compact.plan import MatrixPlan, RecurrentPlan
from gatewise.compact.recurrent import OPTIONS
from gatewise.export.saved.schema import SchemaError
from gatewise.layout import Cell
from gatewise.readers.graph import joined

Fields = Mapping[str, Any]
Tensors = Mapping[str, Tensor]  # of one layer, by their names inside it
T = TypeVar("T")
GRADIENT = ("scale_grad_by_freq", "sparse")


def compact_linear(fields: Fields, tensors: Tensors) -> nn.Module:
    plan = MatrixPlan(
        index_list(tensors, "outputs", fields["out_features"]),
        index_list(tensors, "inputs", fields["in_features"]),
    )
    like = tensors["weight"]
    weight = nn.Parameter(like.new_empty(*map(len, plan)))
    bias = nn.Parameter(like.new_empty(len(plan.rows))) if fields["bias"] else None
    return CompactLinear(fields["in_features"], fields["out_features"], plan, weight, bias)


def check_linear(fields: Fields, tensors: Tensors) -> None:
    check_ascends(fields["where"], tensors, inputs=fields["in_features"], outputs=fields["out_features"])


def compact_embedding(fields: Fields, tensors: Tensors) -> nn.Module:
    words, width = fields["num_embeddings"], fields["embedding_dim"]
    rows, like = index_list(tensors, "rows", words), tensors["weight"]
    plan = MatrixPlan(rows[: len(like)], index_list(tensors, "components", width))
    weight = nn.Parameter(like.new_empty(len(like), len(plan.columns)))
    return CompactEmbedding(words, width, plan, weight, fields["padding_idx"], **gradient(fields))


def check_embedding(fields: Fields, tensors: Tensors) -> None:
    check_ascends(fields["where"], tensors, components=fields["embedding_dim"])
    rows, n = tensors["rows"], len(tensors["weight"])
    if not torch.equal(rows[rows >= 0], torch.arange(n)) or bool((rows < -1).any()):
        raise SchemaError(f"{fields['where']}.rows does not map {len(rows)} words to {n} rows, in order")


def compact_layer(cell: Cell, fields: Fields, tensors: Tensors) -> CompactLayer:
    width, n_inputs = fields["width"], fields["n_inputs"]
    neurons = index_list(tensors, "neurons", width)
    plan = RecurrentPlan(
        inputs=index_list(tensors, "inputs", n_inputs),
        neurons=neurons,
        slots=index_list(tensors, "slots", cell.n_gates * len(neurons)),
        recurrent=index_list(tensors, "recurrent", len(neurons)),
    )
    return CompactLayer(cell, plan, width, n_inputs, tensors["weight_ih"], fields["bias"])


def check_layer(where: str, cell: Cell, fields: Fields, tensors: Tensors) -> None:
    kept = len(tensors["neurons"])
    sizes = {"inputs": fields["n_inputs"], "neurons": fields["width"]}
    check_ascends(where, tensors, **sizes, slots=cell.n_gates * kept, recurrent=kept)


def compact_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    """A layer for every place, each as wide as the stack says, reading what the level below has."""
    hidden, directions = fields["hidden_size"], 2 if fields["bidirectional"] else 1
    expected = [
        {"width": hidden, "n_inputs": fields["input_size"] if level == 0 else directions * hidden}
        for level in range(fields["num_layers"])
        for _ in range(directions)
    ]
    if [{key: layer[key] for key in ("width", "n_inputs")} for layer in fields["layers"]] != expected:
        raise SchemaError(
            f"its layers are not {fields['num_layers']} x {directions} layers of {hidden} neurons"
        )
    cell = fields["dense"].cell
    own = parts(tensors, [f"layers.{k}" for k in range(len(expected))])
    layers = [
        compact_layer(cell, {**layer, "bias": fields["bias"]}, inside)
        for layer, inside in zip(expected, own.values())
    ]
    return CompactRecurrent(cell, layers, {name: fields[name] for name in OPTIONS})


def check_recurrent(fields: Fields, tensors: Tensors) -> None:
    cell, directions = fields["dense"].cell, 2 if fields["bidirectional"] else 1
    inside = list(parts(tensors, [f"layers.{k}" for k in range(len(fields["layers"]))]).values())
    for k, (layer, own) in enumerate(zip(fields["layers"], inside)):
        where = f"{fields['where']}.layers.{k}"
        check_layer(where, cell, layer, own)
        first = (k // directions - 1) * directions  # of the level below
        if first < 0:
            continue
        kept = torch.cat([inside[first + d]["neurons"] + d * layer["width"] for d in range(directions)])
        gone = own["inputs"][~torch.isin(own["inputs"], kept)].tolist()
        if gone:
            raise SchemaError(f"{where} reads neuron {gone[0]} of the level below, which was removed there")


def compact_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    cell, (one,) = fields["dense"].cell, fields["layers"]
    return CompactCell(
        cell, compact_layer(cell, {**one, "bias": fields["bias"]}, parts(tensors, ["layer"])["layer"])
    )


def check_cell(fields: Fields, tensors: Tensors) -> None:
    cell = fields["dense"].cell
    check_layer(fields["where"], cell, fields["layers"][0], parts(tensors, ["layer"])["layer"])


def gradient(fields: Fields) -> dict[str, Any]:
    """How the gradient of an embedding is made."""
    return {name: fields[name] for name in GRADIENT}


def parts(tensors: Mapping[str, T], modules: Iterable[str]) -> dict[str, dict[str, T]]:
    """For each module its tensors, by their names inside it."""
    names, found = sorted(tensors), {}
    for module in modules:
        prefix = joined(module, "")
        here = names[bisect_left(names, prefix) : bisect_left(names, prefix + chr(sys.maxunicode))]
        found[module] = {name.removeprefix(prefix): tensors[name] for name in here if name.startswith(prefix)}
    return found


def floating(tensors: Tensors) -> Tensor:
    return next(t for t in tensors.values() if t.is_floating_point())


def index_list(tensors: Tensors, name: str, size: int) -> Tensor:
    """A list of at most `size` indices; of its values nothing is known yet."""
    found = tensors[name]
    if found.dtype != torch.int64 or found.dim() != 1 or len(found) > size:
        raise SchemaError(
            f"{name!r} is {found.dtype} {tuple(found.shape)}, not a list of at most {size} indices"
        )
    return found


def check_ascends(where: str, tensors: Tensors, **sizes: int) -> None:
    """Index lists into so many places. Kernels trust these numbers, so they are checked here."""
    for name, size in sizes.items():
        found = tensors[name]
        if len(found) and (int(found[0]) < 0 or int(found[-1]) >= size or bool((found.diff() <= 0).any())):
            raise SchemaError(f"{where}.{name} does not ascend within 0..{size - 1}")
