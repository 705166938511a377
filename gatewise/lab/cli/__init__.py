"""The command line: arguments in, one library call, text out.

    program                  the program itself: what every subcommand understands, and what becomes of an error
    options                  options that several subcommands have
    train  sweep             the subcommands
    cut  ship  look

A subcommand is a function under `@app.command`: it parses, makes one call into the library, and prints. Heavy imports
belong inside it, so that `gatewise --help` answers at once. What it raises becomes one sentence and an exit code:

    0 done    1 the work failed    2 wrong usage    130 interrupted
"""

from gatewise.lab.cli import train, sweep, cut, ship, look  # noqa: F401, I001  registered in the order of --help
from gatewise.lab.cli.program import app, main

__all__ = ["app", "main"]
