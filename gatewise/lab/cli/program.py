"""The program itself: what every subcommand understands, and what becomes of an error."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

import gatewise

FAILED, INTERRUPTED = 1, 130


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
