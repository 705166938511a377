"""The C kernels, compiled once for every file that links them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    from compiled import compile_kernels  # skips where there is no compiler

    return compile_kernels(tmp_path_factory.mktemp("kernels"), "-O1", "-fPIC")
