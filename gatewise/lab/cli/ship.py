"""export, bench."""

from __future__ import annotations

import inspect
import json
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewise.lab.cli.options import AsJson, Into, ModelFolder, built
from gatewise.lab.cli.program import app

SHIP = "Run and ship"


@app.command(rich_help_panel=SHIP, epilog="Example: gatewise export runs/demo/compressed --onnx model.onnx")
def export(
    model: ModelFolder,
    onnx: Annotated[Path | None, typer.Option(help="File to write as ONNX.")] = None,
    c: Annotated[Path | None, typer.Option("--c", help="Folder to write as C source.")] = None,
    states: Annotated[
        bool | None,
        typer.Option(help="ONNX: states as inputs and outputs; as forward() has them by default."),
    ] = None,
    lengths: Annotated[
        bool | None,
        typer.Option(
            help="ONNX: the lengths that forward() takes as an input; --no-lengths: as long as x, all."
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="C: one byte for a weight, one scale for a row.")
    ] = False,
    example: Annotated[
        Path | None,
        typer.Option(
            help="Sequences as forward() takes them, an .npy file, or an .npz file of all arguments. C: the error is "
            "measured on them."
        ),
    ] = None,
    into: Into = None,
) -> None:
    """Carry a saved model away: into ONNX or C.

    What its inputs and outputs mean goes along, as NAME.encoding.json.
    """
    from gatewise.export import load, to_c, to_onnx
    from gatewise.export.c.source import check_replaceable
    from gatewise.export.written import check_regular
    from gatewise.lab.data.encoding import ENCODING, copy_encoding
    from gatewise.lab.files import model_of

    if onnx is None and c is None:
        raise typer.BadParameter("say what to write: --onnx FILE or --c FOLDER")
    if int8 and c is None:
        raise typer.BadParameter("--int8 belongs to --c FOLDER.")
    if (lengths is not None or states is not None) and onnx is None:
        raise typer.BadParameter("--lengths and --states belong to --onnx FILE.")
    model = model_of(model)
    if onnx is not None:
        check_regular(onnx)
    if c is not None:
        c = c.resolve()  # "." has no name, which the encoding is called by
        check_replaceable(c)  # before anything is written
        if onnx is not None and onnx.resolve().is_relative_to(c):
            raise typer.BadParameter(f"--onnx {onnx} lies in the folder of --c, which holds C source alone.")
    loaded = load(model, built(into))
    batch = (
        None if example is None else arrays_of(example, list(inspect.signature(loaded.forward).parameters))
    )
    if onnx is not None:
        path = to_onnx(loaded, onnx, states=states, lengths=lengths, example=batch)
        typer.echo(f"{path}: {path.stat().st_size:,} bytes")
    if c is not None:
        typer.echo(to_c(loaded, c, weights="int8" if int8 else "float32", example=batch))
    # Beside a C folder, not inside: to_c() replaces only what is its own.
    for written in (onnx, c):
        for path in copy_encoding(model, written.with_name(f"{written.name}.{ENCODING}")) if written else ():
            typer.echo(f"{path}: {path.stat().st_size:,} bytes")


def arrays_of(file: Path, arguments: list[str]) -> Any:
    """The array of an .npy file, or those of an .npz file as a tuple of arguments."""
    import numpy as np

    try:
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            return found
        arrays = dict(found)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise typer.BadParameter(
            f"--example {file}: is no .npy or .npz file that can be read ({error})."
        ) from error
    if set(arrays) == {f"arr_{k}" for k in range(len(arrays))}:  # of numpy.savez(file, x, y)
        return tuple(arrays[f"arr_{k}"] for k in range(len(arrays)))
    given = arguments[: len(arrays)]
    if set(arrays) != set(given):
        raise typer.BadParameter(
            f"--example {file}: has {', '.join(arrays)}; forward() takes {', '.join(arguments)}. Name them so."
        )
    return tuple(arrays[name] for name in given)


@app.command(rich_help_panel=SHIP, epilog="Example: gatewise bench runs/demo/compressed --threads 2")
def bench(
    model: ModelFolder,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a sequence.")] = 35,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a batch.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Threads for everybody.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="At least this long for each situation.")] = 1.0,
    into: Into = None,
    as_json: AsJson = False,
) -> None:
    """Time a saved model against its dense original: torch, ONNX Runtime if installed, the engine.

    Times are medians. Contenders take turns, and the ratio to dense torch is the median over the turns: on a busy
    machine it is not the quotient of the two times.
    """
    from gatewise.export import load
    from gatewise.lab.files import model_of
    from gatewise.lab.timing import race

    loaded = load(model_of(model), built(into))
    timings = race(loaded, steps=steps, batch=batch, threads=threads, seconds=seconds)
    if as_json:
        typer.echo(json.dumps([vars(timing) for timing in timings]))
        return
    for timing in timings:
        typer.echo(
            f"{timing.situation:16s} {timing.name:22s} {timing.seconds * 1e6:12.1f} us {timing.ratio:8.1f}x"
        )
