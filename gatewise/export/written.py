"""What an export says of a file that could not be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Where a write fails, of a full disk, the system names no file: the error names the target."""
    try:
        yield
    except OSError as error:
        if error.strerror:
            error.filename = str(target)
        raise
