"""One process at a time writes to the folder of a run.

The lock is the system's, on a file that names the process; who is killed leaves the file, but not the lock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gatewise.lab.files import RunError

LOCK = ".lock"


class Busy(RunError):
    """Another process writes to the folder."""


if sys.platform == "win32":
    import msvcrt

    def take(file: IO[str]) -> None:
        file.seek(2**20)  # beyond the text: a locked byte cannot be read
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error
else:
    import fcntl

    def take(file: IO[str]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks: better a run without one than no run
            return


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder; refused where another process holds it.

    The folder is made if need be, and goes again if nothing was written into it.
    """
    path, new = folder / LOCK, not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
    except BlockingIOError as error:
        raise Busy(
            f"{folder}: process {_holder(path)} is writing to this run. Wait for its end, or name another --out."
        ) from error
    except OSError as error:
        raise RunError(f"{folder}: cannot be used for a run ({error.strerror or error}).") from error
    with file:
        file.seek(0)
        before = file.read(100).strip()
        if before and not before.isdigit():
            raise RunError(f"{path}: was not written by gatewise, and would be removed. Name another --out.")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no open file; the next run takes it over
                path.unlink()
                if new:
                    folder.rmdir()  # fails where something was written, as it should


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").strip() or "(not known)"
    return "(not known)"


def _through_no_link(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _locked(path: Path) -> IO[str]:
    """The file, open and ours. One that its holder removed while we opened it is no lock any more."""
    while True:
        file = os.fdopen(_through_no_link(path), "a+", encoding="utf-8", errors="replace")
        try:
            take(file)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
