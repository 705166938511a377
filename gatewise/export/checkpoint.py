"""save(model, path) and load(path): a model as the pair of files in `pair`, and back; nothing is ever unpickled.

config.json         format version, class, the gatewise layers with their options, the form of every tensor,
                    provenance: versions, size and SHA-256 of the weight file
model.safetensors   the state_dict, index lists and vocabulary map included; a shared tensor once
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatewise import __version__
from gatewise.export.pair import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    CheckpointError,
    matching_config,
    read_weights,
    said,
    write_pair,
)
from gatewise.export.rebuild import below, build, dense_classes, describe
from gatewise.export.storage import PARTS, Entry, decode, encode
from gatewise.nn.lookup import cell_of, replace_module
from gatewise.readers.graph import joined
from gatewise.sparsify.layers import UPDATES


@dataclass(frozen=True)
class Saved:
    """What save() wrote: the weight file's tensors as stored, and as large as they are in memory."""

    path: Path
    stored_bytes: int
    dense_bytes: int


def save(model: nn.Module, path: str | os.PathLike[str]) -> Saved:
    """Write a model, compressed or not, into a directory; what was there is replaced as a whole or not at all."""
    folder = Path(path)
    if folder.is_file():
        raise CheckpointError(f"{folder}: is a file; a model is saved into a directory.")
    tensors = state_of(model)
    first, shared = first_names(model, tensors)
    entries: dict[str, Entry] = {}
    stored: dict[str, Tensor] = {}
    for name in first:
        entries[name], parts = encode(name, tensors[name])
        clash = stored.keys() & parts.keys()
        if clash:
            raise CheckpointError(f"{folder}: two tensors would be stored as {clash.pop()!r}; rename one.")
        stored |= parts
    sizes = sum(e.bytes for e in entries.values()), sum(e.dense_bytes for e in entries.values())
    config = config_of(model, entries, shared) | {"stored_bytes": sizes[0], "dense_bytes": sizes[1]}
    write_pair(folder, stored, config)
    return Saved(folder, *sizes)


def load(path: str | os.PathLike[str], into: nn.Module | None = None) -> nn.Module:
    """The saved model, bit for bit.

    Gatewise layers and the models of this package are rebuilt from the file. A model of your own class is yours to
    build: `load(path, into=MyModel())` replaces the layers that were replaced when it was saved, fills in all tensors
    and returns it. What was frozen when it was saved is frozen again. Your model stays in its mode, and a new one is
    in training mode: call eval() before you use it.
    """
    if into is not None and not isinstance(into, nn.Module):
        raise TypeError(
            f"into={into!r} is not a model; build one, as it was when it was saved: into=MyModel(...)."
        )
    folder = Path(path)
    config = matching_config(folder)
    tensors = read_tensors(folder, config)
    file = folder / CONFIG
    places = {} if into is None else dict(into.named_modules(remove_duplicate=False))
    try:
        check_cells_known(config["modules"], file)
        layers = {
            name: build(fields, below(tensors, joined(name, "")), places.get(name))
            for name, fields in config["modules"].items()
        }
        if "" in layers:
            model = layers.pop("") if into is None else same_kind(into, layers.pop(""), folder)
        else:
            model = own_class(config, folder) if into is None else into
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, StopIteration) as error:
        raise CheckpointError(
            f"{file}: its layers cannot be built from it ({said(error)}). The file was altered, or written by a "
            "program that is not gatewise; save the model again."
        ) from error
    check_fits(model, layers, tensors, config, folder)
    for name, new in layers.items():
        old = model.get_submodule(name)
        example = next(old.parameters(), None)
        if example is not None:
            new.to(example.device)
        replace_module(model, old, new.train(old.training))
    tie(model, config["shared"], tensors)
    model.load_state_dict(tensors)
    for name in config.get("frozen", ()):  # early files do not say
        model.get_parameter(name).requires_grad_(False)
    return model.train(config["training"]) if into is None else model


# Writing.


def state_of(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{name}: is {type(value).__name__}, not a tensor, and only tensors are stored without pickle. "
                "Make it a buffer, or leave it out of the state_dict."
            )
        if value.is_sparse or value.is_meta:
            kind = "sparse" if value.is_sparse else "on the meta device"
            raise CheckpointError(f"{name}: is {kind}; make it a dense tensor with values first.")
    return state


def first_names(model: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[list[str], dict[str, str]]:
    """Names under which tensors are stored, and for further names of a shared parameter the first one."""
    seen: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in tensors and seen.setdefault(id(parameter), name) != name:
            shared[name] = seen[id(parameter)]
    return [name for name in tensors if name not in shared], shared


def config_of(model: nn.Module, entries: Mapping[str, Entry], shared: Mapping[str, str]) -> dict[str, Any]:
    modules = {name: fields for name, m in model.named_modules() if (fields := describe(m)) is not None}
    kind = type(model)
    own = kind.__module__.split(".")[0] == "gatewise" and callable(getattr(model, "config", None))
    floats = [e.dtype for e in entries.values() if getattr(torch, e.dtype).is_floating_point]
    return {
        "format": FORMAT,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "arguments": model.config() if own and "" not in modules else None,  # type: ignore[operator]
        "training": model.training,
        "dtype": floats[0] if floats else None,
        "modules": modules,
        "shared": dict(shared),
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
        "tensors": {name: entry.to_dict() for name, entry in entries.items()},
        "provenance": {"gatewise": __version__, "torch": torch.__version__.split("+")[0]},
    }


# Reading.


def read_tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor of the state_dict, those of shared parameters under each of their names."""
    stored = read_weights(folder)
    try:
        entries = {name: Entry.from_dict(fields) for name, fields in config["tensors"].items()}
        wanted = {name + end for name, entry in entries.items() for end in PARTS[entry.form]}
        if wanted != stored.keys():
            odd = sorted(wanted ^ stored.keys())
            raise ValueError(f"{len(odd)} tensors are in one of the two files only, {odd[0]!r} for one")
        tensors: dict[str, Tensor] = {}
        for name, entry in entries.items():
            try:
                tensors[name] = decode(name, entry, stored)
            except ValueError as error:
                raise ValueError(f"{name} {error}") from error
        return tensors | {name: tensors[first] for name, first in config["shared"].items()}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder / WEIGHTS}: does not match {CONFIG}: {said(error)}. Both files must come from one save; save "
            "again."
        ) from error


# Building.


def check_cells_known(modules: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    known = dense_classes()
    for name, fields in modules.items():
        if "cell" in fields and fields["cell"] not in known:
            raise CheckpointError(
                f"{file}: {name or 'the model'} has the cell {fields['cell']}, which is not known here; "
                f"{', '.join(known)} are. Import the module that declares it, then load again."
            )


def own_class(config: Mapping[str, Any], folder: Path) -> nn.Module:
    """A model of this package, by its class and arguments. Nothing outside the package is ever imported."""
    dotted = config["class"]
    module, _, name = dotted.rpartition(".")
    if module.split(".")[0] == "gatewise" and config["arguments"] is not None:
        kind = getattr(importlib.import_module(module), name)
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            made = kind(**config["arguments"])
            assert isinstance(made, nn.Module)
            return made
    raise CheckpointError(
        f"{folder}: holds a {dotted}, which only your program can build, because nothing is unpickled. Build it "
        f"and load into it: gatewise.load({str(folder)!r}, into={name}(...)), or --into MODULE:NAME "
        "where a command has it."
    )


def same_kind(into: nn.Module, saved: nn.Module, folder: Path) -> nn.Module:
    if type(into) is not type(saved):
        raise CheckpointError(
            f"{folder}: holds a single {type(saved).__name__}, which cannot replace the insides of "
            f"{type(into).__name__}; call load() without into=."
        )
    return saved


def check_fits(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    folder: Path,
) -> None:
    """The model, with the layers that will be replaced, has the file's names and shapes. Nothing is changed yet."""
    kind = type(model).__name__
    advice = f"build {kind} with the arguments it had when it was saved ({config['class']})"
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, new in layers.items():
        if name not in modules:
            raise CheckpointError(
                f"{folder}: {kind} has no layer {name!r}, which the file replaces; {advice}."
            )
        cells = [cell.name for cell in (cell_of(modules[name]), cell_of(new)) if cell is not None]
        if len(set(cells)) > 1:
            raise CheckpointError(
                f"{folder}: {name} is {cells[1]} in the file and {cells[0]} in {kind}; {advice}."
            )
        for width in ("in_features", "out_features", "num_embeddings", "embedding_dim", "input_size", "hidden_size",
                      "num_layers", "bidirectional", "batch_first"):  # fmt: skip
            own, saved = getattr(modules[name], width, None), getattr(new, width, None)
            if own is not None and saved is not None and own != saved:
                raise CheckpointError(
                    f"{folder}: {name} has {width}={saved} in the file and {own} in {kind}; {advice}."
                )
    # A layer that stands in two places is replaced in both.
    replaced = {place: layers[name] for name in layers for place, m in modules.items() if m is modules[name]}
    shapes = {
        name: tuple(t.shape)
        for name, t in model.state_dict().items()
        if isinstance(t, Tensor) and not any(name.startswith(joined(place, "")) for place in replaced)
    }
    for place, new in replaced.items():
        shapes |= {joined(place, name): tuple(t.shape) for name, t in new.state_dict().items()}
    for name in [*tensors, *shapes]:
        if name.rpartition(".")[2] == UPDATES and name not in tensors:
            continue  # early files do not count
        if name not in shapes or name not in tensors:
            where = ("the file", kind) if name in tensors else (kind, "the file")
            pruned = name.endswith(("_orig", "_mask"))
            way = (
                "make the pruning permanent (torch.nn.utils.prune.remove) before saving" if pruned else advice
            )
            raise CheckpointError(f"{folder}: {name} is in {where[0]}, but not in {where[1]}; {way}.")
        if shapes[name] != tuple(tensors[name].shape):
            found = tuple(tensors[name].shape)
            raise CheckpointError(
                f"{folder}: {name} is {found} in the file and {shapes[name]} in {kind}; {advice}."
            )


def tie(model: nn.Module, shared: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """One parameter where the file has one, two where it has two; all tensors in the dtype of the file."""
    owner: dict[int, str] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if name not in tensors:
            continue
        first = shared.get(name, name)
        if first != name:
            put(model, name, model.get_parameter(first))
        elif owner.setdefault(id(parameter), name) != name:
            put(model, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in tensors and tensor.dtype != tensors[name].dtype:
            tensor.data = tensor.data.to(tensors[name].dtype)


def put(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    module, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(module), attribute, parameter)
