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
from gatewise.nn import Recurrent
from gatewise.nn.lookup import cell_of
from gatewise.sparsify.layers import VariationalEmbedding, VariationalLinear, VariationalRecurrent

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


def build(fields: Fields, tensors: Tensors) -> nn.Module:
    """A layer of the described kind, with parameters and index lists as large as the tensors say."""
    if fields["kind"] == "dense":
        layer = dense_classes()[fields["cell"]]
        return layer(**{name: fields[name] for name in OPTIONS}, dtype=floating(tensors).dtype)
    _, _, make = KINDS[fields["kind"]]
    return make(fields, tensors)


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
    return CompactEmbedding(words, width, plan, nn.Parameter(torch.zeros_like(weight)), fields["padding_idx"])


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
    cell = cells()[fields["cell"]]
    layers = [
        compact_layer(cell, layer, below(tensors, f"layers.{k}.")) for k, layer in enumerate(fields["layers"])
    ]
    return CompactRecurrent(cell, layers, {name: fields[name] for name in OPTIONS})


def compact_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    cell = cells()[fields["cell"]]
    return CompactCell(cell, compact_layer(cell, fields["layers"][0], below(tensors, "layer.")))


def variational_linear(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = nn.Linear(fields["in_features"], fields["out_features"], fields["bias"], device="meta")
    return posterior(
        VariationalLinear.convert(dense, fields["linear_noise"], fields["batch_dim"]), fields, tensors
    )


def variational_embedding(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = nn.Embedding(
        fields["num_embeddings"], fields["embedding_dim"], fields["padding_idx"], device="meta"
    )
    return posterior(VariationalEmbedding.convert(dense, fields["batch_dim"]), fields, tensors)


def variational_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = dense_classes()[fields["cell"]](**{name: fields[name] for name in OPTIONS}, device="meta")
    return posterior(VariationalRecurrent.convert(dense), fields, tensors)


def posterior(new: Any, fields: Fields, tensors: Tensors) -> nn.Module:
    """Means, log sigmas and group variables are those that were saved."""
    new.become_posterior(*(fields[name] for name in POSTERIOR))
    for name, tensor in tensors.items():
        new.register_parameter(name, nn.Parameter(torch.zeros_like(tensor)))
    assert isinstance(new, nn.Module)
    return new


LINEAR, EMBEDDING = ("in_features", "out_features"), ("num_embeddings", "embedding_dim", "padding_idx")
KINDS: dict[str, tuple[type[nn.Module], tuple[str, ...], Callable[[Fields, Tensors], nn.Module]]] = {
    "compact-linear": (CompactLinear, LINEAR, compact_linear),
    "compact-embedding": (CompactEmbedding, EMBEDDING, compact_embedding),
    "compact-recurrent": (CompactRecurrent, ("cell", *OPTIONS, "layers"), compact_recurrent),
    "compact-cell": (CompactCell, ("cell", "layers"), compact_cell),
    "variational-linear": (
        VariationalLinear,
        (*LINEAR, "bias", "linear_noise", "batch_dim", *POSTERIOR),
        variational_linear,
    ),
    "variational-embedding": (
        VariationalEmbedding,
        (*EMBEDDING, "batch_dim", *POSTERIOR),
        variational_embedding,
    ),
    "variational-recurrent": (
        VariationalRecurrent,
        ("cell", *OPTIONS, *POSTERIOR),
        variational_recurrent,
    ),
}


def dense_classes() -> dict[str, type[Recurrent]]:
    """The dense layer of every cell by the cell's name: LSTM, GRU, and what was declared beside them."""
    special = (CompactRecurrent, VariationalRecurrent)
    found = (layer for layer in subclasses(Recurrent) if not issubclass(layer, special))
    classes: dict[str, type[Recurrent]] = {}
    for layer in found:
        if isinstance(vars(layer).get("cell"), Cell):
            classes.setdefault(layer.cell.name, layer)
    return classes


def cells() -> dict[str, Cell]:
    return {name: layer.cell for name, layer in dense_classes().items()}


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
