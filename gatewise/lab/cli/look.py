"""figures, report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gatewise.lab.cli.options import DataDir, Into, built
from gatewise.lab.cli.program import app

LOOK = "Look"
Runs = Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of saved models.")]
Lags = Annotated[int, typer.Option(min=0, help="Longest lag of the lag curves; 0 leaves them out.")]
Sequences = Annotated[int, typer.Option(min=1, help="Validation sequences they are averaged over.")]


@app.command(rich_help_panel=LOOK, epilog="Example: gatewise figures runs/ptb-word-small-prune-wgn")
def figures(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for them; RUN/figures by default.")
    ] = None,
    data_dir: DataDir = None,
    lags: Lags = 100,
    sequences: Sequences = 32,
    into: Into = None,
) -> None:
    """Draw gates, lag curves, norms, training and sizes.

    PNG and SVG. Further runs are laid over the first where they can be compared.
    """
    from gatewise.lab.finished.explore import write_figures

    say = partial(typer.echo, err=True)
    for path in write_figures(runs, out, data_dir, lags, sequences, say, partial(built, into)):
        typer.echo(path)


@app.command(
    rich_help_panel=LOOK, epilog="Example: gatewise report runs/ptb-word-small-prune-wgn -o report.html"
)
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    data_dir: DataDir = None,
    lags: Lags = 100,
    sequences: Sequences = 32,
    into: Into = None,
) -> None:
    """Write a page to explore a run, or to compare two.

    One file with every neuron's gates, words, readers and memory; it needs no network.
    """
    from gatewise.lab.finished.explore import write_report

    if len(runs) > 2:
        raise typer.BadParameter(f"a page compares two runs at most, not {len(runs)}.")
    path, notes = write_report(runs, out, data_dir, lags, sequences, partial(built, into))
    for note in notes:
        typer.echo(f"Note: {note}", err=True)
    typer.echo(f"{path}: {path.stat().st_size:,} bytes; open it in a browser")
