from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from postgres_server import Server, server_programs
from tiny_corpora import write_corpora


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a tiny corpus for every task."""
    return write_corpora(tmp_path_factory.mktemp("data") / "corpora")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server of its own, with an empty data folder."""
    if server_programs() is None:
        pytest.skip("no PostgreSQL server is installed: no sweep over several machines is tested")
    with Server() as found:
        yield found
