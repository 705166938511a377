"""Where forward() wrote something: `model.py, line 42, "return self.fc(out[:, 0])"`."""

from __future__ import annotations

import linecache
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

PACKAGE = Path(__file__).parents[1]
# Who records, and who hands over to the recorder.
OURS = ("program", "readers", "nn/decoding.py")
NOT_FORWARD = (str(Path(torch.__file__).parent), *(str(PACKAGE / part) for part in OURS))
LONGEST = 80  # characters of a line that are shown


@dataclass(frozen=True)
class SourceLine:
    """A line of source."""

    file: str
    number: int

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.number).strip()
        if len(source) > LONGEST:
            source = source[:LONGEST] + "..."
        return f'{Path(self.file).name}, line {self.number}, "{source}"' if source else ""


def current_line() -> SourceLine:
    """The line of forward() that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_FORWARD):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def line_of_error(error: BaseException) -> str:
    """Where forward() raised, itself or in what it called; empty where that is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(NOT_FORWARD)]
    return str(SourceLine(own[-1].filename, own[-1].lineno or 0)) if own else ""
