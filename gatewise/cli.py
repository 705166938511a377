"""The command line: arguments in, one library call, text out.

A subcommand is a function under `@app.command`: it parses, makes one call into the library, and prints. Heavy imports
belong inside it, so that `gatewise --help` answers at once. What it raises becomes one sentence and an exit code:

    0 done    1 the work failed    2 wrong usage    130 interrupted
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

import gatewise

FAILED, USAGE, INTERRUPTED = 1, 2, 130
TRY = "Try it"


class Commands(TyperGroup):
    """Ctrl-C means 130 in every subcommand, whatever the version of typer makes of it."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the installed program ends with it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    console = Console(stderr=True)
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
    return f"{type(error).__name__}: {text or 'no message'}. Run again with --debug for the traceback."
