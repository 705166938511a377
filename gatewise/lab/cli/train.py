"""demo, data, train, evaluate, reproduce."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gatewise.lab.cli.options import AsJson, Changes, DataDir, Device
from gatewise.lab.cli.program import app

TRY, TRAIN = "Try it", "Train and evaluate"


class Method(StrEnum):
    """The paper's two frameworks."""

    lasso = "lasso"
    bayes = "bayes"


@app.command(rich_help_panel=TRY, epilog="Example: gatewise demo --method bayes")
def demo(
    method: Annotated[Method, typer.Option(help="Group lasso or variational dropout.")] = Method.lasso,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same network.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Every stage in seconds, to check an install.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the result, the picture and the model.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train a language model dense, then sparse; show what is left. A few minutes on two cores, no download."""
    from gatewise.lab.demo import show_demo

    show_demo(method.value, out, seed, quick)


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise data word-ptb --data-dir corpora")
def data(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="word-ptb, char-ptb, imdb, agnews, g2p; all five by default.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Find or download the corpora and count them."""
    from gatewise.lab.data.corpus import corpora
    from gatewise.lab.data.sources import DataError

    missing = 0
    for line, found in corpora(tasks, data_dir):
        typer.echo(line, err=not found)
        missing += not found
    if missing:
        raise DataError(f"{missing} of the corpora cannot be used.")


@app.command(
    rich_help_panel=TRAIN, epilog="Example: gatewise train ptb-word-small-prune-wgn --set train.seed=1"
)
def train(
    recipe: Annotated[str, typer.Argument(help="A name from --list, or a .toml file of your own.")] = "",
    changes: Changes = None,
    data_dir: DataDir = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, over what is in that folder.")
    ] = False,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    graph: Annotated[bool, typer.Option(help="Capture steps in CUDA graphs.")] = True,
    listed: Annotated[bool, typer.Option("--list", help="List the recipes and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Train a recipe. A killed run goes on with --resume.

    Recipes are rows of the paper's tables, or your own.
    """
    from gatewise.lab import recipe as recipes
    from gatewise.lab.files import plain
    from gatewise.lab.training.options import Options
    from gatewise.lab.training.progress import nothing_left, result_line
    from gatewise.lab.training.ranks import is_first
    from gatewise.lab.training.trainer import train as run

    if listed:
        names = recipes.names()
        width = max(map(len, names)) + 2
        for name in names:
            typer.echo(f"{name:{width}}{recipes.load(name).title}")
        return
    if not recipe:
        raise typer.BadParameter("name a recipe; gatewise train --list shows them.")
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on with a run, --overwrite begins it anew: give one of them.")
    chosen = recipes.load(recipe, changes or [])
    where = out or Path("runs") / chosen.name
    result = run(chosen, Options(where, data_dir, device, resume, overwrite, checkpoint_every, graph))
    if not is_first():
        return
    typer.echo(json.dumps(plain(result)) if as_json else f"{where}: {result_line(result)}")
    if note := nothing_left(result):
        typer.echo(f"note: {note}", err=True)


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise evaluate runs/ptb-word-small-prune-wgn")
def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a run, or of a saved model.")],
    task: Annotated[
        str | None, typer.Option(help="Recipe that says which data and how; the run's own by default.")
    ] = None,
    changes: Changes = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    int8: Annotated[bool, typer.Option("--int8", help="With the weights of the int8 C export.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge a saved compact model again: quality and counts."""
    from gatewise.lab.files import plain
    from gatewise.lab.finished.saved import evaluate_saved

    quality, report = evaluate_saved(model, task, changes, data_dir, device, int8)
    if as_json:
        typer.echo(json.dumps(plain(quality | {"counts": report.to_dict()})))
        return
    for key, value in quality.items():
        if value != "":
            typer.echo(f"{key}: {value:.4f}" if isinstance(value, float) else f"{key}: {value}")
    typer.echo(f"\n{report}")


@app.command(
    rich_help_panel=TRAIN, epilog="Example: gatewise reproduce --run ptb-word-small-bayes-wgn --results again"
)
def reproduce(
    results: Annotated[Path, typer.Option(help="Folder with one finished run per row.")] = Path("results"),
    row: Annotated[str | None, typer.Option("--run", help="Train this row into the folder first.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --run; others than 0 go to ROW/seeds/SEED.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Set the paper's tables beside our runs.

    Quality, compression, neurons, live gates.
    """
    from gatewise.lab import recipe as recipes
    from gatewise.lab.files import RESULT, RunError
    from gatewise.lab.finished import reproduce as rows
    from gatewise.lab.training.options import Options
    from gatewise.lab.training.trainer import train as run

    if row is not None:
        out = rows.seed_folder(results / row, seed)
        if (out / RESULT).is_file():
            raise RunError(
                f"{out}: is trained already; `gatewise reproduce` shows its numbers. To train it again, name another "
                f"folder: gatewise reproduce --run {row} --results again."
            )
        run(recipes.load(row, [f"train.seed={seed}"]), Options(out, data_dir, device, resume=True))
    found = rows.table(results)
    if markdown:
        typer.echo(rows.markdown(found))
        return
    for r in found:
        typer.echo(f"{r.name}\n  ours   {rows.line(r.ours)}\n  paper  {rows.line(r.paper)}")
        spread = f"{rows.line(r.spread)} over {r.seeds} seeds" if r.spread else ""
        worse = rows.shortfall(r.ours, r.paper)
        for label, text in (("+-", spread), ("log", rows.line(r.log)), ("worse", worse), ("note", r.note)):
            if text not in ("", "-"):
                typer.echo(f"  {label:6s} {text}")
