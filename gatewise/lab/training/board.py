"""The metrics of a run as TensorBoard curves, for those who asked for them: gates/rnn.l0/i by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatewise.lab.files import RunError


def summary_writer() -> type[Any]:
    """TensorBoard's own; refused where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RunError(
            "--tensorboard needs the package tensorboard: pip install gatewise[tensorboard]."
        ) from error
    return SummaryWriter


class Board:
    """What an earlier part of the run wrote about `first_epoch` and later is hidden: those are run again."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        self.writer = summary_writer()(str(folder), purge_step=first_epoch)

    def add(self, line: Mapping[str, Any]) -> None:
        for key, value in flat(line).items():
            self.writer.add_scalar(key, value, line["epoch"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def flat(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of nested dictionaries by path: gates/rnn.l0/i."""
    found: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            found[prefix + key] = value
    return found
