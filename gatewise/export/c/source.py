"""to_c(small, "folder"): a compact model as a folder of C99 that needs libm and nothing else.

    NAME.h, NAME.c       the model: constant arrays and calls into the kernels; state and scratch in one struct
    NAME.bin             the arrays, in place of constants, above a size
    gw.h gw.c products.h panels.h slices.h vector.h functions.h cubics.h vfp.h words.c pool.h norm.h
                         the kernels, byte for byte those of the engine
    main.c check.c golden.h Makefile    an example, and `make check` against golden vectors
    README.md gatewise.json     sizes and errors, to read and to parse

The folder is written whole under another name and then renamed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import nn

from gatewise import __version__
from gatewise.export.c.graph import CModel, program_model
from gatewise.export.c.text import renamed
from gatewise.export.written import write_folder
from gatewise.runtime.narrow import recorded, shippable

WEIGHTS = ("float32", "int8")
KERNELS = (
    "gw.h",
    "gw.c",
    "products.h",
    "panels.h",
    "slices.h",
    "vector.h",
    "functions.h",
    "cubics.h",
    "vfp.h",
    "words.c",
    "pool.h",
    "norm.h",
)
TEMPLATES = ("Makefile",)
MARKER, BUILD = "gatewise.json", "build"
FILE_ABOVE = 8 << 20  # bytes of constants
WAY_OUT = "Name another folder, or empty this one; in Python, to_c(overwrite=True) replaces it."
TAKEN = set(
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "math stddef stdint stdio string immintrin emmintrin".split()  # headers that the files include
) | {
    Path(file).stem.lower()
    for file in (*KERNELS, *TEMPLATES, "check.c", "main.c", "golden.h", "read_weights.h", "README.md")
}


@dataclass(frozen=True)
class CSource:
    """What to_c() wrote.

    Flash counts constant data without code, which is about 10 KB on a Cortex-M4; RAM one instance without its stack.
    Errors are those of the answers to `measured_on` against the compact float32 model: of rounding to int8, or of
    float32. Those of random numbers say little of int8 on real ones: give to_c() an example.
    """

    path: Path
    weights: str
    flash_bytes: int
    ram_bytes: int
    weight_file: Path | None
    weight_file_bytes: int
    max_abs_error: float  # of symbols: the share of sequences that have others
    max_rel_error: float  # of the largest answer
    measured_on: str  # "one random sequence of 12 steps", or what example= was

    def __str__(self) -> str:
        where = "flash" if self.weight_file is None else self.weight_file.name
        return (
            f"{self.path}: {self.weights}, {where} {self.flash_bytes:,} bytes, without code; RAM {self.ram_bytes:,} "
            f"bytes; largest error {self.max_abs_error:.3g}, on {self.measured_on}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}


def to_c(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    name: str = "model",
    weights: str = "float32",
    block: int | None = None,
    fold_embedding: bool | None = None,
    file_above: int = FILE_ABOVE,
    specialise: bool | None = None,
    overwrite: bool = False,
    example: Any = None,
) -> CSource:
    """Write a compact model, or any model after compress(), as C source; whole or not at all.

    forward() is one function with an argument for every input and output; where its maths allows it can be fed in
    pieces, else it takes whole sequences.

    Args:
        name: of the files, and the beginning of every function: NAME_reset, NAME_step, NAME_run.
        weights: "float32", or "int8": one byte for a weight and one scale for a row; sums stay float32.
        block: steps that one pass computes, in RAM that grows with it. None: 1, or, for whole sequences, 128 or as
            many as the example has; then no sequence may be longer.
        fold_embedding: True folds embeddings into the layers that read them as tables word -> input projection, False
            never does; None where that takes fewer bytes.
        file_above: bytes of constants above which they become a weight file with a checked loader.
        specialise: compile the kernels inside the model's file, for its sizes: a step of 16 neurons takes 0.6 of the
            time, in a quarter of the code. None: where that pays, up to 128 kB and two calls of kernels.
        overwrite: replace a folder whatever it holds. Without it only an earlier export is replaced.
        example: a batch as forward() takes it, or a tuple of its arguments, on which the error is measured: real
            sequences, in full length. Golden vectors have its sizes. None: one random sequence.

    Raises:
        ChainError: forward() does something that there is no C for; with its line.
        ValueError: an argument is wrong, or a weight is not finite.
        FileExistsError: the folder holds something else.
    """
    check_arguments(name, weights, block)
    target = Path(folder).resolve()
    check_replaceable(target, overwrite)
    model = shippable(model)
    int8 = weights == "int8"
    title = f"{name}: weights {weights}. Generated by gatewise {__version__}."
    ways = recorded(model, example)
    written, errors, measured_on = program_model(
        model, ways, name, title, int8, block, file_above, fold_embedding, specialise, example
    )
    report = CSource(
        target,
        weights,
        written.flash_bytes,
        written.ram_bytes,
        None if written.weight_file is None else target / f"{name}.bin",
        0 if written.weight_file is None else len(written.weight_file),
        *errors,
        measured_on,
    )
    write_folder(target, files(name, written, report))
    return report


def check_arguments(name: str, weights: str, block: int | None) -> None:
    if (
        not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
        or name.lower() in TAKEN
        or name.lower().startswith("gw")
    ):
        raise ValueError(f"name={name!r}: expected a name of C; no keyword, no other file or header, not gw.")
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r}: expected one of {WEIGHTS}.")
    if block is not None and (not isinstance(block, Integral) or block < 1):
        raise ValueError(f"block={block} must be a whole number from 1 on.")


# The folder.


def files(name: str, written: CModel, report: CSource) -> dict[str, bytes]:
    kernels, templates = (
        resources.files("gatewise.runtime") / "kernels",
        resources.files("gatewise.export.c") / "files",
    )
    found = {file: (kernels / file).read_bytes() for file in KERNELS}
    text = {f"{name}.c": written.source, f"{name}.h": written.header}
    wanted = TEMPLATES if written.weight_file is None else (*TEMPLATES, "read_weights.h")
    text |= {file: renamed((templates / file).read_text("utf-8"), name) for file in wanted}
    if written.specialised:
        text["Makefile"] = text["Makefile"].replace(
            f"SOURCES := {name}.c gw.c words.c", f"SOURCES := {name}.c"
        )
    text |= written.texts
    text["README.md"] = readme(name, written, report)
    found |= {file: content.encode() for file, content in text.items()}
    if written.weight_file is not None:
        found[f"{name}.bin"] = written.weight_file
    sizes = report.to_dict() | {"path": name, "weight_file": f"{name}.bin" if report.weight_file else None}
    listed = {"gatewise": "to_c", "files": sorted({*found, MARKER})}
    return found | {MARKER: (json.dumps(listed | sizes, indent=1) + "\n").encode()}


def readme(name: str, written: CModel, report: CSource) -> str:
    load = f"{name}_load(&state, weights, size);   /* the contents of {name}.bin, checked */\n    "
    begin = load if written.weight_file is not None else f"{name}_reset(&state);\n    "
    rounding = (
        "float32 against the compact torch model" if report.weights == "float32" else "int8 against float32"
    )
    error = f"{report.max_abs_error:.3g} (relative {report.max_rel_error:.3g})"
    file = f"| weight file | {report.weight_file_bytes:,} bytes |\n" if report.weight_file else ""
    where = "constant data" if written.weight_file is None else f"constant data, in {name}.bin"
    return f"""# {name}

A compact recurrent network in C99: no allocation, no globals that change, libm and nothing else.

    static {name}_state state;
    {begin}{written.call}

`{name}.h` is the contract. `make check` compiles and compares with golden vectors, `make` builds an example,
`build/model`, that answers the golden sequence, `make size` measures a Cortex-M4. Your own build needs
{name}.c{", which includes the kernels" if written.specialised else ", gw.c and words.c"}.

| | |
| --- | --- |
| weights | {report.weights} |
| flash, {where} | {report.flash_bytes:,} bytes |
{file}| RAM, one instance | {report.ram_bytes:,} bytes |
| largest error, {rounding}, on {report.measured_on} | {error} |
"""


def check_replaceable(target: Path, overwrite: bool = False) -> None:
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is no folder, and C source is written into one; name another.")
    if Path.cwd().is_relative_to(target):
        raise FileExistsError(
            f"{target} is the current folder or one above it, and to_c() replaces a folder as a whole. Name another, "
            f"for instance {Path.cwd() / 'model_c'}."
        )
    if overwrite or not target.exists() or not any(target.iterdir()):
        return
    try:
        marker = json.loads((target / MARKER).read_text("utf-8"))
        own = set(marker["files"]) if marker["gatewise"] == "to_c" else None
    except (OSError, ValueError, KeyError, TypeError):
        own = None
    if own is None:
        raise FileExistsError(f"{target} holds no earlier export of to_c(). {WAY_OUT}")
    foreign = sorted(path.name for path in target.iterdir() if path.name not in own | {BUILD})
    if foreign:
        raise FileExistsError(f"{target / foreign[0]} is not of to_c() and would be lost. {WAY_OUT}")
