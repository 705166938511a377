"""A run on disk.

    first line  "gatewise run 1 " and the SHA-256 of the rest
    the rest    torch.save of tensors, numbers and strings; read with weights_only, so nothing in it can run

Who is killed while writing leaves the old file, and so does a full disk.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gatewise.export.saved.schema import SchemaError
from gatewise.lab import recorded
from gatewise.lab.files import RunError, plain, write_whole

MAGIC = b"gatewise run 1 "


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    payload = buffer.getbuffer()
    write_whole(path, b"".join((MAGIC, hashlib.sha256(payload).hexdigest().encode(), b"\n", payload)))


def load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); there is nothing to resume.") from error
    head, _, payload = content.partition(b"\n")
    if not head.startswith(MAGIC):
        raise RunError(
            f"{path}: is not a checkpoint of this version of gatewise, or it was cut short ({len(content):,} bytes). "
            "Restore it from a copy, or start anew with --overwrite."
        )
    if hashlib.sha256(payload).hexdigest().encode() != head.removeprefix(MAGIC):
        raise RunError(
            f"{path}: is damaged, its content does not have the sum it was written with. Restore it from a copy, or "
            "start anew with --overwrite."
        )
    with restoring(path):
        return dict(torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True))


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """A checkpoint whose sum is right and whose content is not: another program wrote it, or for another network."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # unpickling raises whatever it likes
        reason = f"{type(error).__name__}: {error}"
        raise RunError(
            f"{path}: does not hold what this run would go on with ({' '.join(reason.split())[:200]}). Restore it "
            "from a copy, or start anew with --overwrite."
        ) from error


class Metrics:
    """metrics.jsonl: one line per epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps(plain(line)) + "\n")
        except OSError as error:
            raise RunError(
                f"{self.path}: could not be written ({error.strerror or error}). Make room, then go on with --resume."
            ) from error

    def rewind(self, last_epoch: int) -> None:
        """Drop lines after an epoch, and a line that was cut short: those epochs are run again."""
        kept = [line for line in self.lines() if line["epoch"] <= last_epoch]
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def lines(self) -> Iterable[dict[str, Any]]:
        if not self.path.exists():
            return
        for written in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(written)
            except (json.JSONDecodeError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("epoch"), int):
                yield self.checked(line)

    def checked(self, line: dict[str, Any]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = recorded.line(f"epoch {line['epoch']}", line)
        except SchemaError as error:
            raise RunError(f"{self.path}: is not what a run writes: {error}. Remove that line.") from error
        return found
