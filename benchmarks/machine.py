"""The machine under the benchmarks: its name, its caches, and the rates that no kernel can exceed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from gatewise.lab import provenance

HERE = Path(__file__).parent
KERNELS = HERE.parent / "gatewise" / "runtime" / "kernels"


def march() -> str:
    """Flags for this processor, or for AVX2 alone where our kernels are kept to that."""
    return "-march=x86-64-v3 -mtune=native" if os.environ.get("GATEWISE_ISA") == "avx2" else "-march=native"


def roofline() -> dict[str, float]:
    """Peak GFLOP/s and GB/s from each cache, measured by benchmarks/kernels.c; empty without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/kernels"
        flags = f"-std=c99 -O3 {march()} -ffp-contract=fast".split()
        sources = [str(HERE / "kernels.c"), str(KERNELS / "gw.c"), str(KERNELS / "words.c")]
        try:
            subprocess.run(["cc", *flags, f"-I{KERNELS}", *sources, "-o", program], check=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        line = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    found = {name: float(number) for name, number in re.findall(r"(peak|L1|L2|L3|memory) (\d+)", line)}
    return found | cache_bytes()


def cache_bytes() -> dict[str, float]:
    """Sizes of the first core's own caches, as the system says them."""
    sizes = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and level in "12":
            sizes[f"L{level} bytes"] = 1024.0 * int(size.removesuffix("K"))
    return sizes


def machine_line(device: str = "cpu", *libraries: ModuleType) -> str:
    """Chip, threads and load, versions of torch and of `libraries`, commit."""
    about = provenance.hardware(torch.device(device))
    load = f"load {os.getloadavg()[0]:.1f}"
    chip = about.get("gpu") or f"{about['cpu']}, {about['cores']} cores, {load}, {about['threads']} thread(s)"
    versions = ", ".join(f"{library.__name__} {library.__version__}" for library in (torch, *libraries))
    return f"{chip}, {versions}, commit {(provenance.commit() or 'unknown')[:7]}"
