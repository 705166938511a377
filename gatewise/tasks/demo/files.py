"""Files that are whole or absent, however the program ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A name to write to, a file or a folder; it becomes `path` only if the block ends well.

    The ending of the name stays, because writers look at it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    remove(partial)  # left by a process that was killed
    try:
        yield partial
        if partial.is_dir():
            remove(path)  # a folder cannot be replaced by a rename
        partial.replace(path)
    finally:
        remove(partial)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    with appearing(path) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n")
