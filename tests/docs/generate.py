"""Pages that follow from the code: docs/reference/recipes.md and docs/reference/cli.md.

python tests/docs/generate.py            # writes both; `make test` fails where they are not fresh
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

from gatewise.cli import app
from gatewise.tasks import schema

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {"data": "Data", "model": "Model", "sparsify": "Sparsify", "train": "Train", "budget": "Budget",
            "refit": "Refit"}  # fmt: skip
RECIPES = """# Recipe keys

<!-- Written by tests/docs/generate.py from gatewise/tasks/schema.py. -->

A recipe is a TOML file with these sections. `--set train.epochs=20` changes a key for one run. An unknown key is
refused, and the nearest one is named. [Train a recipe](../training.md) shows how to use them.

A section `[expect]` may hold the paper's numbers; it steers nothing. `base = "NAME"` on top of a file begins with
another recipe, by name or path.
"""
CLI = """# Command line

<!-- Written by tests/docs/generate.py from gatewise/cli/. -->

`gatewise --help` lists the commands, `gatewise COMMAND --help` shows one. Exit codes are 0 (done), 1 (failed), 2
(wrong usage) and 130 (interrupted). `python -m gatewise` is the same program.
"""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


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
    tables = "".join(section(name, classes[own], comments) for name, own in SECTIONS.items())
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


def pages() -> dict[str, str]:
    return {"reference/recipes.md": recipes_page(), "reference/cli.md": cli_page()}


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text, encoding="utf-8")
