"""What a saved layer must say of itself to be built again, without running anything that came with the file.

describe(layer) gives its kind and options. read_layer() checks them. build() makes the layer they describe on the
meta device, where it has shapes and no memory, from the lengths of its index lists alone; the caller compares its
tensors with those of the file. check_values() then looks into the lists themselves, because kernels trust them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactLinear, CompactRecurrent
from gatewise.compact.recurrent import OPTIONS
from gatewise.export.saved.rebuild_compact import (
    GRADIENT,
    Fields,
    Tensors,
    check_cell,
    check_embedding,
    check_linear,
    check_recurrent,
    compact_cell,
    compact_embedding,
    compact_linear,
    compact_recurrent,
    floating,
    gradient,
)
from gatewise.export.saved.schema import (
    Check,
    SchemaError,
    flag,
    listed,
    maybe,
    number,
    one_of,
    record,
    text,
    whole,
)
from gatewise.layout import Cell
from gatewise.nn import GRU, LSTM, Recurrent
from gatewise.nn.cells import SQUASHES
from gatewise.nn.forms import form_of, in_place_of
from gatewise.nn.lookup import SINGLE_STEP, cell_of, ending, is_single_step, places_of
from gatewise.sparsify.layers import (
    UPDATES,
    RecurrentPosterior,
    VariationalCell,
    VariationalEmbedding,
    VariationalLinear,
    VariationalRecurrent,
)
from gatewise.sparsify.settled import SettledCell, SettledRecurrent
from gatewise.sparsify.variational import LINEAR_NOISES, NOISES

POSTERIOR = ("noise", "snr_threshold")


def describe(module: nn.Module) -> dict[str, Any] | None:
    """Kind and constructor options of a gatewise layer; None for every other module."""
    own = getattr(module, "saved_as", form_of(module))
    for kind, of in KINDS.items():
        if own is of.layer:
            return {"kind": kind, **named(module, of.options)}
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


def read_layer(where: str, fields: Any, tensors: Tensors) -> dict[str, Any]:
    """The options of a layer as a file says them, each of its type and in its range."""
    kinds: dict[str, tuple[str, ...]] = {kind: of.options for kind, of in KINDS.items()}
    kind = record(kind=one_of(*kinds, "dense"))(where, fields)["kind"]
    options = kinds.get(kind, ("cell", *OPTIONS))
    said: dict[str, Any] = record(**{option: FIELDS[option] for option in options})(where, fields)
    if "num_layers" in options:
        recurrences = said["num_layers"] * (2 if said["bidirectional"] else 1)
        if recurrences > len(tensors):
            raise SchemaError(
                f"{where}.num_layers is {said['num_layers']}, but there are {len(tensors)} tensors"
            )
    if said.get("padding_idx") is not None and said["padding_idx"] >= said["num_embeddings"]:
        raise SchemaError(f"{where}.padding_idx is {said['padding_idx']} of {said['num_embeddings']} words")
    return {**said, "where": where}


def build(fields: Fields, tensors: Tensors, old: nn.Module | None = None) -> nn.Module:
    """The layer that the fields describe, on the meta device, in place of `old`. Of tensors only shapes are read."""
    tensors = {name: tensor.to("meta") for name, tensor in tensors.items()}
    fields = with_class(fields, old)
    with torch.device("meta"):
        if fields["kind"] == "dense":
            return dense_layer(fields, tensors)
        new = KINDS[fields["kind"]].make(fields, tensors)
        if old is None and "dense" in fields:  # else it takes the place of `old`
            step = SINGLE_STEP.get(fields["cell"], nn.Module)
            new.__class__ = in_place_of(type(new), step if is_single_step(new) else fields["dense"])
        return new


def dense_layer(fields: Fields, tensors: Tensors) -> Recurrent:
    layer: type[Recurrent] = fields["dense"]
    return layer(**{name: fields[name] for name in OPTIONS}, dtype=floating(tensors).dtype)


def dense_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    kind = SINGLE_STEP[fields["dense"].cell.name]
    return kind(**{name: fields[name] for name in CELL}, dtype=floating(tensors).dtype)


def check_values(fields: Fields, tensors: Tensors) -> None:
    """Every index list ascends within its places, and no layer reads a neuron that is not there."""
    check = KINDS[fields["kind"]].check if fields["kind"] in KINDS else None
    if check is not None:
        check(with_class(fields), tensors)


def with_class(fields: Fields, old: nn.Module | None = None) -> Fields:
    """With the dense layer of its cell, if it has one."""
    return {**fields, "dense": dense_class(fields["cell"], old)} if "cell" in fields else fields


def variational_linear(fields: Fields, tensors: Tensors) -> nn.Module:
    dense = nn.Linear(fields["in_features"], fields["out_features"], fields["bias"], device="meta")
    return posterior(
        VariationalLinear.convert(dense, fields["linear_noise"], fields["batch_dim"]), fields, tensors
    )


def variational_embedding(fields: Fields, tensors: Tensors) -> nn.Module:
    sizes = {name: fields[name] for name in EMBEDDING}
    dense = nn.Embedding(**sizes, **gradient(fields), device="meta")
    return posterior(VariationalEmbedding.convert(dense, fields["batch_dim"]), fields, tensors)


def variational_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    return posterior(VariationalRecurrent.convert(dense_layer(fields, tensors)), fields, tensors)


def variational_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    return posterior(VariationalCell.convert(dense_cell(fields, tensors)), fields, tensors)


def posterior(new: Any, fields: Fields, tensors: Tensors) -> nn.Module:
    """Means, log sigmas and group variables, those that were saved: which levels there are, their names say."""
    new = new.to(floating(tensors).dtype)
    new.become_posterior(*(fields[name] for name in POSTERIOR))
    own = dict(new.named_parameters(recurse=False, remove_duplicate=False))
    for weight in [name for name, parameter in own.items() if parameter.dim() == 2]:
        new.add_log_sigma(weight, 0.0, {})
    if isinstance(new, RecurrentPosterior):
        gates, neurons = (any(name.startswith(z) for name in tensors) for z in ("gate_scale", "neuron_scale"))
        levels = "W+G+N" if gates else "W+N" if neurons else "W"
        new.add_group_variables(levels, "input_scale" in tensors, 0.0)
    elif "word_scale" in tensors:
        new.add_scale("word_scale", new.weight, (len(new.weight),), 0.0)
    if UPDATES in tensors:
        new.count_updates()
    assert isinstance(new, nn.Module)
    return new


def settled_recurrent(fields: Fields, tensors: Tensors) -> nn.Module:
    return settled(SettledRecurrent.convert(dense_layer(fields, tensors)), tensors)


def settled_cell(fields: Fields, tensors: Tensors) -> nn.Module:
    return settled(SettledCell.convert(dense_cell(fields, tensors)), tensors)


def settled(new: SettledRecurrent | SettledCell, tensors: Tensors) -> nn.Module:
    """With z_h of the recurrences that were saved with one."""
    for place in places_of(new):
        name = "neuron_scale" + ending(new, *place)
        new.register_buffer(name, floating(tensors).new_ones(new.hidden_size) if name in tensors else None)
    return new


class Kind(NamedTuple):
    layer: type[nn.Module]
    options: tuple[str, ...]
    make: Callable[[Fields, Tensors], nn.Module]
    check: Callable[[Fields, Tensors], None] | None = None  # of values, where kernels trust them


LINEAR, EMBEDDING = ("in_features", "out_features"), ("num_embeddings", "embedding_dim", "padding_idx")
CELL = ("input_size", "hidden_size", "bias")
KINDS: dict[str, Kind] = {
    "compact-linear": Kind(CompactLinear, (*LINEAR, "bias"), compact_linear, check_linear),
    "compact-embedding": Kind(CompactEmbedding, (*EMBEDDING, *GRADIENT), compact_embedding, check_embedding),
    "compact-recurrent": Kind(
        CompactRecurrent, ("cell", *OPTIONS, "layers"), compact_recurrent, check_recurrent
    ),
    "compact-cell": Kind(CompactCell, ("cell", "bias", "layers"), compact_cell, check_cell),
    "variational-linear": Kind(
        VariationalLinear, (*LINEAR, "bias", "linear_noise", "batch_dim", *POSTERIOR), variational_linear
    ),
    "variational-embedding": Kind(
        VariationalEmbedding, (*EMBEDDING, *GRADIENT, "batch_dim", *POSTERIOR), variational_embedding
    ),
    "variational-recurrent": Kind(
        VariationalRecurrent, ("cell", *OPTIONS, *POSTERIOR), variational_recurrent
    ),
    "variational-cell": Kind(VariationalCell, ("cell", *CELL, *POSTERIOR), variational_cell),
    "settled-recurrent": Kind(SettledRecurrent, ("cell", *OPTIONS), settled_recurrent),
    "settled-cell": Kind(SettledCell, ("cell", *CELL), settled_cell),
}


def known_cell(where: str, value: Any) -> str:
    known = dense_classes()
    if value not in known:
        raise SchemaError(
            f"{where} is {value!r}, which is not known here; {', '.join(known)} are. Import the module that declares "
            "it, then load again"
        )
    return text(where, value)


SIZE = whole()
FIELDS: dict[str, Check] = {
    **dict.fromkeys((*LINEAR, "num_embeddings", "embedding_dim"), SIZE),
    **dict.fromkeys(("input_size", "hidden_size", "num_layers"), whole(1)),
    **dict.fromkeys(("bias", "batch_first", "bidirectional", *GRADIENT), flag),
    "padding_idx": maybe(SIZE),
    "cell": known_cell,
    "layers": listed(record(width=SIZE, n_inputs=SIZE)),
    "dropout": number(0, 1),
    "gate_activation": one_of(*SQUASHES),
    "noise": one_of(*NOISES),
    "linear_noise": one_of(*LINEAR_NOISES),
    "batch_dim": whole(0, 63),
    "snr_threshold": number(0),
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
