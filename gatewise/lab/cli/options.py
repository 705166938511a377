"""Options that several subcommands have, and what becomes of their text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the recipe; repeatable."),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the corpora; else GATEWISE_DATA, else they are downloaded.")
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; cuda if there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print numbers as JSON.")]
ModelFolder = Annotated[Path, typer.Argument(help="Folder of a run, or a file that gatewise.save() wrote.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace files of the same names that gatewise did not write.")
]
Into = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Class or function of yours that builds the model, called without arguments.",
    ),
]
Readers = Annotated[
    list[str] | None,
    typer.Option("--reader", metavar="LAYER=READER", help="Who reads a layer, where it cannot be traced."),
]


def built(spec: str | None) -> Any:
    """The model that MODULE:NAME builds, with modules of the current folder in reach, as `python -m` has them."""
    if spec is None:
        return None
    from importlib import import_module

    from torch import nn

    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise typer.BadParameter(f"--into {spec!r} is not of the form MODULE:NAME.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"--into {spec!r}: {error}.") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(found, nn.Module):
        raise typer.BadParameter(f"--into {spec!r} returns {type(found).__name__}, not a model.")
    return found


def stated(readers: list[str] | None) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for item in readers or []:
        layer, equals, reader = item.partition("=")
        if not (layer and equals and reader):
            raise typer.BadParameter(f"--reader {item!r} is not of the form LAYER=READER.")
        found.setdefault(layer, []).append(reader)
    return found or None
