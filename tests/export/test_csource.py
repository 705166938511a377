"""compressed == compiled C, over random chains; what the folder holds, and what its compilers say."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE, PLAIN, Case, build, chains
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from torch import nn

import gatewise as gw
from gatewise.cli import main
from gatewise.export.carrays import Arrays, literal
from gatewise.export.cmodel import LAYER_BYTES, MATRIX_BYTES, layer_scratch, pack, should_fold
from gatewise.export.csource import KERNELS
from gatewise.export.reference import answer, rounded
from gatewise.runtime.bindings import _layer
from gatewise.runtime.chain import ChainError
from gatewise.runtime.narrow import Level, narrow_chain

if shutil.which("gcc") is None or shutil.which("make") is None:
    pytest.skip("there is no gcc, or no make", allow_module_level=True)

SOURCES = Path(gw.__file__).parent / "runtime" / "kernels"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=fast"]
COMPILERS = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]
OPTIONS = PLAIN | {"hidden": 6, "words": 7, "density": 0.8, "dead": 0.1, "steps": 5, "batch": 1}
VARIETY: list[dict[str, Any]] = [
    {"scores": "softmax"},
    {"cell": "GRU", "words": 0, "take": "last", "first": True, "gate_activation": "hard_sigmoid"},
    {"bidirectional": True, "take": "state", "bayes": True, "scores": "log_softmax"},
    {"cell": "GRU", "bidirectional": True, "second": True, "between": "tanh", "head": False, "dead": 0.4},
    {"density": 0.0, "words": 0},
]


def variety(k: int) -> Case:
    return build(k + 20, OPTIONS | VARIETY[k])


def run(*command: str | Path, cwd: Path | None = None, expect: int = 0) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == expect, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def compile_kernels(folder: Path, *flags: str) -> list[Path]:
    """The kernels are the same in every folder: they are compiled once."""
    objects = [folder / f"{name}.o" for name in ("gw", "words")]
    for made in objects:
        run("gcc", *STRICT, *flags, "-c", "-o", made, SOURCES / f"{made.stem}.c")
    return objects


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return compile_kernels(tmp_path_factory.mktemp("kernels"), "-O1", "-fPIC")


class Compiled:
    """An exported model as a shared library; memory is filled with NaN before use and guarded behind its end."""

    GUARD = 64

    def __init__(self, model: nn.Module, folder: Path, kernels: list[Path], **options: Any) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder)) / "m"  # a library that is loaded keeps its path
        self.report = gw.export.to_c(model, folder, **options)
        (folder / "probe.c").write_text(
            '#include "model.h"\nsize_t probe(int32_t what);\nsize_t probe(int32_t what) {\n'
            "    return what ? MODEL_FINAL * 2 + MODEL_STREAMS : sizeof(model_state);\n}\n"
        )
        shared = folder / "shared.so"
        sources = [folder / "model.c", folder / "probe.c"]
        run(
            "gcc",
            *STRICT,
            "-O0",
            "-shared",
            "-fPIC",
            "-Wl,-Bsymbolic",
            "-o",
            shared,
            *sources,
            *kernels,
            "-lm",
        )
        self.library = ctypes.CDLL(str(shared))
        self.library.probe.restype = ctypes.c_size_t
        self.size = self.library.probe(0)
        self.final, self.streams = bool(self.library.probe(1) & 2), bool(self.library.probe(1) & 1)
        narrow = narrow_chain(model)
        self.width, self.words = narrow.width, narrow.chain.words
        if self.report.weight_file is None:
            assert self.size == self.report.ram_bytes

    def instance(self) -> Any:
        state = np.full(self.size + self.GUARD, 0xFF, np.uint8)
        self.library.model_reset(ctypes.c_void_p(state.ctypes.data))
        return state

    def run(self, state: Any, x: np.ndarray) -> np.ndarray:
        """(T, width), or (1, width) where there is one answer; the guard is intact."""
        given = np.ascontiguousarray(x, np.int32 if self.words else np.float32)
        y = np.full((1 if self.final else len(x), self.width), np.nan, np.float32)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (state, given, y)]
        code = self.library.model_run(pointers[0], ctypes.c_int32(len(x)), pointers[1], pointers[2])
        assert code == 0
        assert (state[self.size :] == 0xFF).all()
        return y

    def step(self, state: Any, x: Any) -> np.ndarray:
        y = np.full(self.width, np.nan, np.float32)
        given = np.ascontiguousarray(x, np.float32)
        first = ctypes.c_int32(int(x)) if self.words else ctypes.c_void_p(given.ctypes.data)
        assert not self.library.model_step(
            ctypes.c_void_p(state.ctypes.data), first, ctypes.c_void_p(y.ctypes.data)
        )
        assert (state[self.size :] == 0xFF).all()
        return y


def sequences(case: Case) -> list[np.ndarray]:
    """Each sequence of the batch, time first."""
    return [case.x.select(0 if case.model.time else 1, b).numpy() for b in range(case.model.o["batch"])]


@given(case=chains(), block=st.sampled_from([None, 1, 3]))
def test_the_contract(case: Case, block: int | None, kernels: list[Path], tmp_path: Path) -> None:
    """Every sequence alone, at once and step by step, from memory that holds anything."""
    compiled = Compiled(case.small, tmp_path, kernels, block=None if case.model.rnn.bidirectional else block)
    assert compiled.streams != case.model.rnn.bidirectional
    lengths = torch.full((case.model.o["batch"],), case.model.o["steps"])
    for x, expected in zip(sequences(case), case.one_by_one(lengths)):
        whole = compiled.run(compiled.instance(), x)
        np.testing.assert_allclose(whole, expected.numpy().reshape(whole.shape), **CLOSE)
        if compiled.streams:
            state = compiled.instance()
            steps = np.stack([compiled.step(state, part) for part in x])
            np.testing.assert_allclose(steps[-1:] if compiled.final else steps, whole, **CLOSE)


@settings(max_examples=15)
@given(case=chains(steps=5), fold=st.sampled_from([None, True, False]))
def test_int8(case: Case, fold: bool | None, kernels: list[Path], tmp_path: Path) -> None:
    """C computes what its bytes and scales stand for; the report says how far that is from float32."""
    compiled = Compiled(case.small, tmp_path, kernels, weights="int8", fold_embedding=fold)
    narrow = narrow_chain(case.small)
    bytes_of = rounded(narrow, should_fold(narrow, fold))
    for x in sequences(case):
        whole = compiled.run(compiled.instance(), x)
        np.testing.assert_allclose(whole, answer(bytes_of, x), **CLOSE)
    assert 0 <= compiled.report.max_abs_error < 1


def test_int8_is_smaller_and_near(tmp_path: Path) -> None:
    case = build(1, OPTIONS | {"hidden": 40, "words": 50, "density": 1.0, "dead": 0.0})
    exact, rough = (gw.export.to_c(case.small, tmp_path / kind, weights=kind) for kind in ("float32", "int8"))
    assert rough.flash_bytes < 0.4 * exact.flash_bytes
    assert exact.max_abs_error < 1e-5 < rough.max_abs_error
    assert rough.max_rel_error < 0.05
    readme = (tmp_path / "int8" / "README.md").read_text()
    for number in (f"{rough.flash_bytes:,}", f"{rough.ram_bytes:,}", f"{rough.max_abs_error:.3g}"):
        assert number in readme


def test_instances_do_not_meet(kernels: list[Path], tmp_path: Path) -> None:
    """Two streams that take turns are what each is alone; reset() begins anew."""
    case = variety(0)
    compiled = Compiled(case.small, tmp_path, kernels)
    generator = np.random.default_rng(0)
    inputs = [generator.integers(0, 7, 6) for _ in range(2)]
    alone = [compiled.run(compiled.instance(), x) for x in inputs]
    states = [compiled.instance() for _ in inputs]
    turns = [[compiled.step(state, x[t]) for state, x in zip(states, inputs)] for t in range(6)]
    for k in range(2):
        np.testing.assert_allclose([turn[k] for turn in turns], alone[k], **CLOSE)
    compiled.library.model_reset(ctypes.c_void_p(states[0].ctypes.data))
    np.testing.assert_array_equal(compiled.step(states[0], inputs[0][0]), turns[0][0])


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("empty", ["rnn.weight_ih_l1", "rnn.weight_hh_l0", "emb.weight", "fc.weight"])
def test_what_is_gone(cell: str, empty: str, kernels: list[Path], tmp_path: Path) -> None:
    case = build(3, OPTIONS | {"cell": cell, "density": 1.0, "dead": 0.0})
    with torch.no_grad():
        case.model.get_parameter(empty).zero_()
        if empty == "fc.weight":
            for name, p in case.model.named_parameters():
                p.mul_(0 if "weight_hh" in name else 1)
    case.small = gw.compress(case.model)
    compiled = Compiled(case.small, tmp_path, kernels)
    whole = compiled.run(compiled.instance(), sequences(case)[0])
    expected = case.answer(case.x, masked=True).numpy().reshape(whole.shape)
    np.testing.assert_allclose(whole, expected, **CLOSE)


@pytest.mark.parametrize(
    ("n_words", "kept", "fold"),
    [(40, 0.1, False), (40, 0.1, True), (40, 1.0, True), (70_000, 0.01, True), (70_000, 0.9, False)],
)
def test_words(n_words: int, kept: float, fold: bool, kernels: list[Path], tmp_path: Path) -> None:
    """Kept, removed and wrong words, whether rows are searched or looked up; a wrong one changes nothing."""
    torch.manual_seed(0)
    case = build(5, OPTIONS | {"words": n_words, "density": 1.0, "dead": 0.0, "layers": 1})
    with torch.no_grad():
        case.model.emb.weight.normal_().mul_(torch.rand(n_words, 1) < kept)
    case.small = gw.compress(case.model)
    compiled = Compiled(case.small, tmp_path, kernels, fold_embedding=fold)
    words = torch.linspace(0, n_words - 1, 30).long()
    state = compiled.instance()
    got = compiled.run(state, words.numpy())
    np.testing.assert_allclose(got, case.answer(words[:, None])[:, 0].numpy(), **CLOSE)
    before, y = state.copy(), np.full((2, compiled.width), 7, np.float32)
    for wrong in (-1, n_words, 2**31 - 1, -(2**31)):
        ids = np.array([0, wrong], np.int32)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (state, ids, y)]
        assert compiled.library.model_run(pointers[0], ctypes.c_int32(2), pointers[1], pointers[2]) == 1
        assert (state == before).all()
        assert (y == 7).all()


def test_without_y_only_the_state_moves(kernels: list[Path], tmp_path: Path) -> None:
    for k in (0, 1):
        case = variety(k)
        compiled = Compiled(case.small, tmp_path, kernels, block=2)
        x = np.repeat(sequences(case)[0], 2, axis=0)
        expected = compiled.run(compiled.instance(), x)[-1]
        state = compiled.instance()
        given = np.ascontiguousarray(x, np.int32 if compiled.words else np.float32)
        address = ctypes.c_void_p(state.ctypes.data)
        steps = ctypes.c_int32(len(x) - 1)
        assert compiled.library.model_run(address, steps, ctypes.c_void_p(given.ctypes.data), None) == 0
        np.testing.assert_allclose(compiled.step(state, x[-1]), expected, **CLOSE)


# The folder as its user meets it.


@pytest.mark.parametrize(
    ("compiler", "k"), [(COMPILERS[-1], k) for k in range(len(VARIETY))] + [("gcc", k) for k in (0, 3)]
)
def test_make_check(compiler: str, k: int, tmp_path: Path) -> None:
    """Clean under -Wall -Wextra -Werror -pedantic, right, and the example runs; half of them with a weight file."""
    gw.export.to_c(variety(k).small, tmp_path / "m", name=f"net_{k}", block=6, file_above=0 if k % 2 else 1 << 20,
                   weights=("float32", "int8")[k // 2 % 2])  # fmt: skip
    output = run("make", "check", "all", f"CC={compiler}", "OPTIMIZE=-O0", cwd=tmp_path / "m")
    assert "passed" in output
    header = (tmp_path / "m" / f"net_{k}.h").read_text()
    width = 1 if "INPUTS 0 " in header else int(header.split("INPUTS ")[1].split()[0])
    done = subprocess.run([tmp_path / "m" / "build" / "model"], cwd=tmp_path / "m", input="0 " * width * 3,
                          capture_output=True, text=True, check=True)  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == (1 if "FINAL 1" in header and "STREAMS 0" in header else 3)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_example_says_what_it_could_not_read(bidirectional: bool, tmp_path: Path) -> None:
    """What is no number, and more steps than a model of two directions has room for."""
    gw.export.to_c(nn.LSTM(1, 3, bidirectional=bidirectional), tmp_path / "m", block=5)
    run("make", "all", "OPTIMIZE=-O0", cwd=tmp_path / "m")

    def left_over(text: str) -> bool:
        program = tmp_path / "m" / "build" / "model"
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == ("left over" in done.stderr)
        return done.returncode != 0

    assert not left_over("1 2 3 4 5\n\n")
    assert left_over("1 2 x 3")
    assert left_over("1 2 3 4 5 6") is bidirectional


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_example_says_what_a_step_lacks(bidirectional: bool, tmp_path: Path) -> None:
    """Two numbers are no step of three; what was complete before them is answered."""
    gw.export.to_c(nn.LSTM(3, 2, bidirectional=bidirectional), tmp_path / "m")
    run("make", "all", "OPTIMIZE=-O0", cwd=tmp_path / "m")
    for text, answers in (("1 2", 0), ("1 2 3 4 5\n", 1)):
        program = tmp_path / "m" / "build" / "model"
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "the last step has 2 of 3 numbers" in done.stderr
        assert len(done.stdout.splitlines()) == answers


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the overflow itself
def test_weights_that_overflow_are_refused(tmp_path: Path) -> None:
    """Finite ones, whose products are not: C has no literal for those."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.rnn = nn.Embedding(5, 3), gw.nn.LSTM(3, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.rnn(self.emb(x))[0]

    model = Words()
    with torch.no_grad():
        model.emb.weight.fill_(1e25)
        model.rnn.weight_ih_l0.fill_(1e25)
    with pytest.raises(ValueError, match=r"would be inf"):
        gw.export.to_c(model, tmp_path / "m", fold_embedding=True)
    assert not (tmp_path / "m").exists()


def test_a_wrong_golden_vector_fails(tmp_path: Path) -> None:
    gw.export.to_c(variety(0).small, tmp_path / "m")
    path = tmp_path / "m" / "golden.h"
    text = path.read_text()
    at = text.index("golden_y")
    path.write_text(text[:at] + text[at:].replace("= {\n    ", "= {\n    9", 1))
    assert "WRONG" in run("make", "check", "OPTIMIZE=-O0", cwd=tmp_path / "m", expect=2)


def test_sanitizers(tmp_path: Path) -> None:
    flags = ["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    kernels = compile_kernels(tmp_path, *flags)
    for k in range(len(VARIETY)):
        folder = tmp_path / str(k)
        gw.export.to_c(
            variety(k).small,
            folder,
            block=6,
            weights=("float32", "int8")[k % 2],
            file_above=0 if k == 3 else 1 << 20,
        )
        run("gcc", *STRICT, *flags, "-o", folder / "check", "check.c", "model.c", *kernels, "-lm", cwd=folder)
        assert "passed" in run(folder / "check", cwd=folder)


def test_symbols(kernels: list[Path], tmp_path: Path) -> None:
    """Nothing is allocated, nothing but libm and string.h is called, and no variable outlives a call."""
    for k in range(len(VARIETY)):
        folder = tmp_path / str(k)
        gw.export.to_c(variety(k).small, folder, file_above=0 if k % 2 else 1 << 20)
        run("gcc", *STRICT, "-O1", "-fno-pie", "-c", "model.c", cwd=folder)
        for made in (folder / "model.o", *kernels):
            for line in run("nm", made).splitlines():
                *_, kind, symbol = line.split()
                assert kind not in "bBdDcC", f"{symbol} is a variable"
                if kind == "U" and not symbol.startswith("gw_"):
                    assert symbol in {"memcpy", "memset", "expf", "logf", "_GLOBAL_OFFSET_TABLE_"}


def test_kernels_are_copied(tmp_path: Path) -> None:
    gw.export.to_c(variety(0).small, tmp_path / "m")
    for name in KERNELS:
        assert (tmp_path / "m" / name).read_bytes() == (SOURCES / name).read_bytes()


def test_weight_file(kernels: list[Path], tmp_path: Path) -> None:
    """The loader takes the file and nothing else."""
    case = variety(0)
    compiled = Compiled(case.small, tmp_path, kernels, file_above=100)
    codes = dict.fromkeys(("OK", "BAD_WORD", "BAD_STEPS", "BAD_ALIGNMENT", "BAD_MAGIC", "BAD_VERSION", "BAD_SIZE",
                           "OTHER_MODEL", "CORRUPT", "NOT_LOADED"))  # fmt: skip
    number = {name: k for k, name in enumerate(codes)}
    folder = compiled.report.path
    assert compiled.report.weight_file == folder / "model.bin"
    good = np.frombuffer(compiled.report.weight_file.read_bytes(), np.uint8)
    assert len(good) == compiled.report.weight_file_bytes
    room = np.zeros(len(good) + 72, np.uint8)
    start = -room.ctypes.data % 64

    def load(content: np.ndarray, shift: int = 0) -> int:
        room[start + shift : start + shift + len(content)] = content
        address = ctypes.c_void_p(room.ctypes.data + start + shift)
        state = np.full(compiled.size, 0xFF, np.uint8)
        return int(
            compiled.library.model_load(
                ctypes.c_void_p(state.ctypes.data), address, ctypes.c_size_t(len(content))
            )
        )

    def changed(at: int) -> np.ndarray:
        bad = good.copy()
        bad[at] ^= 1
        return bad

    assert load(good, 1) == number["BAD_ALIGNMENT"]
    assert load(changed(0)) == number["BAD_MAGIC"]
    assert load(changed(4)) == number["BAD_VERSION"]
    assert load(changed(8)) == load(good[:-1]) == load(good[:10]) == number["BAD_SIZE"]
    assert load(np.append(good, np.uint8(0))) == number["BAD_SIZE"]
    assert load(changed(12)) == number["OTHER_MODEL"]
    for at in (64, len(good) // 2, len(good) - 1):
        assert load(changed(at)) == number["CORRUPT"]
    empty = np.zeros(compiled.size, np.uint8)  # as a static state begins, and a failed load leaves it
    asked = ctypes.c_void_p(empty.ctypes.data)
    assert compiled.library.model_run(asked, 1, None, None) == number["NOT_LOADED"]
    assert compiled.library.model_load(asked, None, ctypes.c_size_t(len(good))) == number["NOT_LOADED"]
    assert load(good, 4) == number["OK"]
    state = np.full(compiled.size + compiled.GUARD, 0xFF, np.uint8)
    address = ctypes.c_void_p(room.ctypes.data + start + 4)
    assert (
        compiled.library.model_load(ctypes.c_void_p(state.ctypes.data), address, ctypes.c_size_t(len(good)))
        == 0
    )
    got = compiled.run(state, sequences(case)[0])
    np.testing.assert_allclose(got, case.answer(case.x).numpy().reshape(got.shape), **CLOSE)
    compiled.report.weight_file.write_bytes(changed(len(good) - 1).tobytes())
    assert "cannot be loaded" in run("make", "check", "OPTIMIZE=-O0", cwd=folder, expect=2)


def test_scratch_is_what_the_kernels_ask_for(kernels: list[Path], tmp_path: Path) -> None:
    run("gcc", "-shared", "-o", tmp_path / "gw.so", *kernels, "-lm")
    ask = ctypes.CDLL(str(tmp_path / "gw.so")).gw_layer_scratch
    ask.restype = ctypes.c_size_t
    for k in range(len(VARIETY)):
        for int8 in (False, True):
            for link in narrow_chain(variety(k).small).links:
                for r in link.directions if isinstance(link, Level) else ():
                    packed = pack(link, r, None, tight=True, int8=int8)
                    for steps in (1, 3, 4, 95, 96, 97, 500):
                        assert layer_scratch(packed, steps) == ask(ctypes.byref(_layer(packed)), steps, 1)


# Cortex-M.


class Sentiment(nn.Module):
    """The paper's IMDb network with what Bayes W+G+N leaves of it: 4 neurons, 6 gates."""

    def __init__(self, n_words: int, size: int, hidden: int) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = (
            nn.Embedding(n_words, size),
            gw.nn.LSTM(size, hidden),
            nn.Linear(hidden, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (h, _) = self.rnn(self.emb(x))
        return torch.sigmoid(self.fc(h[-1]))


def sentiment(n_words: int = 2000, size: int = 30, hidden: int = 16, kept_words: int = 100) -> nn.Module:
    torch.manual_seed(0)
    model = Sentiment(n_words, size, hidden).eval()
    live = torch.tensor([0, hidden + 1, 2 * hidden, 2 * hidden + 1, 2 * hidden + 2, 3 * hidden + 3])
    with torch.no_grad():
        model.emb.weight[kept_words:] = 0
        model.fc.weight[:, 4:] = 0
        for weight in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            rows = torch.zeros(len(weight), 1)
            rows[live] = 1
            weight.mul_(rows)
        model.rnn.weight_hh_l0[:, 4:] = 0
    return gw.compress(model)


def test_cortex_m(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compiles for a microcontroller; the report counts the constants as its linker would."""
    if shutil.which("arm-none-eabi-gcc") is None:
        reason = (
            "arm-none-eabi-gcc is not installed: no Cortex-M was compiled for (Debian: gcc-arm-none-eabi)"
        )
        print(reason)
        pytest.skip(reason)
    small = sentiment()
    (layer,) = small.rnn.layers
    assert (layer.kept, len(layer.slots)) == (4, 6)
    for weights in ("float32", "int8"):
        folder = tmp_path / weights
        report = gw.export.to_c(small, folder, weights=weights)
        (folder / "sizes.c").write_text(
            f'#include "gw.h"\n#include "model.h"\nextern char a[sizeof(gw_layer) == {LAYER_BYTES} ? 1 : -1];\n'
            f"extern char b[sizeof(gw_matrix) == {MATRIX_BYTES} ? 1 : -1];\n"
            f"extern char c[sizeof(model_state) == {report.ram_bytes} ? 1 : -1];\n"
        )
        flags = "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Os".split()
        run("arm-none-eabi-gcc", *STRICT, *flags, "-c", "sizes.c", cwd=folder)
        table = [
            line.split() for line in run("make", "size", cwd=folder).splitlines() if line.endswith(".arm.o")
        ]
        sizes = {Path(row[-1]).name: list(map(int, row[:3])) for row in table if row[0].isdigit()}
        text, data, bss = sizes["model.arm.o"]
        assert (data, bss) == (0, 0)
        assert report.flash_bytes <= text < report.flash_bytes + 1500
        assert sum(row[0] for row in sizes.values()) < report.flash_bytes + 12_000
        with capsys.disabled():
            print(f"\nCortex-M4, 4 neurons, 6 gates, {weights}: {sizes}, RAM {report.ram_bytes}")


# The way there.


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier export is replaced as a whole; anything else only if asked; a failure leaves all as it was."""
    small, target = variety(0).small, tmp_path / "a" / "m"
    gw.export.to_c(small, target, name="old")
    (target / "build").mkdir()
    report = gw.export.to_c(small, target)
    assert not (target / "old.c").exists()
    marker = json.loads((target / "gatewise.json").read_text())
    assert sorted(p.name for p in target.iterdir()) == marker["files"]
    assert marker["flash_bytes"] == report.flash_bytes
    (target / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes.txt is not of to_c"):
        gw.export.to_c(small, target)
    assert (target / "notes.txt").read_text() == "mine"
    gw.export.to_c(small, target, overwrite=True)
    assert not (target / "notes.txt").exists()

    other = tmp_path / "other"
    other.mkdir()
    gw.export.to_c(small, other)
    shutil.rmtree(other)
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no earlier export"):
        gw.export.to_c(small, other)
    (other / "gatewise.json").write_text("[]")
    with pytest.raises(FileExistsError, match="holds no earlier export"):
        gw.export.to_c(small, other)
    with pytest.raises(FileExistsError, match="is a file"):
        gw.export.to_c(small, other / "thesis.tex", overwrite=True)

    before = {p.name: p.read_bytes() for p in target.iterdir()}

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        gw.export.to_c(small, target, weights="int8")
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before
    assert [p.name for p in target.parent.iterdir()] == ["m"]


def test_a_folder_is_not_replaced_around_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the current folder nor one above it, even where it is an earlier export."""
    gw.export.to_c(nn.LSTM(3, 2), tmp_path / "m")
    (tmp_path / "m" / "build").mkdir()
    for here in ("m", "m/build"):
        monkeypatch.chdir(tmp_path / here)
        with pytest.raises(FileExistsError, match="the current folder or one above it"):
            gw.export.to_c(nn.LSTM(3, 2), tmp_path / "m", overwrite=True)


def test_a_rename_that_fails_brings_the_old_export_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, rename = variety(0).small, os.rename
    gw.export.to_c(small, tmp_path / "m")
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}

    def stuck(source: Path, target: Path) -> None:
        if source.name == "new":
            raise OSError("device or resource busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", stuck)
    with pytest.raises(OSError, match="busy"):
        gw.export.to_c(small, tmp_path / "m", weights="int8")
    assert {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def chain(m: Any, x: Any) -> Any:
    return m.fc(m.rnn(x)[0])


# The tracer hands in no tensor, so it sees a chain.


def doubled(m: Any, x: Any) -> Any:
    return 2 * chain(m, x) if isinstance(x, torch.Tensor) else chain(m, x)


def longer(m: Any, x: Any) -> Any:
    return torch.cat([chain(m, x)] * 2) if isinstance(x, torch.Tensor) else chain(m, x)


@pytest.mark.parametrize("forward", [doubled, longer])
def test_a_forward_that_gives_something_else_than_its_chain_is_refused(
    forward: Callable[..., Any], tmp_path: Path
) -> None:
    model = gw.compress(Net(chain, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)))
    model.rule = forward
    with pytest.raises(ValueError, match="something else than the chain of layers"):
        gw.export.to_c(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_answers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """A golden vector of infinities would check nothing."""
    model = Net(chain, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2))
    with torch.no_grad():
        model.rnn.bias_ih_l0.fill_(5.0)
        model.fc.weight.fill_(3e38)
    with pytest.raises(ValueError, match="answer to small random inputs is not finite"):
        gw.export.to_c(model, tmp_path / "m")


def test_errors(tmp_path: Path) -> None:
    small, target = variety(0).small, tmp_path / "m"
    for options, message in (
        ({"name": "1st"}, "a name of C"),
        ({"name": "while"}, "a name of C"),
        *(({"name": file.split(".")[0]}, "a name of C") for file in KERNELS),
        ({"name": "math"}, "no other file or header"),
        ({"name": "net\n"}, "a name of C"),
        ({"name": "netz_ä"}, "a name of C"),
        ({"name": "gw"}, "a name of C"),
        ({"name": "GW_net"}, "a name of C"),
        ({"weights": "int4"}, "weights='int4'"),
        ({"block": 0}, "block=0"),
        ({"block": 1.5}, "block=1.5 must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            gw.export.to_c(small, target, **options)
    with pytest.raises(ChainError, match=r"not a chain of layers"):
        gw.export.to_c(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), target)
    with torch.no_grad():
        small.rnn.layers[0].weight_hh.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"rnn, layer 0: w_hh is not finite"):
        gw.export.to_c(small, target)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("field", "named"), [("neuron_scale", "scale"), ("bias_gated", "bias_gated")])
def test_numbers_beside_the_weights_are_finite_too(field: str, named: str, tmp_path: Path) -> None:
    small: Any = gw.compress(nn.GRU(3, 4))
    with torch.no_grad():
        getattr(small.layers[0], field).fill_(float("inf"))
    with pytest.raises(ValueError, match=rf"layer 0: {named} is not finite"):
        gw.export.to_c(small, tmp_path / "m")


@pytest.mark.parametrize("value", [0.0, -3.0, 1e10, 2.0**-30, 1e-45, 0.1, 1 / 3, 3.4028235e38])
def test_a_literal_is_its_float(value: float) -> None:
    """A number of C, which must have a point or an exponent before its f, and all digits of a float32."""
    text = literal(float(np.float32(value)))
    assert re.fullmatch(r"-?(\d+\.\d+(e[-+]\d+)?|\d+e[-+]\d+)f", text)
    assert np.float32(text[:-1]) == np.float32(value)


def test_the_checksum_is_of_every_byte() -> None:
    content = Arrays({"a": np.arange(5000, dtype=np.int32), "b": np.ones(3, np.int8)}).file()
    assert np.frombuffer(content, "<u4", 4)[2:].tolist() == [len(content), zlib.crc32(content[64:])]


@pytest.mark.parametrize("scores", [torch.softmax, torch.log_softmax])
def test_large_scores_do_not_overflow(scores: Any, kernels: list[Path], tmp_path: Path) -> None:
    model = Net(lambda m, x: scores(chain(m, x), -1), rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model.fc.bias.copy_(torch.tensor([3e3, -3e3]))
        x = torch.randn(4, 1, 3)
        expected = model(x)[:, 0].numpy()
    compiled = Compiled(model, tmp_path, kernels)
    np.testing.assert_allclose(compiled.run(compiled.instance(), x[:, 0].numpy()), expected, **CLOSE)


def test_a_model_in_training_mode_keeps_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Dropout(0.9)).train()

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.drop, self.rnn = model[0], model[1], gw.nn.LSTM(3, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.rnn(self.drop(self.emb(x)))[0]

    small = gw.compress(Dropping().train())
    first = gw.export.to_c(small, tmp_path / "m")
    golden = (tmp_path / "m" / "golden.h").read_text()
    assert small.training
    assert small.drop.training
    assert first.max_abs_error < 1e-5
    gw.export.to_c(small, tmp_path / "m")
    assert (tmp_path / "m" / "golden.h").read_text() == golden


def test_a_name_is_everywhere(tmp_path: Path) -> None:
    """Two models can share one program: every symbol begins with its name."""
    gw.export.to_c(variety(0).small, tmp_path / "m", name="my_model_2")
    run("gcc", *STRICT, "-c", "my_model_2.c", cwd=tmp_path / "m")
    names = [
        line.split()[2]
        for line in run("nm", "my_model_2.o", cwd=tmp_path / "m").splitlines()
        if " T " in line
    ]
    assert sorted(names) == ["my_model_2_reset", "my_model_2_run", "my_model_2_step"]


@pytest.mark.parametrize("k", range(len(VARIETY)))
def test_no_name_can_clash(k: int, tmp_path: Path) -> None:
    """Nothing that its header meets ends as the model's own names do, but gw_, with which no name may begin."""
    gw.export.to_c(variety(k).small, tmp_path / "m", name="net", file_above=0 if k % 2 else 1 << 20)
    apart = {"gw.c", "words.c", "products.h", "vector.h"}
    files = [p for p in (tmp_path / "m").iterdir() if p.suffix in (".c", ".h") and p.name not in apart]
    names = {name for path in files for name in re.findall(r"\b[A-Za-z_]\w*", path.read_text())}
    own = {name for name in names if name.lower().startswith("net_")}
    assert {"net_state", "net_run", "NET_OK"} <= own
    ends = tuple(name[3:] for name in own)
    assert not [name for name in names - own if name.endswith(ends) and not name.lower().startswith("gw_")]


@pytest.mark.parametrize("name", ["take", "read", "run", "layer_1", "log", "m", "int32", "E", "golden_x"])
def test_names_that_look_like_ours(name: str, tmp_path: Path) -> None:
    gw.export.to_c(variety(1).small, tmp_path / "m", name=name)
    assert "passed" in run("make", "check", "all", "OPTIMIZE=-O0", cwd=tmp_path / "m")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gw.save(nn.ModuleList([gw.nn.GRU(3, 4)])[0], tmp_path / "saved")
    assert main(["export", str(tmp_path / "saved"), "--c", str(tmp_path / "m"), "--int8"]) == 0
    out = capsys.readouterr().out
    assert "flash" in out
    assert "RAM" in out
    assert "int8" in out
    assert "weights int8" in (tmp_path / "m" / "model.c").read_text()
    assert main(["export", str(tmp_path / "saved")]) == 2
    assert main(["export", str(tmp_path / "saved"), "--int8", "--onnx", str(tmp_path / "x.onnx")]) == 2
