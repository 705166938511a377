from __future__ import annotations

from pathlib import Path

import pytest
from tiny_corpora import write_corpora


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a tiny corpus for every task."""
    return write_corpora(tmp_path_factory.mktemp("data") / "corpora")
