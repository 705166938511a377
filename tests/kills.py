"""Processes that are killed at any moment, without warning: forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("there is no signal that cannot be caught", allow_module_level=True)

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["gatewise", "gatewise.lab.training.trainer", "onnx"])


def killed(work: Callable[..., None], *arguments: Any, after: float) -> bool:
    """Whether work(*arguments), in a process of its own, was still at it `after` seconds, and killed then."""
    here, there = forked.Pipe(duplex=False)
    process = forked.Process(target=begun, args=(there, work, *arguments))
    process.start()
    there.close()
    here.recv()
    here.close()
    process.join(after)
    process.kill()
    process.join()
    code = process.exitcode
    assert code in (0, -9), f"the process ended with {code} by itself"
    return code != 0


def begun(parent: Any, work: Callable[..., None], *arguments: Any) -> None:
    import torch

    torch.set_num_threads(1)
    parent.send(time.monotonic())
    parent.close()
    work(*arguments)
