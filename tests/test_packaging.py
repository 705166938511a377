"""What a release says of itself: types, versions, the paper."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import gatewise
from gatewise.lab import NEEDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USER = """
import gatewise as gw
from torch import nn

small = gw.compress(nn.LSTM(2, 3))
reveal_type(gw.measure(small))
gw.Engine(small, threads="two")
"""


def test_users_get_types(tmp_path: Path) -> None:
    """A checker reads the package's own, and finds the mistake."""
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n"
    )  # torch takes a minute
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "user.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    for wanted in ('"gatewise.report.Report"', 'has incompatible type "str"'):
        assert wanted in said, said


def test_supported_pythons_are_said_once_and_for_all() -> None:
    """Classifiers, FAQ and the wheels that are tried name the same oldest and newest Python."""
    found = [line.split(":: ")[-1] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    oldest, newest = found[0], found[-1]
    assert PROJECT["requires-python"] == f">={oldest}"
    for page in ("docs/faq.md", "CONTRIBUTING.md"):
        assert f"Python {oldest} to {newest}" in (ROOT / page).read_text()
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tool["cibuildwheel"]["build"] == [
        f"cp{version.replace('.', '')}-*" for version in (oldest, newest)
    ]
    assert tool["scikit-build"]["wheel"]["py-api"] == f"cp{oldest.replace('.', '')}"


def names_of(requirements: list[str]) -> list[str]:
    return sorted(re.split(r"[\[>=]", requirement)[0] for requirement in requirements)


def test_what_is_installed() -> None:
    """The library needs torch and what that brings, NumPy and safetensors; the lab's extra is what the lab asks for,
    and a developer has it."""
    assert names_of(PROJECT["dependencies"]) == ["jinja2", "numpy", "safetensors", "torch"]
    extras = PROJECT["optional-dependencies"]
    assert names_of(extras["lab"]) == sorted(NEEDS)
    assert any(re.match(r"gatewise\[.*\blab\b", requirement) for requirement in extras["dev"])


def test_who_runs_the_program_installs_its_extra() -> None:
    """Workflows and wheels try `gatewise demo`, which the library alone does not bring."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert "gatewise demo" in tool["cibuildwheel"]["test-command"]
    assert "lab" in tool["cibuildwheel"]["test-extras"]
    tests = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    installed, _, after = tests.partition("gatewise demo")[0].rpartition("pip install")[2].partition("\n")
    assert "[lab" in installed
    assert not after.strip("- \nrun:")


def test_one_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert gatewise.__version__ == PROJECT["version"]
    assert re.search(r"^version: (.+)$", citation, re.M)[1] == PROJECT["version"]  # type: ignore[index]


def test_the_paper_is_cited() -> None:
    """As the README names it; the method is theirs."""
    citation = (ROOT / "CITATION.cff").read_text()
    for part in ("preferred-citation", "1911.05585", "Lobacheva", "Chirkova", "Markovich", "Vetrov"):
        assert part in citation
