"""One thread, fixed seeds, and two sizes of property tests: the usual one and `--long`.

A campaign is a test that counts: mutated files, kills, drawn models. Its counts are said at the end of the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "usual", max_examples=16, deadline=None, derandomize=True, database=None, suppress_health_check=quiet
)
settings.register_profile("long", parent=settings.get_profile("usual"), max_examples=1000, derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="1000 examples a property, campaigns in full, tests marked long"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "usual")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` are slow repeats of others: further compilers, further moments to be killed at."""
    if not config.getoption("--long"):
        slow = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def every(pytestconfig: pytest.Config) -> Callable[[Any, int], Any]:
    """every(values, k): all of them with --long, else each k-th, the first among them."""
    return lambda values, k: values if pytestconfig.getoption("--long") else values[::k]


@pytest.fixture
def campaign(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes the line that is said at the end of the run."""
    return lambda line: record_property("campaign", line)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for group in terminalreporter.stats.values() for report in group]
    for report in reports:
        if getattr(report, "when", None) == "call":
            for name, line in report.user_properties:
                if name == "campaign":
                    terminalreporter.write_line(f"campaign: {line}")


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
