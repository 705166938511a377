"""The folder as its user meets it: what make, compilers, sanitizers and linkers say, and the example."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import SOURCES, STRICT, VARIETY, compile_kernels, need_arm, run, variety
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.c.source import KERNELS
from gatewise.export.c.structs import LAYER_BYTES, MATRIX_BYTES

LIKE_OURS = ["read", "run", "layer_1", "m", "E", "golden_x"]
COMPILERS = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]


@pytest.mark.parametrize(
    ("compiler", "k"),
    [pytest.param(COMPILERS[-1], k, marks=[pytest.mark.long] * (k % 3 > 0)) for k in range(len(VARIETY))]
    + [("gcc", 3)],
)
def test_make_check(compiler: str, k: int, tmp_path: Path) -> None:
    """Clean under -Wall -Wextra -Werror -pedantic, right, and the example runs; half of them with a weight file."""
    gw.export.to_c(variety(k).small, tmp_path / "m", name=f"net_{k}", block=6, file_above=0 if k % 2 else 1 << 20,
                   weights=("float32", "int8")[k // 2 % 2])  # fmt: skip
    output = run("make", "check", "all", f"CC={compiler}", "OPTIMIZE=-O0", cwd=tmp_path / "m")
    assert "passed" in output
    done = subprocess.run(
        [tmp_path / "m" / "build" / "model"], cwd=tmp_path / "m", capture_output=True, check=True
    )
    outputs = (tmp_path / "m" / f"net_{k}.h").read_text().count("WIDTH_Y")
    assert len(done.stdout.splitlines()) == outputs


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_kernels_inside(weights: str, tmp_path: Path) -> None:
    """Compiled for its own sizes the model is the same, fast math or not, and needs no other file."""
    small = variety(0).small
    for name, specialise in (("inside", True), ("apart", False)):
        gw.export.to_c(small, tmp_path / name, weights=weights, specialise=specialise)
    assert "gw.c" not in (tmp_path / "inside" / "Makefile").read_text()
    for flags in ("-O1", "-O1 -ffast-math -DGW_LANES=1"):
        made = run("make", "-B", "check", f"OPTIMIZE={flags}", cwd=tmp_path / "inside")
        assert "passed" in made
    assert "gw.c" in (tmp_path / "apart" / "Makefile").read_text()
    with pytest.raises(ValueError, match="a weight file, of which a compiler knows nothing"):
        gw.export.to_c(small, tmp_path / "file", specialise=True, file_above=0)


class Last(nn.Module):
    """Scores of the last step, nothing cut."""

    def __init__(self, cell: type[nn.RNNBase], hidden: int) -> None:
        super().__init__()
        self.rnn, self.fc = cell(2, hidden, batch_first=True), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("hidden", [8, 9, *(pytest.param(n, marks=pytest.mark.long) for n in (6, 12, 16))])
@pytest.mark.parametrize("cell", [nn.GRU, pytest.param(nn.LSTM, marks=pytest.mark.long)])
def test_kernels_inside_are_clean_as_make_compiles_them(
    cell: type[nn.RNNBase], hidden: int, tmp_path: Path
) -> None:
    """gcc knows all sizes then, and at -O2 it also warns of copies that no size leads to."""
    gw.export.to_c(gw.compress(Last(cell, hidden).eval()), tmp_path / "m")
    assert "passed" in run("make", "check", "CC=gcc", cwd=tmp_path / "m")


@pytest.mark.parametrize("lanes", [[], ["-DGW_LANES=1"]])
def test_fast_math_is_as_right(lanes: list[str], every: Any, tmp_path: Path) -> None:
    """Who ships to small machines likes it; it may change the order of sums, not what an exponential is."""
    flags = ["-O1", "-ffast-math", *lanes]
    kernels = compile_kernels(tmp_path, *flags)
    for k in every(range(len(VARIETY)), 5):
        folder = tmp_path / str(k)
        gw.export.to_c(variety(k).small, folder, block=6, weights=("float32", "int8")[k % 2])
        run("gcc", *STRICT, *flags, "-o", folder / "check", "check.c", "model.c", *kernels, "-lm", cwd=folder)
        assert "passed" in run(folder / "check", cwd=folder)


@pytest.mark.parametrize("name", ["a*/ oops", "/*", "line\nbreak \\", "\u202etfel"])
def test_a_layer_of_any_name(name: str, kernels: list[Path], tmp_path: Path) -> None:
    """It stands in a comment, which nothing in it may end; nor may a compiler warn of it."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.GRU(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = getattr(self, name)(x)[0]
            return y

    gw.export.to_c(Odd(), tmp_path / "m")
    run("gcc", *STRICT, "-O0", "-o", "check", "check.c", "model.c", *kernels, "-lm", cwd=tmp_path / "m")
    assert "passed" in run(tmp_path / "m" / "check", cwd=tmp_path / "m")


def test_a_wrong_golden_vector_fails(tmp_path: Path) -> None:
    gw.export.to_c(variety(0).small, tmp_path / "m")
    path = tmp_path / "m" / "golden.h"
    text = path.read_text()
    at = text.index("golden_y")
    path.write_text(text[:at] + text[at:].replace("= {\n    ", "= {\n    9", 1))
    assert "WRONG" in run("make", "check", "OPTIMIZE=-O0", cwd=tmp_path / "m", expect=2)


def test_sanitizers(every: Any, tmp_path: Path) -> None:
    flags = ["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    kernels = compile_kernels(tmp_path, *flags)
    models = [variety(k).small for k in every(range(len(VARIETY)), 3)]
    for k, small in enumerate([*models, sentiment()]):  # of the last one most words are searched for in vain
        folder = tmp_path / str(k)
        gw.export.to_c(
            small,
            folder,
            block=6,
            weights=("float32", "int8")[k % 2],
            file_above=0 if k == 3 else 1 << 20,
        )
        run("gcc", *STRICT, *flags, "-o", folder / "check", "check.c", "model.c", *kernels, "-lm", cwd=folder)
        assert "passed" in run(folder / "check", cwd=folder)


def test_symbols(kernels: list[Path], every: Any, tmp_path: Path) -> None:
    """Nothing is allocated, nothing but libm and string.h is called, and no variable outlives a call."""
    for k in every(range(len(VARIETY)), 3):
        folder = tmp_path / str(k)
        gw.export.to_c(variety(k).small, folder, file_above=0 if k % 2 else 1 << 20)
        run("gcc", *STRICT, "-O1", "-fno-pie", "-c", "model.c", cwd=folder)
        for made in (folder / "model.o", *kernels):
            for line in run("nm", made).splitlines():
                *_, kind, symbol = line.split()
                assert kind not in "bBdDcC", f"{symbol} is a variable"
                if kind == "U" and not symbol.startswith("gw_"):
                    assert symbol in {
                        "memcpy",
                        "memset",
                        "expf",
                        "logf",
                        "sqrtf",
                        "tanhf",
                        "_GLOBAL_OFFSET_TABLE_",
                    }


def test_kernels_are_copied(tmp_path: Path) -> None:
    gw.export.to_c(variety(0).small, tmp_path / "m")
    for name in KERNELS:
        assert (tmp_path / "m" / name).read_bytes() == (SOURCES / name).read_bytes()


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
    apart = (
        {"gw.c", "words.c", *(f"{n}.h" for n in "products panels slices vector functions cubics vfp".split())}
        if k % 2
        else {}
    )  # loaded weights: kernels are not inside
    files = [p for p in (tmp_path / "m").iterdir() if p.suffix in (".c", ".h") and p.name not in apart]
    texts = [
        path.read_text().split('#include "dispatch.h"')[0] for path in files
    ]  # behind it is the engine's
    names = {name for text in texts for name in re.findall(r"\b[A-Za-z_]\w*", text)}
    own = {name for name in names if name.lower().startswith("net_")}
    assert {"net_state", "net_run", "NET_OK"} <= own
    ends = tuple(name[3:] for name in own)
    assert not [name for name in names - own if name.endswith(ends) and not name.lower().startswith("gw_")]


@pytest.mark.parametrize(
    "name", ["take", "log", "int32"] + [pytest.param(name, marks=pytest.mark.long) for name in LIKE_OURS]
)
def test_names_that_look_like_ours(name: str, tmp_path: Path) -> None:
    gw.export.to_c(variety(1).small, tmp_path / "m", name=name)
    assert "passed" in run("make", "check", "all", "OPTIMIZE=-O0", cwd=tmp_path / "m")


def sentiment(n_words: int = 2000, size: int = 30, hidden: int = 16, kept_words: int = 100) -> nn.Module:
    """The paper's IMDb network with what Bayes W+G+N leaves of it: 4 neurons, 6 gates."""
    torch.manual_seed(0)
    layers = {"emb": nn.Embedding(n_words, size), "rnn": gw.nn.LSTM(size, hidden), "fc": nn.Linear(hidden, 1)}
    model = Net(lambda m, x: torch.sigmoid(m.fc(m.rnn(m.emb(x))[1][0][-1])), **layers).eval()
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
    need_arm(tmp_path)
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
        printed = run("make", "size", cwd=folder)
        assert "warning" not in printed
        table = [line.split() for line in printed.splitlines() if line.endswith(".arm.o")]
        sizes = {Path(row[-1]).name: list(map(int, row[:3])) for row in table if row[0].isdigit()}
        text, data, bss = sizes["model.arm.o"]
        assert (data, bss) == (0, 0)
        assert report.flash_bytes <= text < report.flash_bytes + 2000 + 2048  # its kernels, and cubics.h
        assert list(sizes) == ["model.arm.o"]
        with capsys.disabled():
            print(f"\nCortex-M4, 4 neurons, 6 gates, {weights}: {sizes}, RAM {report.ram_bytes}")
