"""Some 70 models and what their C takes; `python tests/export/sizes_of_c.py` says what differs from sizes_of_c.json.

With a path it also writes what it found there, with code, checksums of the C and of the ONNX file, and `make check`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gatewise as gw

sys.path[:0] = [str(Path(__file__).parents[1])]

from compiled import VARIETY, run, variety  # noqa: E402
from everyday import EVERYDAY, compressed  # noqa: E402
from networks import TORCH, Net, tagger  # noqa: E402

RECORD = Path(__file__).with_suffix(".json")
ENTRIES = "model_reset", "model_run", "model_step", "model_load"


def classifier(cell: str, words: int, width: int, hidden: int) -> Callable[[], nn.Module]:
    """A text classifier whose training left some words, neurons and weights."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        embedding, rnn = nn.Embedding(words, width), TORCH[cell](width, hidden, batch_first=True)
        with torch.no_grad():
            embedding.weight[:: 1 + words // 40] = 0
            rnn.weight_hh_l0.mul_(torch.rand(rnn.weight_hh_l0.shape) < 0.5)

        def forward(m: Any, ids: Any) -> Any:
            return m.fc(m.rnn(m.emb(ids))[0][:, -1])

        return gw.compress(Net(forward, emb=embedding, rnn=rnn, fc=nn.Linear(hidden, 4)).eval())

    return made


def sensor(cell: str, width: int, hidden: int) -> Callable[[], nn.Module]:
    """A small network of vectors, with an answer every step."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        return gw.compress(tagger(TORCH[cell](width, hidden), nn.Linear(hidden, 3)).eval())

    return made


def models() -> Iterator[tuple[str, Callable[[], nn.Module], Any, str]]:
    """Name, model, example and weights."""
    for weights in ("float32", "int8"):
        for k in range(len(VARIETY)):
            yield f"chain {k}", lambda k=k: variety(k).small, None, weights
        for cell in TORCH:
            yield f"{cell} of few words", classifier(cell, 60, 40, 5), None, weights
            yield f"{cell} of many words", classifier(cell, 400, 64, 12), None, weights
            yield f"{cell} of narrow words", classifier(cell, 300, 4, 16), None, weights
            yield f"{cell} of vectors", sensor(cell, 6, 16), None, weights
    for k, name in enumerate(sorted(EVERYDAY)[::2]):
        yield (
            name,
            lambda name=name: compressed(name)[0],
            EVERYDAY[name]()[1],
            ("float32", "int8")[k % 4 == 1],
        )


def sizes() -> dict[str, tuple[int, int]]:
    """Bytes of flash, without code, and of RAM, by model."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers whose readers are not known
        for name, make, example, weights in models():
            target = Path(folder) / "m"
            made = gw.export.to_c(make(), target, weights=weights, example=example, overwrite=True)
            found[f"{name}, {weights}"] = (made.flash_bytes, made.ram_bytes)
    return found


def closely() -> dict[str, dict[str, Any]]:
    """The same and what a compiler makes of it."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make, example, weights in models():
            target, model = Path(folder) / "m", make()
            made = gw.export.to_c(model, target, weights=weights, example=example, overwrite=True)
            found[f"{name}, {weights}"] = {
                "flash": made.flash_bytes,
                "ram": made.ram_bytes,
                "linked": linked(target),
                "check": "passed" in run("make", "-s", "OPTIMIZE=-O0", "check", cwd=target),
                "error": made.max_abs_error,
                "c": checksum((target / "model.c").read_bytes()),
                "onnx": onnx(model, Path(folder) / "m.onnx", example),
            }
            print(name, weights, found[f"{name}, {weights}"], flush=True)
    return found


def onnx(model: nn.Module, path: Path, example: Any) -> str:
    try:
        gw.export.to_onnx(model, path, example=example)
    except Exception as error:  # it is the answer, too
        return type(error).__name__
    return checksum(path.read_bytes())


def linked(folder: Path) -> int:
    """Code and constants of all that a program reaches from the functions of the header."""
    makefile = (folder / "Makefile").read_text()
    (sources,) = (line.split(":=")[1] for line in makefile.splitlines() if line.startswith("SOURCES"))
    flags = ["-Os", "-std=c99", "-ffp-contract=fast", "-ffunction-sections", "-fdata-sections"]
    entries = [f"-Wl,-u,{name}" for name in ENTRIES if f"{name}(" in (folder / "model.h").read_text()]
    command = [
        "gcc",
        *flags,
        "-r",
        "-nostdlib",
        "-Wl,--gc-sections",
        *entries,
        *sources.split(),
        "-o",
        "all.o",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    listed = subprocess.run(
        ["size", "-A", "all.o"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    rows = [
        line.split() for line in listed.splitlines() if line.startswith((".text", ".rodata", ".data.rel.ro"))
    ]
    return sum(int(row[1]) for row in rows)


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(closely(), indent=1))
    else:
        before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        now = sizes()
        for key in {**before, **now}:
            if tuple(before.get(key, ())) != now.get(key):
                print(key, before.get(key), "->", now.get(key))
        RECORD.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {list(v)}" for k, v in now.items()) + "\n}\n")
