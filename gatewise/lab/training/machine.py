"""Settings of the whole process that make updates faster, by what they run on."""

from __future__ import annotations

import ctypes
import sys

import torch

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
