"""How files are put in their places: whole, over regular files alone, and through no link.

What is being written has a temporary name beside its target, always the same one, so that the next writer removes
what a killed one left; writers of one folder take turns.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".gatewise-"  # begins the name of what is being written; nobody else has such names


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Until the block ends no other process writes into the folder; whoever does is waited for.

    The lock is the system's: who is killed leaves none. Windows locks no folder.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def name_target_in_errors(target: Path) -> Iterator[None]:
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


def open_new(path: Path) -> BinaryIO:
    """A file that was not there, to be written; through no link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def write_atomic(target: Path, data: bytes) -> None:
    """The old file or the new one, never a part of it: the new one is on the disk before it is renamed.

    Raises:
        OSError: it could not be written, or the target is no regular file; with its name.
    """
    temporary = target.with_name(TEMPORARY + target.name)
    with name_target_in_errors(target):
        check_regular(target)
        if target.is_dir():
            raise FileExistsError(errno.EEXIST, "is a folder, which is not replaced by a file", str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(target.parent):
            # Of a process that was killed, or a link to a file of someone else's.
            temporary.unlink(missing_ok=True)
            try:
                with open_new(temporary) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)


def write_folder(target: Path, contents: dict[str, bytes]) -> None:
    """Everything in a folder beside the target, then two renames; what was there goes last."""
    work = target.with_name(TEMPORARY + target.name)
    new, old = work / "new", work / "old"
    with name_target_in_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(target.parent):
            try:
                remove_left(work, target)
                new.mkdir(parents=True)
                for name, content in contents.items():
                    (new / name).write_bytes(content)
                if target.exists():
                    os.rename(target, old)
                os.rename(new, target)
            finally:
                remove_left(work, target)


def remove_left(work: Path, target: Path) -> None:
    """Of an attempt that failed or was killed: what it had moved away goes back, the rest goes."""
    if work.is_symlink() or work.is_file():
        work.unlink()
    elif (work / "old").exists() and not target.exists():
        os.rename(work / "old", target)
    shutil.rmtree(work, ignore_errors=True)
