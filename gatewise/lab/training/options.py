"""How a run is carried out, on what, and settings of the whole process that make its updates faster."""

from __future__ import annotations

import ctypes
import sys
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


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20


def prepare(device: torch.device) -> None:
    if device.type == "cuda":
        use_tf32()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        keep_freed_memory()


def use_tf32() -> None:
    """Matrix products on tensor cores with 10 bits of mantissa; cuDNN's recurrences too."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def keep_freed_memory() -> None:
    """Blocks up to 32 MiB that are freed stay with the process: the next update wants as many again.

    glibc would hand them back to the system, which has to clear every page that it gives out anew. Other allocators
    are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
