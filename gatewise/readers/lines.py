"""Which line of forward() recorded an operation, for messages: `model.py, line 42, "return self.fc(out[:, 0])"`."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import torch
from torch import fx

NOT_FORWARD = (str(Path(torch.__file__).parent), str(Path(__file__).parent))  # who records
LONGEST = 80  # characters of a line that are shown


def remember_line(node: fx.Node) -> None:
    """Note the line that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_FORWARD):
        frame = frame.f_back
    node.meta["line"] = frame.f_code.co_filename, frame.f_lineno


def line_of(node: fx.Node) -> str:
    """Where a node was recorded; its name, where there is no source to show."""
    file, number = node.meta.get("line", ("", 0))
    source = linecache.getline(file, number).strip()
    if not source:
        return str(node)
    shown = source if len(source) <= LONGEST else source[:LONGEST] + "..."
    return f'{Path(file).name}, line {number}, "{shown}"'
