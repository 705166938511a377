"""save(model, path) and load(path): a model as the pair of files in `pair`, and back; nothing is ever unpickled.

config.json         format version, class, the gatewise layers with their options, the form of every tensor,
                    provenance: versions, size and SHA-256 of the weight file
model.safetensors   the state_dict, index lists and vocabulary map included; a shared tensor once
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatewise import __version__
from gatewise.export.saved.contents import (
    Contents,
    check_cells_known,
    own_class,
    read_tensors,
    refusing,
    same_kind,
)
from gatewise.export.saved.filling import check_fits, fill, replace_layers
from gatewise.export.saved.pair import CONFIG, FORMAT, CheckpointError, read_pair, write_pair
from gatewise.export.saved.rebuild import describe
from gatewise.export.saved.storage import Entry, encode


@dataclass(frozen=True)
class Saved:
    """What save() wrote: the weight file's tensors as stored, and as large as they are in memory."""

    path: Path
    stored_bytes: int
    dense_bytes: int


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    beside: Mapping[str, str] | None = None,
) -> Saved:
    """Write a model, compressed or not, into a directory; a model there is replaced as a whole or not at all.

    config.json and model.safetensors that gatewise did not write stay, and are refused: `overwrite` replaces them.
    `beside` names files that belong to the model, with their SHA-256: who reads them can ask the config.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is no directory, and a model is saved into one; name another.")
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
    write_pair(folder, stored, config | {"beside": dict(beside or {})}, overwrite)
    return Saved(folder, *sizes)


def load(path: str | os.PathLike[str], into: nn.Module | None = None) -> nn.Module:
    """The saved model, bit for bit.

    Gatewise layers and the models of this package are rebuilt from the file. A model of your own class is yours to
    build: `load(path, into=MyModel())` replaces the layers that were replaced when it was saved, fills in all tensors
    and returns it. What was frozen when it was saved is frozen again. Your model stays in its mode, and a new one is
    in training mode: call eval() before you use it.

    A file is not trusted: what it says is checked before anything is allocated, and takes a few times its size.
    """
    if into is not None and not isinstance(into, nn.Module):
        raise TypeError(
            f"into={into!r} is not a model; build one, as it was when it was saved: into=MyModel(...)."
        )
    folder = Path(path)
    config, data = read_pair(folder)
    with refusing(folder / CONFIG):
        contents = Contents.read(config)
        contents.check_room(len(data), into)
        places = {} if into is None else dict(into.named_modules(remove_duplicate=False))
        check_cells_known(contents.modules, folder / CONFIG)
        layers = contents.build_layers(places)
        if "" in layers:
            model = layers.pop("") if into is None else same_kind(into, layers.pop(""), folder)
        else:
            model = own_class(contents, folder) if into is None else into
    check_fits(model, layers, contents, folder)
    tensors = read_tensors(folder, contents, data)
    del data
    with refusing(folder / CONFIG):
        contents.check_values(tensors)
    replace_layers(model, layers, contents, tensors)
    fill(model, contents, tensors)
    return model.train(contents.training) if into is None else model


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
