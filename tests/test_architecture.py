"""The folder list is the architecture: imports point one way, and importing the package is cheap."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gatewise

PACKAGE = Path(gatewise.__file__).parent
STAGES = """
    wording layout nn program readers groups masks structure sizes
    sparsify report budget integrations analyse compact runtime export tasks sweep recipes cli
"""
RANK = {stage: k for k, stage in enumerate(STAGES.split())}
IMPORT = re.compile(r"^\s*(?:from gatewise|import gatewise)\.(\w+)|^\s*from gatewise import ([\w, ]+)", re.M)


def imported(text: str) -> set[str]:
    """First parts of every gatewise module that a source file imports."""
    found: set[str] = set()
    for dotted, listed in IMPORT.findall(text):
        found |= {dotted} if dotted else {name.strip().split(" as ")[0] for name in listed.split(",")}
    return found


def test_imports_point_one_way() -> None:
    """A stage may import the stages before it, never those after it."""
    seen = 0
    for path in PACKAGE.rglob("*.py"):
        stage = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imported(path.read_text()):
            seen += 1
            if stage in RANK:
                assert RANK.get(other, 0) <= RANK[stage], f"{path}: {stage} imports {other}"
    assert seen > 20


def test_tasks_point_one_way() -> None:
    """Recipes and networks, data, training, finished runs: each knows those before it; `__init__` offers names."""
    rank = {"data": 1, "training": 2, "finished": 3, "demo": 4}
    seen = 0
    for path in (PACKAGE / "tasks").rglob("*.py"):
        own = rank.get(path.relative_to(PACKAGE / "tasks").parts[0], 0)
        for other in re.findall(r"^\s*from gatewise\.tasks\.(\w+)", path.read_text(), re.M):
            seen += 1
            assert path.name == "__init__.py" or rank.get(other, 0) <= own, f"{path} imports {other}"
    assert seen > 20


def test_forms_of_an_export_do_not_know_each_other() -> None:
    """A saved model, ONNX and C can each be read alone; what they share stands beside them, or in a stage before."""
    forms, seen = {"saved", "onnx", "c"}, 0
    for form in forms:
        for path in (PACKAGE / "export" / form).rglob("*.py"):
            for other in re.findall(r"^\s*from gatewise\.export\.(\w+)", path.read_text(), re.M):
                seen += 1
                assert other not in forms - {form}, f"{path} imports {other}"
    assert seen > 20


def test_every_stage_has_its_place() -> None:
    """A module outside the list would escape the test above."""
    found = {
        path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()
    }
    assert found - {"__init__", "__main__", "__pycache__", "py.typed"} <= set(RANK)


def test_importing_needs_only_the_core() -> None:
    """Training works from a source tree on a machine that has torch, numpy and safetensors, and no more."""
    # torch itself looks for triton and typer for some of its parts; only what gatewise adds counts.
    code = (
        "import sys, torch; before = set(sys.modules); from gatewise import *; "
        "extra = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(extra & set('matplotlib typer rich triton onnx onnxruntime optuna cffi lightning'.split())))"
    )
    assert printed_by(code) == "[]"


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from gatewise.cli import main; main(['train', '--help']); main(['nonsense']); "
        "print('torch' in sys.modules)"
    )
    assert printed_by(code).endswith("False")


def printed_by(code: str) -> str:
    """What a fresh interpreter prints."""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_public_names_exist() -> None:
    """What `__all__` promises can be reached, and nothing else is pretended."""
    for name in gatewise.__all__:
        assert getattr(gatewise, name).__name__.rpartition(".")[2] == name
    assert not hasattr(gatewise, "prune")
