"""The folder list is the architecture: imports point one way, and importing the package is cheap."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import cleandoc
from pathlib import Path

import pytest

import gatewise
from gatewise.lab import NEEDS

PACKAGE = Path(gatewise.__file__).parent
STAGES = """
    wording layout nn program readers groups masks structure sizes
    sparsify report budget integrations compact runtime export lab
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
    """A stage may import the stages before it, never those after it; the lab is the last."""
    seen = 0
    for path in PACKAGE.rglob("*.py"):
        stage = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imported(path.read_text()):
            seen += 1
            if stage in RANK:
                assert RANK.get(other, 0) <= RANK[stage], f"{path}: {stage} imports {other}"
    assert seen > 20


def test_the_lab_points_one_way() -> None:
    """Pictures, recipes and networks, data, training, finished runs, sweeps: each knows those before it."""
    rank = {name: k for k, name in enumerate("analyse plot . data training finished demo sweep cli".split())}
    seen = 0
    for path in (PACKAGE / "lab").rglob("*.py"):
        own = rank.get(path.relative_to(PACKAGE / "lab").parts[0].removesuffix(".py"), rank["."])
        for other in re.findall(r"^\s*from gatewise\.lab\.(\w+)", path.read_text(), re.M):
            seen += 1
            assert rank.get(other, rank["."]) <= own, f"{path} imports {other}"
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


def test_the_library_needs_only_the_core() -> None:
    """With torch, numpy and safetensors alone every module of it can be imported, and none of them opens the lab."""
    # torch itself looks for typer and others for some of its parts; only what gatewise adds counts.
    code = f"""
        import sys, torch
        blocked = {(*NEEDS, "triton", "onnx", "onnxruntime", "lightning")!r}
        sys.modules.update({{name: None for name in blocked if name not in sys.modules}})
        from importlib import import_module
        for module in {sorted(library_modules())!r}:
            import_module(module)
        print([name for name in sys.modules if name.startswith("gatewise.lab")])
    """
    assert printed_by(cleandoc(code)) == "[]"


def library_modules() -> set[str]:
    """Dotted names of all modules but the lab's, the console program, GPU kernels and what needs another extra."""
    paths = (path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    own = ("gatewise.lab", "gatewise.__main__", "gatewise.integrations.lightning")
    return {name for name in names if not name.startswith(own) and "triton" not in name}


@pytest.mark.parametrize(("command", "missing"), [*zip(["train", "demo", "sweep", "--help"] * 2, NEEDS)])
def test_without_the_extra_the_program_says_which_is_missing(command: str, missing: str) -> None:
    """`pip install gatewise` brings the program too: it owes its user one sentence, not a traceback."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['gatewise', {command!r}]; "
        "from gatewise.__main__ import main; sys.exit(main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f'Error: gatewise.lab needs {missing}: pip install "gatewise[lab]".\n'


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from gatewise.lab.cli import main; main(['train', '--help']); main(['nonsense']); "
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
