"""measure, compress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import gatewise
from gatewise.lab.cli.options import AsJson, Into, ModelFolder, Overwrite, Readers, built, stated
from gatewise.lab.cli.program import app

CUT = "Measure and cut"


@app.command(rich_help_panel=CUT, epilog="Example: gatewise measure runs/demo/compressed")
def measure(
    model: ModelFolder,
    into: Into = None,
    reader: Readers = None,
    as_json: AsJson = False,
) -> None:
    """Count weights, gates, neurons and words of a saved model, layer by layer."""
    from gatewise.lab.files import model_folder

    readers = stated(reader)
    report = gatewise.measure(gatewise.load(model_folder(model), built(into)), readers)
    typer.echo(json.dumps(report.to_dict()) if as_json else str(report))


@app.command(rich_help_panel=CUT, epilog="Example: gatewise compress runs/sparse/model -o small")
def compress(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the small model.")],
    overwrite: Overwrite = False,
    into: Into = None,
    reader: Readers = None,
) -> None:
    """Cut what is zero out of a saved model, exactly, and save what is left."""
    import warnings

    from gatewise.lab.data.encoding import ENCODING, copy_encoding, read_encoding, sum_of
    from gatewise.lab.files import model_folder

    if out.is_dir() and model_folder(out) != out:
        raise typer.BadParameter(
            f"{out} is the folder of a run, whose model is {model_folder(out)}; name another."
        )
    model, readers = model_folder(model), stated(reader)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        small = gatewise.compress(gatewise.load(model, built(into)), readers)
    for warning in said:
        typer.echo(f"Note: {warning.message}", err=True)
    before = sum(file.stat().st_size for file in model.glob("*.safetensors"))  # --out may be the same folder
    saved = gatewise.save(small, out, overwrite=overwrite, beside=sum_of(read_encoding(model)))
    copy_encoding(model, out / ENCODING, overwrite)
    after = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    typer.echo(
        f"{out}: {after:,} bytes, {before:,} before; tensors {saved.stored_bytes:,} bytes stored, "
        f"{saved.dense_bytes:,} dense"
    )
