"""save(model, path) and load(path): a model as one safetensors file, and back; nothing is ever unpickled.

tensors    the state_dict, index lists and vocabulary map included; a shared tensor once
metadata   format version, class, the gatewise layers with their options, which tensors are sparse, versions
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatewise import __version__
from gatewise.export.saved.contents import (
    SCHEMA,
    Contents,
    attached_names,
    own_class,
    refusing,
    same_kind,
)
from gatewise.export.saved.file import FORMAT, CheckpointError, model_file, read_file, write_file
from gatewise.export.saved.filling import check_fits, fill, replace_layers
from gatewise.export.saved.rebuild import describe
from gatewise.export.saved.storage import encode, size


@dataclass(frozen=True)
class Saved:
    """What save() wrote: its tensors as stored, and as large as they are in memory."""

    path: Path
    stored_bytes: int
    dense_bytes: int


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    attached: Mapping[str, bytes] | None = None,
) -> Saved:
    """Write a model, compressed or not, into one file, model.safetensors say; the old one is there until it is whole.

    In a folder the file is model.safetensors; a name without the suffix gets it. A file that gatewise did not write
    stays, and is refused: `overwrite` replaces it. What is `attached` by name, the encoding of the inputs say,
    travels in the file: `gatewise.export.attached(path)` has it again.
    """
    file, attached = model_file(path), attached or {}
    tensors = state_of(model)
    shared = shared_names(model, tensors)
    once = {name: tensor for name, tensor in tensors.items() if name not in shared}
    config = config_of(model, shared) | {"attached": list(attached)}
    contents = [torch.from_numpy(np.frombuffer(content, np.uint8).copy()) for content in attached.values()]
    try:
        stored, forms = encode(once | dict(zip(attached_names(config), contents)))
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}.") from error
    write_file(file, stored, config | asdict(forms), overwrite)
    return Saved(file, size(stored.values()), size(once.values()))


def load(path: str | os.PathLike[str], into: nn.Module | None = None) -> nn.Module:
    """The saved model, bit for bit; `path` is read as save() reads it.

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
    file = model_file(path)
    config, stored = read_file(file)
    with refusing(file):
        contents = Contents.read(config, stored)
        contents.check_room(into)
        places = {} if into is None else dict(into.named_modules(remove_duplicate=False))
        layers = contents.build_layers(places)
        if "" in layers:
            model = layers.pop("") if into is None else same_kind(into, layers.pop(""), file)
        else:
            model = own_class(contents, file) if into is None else into
    check_fits(model, layers, contents, file)
    with refusing(file):
        tensors = contents.tensors()
    replace_layers(model, layers, contents, tensors)
    fill(model, contents, tensors)
    return model.train(contents.training) if into is None else model


def attached(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """What was attached to a saved model, by name."""
    file = model_file(path)
    config, stored = read_file(file)
    with refusing(file):
        names = attached_names(SCHEMA("it", config))
        return {name: stored[tensor].numpy().tobytes() for tensor, name in names.items()}


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


def shared_names(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For further names of a shared parameter the first one, under which it is stored."""
    seen: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in tensors and seen.setdefault(id(parameter), name) != name:
            shared[name] = seen[id(parameter)]
    return shared


def config_of(model: nn.Module, shared: Mapping[str, str]) -> dict[str, Any]:
    modules = {name: fields for name, m in model.named_modules() if (fields := describe(m)) is not None}
    kind = type(model)
    own = kind.__module__.split(".")[0] == "gatewise" and callable(getattr(model, "config", None))
    return {
        "format": FORMAT,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "arguments": model.config() if own and "" not in modules else None,  # type: ignore[operator]
        "training": model.training,
        "modules": modules,
        "shared": dict(shared),
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
        "provenance": {"gatewise": __version__, "torch": torch.__version__.split("+")[0]},
    }
