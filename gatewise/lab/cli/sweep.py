"""sweep, front, pick."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gatewise.lab.cli.options import AsJson, Changes, DataDir, Device, Overwrite
from gatewise.lab.cli.program import app
from gatewise.lab.cli.train import TRAIN

Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="postgresql://USER@HOST/DATABASE, for many machines; a SQLite file in the folder by default.",
    ),
]


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise sweep sweep.toml --workers 2")
def sweep(
    source: Annotated[str, typer.Argument(help="A sweep file, or a recipe together with --over.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", metavar="KEY=RANGE", help='Search a key: "sparsify.group=log 1e-4..1e-2"; repeatable.'
        ),
    ] = None,
    changes: Changes = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="How many sparse networks; as many dense ones beside them.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="After which no trial begins.")] = None,
    objectives: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Of quality,bytes,time; all three by default.")
    ] = None,
    under: Annotated[
        str | None,
        typer.Option(metavar="LIMIT", help='Quality alone, of networks with "bytes<=200_000" or "time<=50".'),
    ] = None,
    dense: Annotated[bool | None, typer.Option("--dense/--no-dense", help="Train dense rivals, too.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    storage: Storage = None,
    name: Annotated[
        str | None, typer.Option(help="Of the sweep; that of the file or recipe by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep; sweeps/NAME by default.")] = None,
    data_dir: DataDir = None,
    device: Device = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    heartbeat: Annotated[
        int,
        typer.Option(
            min=1, help="Seconds between signs of life; after two without one a worker counts as dead."
        ),
    ] = 20,
) -> None:
    """Train many variants: quality against bytes and time.

    Run the same line again to go on, on this machine or, with --storage, on others.
    """
    from gatewise.lab.sweep.plan import read_plan
    from gatewise.lab.sweep.worker import Job
    from gatewise.lab.sweep.worker import sweep as run

    plan = read_plan(
        source,
        over or [],
        changes or [],
        name=name,
        trials=trials,
        minutes=minutes,
        objectives=objectives,
        under=under,
        dense=dense,
    )
    folder = out or Path("sweeps") / plan.name
    job = Job(plan, folder, data_dir, device, storage, checkpoint_every, heartbeat)
    run(job, workers, partial(typer.echo, err=True))
    typer.echo(f"{folder}: done; gatewise front {folder} shows what is best")


Folder = Annotated[Path, typer.Argument(help="Folder of a sweep.")]


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise front sweeps/sweep")
def front(
    folder: Folder,
    storage: Storage = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for figure and page; the sweep's own by default."),
    ] = None,
    pages: Annotated[bool, typer.Option(help="Write a page for each run of the front, too.")] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a sweep that no other beats.

    A table, a figure, and a page whose points open their runs.
    """
    from gatewise.lab.files import plain
    from gatewise.lab.sweep.front import open_front, table, to_dict, write_front, write_reports

    found = open_front(folder, storage)
    say = partial(typer.echo, err=True)
    if pages:
        write_reports(found, data_dir, say)
    for path in write_front(found, out or folder):
        say(str(path))
    typer.echo(json.dumps(plain(to_dict(found))) if as_json else table(found))
    if found.unfinished:
        say(f"note: {found.unfinished} runs have no result: they go on, failed, or were stopped early")


@app.command(
    rich_help_panel=TRAIN, epilog="Example: gatewise pick sweeps/sweep --under 'bytes<=100_000' -o small"
)
def pick(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")],
    under: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help='At most so much: "bytes<=100_000", "time<=20"; repeatable.'),
    ] = None,
    storage: Storage = None,
    overwrite: Overwrite = False,
) -> None:
    """Copy the best model of a sweep out."""
    from gatewise.lab.sweep.front import best_under, copy_model, open_front
    from gatewise.lab.sweep.plan import parse_under, said
    from gatewise.lab.sweep.storage import shown

    found = open_front(folder, storage)
    best = best_under(found, [parse_under(text) for text in under or []])
    copy_model(best, out, overwrite)
    typer.echo(f"{out}: {best.name}, {shown(best.measured, found.quality)}  ({said(best.values)})")
