"""Where GPU kernels are tested: on a CUDA device, or in Triton's interpreter when it is asked for; else skipped."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("no CUDA device, and TRITON_INTERPRET is not 1", allow_module_level=True)
