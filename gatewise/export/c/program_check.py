"""check.c, main.c and golden.h of a program: how its function is called, and what it must answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from gatewise.export.c.arrays import declaration
from gatewise.export.c.body import C_KINDS
from gatewise.export.c.golden_program import GoldenProgram
from gatewise.export.c.program import Function
from gatewise.export.c.sizes import golden as golden_name
from gatewise.export.c.text import rendered


def golden_text(function: Function, golden: GoldenProgram) -> str:
    """golden.h."""
    sizes = "".join(
        f"#define {golden_name(letter)} {golden.letters[letter]}\n" for letter in function.letters
    )
    given = {a.name: golden.inputs[a.node] for a in function.inputs}
    wanted = dict(zip((a.name for a in function.outputs), golden.expected, strict=True))
    arrays = (
        declaration(f"static const {{}} golden_{name}", as_stored(array).reshape(-1))
        for name, array in (given | wanted).items()
    )
    head = "/* What goes in, and what must come out. */\n\n#include <math.h>\n#include <stdint.h>\n\n"
    return head + sizes + "\n" + "".join(arrays)


def as_stored(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int32)


def check_text(function: Function, golden: GoldenProgram) -> str:
    answers = outputs(function, golden)
    sizes = function.letters
    return rendered(
        "check.c",
        outputs=answers,
        compares={answer["compare"] for answer in answers},
        run=call(function, "run", [golden_name(letter) for letter in sizes]),
        nothing=call(function, "run", ["0"] * len(sizes)) + " != MODEL_BAD_STEPS" if sizes else "0",
        step=step_call(function) if function.goes_on else "",
        steps=golden_name(function.stream.time) if function.stream is not None else "",
    )


def main_text(function: Function, golden: GoldenProgram) -> str:
    run = call(function, "run", [golden_name(letter) for letter in function.letters])
    return rendered("main.c", outputs=outputs(function, golden), run=run)


def outputs(function: Function, golden: GoldenProgram) -> list[dict[str, Any]]:
    """How each answer is declared, compared and printed."""
    of_floats = {"compare": "differs", "form": "%g", "cast": "(double)"}
    of_numbers = {"compare": "unequal", "form": "%ld", "cast": "(long)"}
    return [
        {"name": a.name, "type": C_KINDS[a.node.kind], "count": array.size}
        | (of_floats if a.node.kind == "float" else of_numbers)
        for a, array in zip(function.outputs, golden.expected, strict=True)
    ]


def call(function: Function, name: str, sizes: list[str]) -> str:
    given = [f"golden_{a.name}" for a in function.inputs]
    return f"model_{name}({', '.join(['&a', *sizes, *given, *(a.name for a in function.outputs)])})"


def step_call(function: Function) -> str:
    """One step of the golden sequence, the t-th."""
    parts = ["&a"]
    for a in function.arguments:
        name = f"golden_{a.name}" if a.reads else a.name
        parts.append(f"{name} + t * {a.width}" if function.every_step(a) else name)
    return f"model_step({', '.join(parts)})"
