"""Pages that follow from the code: recipes.md, cli.md and operations.md in docs/reference.

python tests/docs/generate.py            # writes them; `make test` fails where they are not fresh
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic.fields import FieldInfo

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
BY_MODULE = (ops.Parameter, ops.Embed, ops.Linear, ops.Recurrent, ops.LastState)
ANALYSED = (ops.Turn, ops.Collect, ops.Opaque)  # what only an analysis meets


def cell(text: str) -> str:
    """Text in a table: a bar ends no cell, and a bracket begins no link; what is code stays as it is."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(part if k % 2 else part.replace("[", "\\[") for k, part in enumerate(parts))


def comments_of(source: str) -> dict[int, str]:
    """Comments by line number."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def comments_by_class() -> dict[str, dict[str, str]]:
    """What stands beside the fields of each class of the schema."""
    source = inspect.getsource(schema)
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    said = comments_of(source)
    return {
        node.name: {
            ast.unparse(field.target): " ".join(
                said.get(k, "") for k in range(field.lineno, (field.end_lineno or 0) + 1)
            )
            for field in node.body
            if isinstance(field, ast.AnnAssign)
        }
        for node in classes
    }


def parts(kind: Any) -> Iterator[Any]:
    """Types, limits and words that a type is made of."""
    if isinstance(kind, FieldInfo):
        yield from (part for one in (kind.annotation, *kind.metadata) for part in parts(one))
    elif get_args(kind):
        yield from (part for one in get_args(kind) for part in parts(one))
    else:
        yield kind


def shown(info: FieldInfo) -> str:
    """`int | float, > 0` or `"LSTM", "GRU"`"""
    found = list(parts(info))
    words = [part for part in found if isinstance(part, str)]
    kinds = " | ".join(part.__name__ for part in found if part in (int, float, bool, str))
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = [f"{signs[k]} {v}" for part in found if is_dataclass(part) for k, v in asdict(part).items()]
    return ", ".join(f'"{word}"' for word in words) or ", ".join([kinds, *limits])


def section(name: str, kinds: tuple[type[schema.Section], ...]) -> str:
    """One table: a line for each key, with the comment beside it and who alone reads it."""
    lines = [f"\n## {name}\n", "| key | values | default | | only with |", "| --- | --- | --- | --- | --- |"]
    said = comments_by_class()
    for key in dict.fromkeys(key for kind in kinds for key in kind.model_fields):
        full = f"{name}.{key}"
        info = schema.KEYS[full]
        values = (
            ", ".join(f'"{word}"' for word in schema.WORDS[name])
            if schema.TAGS.get(name) == key
            else shown(info)
        )
        owners = [own.__name__ for kind in kinds for own in kind.__mro__ if key in said.get(own.__name__, {})]
        comment = "; ".join(filter(None, dict.fromkeys(said[owner][key] for owner in owners)))
        default = "" if info.is_required() else json.dumps(info.default)
        given = "required" if info.is_required() else "" if default == "null" else f"`{default}`"
        only = " ".join(f"`{word}`" for words in schema.READERS.get(full, {}).values() for word in words)
        lines.append(f"| `{full}` | {cell(values)} | {given} | {cell(comment)} | {only} |")
    return "\n".join(lines) + "\n"


def recipes_page() -> str:
    rate = "\n".join(
        f"    {line}".rstrip() for line in inspect.cleandoc(schema.Train.__doc__ or "").splitlines()
    )
    tables = "".join(section(name, kinds) for name, kinds in schema.SECTIONS.items())
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
    int8 = "yes" if kind in BY_MODULE[1:4] else ""
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
