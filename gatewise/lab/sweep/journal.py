"""Trials of one machine in a file, and which workers live. Locks are the system's: who is killed loses them."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from optuna.storages.journal import JournalFileBackend

from gatewise.lab.sweep.space import SweepError
from gatewise.lab.training.lock import take

PAUSE = 0.01  # seconds between two tries


class FileLock:
    """Optuna's own lock is a link, which a worker that is killed leaves behind for half a minute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[str] | None = None

    def acquire(self) -> None:
        file = self.path.open("a+", encoding="utf-8")
        while True:
            try:
                take(file)
            except BlockingIOError:
                time.sleep(PAUSE)
                continue
            except BaseException:
                file.close()
                raise
            self.file = file
            return

    def release(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    @contextmanager
    def held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


class Journal(JournalFileBackend):
    """Optuna's file, in which no half line stays: the disk may be full, and a line behind it would spoil the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, FileLock(path.with_name(path.name + ".lock"))
        with self.lock.held():
            super().__init__(str(path))
            self.drop_half_line()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self.lock.held():
            before = self.path.stat().st_size
            try:
                with self.path.open("ab", buffering=0) as file:
                    written = file.write(lines)
                    os.fsync(file.fileno())
                if written < len(lines):
                    raise OSError("there is no room for a whole line")
            except OSError as error:
                os.truncate(self.path, before)
                raise SweepError(
                    f"{self.path}: could not be written ({error.strerror or error}). Make room, then run the same "
                    "line again: trials go on from their checkpoints."
                ) from error

    def drop_half_line(self) -> None:
        with self.path.open("rb+") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)


class Alive:
    """A file for each worker, locked as long as it lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, uuid.uuid4().hex[:12]
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(folder / self.name)
        self.lock.acquire()

    def is_dead(self, name: str | None) -> bool:
        """Whether the worker of that name is gone; one without a name died before it could say it."""
        if name is None:
            return True
        try:
            with (self.folder / name).open("r+", encoding="utf-8") as file:
                take(file)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            pass  # it ended, and took its file along
        return True

    def close(self) -> None:
        self.lock.release()
        self.lock.path.unlink(missing_ok=True)
