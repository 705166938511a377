"""Where a number comes from: machine, versions, command, commit, content of the data."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

import gatewise


def hardware(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": device.type,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def versions() -> dict[str, str]:
    return {"gatewise": gatewise.__version__, "torch": torch.__version__, "python": platform.python_version()}


def command() -> str:
    return shlex.join(["gatewise", *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the source tree, `+` if files differ from it; None outside of a git tree.

    GATEWISE_COMMIT says it for a copy of the tree without its history, as one sends it to a GPU.
    """
    told = os.environ.get("GATEWISE_COMMIT")
    if told:
        return told
    folder = Path(gatewise.__file__).parent
    try:
        found, changed = (
            subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "."])
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if found.returncode:
        return None
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def digest_of(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def peak_memory(device: torch.device) -> int:
    """Bytes: allocated on the GPU, or resident on the host; 0 where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
