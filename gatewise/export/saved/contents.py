"""What a saved model says of itself, checked: its schema, its layers on the meta device, its tensors.

Every size is compared with the bytes that are there before anything is allocated for it. SchemaError and what torch
raises while layers are built become one CheckpointError with the name of the file.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.export.saved.file import CheckpointError, said
from gatewise.export.saved.rebuild import build, check_values, read_layer
from gatewise.export.saved.rebuild_compact import parts
from gatewise.export.saved.schema import SchemaError, flag, listed, maybe, plain, record, table, text, whole
from gatewise.export.saved.storage import Forms, blanks, decode, size
from gatewise.nn.forms import form_of, stand_in

ALWAYS = 2**27  # bytes that a file may ask for, however small it is
# What torch, or a constructor, raises where sizes and names do not fit together.
WRONG = (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ImportError, StopIteration)
anything = table(lambda _, value: value)
SCHEMA = record(
    **{"class": text},
    arguments=maybe(table(plain)),
    training=flag,
    modules=anything,
    shared=table(text),
    frozen=listed(text),
    sparse=table(listed(whole())),
    narrow=listed(text),
    attached=listed(text),
)


@contextmanager
def refusing(file: Path) -> Iterator[None]:
    """What a config says that cannot be is said with its file."""
    try:
        yield
    except CheckpointError:
        raise
    except WRONG as error:
        reason = str(error) if isinstance(error, SchemaError) else said(error)
        raise CheckpointError(
            f"{file}: its layers cannot be built from it ({reason}). The file was altered, or written by a program "
            "that is not gatewise; save the model again."
        ) from error


@dataclass(frozen=True)
class Contents:
    """What a file says, checked against its schema: nothing has been allocated for it."""

    kind: str  # the class of the model
    arguments: dict[str, Any] | None
    training: bool
    modules: dict[str, dict[str, Any]]
    shared: dict[str, str]
    frozen: list[str]
    stored: dict[str, Tensor]
    forms: Forms
    blanks: dict[str, Tensor]  # the state_dict, on the meta device

    @staticmethod
    def read(config: Mapping[str, Any], stored: dict[str, Tensor]) -> Contents:
        found, forms = SCHEMA("it", config), Forms(config["sparse"], config["narrow"])
        names = attached_names(found)
        stored = {name: t for name, t in stored.items() if name not in names}
        state = blanks(stored, forms)
        for name, first in found["shared"].items():
            if name in state or first not in state or first in found["shared"]:
                raise SchemaError(f"shared.{name} names {first!r}, which is no other tensor")
        state |= {name: state[first] for name, first in found["shared"].items()}
        own = parts(state, found["modules"])
        modules = {
            name: read_layer(name or "the model", m, own[name]) for name, m in found["modules"].items()
        }
        return Contents(
            found["class"],
            found["arguments"],
            found["training"],
            modules,
            found["shared"],
            found["frozen"],
            stored,
            forms,
            state,
        )

    def check_room(self, into: nn.Module | None) -> None:
        """A few bytes of a sparse matrix can stand for any number of zeros: that many are refused."""
        model = [] if into is None else [*into.parameters(), *into.buffers()]
        needed = size(blank for name, blank in self.blanks.items() if name not in self.shared)
        stored = size(self.stored.values())
        if needed > 2 * (stored + size(model)) + ALWAYS:
            raise SchemaError(
                f"its tensors take {needed:,} bytes of memory, but the file has {stored:,}; if that is right, build "
                "the model yourself, so that it is known how large it is, and load into it: load(path, into=model)"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state_dict, those of shared parameters under each of their names."""
        found = decode(self.stored, self.forms)
        found |= {name: found[first] for name, first in self.shared.items()}
        own = parts(found, self.modules)
        for name, fields in self.modules.items():
            check_values(fields, own[name])
        return found

    def build_layers(self, places: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        own, layers = parts(self.blanks, self.modules), {}
        for name, fields in self.modules.items():
            try:
                layers[name] = build(fields, own[name], places.get(name))
            except WRONG as error:
                reason = str(error) if isinstance(error, SchemaError) else said(error)
                raise SchemaError(f"{name or 'the model'}: {reason}") from error
        return layers


def attached_names(config: Mapping[str, Any]) -> dict[str, str]:
    """The tensors that hold what was attached, and by which name it was."""
    return {f"attached:{name}": name for name in config["attached"]}


def own_class(contents: Contents, file: Path) -> nn.Module:
    """A model of this package on the meta device, by its class and arguments. Nothing else is ever imported."""
    module, _, name = contents.kind.rpartition(".")
    if module.split(".")[0] == "gatewise" and contents.arguments is not None:
        kind = getattr(importlib.import_module(module), name)
        if isinstance(kind, type) and issubclass(kind, nn.Module) and callable(getattr(kind, "config", None)):
            whole(1, len(contents.blanks))("arguments.layers", contents.arguments.get("layers", 1))
            with torch.device("meta"):
                made = kind(**contents.arguments)
            assert isinstance(made, nn.Module)
            return made
    raise CheckpointError(
        f"{file}: holds a {contents.kind}, which only your program can build, because nothing is unpickled. Build "
        f"it and load into it: gatewise.load({str(file)!r}, into={name}(...)), or --into MODULE:NAME "
        "where a command has it."
    )


def same_kind(into: nn.Module, saved: nn.Module, file: Path) -> nn.Module:
    if form_of(into) is not form_of(saved):
        raise CheckpointError(
            f"{file}: holds a single {type(saved).__name__}, which cannot replace the insides of "
            f"{type(into).__name__}; call load() without into=."
        )
    return stand_in(saved, into)
