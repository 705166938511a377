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
    "usual", max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=quiet
)
settings.register_profile("long", parent=settings.get_profile("usual"), max_examples=1000, derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="1000 examples a property instead of 25, campaigns in full"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "usual")


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
