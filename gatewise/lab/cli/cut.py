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
    from gatewise.lab.files import model_of

    readers = stated(reader)
    report = gatewise.measure(gatewise.load(model_of(model), built(into)), readers)
    typer.echo(json.dumps(report.to_dict()) if as_json else str(report))


@app.command(rich_help_panel=CUT, epilog="Example: gatewise compress runs/sparse -o small")
def compress(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the small model.")],
    overwrite: Overwrite = False,
    into: Into = None,
    reader: Readers = None,
) -> None:
    """Cut what is zero out of a saved model, exactly, and save what is left."""
    import warnings

    from gatewise.export import attached
    from gatewise.lab.files import check_not_of_a_run, model_of

    check_not_of_a_run(out)
    model, readers = model_of(model), stated(reader)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        small = gatewise.compress(gatewise.load(model, built(into)), readers)
    for warning in said:
        typer.echo(f"Note: {warning.message}", err=True)
    before = model.stat().st_size  # --out may be the same file
    saved = gatewise.save(small, out, overwrite=overwrite, attached=attached(model))
    after = saved.path.stat().st_size
    typer.echo(
        f"{saved.path}: {after:,} bytes, {before:,} before; tensors {saved.stored_bytes:,} bytes stored, "
        f"{saved.dense_bytes:,} dense"
    )
