"""How files are put in their places: whole, over regular files alone, and through no link."""

from __future__ import annotations

import errno
import os
import stat
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


def check_regular(path: Path) -> None:
    """What is to be replaced is a regular file or nothing: a link, a pipe or a device stays; folders do anyway."""
    kind = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        reason = "is a link, a pipe or a device, which is not replaced by a file; name another"
        raise FileExistsError(errno.EEXIST, reason, str(path))


def write_new(path: Path, data: bytes) -> None:
    """A file that was not there: through no link, and on the disk before anything is renamed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def put(target: Path, data: bytes) -> None:
    """The old file or the new one, never a part of it."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with naming(target):
        check_regular(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            write_new(temporary, data)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
