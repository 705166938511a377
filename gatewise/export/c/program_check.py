"""check.c, main.c and golden.h of a program: how its function is called, and what it must answer."""

from __future__ import annotations

import numpy as np

from gatewise.export.c.arrays import declaration
from gatewise.export.c.body import C_KINDS
from gatewise.export.c.golden_program import GoldenProgram
from gatewise.export.c.program import Argument, Function
from gatewise.export.c.sizes import golden as golden_name
from gatewise.export.c.text import filled


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
    counts = {a.name: array.size for a, array in zip(function.outputs, golden.expected)}
    empty = call(function, "run", ["0"] * len(function.letters)) + " != MODEL_BAD_STEPS"
    clear = "".join(f"    memset({a.name}, 0xff, sizeof {a.name});\n" for a in function.outputs)
    compare = "".join(f"    failed |= {compared(a, counts[a.name])};\n" for a in function.outputs)
    again = filled(steps_text(function), CLEAR=clear, COMPARE=compare) if function.goes_on else ""
    return filled(
        CHECK,
        ARRAYS="".join(
            f"static {C_KINDS[a.node.kind]} {a.name}[{counts[a.name]}];\n" for a in function.outputs
        ),
        CLEAR=clear,
        CALL=call(function, "run", [golden_name(letter) for letter in function.letters]),
        NOTHING=empty if function.letters else "0",
        COMPARE=compare,
        DIFFERS=DIFFERS if any(a.node.kind == "float" for a in function.outputs) else "",
        STEPS=again,
        OTHERS=OTHERS if any(a.node.kind != "float" for a in function.outputs) else "",
    )


def call(function: Function, name: str, sizes: list[str]) -> str:
    given = [f"golden_{a.name}" for a in function.inputs]
    return f"model_{name}({', '.join(['&a', *sizes, *given, *(a.name for a in function.outputs)])})"


def steps_text(function: Function) -> str:
    """The sequence once more, step by step."""
    assert function.stream is not None
    parts = ["&a"]
    for a in function.arguments:
        name = f"golden_{a.name}" if a.reads else a.name
        parts.append(f"{name} + t * {a.width}" if function.every_step(a) else name)
    return filled(STEPS, STEPS=golden_name(function.stream.time), CALL=", ".join(parts))


def compared(a: Argument, n: int) -> str:
    function = "differs" if a.node.kind == "float" else "unequal"
    return f'{function}("{a.name}", {a.name}, golden_{a.name}, {n})'


def main_text(function: Function, golden: GoldenProgram) -> str:
    prints = []
    for a, array in zip(function.outputs, golden.expected):
        form, cast = ("%g", "(double)") if a.node.kind == "float" else ("%ld", "(long)")
        loop = f'for (int j = 0; j < {array.size}; j++) printf(" {form}", {cast}{a.name}[j]);'
        prints.append(f"    printf(\"{a.name}:\");\n    {loop}\n    putchar('\\n');\n")
    return filled(
        MAIN,
        ARRAYS="".join(
            f"static {C_KINDS[a.node.kind]} {a.name}[{array.size}];\n"
            for a, array in zip(function.outputs, golden.expected)
        ),
        CALL=call(function, "run", [golden_name(letter) for letter in function.letters]),
        PRINT="".join(prints),
    )


DIFFERS = """\
static int differs(const char *what, const float *got, const float *want, int n) {
    float worst = 0;
    int bad = 0;
    for (int j = 0; j < n; j++) {
        const float error = got[j] == want[j] ? 0 : fabsf(got[j] - want[j]);
        if (!(error <= 1e-5f + 1e-4f * fabsf(want[j]))) bad++;
        if (!(error <= worst)) worst = error;
    }
    printf("%-12s %d numbers, largest difference %.3g: %s\\n", what, n, (double)worst, bad ? "WRONG" : "ok");
    return bad != 0;
}

"""

OTHERS = """\
static int unequal(const char *what, const int32_t *got, const int32_t *want, int n) {
    int bad = 0;
    for (int j = 0; j < n; j++) bad += got[j] != want[j];
    printf("%-12s %d whole numbers: %s\\n", what, n, bad ? "WRONG" : "ok");
    return bad != 0;
}

"""

STEPS = """\
    model_reset(&a);
@CLEAR@    for (int t = 0; t < @STEPS@; t++) failed |= model_step(@CALL@) != MODEL_OK;
@COMPARE@"""

BEGIN = """\
/* Nothing may depend on what memory holds before. */
static int begin(model_state *m) {
    memset(m, 0xff, sizeof *m);
#ifdef MODEL_WEIGHT_BYTES
    return read_weights(m);
#else
    model_reset(m);
    return MODEL_OK;
#endif
}

"""

CHECK = (
    """\
/* Compares the compiled model with the golden vectors. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "model.h"
#ifdef MODEL_WEIGHT_BYTES
#include "read_weights.h"
#endif

static model_state a;
@ARRAYS@
@DIFFERS@@OTHERS@"""
    + BEGIN
    + """\
int main(void) {
    int failed = 0;
    if (begin(&a)) {
        fprintf(stderr, "the weights cannot be loaded\\n");
        return 2;
    }
@CLEAR@    failed |= @CALL@ != MODEL_OK;
@COMPARE@@STEPS@    failed |= @NOTHING@;
    puts(failed ? "FAILED" : "passed");
    return failed;
}
"""
)

MAIN = (
    """\
/* Example: the golden sequence in, answers to standard output. */

#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "model.h"
#ifdef MODEL_WEIGHT_BYTES
#include "read_weights.h"
#endif

static model_state a;
@ARRAYS@
"""
    + BEGIN
    + """\
int main(void) {
    int error = begin(&a);
    if (!error) error = @CALL@;
    if (error) {
        fprintf(stderr, "error %d: see model.h\\n", error);
        return error;
    }
@PRINT@    return 0;
}
"""
)
