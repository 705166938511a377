"""How a run is carried out, and on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gatewise.lab.files import RunError


@dataclass(frozen=True)
class Options:
    """How a run is carried out; nothing here changes its numbers."""

    out: Path
    data_dir: str | Path | None = None
    device: str | None = None  # the GPU if there is one
    resume: bool = False
    overwrite: bool = False
    checkpoint_every: float = 60.0  # seconds between checkpoints; inside an epoch only if that takes longer
    graph: bool = True  # capture steps in CUDA graphs
    tensorboard: bool = False
    quiet: bool = False
    on_epoch: Callable[[Mapping[str, Any]], None] | None = None  # told a line of metrics; may end the run


def chosen_device(name: str | None, local: int | None = None) -> torch.device:
    """The device by name; without one the GPU if there is one, and one each for the ranks of a machine."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and local is not None:
        name = f"cuda:{local}"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdigit():
        raise RunError(f"--device {name}: it must be cpu, cuda, or one of several: cuda:1.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise RunError(f"--device {name}: torch sees no such CUDA device here; leave it out, or use cpu.")
    return torch.device(name)
