"""Pages that follow from the code: recipes.md, cli.md and operations.md in docs/reference.

python tests/docs/generate.py            # writes them; `make test` fails where they are not fresh
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import typer

from gatewise.export.c.program import WRITE
from gatewise.export.onnx.program import RULES as NODES
from gatewise.lab import schema
from gatewise.lab.cli import app
from gatewise.program import operations as ops
from gatewise.runtime.links import LINKS
from gatewise.runtime.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = """# Recipe keys

<!-- Written by tests/docs/generate.py from gatewise/lab/schema.py. -->

A recipe is a TOML file with these sections. `--set train.epochs=20` changes a key for one run. An unknown key is
refused, and the nearest one is named. [Train a recipe](../training.md) shows how to use them.

A section `[expect]` may hold the paper's numbers; it steers nothing. `base = "NAME"` on top of a file begins with
another recipe, by name or path.
"""
CLI = """# Command line

<!-- Written by tests/docs/generate.py from gatewise/lab/cli/. -->

`pip install ".[lab]"` in a clone brings the program. `gatewise --help` lists the commands,
`gatewise COMMAND --help` shows one. Exit codes are 0 (done), 1 (failed), 2 (wrong usage) and 130 (interrupted).
`python -m gatewise` is the same program.
"""


OPERATIONS = """# Operations

<!-- Written by tests/docs/generate.py from gatewise/program/operations.py and the tables of the back ends. -->

`forward()` is recorded as a program: a graph of these operations. `print(gatewise.program.ways.programs(model)[0])`
shows one, with the line of `forward()` beside each operation. B is the batch, T time, C channels. *Chain* says what
may be a link of a chain, which runs in one call of the kernels. *int8* says whose weights can be bytes.

| operation | computes | chain | engine | streaming | ONNX | C | int8 |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
BY_MODULE = (ops.Parameter, ops.Embed, ops.Linear, ops.Recurrent, ops.LastState, ops.Decode)
ANALYSED = (ops.Turn, ops.Collect, ops.Opaque)  # what only an analysis meets


def cell(text: str) -> str:
    """Text in a table: a bar ends no cell, and a bracket begins no link; what is code stays as it is."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(part if k % 2 else part.replace("[", "\\[") for k, part in enumerate(parts))


def comments_of(source: str) -> dict[int, str]:
    """Comments by line number."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def section(name: str, node: ast.ClassDef, comments: dict[int, str]) -> str:
    """One table: a line for each field of the dataclass, with the comment beside it."""
    lines = [f"\n## {name}\n", "| key | values | default | |", "| --- | --- | --- | --- |"]
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            kind = ast.unparse(field.annotation)
            choices = re.findall(r"Literal\[([^\]]*)\]", kind)
            shown = choices[0].replace("'", '"') if choices else kind.replace(" | None", "")
            default = "required" if field.value is None else f"`{ast.unparse(field.value)}`"
            said = " ".join(comments.get(k, "") for k in range(field.lineno, (field.end_lineno or 0) + 1))
            default = "" if default == "`None`" else default.replace("'", '"')
            lines.append(
                f"| `{name}.{ast.unparse(field.target)}` | {cell(shown)} | {default} | {cell(said)} |"
            )
    return "\n".join(lines) + "\n"


def recipes_page() -> str:
    source = inspect.getsource(schema)
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    comments = comments_of(source)
    rate = "\n".join(
        f"    {line}".rstrip() for line in inspect.cleandoc(schema.Train.__doc__ or "").splitlines()
    )
    tables = "".join(section(name, classes[own.__name__], comments) for name, own in schema.SECTIONS.items())
    return f"{RECIPES}{tables}\n## The learning rate\n\n{rate}\n"


def option_line(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    names = [parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts]
    default = parameter.default
    shown = "" if callable(default) or default is False or default in (None, "", (), []) else f"`{default}`"
    return (
        f"| {', '.join(f'`{n}`' for n in names)} | {cell(getattr(parameter, 'help', '') or '')} | {shown} |"
    )


def command_part(name: str, command: Any) -> str:
    lines = [f"\n## gatewise {name}\n", " ".join((command.help or "").split()), ""]
    if command.epilog:
        lines += ["```sh", command.epilog.removeprefix("Example: "), "```", ""]
    lines += ["| argument | | default |", "| --- | --- | --- |"]
    return "\n".join([*lines, *map(option_line, command.params)]) + "\n"


def cli_page() -> str:
    root: Any = typer.main.get_command(app)
    return CLI + "".join(command_part(name, root.commands[name]) for name in root.commands)


def operations_page() -> str:
    listed = [
        kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Operation)
    ]
    rows = [operation_line(kind) for kind in listed if kind is not ops.Operation and kind not in ANALYSED]
    functions = {
        "Map": ops.KEEPS_ZERO | ops.MOVES_ZERO,
        "Combine": ops.ARITHMETIC | ops.COMPARISONS,
        "Reduce": ops.REDUCTIONS,
    }
    named = [
        f"| {name} | {', '.join(f'`{f}`' for f in sorted(found))} |" for name, found in functions.items()
    ]
    table = "\n".join(["| operation | functions |", "| --- | --- |", *named])
    return OPERATIONS + "\n".join(rows) + f"\n\n## Functions\n\n{table}\n"


def operation_line(kind: type[ops.Operation]) -> str:
    given = kind is ops.Input
    computes = cell((kind.__doc__ or "").split("\n")[0])
    has = {
        "chain": given or kind in LINKS,
        "engine": given or kind in RULES or kind in BY_MODULE,
        "onnx": given or kind in NODES,
        "c": given or kind in WRITE or kind in BY_MODULE,
    }
    chain, engine, onnx, c = ("yes" if found else "" for found in has.values())
    int8 = "yes" if kind in BY_MODULE[1:4] or kind is ops.Decode else ""
    return f"| {kind.__name__} | {computes} | {chain} | {engine} | {kind.streams} | {onnx} | {c} | {int8} |"


def pages() -> dict[str, str]:
    return {
        "reference/recipes.md": recipes_page(),
        "reference/cli.md": cli_page(),
        "reference/operations.md": operations_page(),
    }


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text, encoding="utf-8")
