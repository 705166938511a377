"""What a saved layer must say of itself to be built again, without running anything that came with the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactLayer, CompactLinear, CompactRecurrent
from gatewise.compact.plan import EmbeddingPlan, LinearPlan, RecurrentPlan
from gatewise.compact.recurrent import OPTIONS
from gatewise.layout import Cell
from gatewise.nn import GRU, LSTM, Recurrent
from gatewise.nn.lookup import SINGLE_STEP, cell_of, ending, places_of
from gatewise.sparsify.layers import (
    UPDATES,
    Posterior,
    VariationalCell,
    VariationalEmbedding,
    VariationalLinear,
    VariationalRecurrent,
)
from gatewise.sparsify.settled import SettledCell, SettledRecurrent

Fields = Mapping[str, Any]
Tensors = Mapping[str, Tensor]  # of one layer, by their names inside it
POSTERIOR = ("noise", "snr_threshold")


def describe(module: nn.Module) -> dict[str, Any] | None:
    """Kind and constructor options of a gatewise layer; None for every other module."""
    own = getattr(module, "saved_as", type(module))
    for kind, (layer, options, _) in KINDS.items():
        if own is layer:
            return {"kind": kind, **named(module, options)}
    if isinstance(module, Recurrent) and type(module) in dense_classes().values():
        return {"kind": "dense", **named(module, OPTIONS), "cell": module.cell.name}
    return None


def named(module: nn.Module, options: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Options by name. `cell` is a cell's name, `layers` what each compact layer was cut from."""
    said: dict[str, Any] = {}
    for option in options:
        if option == "cell":
            cell = cell_of(module)
            assert cell is not None
            said[option] = cell.name
        elif option == "layers":
            layers = module.layers if isinstance(module, CompactRecurrent) else [module.layer]
            said[option] = [{"width": layer.width, "n_inputs": layer.n_inputs} for layer in layers]  # type: ignore[union-attr]
        elif option == "bias" and isinstance(module, nn.Linear):
            said[option] = module.bias is not None
        else:
            said[option] = getattr(module, option)
    return said


def build(fields: Fields, tensors: Tensors, old: nn.Module | None = None) -> nn.Module:
    """A layer of the described kind in place of `old`; parameters and index lists are as large as the tensors say."""
    if "cell" in fields:
        fields = {**fields, "dense": dense_class(fields["cell"], old)}
    if fields["kind"] == "dense":
        layer: type[Recurrent] = fields["dense"]
        return layer(**{name: fields[name] for name in OPTIONS}, dtype=floating(tensors).dtype)
    _, _, make = KINDS[fields["kind"]]
    new = make(fields, tensors)
    if isinstance(old, Posterior) and isinstance(new, Posterior):
        new.go_on_counting(old)
    return new


def compact_linear(fields: Fields, tensors: Tensors) -> nn.Module:
    plan = LinearPlan(
        index(tensors, "inputs", fields["in_features"]), index(tensors, "outputs", fields["out_features"])
    )
    weight = nn.Parameter(torch.zeros_like(tensors["weight"]))
    bias = nn.Parameter(torch.zeros_like(tensors["bias"])) if "bias" in tensors else None
    return CompactLinear(fields["in_features"], fields["out_features"], plan, weight, bias)


def compact_embedding(fields: Fields, tensors: Tensors) -> nn.Module:
    words, width = int(fields["num_embeddings"]), int(fields["embedding_dim"])
    rows, weight = tensors["rows"], tensors["weight"]
    kept = (rows >= 0).nonzero().flatten()
    if len(rows) != words or not torch.equal(rows[kept], torch.arange(len(weight))) or int(rows.min()) < -1:
        raise ValueError(
            f"'rows' does not map {words} words to the {len(weight)} rows of the weight, in order"
        )
    plan = EmbeddingPlan(kept, index(tensors, "components", width))
    zero = nn.Parameter(torch.zeros_like(weight))
    return CompactEmbedding(words, width, plan, zero, fields["padding_idx"], **gradient(fields))


def compact_layer(cell: Cell, fields: Fields, tensors: Tensors) -> CompactLayer:
    width, n_inputs = int(fields["width"]), int(fields["n_inputs"])
    neurons = index(tensors, "neurons", width)
    plan = RecurrentPlan(
        inputs=index(tensors, "inputs", n_inputs),
        neurons=neurons,
        rows=neurons,  # used only to cut the original
        slots=index(tensors, "slots", cell.n_gates * len(neurons)),
        recurrent=index(tensors, "recurrent", len(neurons)),
    )
    return CompactLayer(cell, plan, width, n_inputs, tensors["weight_ih"], "bias" in tensors)


def compact_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    cell = fields["dense"].cell
    layers = [
        compact_layer(cell, layer, below(tensors, f"layers.{k}.")) for k, layer in enumerate(fields["layers"])
    ]
    return CompactRecurrent(cell, layers, {name: fields[name] for name in OPTIONS})


def compact_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    cell = fields["dense"].cell
    return CompactCell(cell, compact_layer(cell, fields["layers"][0], below(tensors, "layer.")))


def variational_linear(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = nn.Linear(fields["in_features"], fields["out_features"], fields["bias"], device="meta")
    return posterior(
        VariationalLinear.convert(dense, fields["linear_noise"], fields["batch_dim"]), fields, tensors
    )


def variational_embedding(fields: Fields, tensors: Tensors) -> nn.Module:
    sizes = {name: fields[name] for name in EMBEDDING}
    dense = nn.Embedding(**sizes, **gradient(fields), device="meta")
    return posterior(VariationalEmbedding.convert(dense, fields["batch_dim"]), fields, tensors)


def gradient(fields: Fields) -> dict[str, Any]:
    """How the gradient of an embedding is made; early files do not say."""
    return {name: fields.get(name, False) for name in GRADIENT}


def variational_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = fields["dense"](**{name: fields[name] for name in OPTIONS}, device="meta")
    return posterior(VariationalRecurrent.convert(dense), fields, tensors)


def variational_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = SINGLE_STEP[fields["dense"].cell.name](**{name: fields[name] for name in CELL}, device="meta")
    return posterior(VariationalCell.convert(dense), fields, tensors)


def posterior(new: Any, fields: Fields, tensors: Tensors) -> nn.Module:
    """Means, log sigmas and group variables are those that were saved."""
    new.become_posterior(*(fields[name] for name in POSTERIOR))
    for name, tensor in tensors.items():
        if name != UPDATES:
            new.register_parameter(name, nn.Parameter(torch.zeros_like(tensor)))
    if UPDATES in tensors:
        new.count_updates()
    assert isinstance(new, nn.Module)
    return new


def settled_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = fields["dense"](**{name: fields[name] for name in OPTIONS}, device="meta")
    return settled(SettledRecurrent.convert(dense), tensors)


def settled_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    cell = fields["dense"].cell
    dense = SINGLE_STEP[cell.name](**{name: fields[name] for name in CELL}, device="meta")
    dense.cell = cell
    return settled(SettledCell.convert(dense), tensors)


def settled(new: nn.Module, tensors: Tensors) -> nn.Module:
    """Parameters, and z_h where there is one, are those that were saved."""
    for place in places_of(new):
        new.register_buffer("neuron_scale" + ending(new, *place), None)
    for name, tensor in tensors.items():
        zero = torch.zeros_like(tensor)
        if name.startswith("neuron_scale"):
            new.register_buffer(name, zero)
        else:
            new.register_parameter(name, nn.Parameter(zero))
    return new


LINEAR, EMBEDDING = ("in_features", "out_features"), ("num_embeddings", "embedding_dim", "padding_idx")
GRADIENT, CELL = ("scale_grad_by_freq", "sparse"), ("input_size", "hidden_size", "bias")
KINDS: dict[str, tuple[type[nn.Module], tuple[str, ...], Callable[[Fields, Tensors], nn.Module]]] = {
    "compact-linear": (CompactLinear, LINEAR, compact_linear),
    "compact-embedding": (CompactEmbedding, (*EMBEDDING, *GRADIENT), compact_embedding),
    "compact-recurrent": (CompactRecurrent, ("cell", *OPTIONS, "layers"), compact_recurrent),
    "compact-cell": (CompactCell, ("cell", "layers"), compact_cell),
    "variational-linear": (
        VariationalLinear,
        (*LINEAR, "bias", "linear_noise", "batch_dim", *POSTERIOR),
        variational_linear,
    ),
    "variational-embedding": (
        VariationalEmbedding,
        (*EMBEDDING, *GRADIENT, "batch_dim", *POSTERIOR),
        variational_embedding,
    ),
    "variational-recurrent": (
        VariationalRecurrent,
        ("cell", *OPTIONS, *POSTERIOR),
        variational_recurrent,
    ),
    "variational-cell": (VariationalCell, ("cell", *CELL, *POSTERIOR), variational_cell),
    "settled-recurrent": (SettledRecurrent, ("cell", *OPTIONS), settled_recurrent),
    "settled-cell": (SettledCell, ("cell", *CELL), settled_cell),
}


def dense_class(name: str, old: nn.Module | None) -> type[Recurrent]:
    """The dense layer of a cell: that of the layer to be replaced if it has a cell of this name, else the newest."""
    named = [layer for layer in declared() if layer.cell.name == name]
    own = [layer for layer in named if old is not None and layer.cell == cell_of(old)]
    return next((layer for layer in own if layer is type(old)), (own or named)[-1])


def dense_classes() -> dict[str, type[Recurrent]]:
    """The dense layer of every cell by the cell's name. A notebook declares one again and again: the newest."""
    return {layer.cell.name: layer for layer in declared()}


def declared() -> list[type[Recurrent]]:
    """Every dense layer that names its cell, in order; ours once more at the end, so that none takes their place."""
    special = (CompactRecurrent, VariationalRecurrent, SettledRecurrent)
    dense = [layer for layer in subclasses(Recurrent) if not issubclass(layer, special)]
    return [layer for layer in dense if isinstance(vars(layer).get("cell"), Cell)] + [LSTM, GRU]


def subclasses(parent: type[Recurrent]) -> Iterator[type[Recurrent]]:
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)


def below(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def floating(tensors: Tensors) -> Tensor:
    return next(t for t in tensors.values() if t.is_floating_point())


def index(tensors: Tensors, name: str, size: int) -> Tensor:
    """An ascending index list into `size` places. Kernels trust these numbers, so they are checked here."""
    found = tensors[name]
    if found.dtype != torch.int64 or found.dim() != 1:
        raise ValueError(f"{name!r} is no list of indices")
    if len(found) and (int(found[0]) < 0 or int(found[-1]) >= size or bool((found.diff() <= 0).any())):
        raise ValueError(f"{name!r} does not ascend within 0..{size - 1}")
    return found
