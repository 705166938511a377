"""Exported C, compiled and called: a variety of models, and their folders as shared libraries."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chains import PLAIN, Case, build
from torch import nn

import gatewise as gw
from gatewise.export.c.fold import folded
from gatewise.export.c.golden_program import chosen
from gatewise.export.c.program_check import as_stored
from gatewise.export.c.rounded import rounded_layers
from gatewise.program.ways import programs
from gatewise.runtime.arguments import letters_of

if shutil.which("gcc") is None or shutil.which("make") is None:
    pytest.skip("there is no gcc, or no make", allow_module_level=True)

SOURCES = Path(gw.__file__).parent / "runtime" / "kernels"
ARM = "arm-none-eabi-gcc"
# Kernels are linked, not compiled anew inside every model; `make check` does that.
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=fast", "-DGW_APART"]
OPTIONS = PLAIN | {"hidden": 6, "words": 7, "density": 0.8, "dead": 0.1, "steps": 5, "batch": 1}
VARIETY: list[dict[str, Any]] = [
    {"scores": "softmax"},
    {"cell": "GRU", "words": 0, "take": "last", "first": True, "gate_activation": "hard_sigmoid"},
    {"bidirectional": True, "take": "state", "bayes": True, "scores": "log_softmax"},
    {"cell": "GRU", "bidirectional": True, "second": True, "between": "tanh", "head": False, "dead": 0.4},
    {"density": 0.0, "words": 0},
    {"take": "mean", "between": "tanh", "bayes": True, "scores": "softmax"},
    {"cell": "GRU", "words": 0, "take": "max", "head": False, "bayes": True, "scores": "sigmoid"},
    {"bidirectional": True, "take": "max of answers", "squeezed": True},
    {"take": "sum", "between": "sigmoid", "bayes": True},
    {
        "norm": "batch",
        "cell": "GRU",
        "words": 0,
        "first": True,
        "between": "tanh",
        "take": "mean",
        "scores": "softmax",
    },
    {"norm": "layer", "second": True, "bidirectional": True, "take": "max", "dead": 0.4},
]


def variety(k: int) -> Case:
    return build(k + 20, OPTIONS | VARIETY[k])


def run(*command: str | Path, cwd: Path | None = None, expect: int = 0) -> str:
    strict = os.environ | {"CFLAGS": "-Werror"}  # our compilers must not warn; a newer one may
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=strict
    )
    assert done.returncode == expect, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def need_arm(folder: Path) -> None:
    """Skip, and say so, where nothing compiles for a Cortex-M."""
    (folder / "c.c").write_text("#include <string.h>\nextern int a;\n")
    if (
        shutil.which(ARM) is None
        or subprocess.run([ARM, "-c", "c.c"], cwd=folder, check=False, capture_output=True).returncode
    ):
        reason = f"no {ARM} with a C library (Debian: libnewlib-arm-none-eabi): no Cortex-M was compiled for"
        print(reason)
        pytest.skip(reason)


def compile_kernels(folder: Path, *flags: str) -> list[Path]:
    """The kernels are the same in every folder: they are compiled once."""
    objects = [folder / f"{name}.o" for name in ("gw", "words")]
    for made in objects:
        run("gcc", *STRICT, *flags, "-c", "-o", made, SOURCES / f"{made.stem}.c")
    return objects


def pointer(array: np.ndarray, place: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + place)


class Compiled:
    """An exported model as a shared library; memory is filled with NaN before use and guarded behind its end."""

    GUARD = 64

    def __init__(self, model: nn.Module, folder: Path, kernels: list[Path], **options: Any) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder)) / "m"  # a library that is loaded keeps its path
        self.report = gw.export.to_c(model, folder, **options)
        self.header = (folder / "model.h").read_text()
        (folder / "probe.c").write_text(
            '#include "model.h"\nsize_t probe(void);\nsize_t probe(void) { return sizeof(model_state); }\n'
        )
        shared = folder / "shared.so"
        sources = [folder / "model.c", folder / "probe.c"]
        flags = [*STRICT, "-O0", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
        run("gcc", *flags, "-o", shared, *sources, *kernels, "-lm")
        self.library = ctypes.CDLL(str(shared))
        self.library.probe.restype = ctypes.c_size_t
        self.size = self.library.probe()
        self.streams, self.words = "MODEL_STREAMS 1" in self.header, "MODEL_WORDS_" in self.header
        defined = re.findall(r"define MODEL_WIDTH_\w+ (\d+) /\* numbers of \w+(.*) \*/", self.header)
        self.inputs = re.findall(r"const \w+ \*", self.header.split("int model_run(")[1].split(";")[0])
        width, of = defined[len(self.inputs)]
        self.width, self.final = int(width), not of
        self.others = [None] * (len(defined) - len(self.inputs) - 1)  # last states, which nobody wants
        # With a weight file there is a pointer, of 4 bytes in the report.
        pointer_bytes = ctypes.sizeof(ctypes.c_void_p) if self.report.weight_file else 4
        ram = self.report.ram_bytes - 4 + pointer_bytes
        assert self.size == -(-ram // pointer_bytes) * pointer_bytes

    def instance(self) -> Any:
        state = np.full(self.size + self.GUARD, 0xFF, np.uint8)
        self.library.model_reset(pointer(state))
        return state

    def run(self, state: Any, x: np.ndarray) -> np.ndarray:
        """(T, width), or (1, width) where there is one answer; the guard is intact."""
        given = np.ascontiguousarray(x, np.int32 if self.words else np.float32)
        y = np.full((1 if self.final else len(x), self.width), np.nan, np.float32)
        assert self.call(state, len(x), pointer(given), pointer(y)) == 0
        assert (state[self.size :] == 0xFF).all()
        return y

    def call(self, state: Any, steps: int, x: Any, y: Any) -> int:
        """model_run() without last states; a length is that of all steps."""
        lengths = [np.array([steps], np.int32) for _ in self.inputs[1:]]
        given = [x, *map(pointer, lengths), y, *self.others]
        return int(self.library.model_run(pointer(state), ctypes.c_int32(steps), *given))

    def step(self, state: Any, x: Any) -> np.ndarray:
        y = np.full(self.width, np.nan, np.float32)
        given = np.atleast_1d(np.ascontiguousarray(x, np.int32 if self.words else np.float32))
        assert self.library.model_step(pointer(state), pointer(given), pointer(y), *self.others) == 0
        assert (state[self.size :] == 0xFF).all()
        return y


def sequences(case: Case) -> list[np.ndarray]:
    """Each sequence of the batch, time first."""
    return [case.x.select(0 if case.model.time else 1, b).numpy() for b in range(case.model.o["batch"])]


class CompiledProgram:
    """An exported program as a shared library, called for one sequence at a time."""

    def __init__(
        self, model: nn.Module, folder: Path, kernels: list[Path], example: Any, **options: Any
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=folder)) / "m"
        self.report = gw.export.to_c(model, self.folder, example=example, **options)
        self.program = chosen(programs(model, example), model, example)
        shared, source = self.folder / "shared.so", self.folder / "model.c"
        run(
            "gcc", *STRICT, "-O0", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", shared, source, *kernels, "-lm"
        )
        self.library = ctypes.CDLL(str(shared))

    def instance(self) -> Any:
        state = np.full(self.report.ram_bytes + Compiled.GUARD, 0xFF, np.uint8)
        self.library.model_reset(pointer(state))
        return state

    def measure(self, small: nn.Module) -> nn.Module:
        """The model that the C computes: with int8, that of its bytes."""
        int8 = self.report.weights == "int8"
        return rounded_layers(small, folded(self.program, small)[1]) if int8 else small

    def left_out(self, given: dict[Any, torch.Tensor]) -> list[Any]:
        """The length of a sequence, where C takes its steps alone."""
        declared = (self.folder / "model.h").read_text().split("int model_run(")[1].split(";")[0]
        if declared.count("const ") == len(given):
            return []
        return [node for node in given if f"*{node.op.argument}," not in declared]

    def unpadded(self, given: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """One sequence without what is behind an end that C is not told."""
        for length in self.left_out(given):
            (steps,) = given[length].tolist()
            given = {node: cut(node, tensor, steps) for node, tensor in given.items()}
        return given

    def ended(self, given: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """The same with the number of steps as that length."""
        steps = max(
            (t.shape[k] for n, t in given.items() for k, size in enumerate(n.shape) if str(size) == "T"),
            default=0,
        )
        return given | {length: torch.full_like(given[length], steps) for length in self.left_out(given)}

    @property
    def streams(self) -> bool:
        return "MODEL_STREAMS 1" in (self.folder / "model.h").read_text()

    def run(
        self, state: Any, given: dict[Any, torch.Tensor], like: list[np.ndarray], error: int = 0
    ) -> list[np.ndarray]:
        """Answers of the shapes of `like`; the guard behind the state is intact."""
        sizes = letters_of({node: tensor.numpy() for node, tensor in given.items()})
        names = sorted(sizes.keys() - {"B"}, key=lambda name: (name != "T", name))
        out = self.left_out(given)
        arrays = [as_stored(tensor.numpy()) for node, tensor in given.items() if node not in out]
        found = [np.full_like(as_stored(array), -1) for array in like]
        numbers = [ctypes.c_int32(sizes[name]) for name in names]
        assert self.library.model_run(pointer(state), *numbers, *map(pointer, arrays + found)) == error
        assert (state[self.report.ram_bytes :] == 0xFF).all()
        return found


def cut(node: Any, tensor: torch.Tensor, steps: int) -> torch.Tensor:
    for axis, size in enumerate(node.shape):
        tensor = tensor.narrow(axis, 0, steps) if str(size) == "T" else tensor
    return tensor
