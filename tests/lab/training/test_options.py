"""Memory between updates: what one has freed, the next one gets without asking the system."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from gatewise.lab.training.options import prepare

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [torch.ones(4 << 20) for _ in range(6)]  # of 16 MiB, all freed together
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
without = faults()
prepare(torch.device("cpu"))
faults()
print(without, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again() -> None:
    """A page that the system has to give out is one fault."""
    # By itself glibc keeps some blocks, as it happens.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    program = [sys.executable, "-c", FAULTS]
    ran = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    without, with_it = map(int, ran.stdout.split())
    assert with_it < without / 10
