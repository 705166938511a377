"""The command line: arguments in, one library call, text out.

A subcommand is a function under `@app.command`: it parses, makes one call into the library, and prints. Heavy imports
belong inside it, so that `gatewise --help` answers at once. What it raises becomes one sentence and an exit code:

    0 done    1 the work failed    2 wrong usage    130 interrupted
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

import gatewise

FAILED, INTERRUPTED = 1, 130
TRY, TRAIN, CUT, SHIP, LOOK = "Try it", "Train and evaluate", "Measure and cut", "Run and ship", "Look"


class Commands(TyperGroup):
    """What holds in every subcommand: no value is empty; Ctrl-C is 130, whatever the version of typer makes of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # An empty path, of an unset shell variable say, would be the current folder.
        for before, argument in pairwise(["", *args]):
            if argument == "" or re.fullmatch(r"--[\w-]+=", argument):
                name = (argument or before).rstrip("=")
                raise typer.BadParameter(f"the value after {name} is empty; the current folder is '.'.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    help="Learn which weights, gates and neurons an LSTM or GRU needs, cut the rest out, run what is left.",
    epilog="Example: gatewise demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Method(StrEnum):
    """The paper's two frameworks."""

    lasso = "lasso"
    bayes = "bayes"


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gatewise {gatewise.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    """What every subcommand understands; `main` looks for --debug itself."""


@app.command(rich_help_panel=TRY, epilog="Example: gatewise demo --method bayes")
def demo(
    method: Annotated[Method, typer.Option(help="Group lasso or variational dropout.")] = Method.lasso,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same network.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the result, the picture and the model.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train a language model dense, then sparse; show what is left. A few minutes on two cores, no download."""
    from gatewise.tasks.demo.run import TITLES, Settings, run_demo
    from gatewise.tasks.demo.view import View

    view = View()
    view.result(run_demo(Settings(method=method.value, seed=seed), out, view), TITLES[method.value])


Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the recipe; repeatable."),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the corpora; else GATEWISE_DATA, else they are downloaded.")
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; cuda if there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print numbers as JSON.")]


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise data word-ptb --data-dir corpora")
def data(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="word-ptb, char-ptb, imdb, agnews; all four by default.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Find or download the corpora and count them."""
    from gatewise.tasks import DataError
    from gatewise.tasks.data.corpus import corpora

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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin that run anew.")] = False,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 60.0,
    graph: Annotated[bool, typer.Option(help="Capture steps in CUDA graphs.")] = True,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files too.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the recipes and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Train a recipe: a row of the paper's tables, or your own. A killed run goes on with --resume."""
    from gatewise.tasks import recipe as recipes
    from gatewise.tasks.files import plain
    from gatewise.tasks.training.progress import nothing_left, result_line
    from gatewise.tasks.training.trainer import Options
    from gatewise.tasks.training.trainer import train as run

    if listed:
        for name in recipes.names():
            typer.echo(f"{name:32s}{recipes.load(name).title}")
        return
    if not recipe:
        raise typer.BadParameter("name a recipe; gatewise train --list shows them.")
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on with a run, --overwrite begins it anew: give one of them.")
    chosen = recipes.load(recipe, changes or [])
    where = out or Path("runs") / chosen.name
    result = run(
        chosen, Options(where, data_dir, device, resume, overwrite, checkpoint_every, graph, tensorboard)
    )
    typer.echo(json.dumps(plain(result)) if as_json else f"{where}: {result_line(result)}")
    if note := nothing_left(result):
        typer.echo(f"note: {note}", err=True)


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise evaluate runs/ptb-word-small-prune-wgn/model")
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
    """Compute quality and counts of a saved compact model again, from the data."""
    from gatewise.tasks.files import plain
    from gatewise.tasks.finished.saved import evaluate_saved

    quality, report = evaluate_saved(model, task, changes, data_dir, device, int8)
    if as_json:
        typer.echo(json.dumps(plain(quality | {"counts": report.to_dict()})))
        return
    for key, value in quality.items():
        if value != "":
            typer.echo(f"{key}: {value:.4f}" if isinstance(value, float) else f"{key}: {value}")
    typer.echo(f"\n{report}")


@app.command(rich_help_panel=TRAIN, epilog="Example: gatewise reproduce --run ptb-word-small-bayes-wgn")
def reproduce(
    results: Annotated[Path, typer.Option(help="Folder with one finished run per row.")] = Path("results"),
    row: Annotated[str | None, typer.Option("--run", help="Train this row into the folder first.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --run; others than 0 go to ROW/seeds/SEED.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """The paper's tables beside our runs: quality, compression, neurons, live gates."""
    from gatewise.tasks import recipe as recipes
    from gatewise.tasks.files import RESULT, RunError
    from gatewise.tasks.finished import reproduce as rows
    from gatewise.tasks.training.trainer import Options
    from gatewise.tasks.training.trainer import train as run

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


ModelFolder = Annotated[Path, typer.Argument(help="Folder of a run, or one written by gatewise.save().")]
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


@app.command(rich_help_panel=CUT, epilog="Example: gatewise measure runs/demo/compressed")
def measure(
    model: ModelFolder,
    into: Into = None,
    reader: Readers = None,
    as_json: AsJson = False,
) -> None:
    """Count weights, gates, neurons and words of a saved model, layer by layer."""
    from gatewise.tasks.files import model_folder

    readers = stated(reader)
    report = gatewise.measure(gatewise.load(model_folder(model), built(into)), readers)
    typer.echo(json.dumps(report.to_dict()) if as_json else str(report))


@app.command(rich_help_panel=CUT, epilog="Example: gatewise compress runs/sparse/model -o small")
def compress(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the small model.")],
    into: Into = None,
    reader: Readers = None,
) -> None:
    """Cut what is zero out of a saved model, exactly, and save what is left."""
    import warnings

    from gatewise.tasks.data.encoding import ENCODING, copy_encoding
    from gatewise.tasks.files import model_folder

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
    saved = gatewise.save(small, out)
    copy_encoding(model, out / ENCODING)
    before = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    after = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    typer.echo(
        f"{out}: {after:,} bytes, {before:,} before; tensors {saved.stored_bytes:,} bytes stored, "
        f"{saved.dense_bytes:,} dense"
    )


def built(spec: str | None) -> Any:
    """The model that MODULE:NAME builds, with modules of the current folder in reach, as `python -m` has them."""
    if spec is None:
        return None
    from importlib import import_module

    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise typer.BadParameter(f"--into {spec!r} is not of the form MODULE:NAME.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"--into {spec!r}: {error}.") from error
    finally:
        sys.path.remove(str(Path.cwd()))


def stated(readers: list[str] | None) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for item in readers or []:
        layer, equals, reader = item.partition("=")
        if not (layer and equals and reader):
            raise typer.BadParameter(f"--reader {item!r} is not of the form LAYER=READER.")
        found.setdefault(layer, []).append(reader)
    return found or None


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
        bool, typer.Option("--lengths", help="ONNX: the length of each sequence as an input.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="C: one byte for a weight, one scale for a row.")
    ] = False,
    into: Into = None,
) -> None:
    """Carry a saved model away: into ONNX or C.

    What its inputs and outputs mean goes along, as NAME.encoding.json.
    """
    from gatewise.export import load, to_c, to_onnx
    from gatewise.export.csource import check_replaceable
    from gatewise.tasks.data.encoding import ENCODING, copy_encoding
    from gatewise.tasks.files import model_folder

    if onnx is None and c is None:
        raise typer.BadParameter("say what to write: --onnx FILE or --c FOLDER")
    if int8 and c is None:
        raise typer.BadParameter("--int8 belongs to --c FOLDER.")
    if (lengths or states is not None) and onnx is None:
        raise typer.BadParameter("--lengths and --states belong to --onnx FILE.")
    model = model_folder(model)
    if c is not None:
        c = c.resolve()  # "." has no name, which the encoding is called by
        check_replaceable(c)  # before anything is written
        if onnx is not None and onnx.resolve().is_relative_to(c):
            raise typer.BadParameter(f"--onnx {onnx} lies in the folder of --c, which holds C source alone.")
    loaded = load(model, built(into))
    if onnx is not None:
        path = to_onnx(loaded, onnx, states=states, lengths=lengths)
        typer.echo(f"{path}: {path.stat().st_size} bytes")
    if c is not None:
        made = to_c(loaded, c, weights="int8" if int8 else "float32")
        where = "flash" if made.weight_file is None else made.weight_file.name
        typer.echo(
            f"{made.path}: {made.weights}, {where} {made.flash_bytes:,} bytes, without code; RAM {made.ram_bytes:,} "
            f"bytes; largest error {made.max_abs_error:.3g}"
        )
    # Beside a C folder, not inside: to_c() replaces only what is its own.
    for written in (onnx, c):
        for path in copy_encoding(model, written.with_name(f"{written.name}.{ENCODING}")) if written else ():
            typer.echo(f"{path}: {path.stat().st_size} bytes")


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
    """Time a saved model against its dense original: torch, ONNX Runtime if installed, the engine."""
    from gatewise.export import load
    from gatewise.export.timing import race
    from gatewise.tasks.files import model_folder

    loaded = load(model_folder(model), built(into))
    timings = race(loaded, steps=steps, batch=batch, threads=threads, seconds=seconds)
    if as_json:
        typer.echo(json.dumps([vars(timing) for timing in timings]))
        return
    for timing in timings:
        typer.echo(
            f"{timing.situation:16s} {timing.name:22s} {timing.seconds * 1e6:12.1f} us {timing.ratio:8.1f}x"
        )


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
    from gatewise.tasks.finished.explore import write_figures

    build = None if into is None else partial(built, into)
    written = write_figures(runs, out, data_dir, lags, sequences, partial(typer.echo, err=True), build)
    for path in written:
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
    from gatewise.tasks.finished.explore import write_report

    if len(runs) > 2:
        raise typer.BadParameter(f"a page compares two runs at most, not {len(runs)}.")
    build = None if into is None else partial(built, into)
    path, notes = write_report(runs, out, data_dir, lags, sequences, build)
    for note in notes:
        typer.echo(f"Note: {note}", err=True)
    typer.echo(f"{path}: {path.stat().st_size:,} bytes; open it in a browser")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the installed program ends with it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    console = Console(stderr=True, emoji=False)  # cuda:x: is no emoji
    try:
        app(given, prog_name="gatewise")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except Exception as error:
        if debug:
            raise
        console.print("[bold red]Error:[/]", escape(sentence(error)), highlight=False, soft_wrap=True)
        return FAILED
    if code == INTERRUPTED:
        console.print("Interrupted. What was complete is kept; nothing half-written is left.")
    return code


def sentence(error: Exception) -> str:
    """What went wrong, in one line; the kind of error where its text does not speak for itself."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    text = " ".join(str(error).split())
    if isinstance(error, (ValueError, OSError)) and text:
        return text
    text = text.rstrip(".") or "no message"
    return f"{type(error).__name__}: {text}. Run again with --debug for the traceback."


if __name__ == "__main__":
    sys.exit(main())
