"""The C that is the same in every export: templates and small functions, in files/, written for the name `model`."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

FILES = resources.files("gatewise.export.c") / "files"


def read(file: str) -> str:
    return (FILES / file).read_text("utf-8")


@cache
def templates() -> Environment:
    return Environment(
        loader=FunctionLoader(read),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def rendered(file: str, **parts: object) -> str:
    """A template with its parts filled in."""
    return templates().get_template(file).render(parts)


@cache
def helpers() -> dict[str, str]:
    """The functions of helpers.c by name, each with the comment above it."""
    found = {}
    for part in read("helpers.c").split("\n\n"):
        if (name := re.search(r"^static \w+ (\w+)\(", part, re.M)) is not None:
            found[name[1]] = part.rstrip("\n") + "\n"
    return found


def renamed(text: str, name: str) -> str:
    """Text written for the name `model`, for another one."""
    text = re.sub(r"\bMODEL_", f"{name.upper()}_", text)
    return re.sub(r"\bmodel(?=_|\.[hc]\b|\.bin\b)", name, text)
