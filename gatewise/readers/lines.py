"""What a message says about forward(): in which line, `model.py, line 42, "return self.fc(out[:, 0])"`, and why."""

from __future__ import annotations

import linecache
import sys
import traceback
from pathlib import Path

import torch
from torch import fx

PACKAGE = Path(__file__).parents[1]
# Who records.
NOT_FORWARD = (str(Path(torch.__file__).parent), str(PACKAGE / "readers"), str(PACKAGE / "runtime"))
LONGEST = 80  # characters of a line that are shown
UNKNOWN_NUMBER = "a loop runs as often, or an index is as large, as an input says"
# What Python and torch say about a tensor that is recorded, and what it means.
MEANINGS = {
    "cannot be interpreted as an integer": UNKNOWN_NUMBER,
    "indices must be integers": UNKNOWN_NUMBER,
    "'len' is not supported": "it asks for the len() of an input, or goes through it in reverse",
    "control flow": "an `if` or `while` asks for a value or a size, which only a call knows",
    "does not support item assignment": (
        "it writes into a part of a tensor; masked_fill() and torch.where() give a new one"
    ),
    "torch.finfo()": "it asks for the type of a tensor; write torch.finfo(torch.float32)",
    "array_interface__": "it makes a tensor of an argument, torch.tensor(lengths) say; let forward() take a tensor",
    "cannot be given other data": "it gives a tensor other data",
}


def remember_line(node: fx.Node) -> None:
    """Note the line that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_FORWARD):
        frame = frame.f_back
    node.meta["line"] = frame.f_code.co_filename, frame.f_lineno


def line_of(node: fx.Node) -> str:
    """Where a node was recorded; empty where there is no source to show."""
    return shown(*node.meta.get("line", ("", 0)))


def line_of_error(error: Exception) -> str:
    """Where forward() raised, itself or in what it called; empty where that is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(NOT_FORWARD)]
    return shown(own[-1].filename, own[-1].lineno or 0) if own else ""


def why_not(error: Exception) -> str:
    """Why forward() could not be recorded, and in which line, in a text that names nothing of ours."""
    where = line_of_error(error)
    return f"{where}: {first_line(error)}" if where else first_line(error)


def first_line(error: Exception) -> str:
    """What was raised, in a line."""
    said = str(error).strip()
    meant = next((meaning for words, meaning in MEANINGS.items() if words in said), "")
    return meant or (said.splitlines()[0][:160] if said else type(error).__name__)


def shown(file: str, number: int) -> str:
    source = linecache.getline(file, number).strip()
    if len(source) > LONGEST:
        source = source[:LONGEST] + "..."
    return f'{Path(file).name}, line {number}, "{source}"' if source else ""
