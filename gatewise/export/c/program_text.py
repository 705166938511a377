"""The text of the files of a program: NAME.c, NAME.h, check.c and main.c, written for the name `model`."""

from __future__ import annotations

import re

from gatewise.export.c import functions
from gatewise.export.c.body import POOLS, Body, placed
from gatewise.export.c.program import Function
from gatewise.export.c.sizes import in_c, letters_of, variable
from gatewise.export.c.text import LOAD_ERRORS, LOAD_PROTOTYPE, filled, loader

ERRORS = {
    "BAD_STEPS": "a size outside 1..MODEL_BLOCK, or too small for a window or a slice",
    "BAD_WORD": "a word id that no embedding has",
    "BAD_LENGTH": "a length outside 1..steps",
    "BAD_INDEX": "a place outside the values that are looked up",
}
FIND = """\
/* The row of a word; -1: it was removed. */
static int32_t @NAME@(const @TYPE@ *kept, int32_t n, int32_t word) {
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if ((int32_t)kept[middle] < word)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && (int32_t)kept[low] == word ? low : -1;
}
"""
RUN_LAYER = """\
static void @NAME@(const gw_layer *layer, int32_t size, int32_t steps, const int32_t *length, int32_t reverse,
                      @GIVEN@, float *s, float *c, float *y, ptrdiff_t out_width,
                      float *scratch) {
    const gw_batch batch = {.steps = steps, .size = size, .reverse = reverse, .lengths = length};
    const @IN@;
    const gw_steps out = {y, out_width, out_width * steps};
    gw_layer_run(layer, &batch, @READ@, s, c, &out, scratch);
}
"""
# No name here may end as the model's own do, _reset _step _run _load _state: the user chooses how those begin.
HELPERS = {
    "pick": """\
/* The n channels that are read, of every vector. */
static void pick(int32_t steps, int32_t n, const int32_t *which, const float *x, int32_t width, float *y) {
    for (int32_t t = 0; t < steps; t++)
        for (int32_t j = 0; j < n; j++) y[t * n + j] = x[t * width + which[j]];
}
""",
    "widen": """\
/* n channels go to their places among all; the others are zero. */
static void widen(int32_t steps, int32_t n, const int32_t *places, const float *x, int32_t width, float *y) {
    for (int32_t t = 0; t < steps; t++) {
        for (int32_t j = 0; j < width; j++) y[t * width + j] = 0;
        for (int32_t j = 0; j < n; j++) y[t * width + places[j]] = x[t * n + j];
    }
}
""",
    "log_softmax": """\
/* y - log sum exp(y) along the middle one of three axes, in place. */
static void log_softmax(int32_t outer, int32_t n, int32_t inner, float *y) {
    for (int32_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < inner; i++) {
            float *x = y + o * n * inner + i, top = x[0], sum = 0;
            for (int32_t j = 1; j < n; j++) top = x[j * inner] > top ? x[j * inner] : top;
            for (int32_t j = 0; j < n; j++) sum += expf(x[j * inner] - top);
            for (int32_t j = 0; j < n; j++) x[j * inner] -= top + logf(sum);
        }
}
""",
    "find_row": filled(FIND, NAME="find_row", TYPE="uint16_t"),
    "find_wide_row": filled(FIND, NAME="find_wide_row", TYPE="int32_t"),
    "run_layer": filled(
        RUN_LAYER,
        NAME="run_layer",
        GIVEN="const float *x, ptrdiff_t width",
        IN="gw_const_steps in = {x, width, width * steps}",
        READ="&in, NULL",
    ),
    "run_words": filled(
        RUN_LAYER,
        NAME="run_words",
        GIVEN="const int32_t *rows",
        IN="gw_words in = {rows, 1, steps}",
        READ="NULL, &in",
    ),
    "enter": """\
/* The first states of n of `width` neurons: s = h / scale, and 0 where the scale is. */
static void enter(int32_t size, int32_t n, int32_t width, const int32_t *which, const float *scale, const float *h,
                  float *s) {
    for (; size > 0; size--, h += width, s += GW_PADDED(n))
        for (int32_t j = 0; j < n; j++) {
            const float value = h[which ? which[j] : j];
            s[j] = !scale ? value : scale[j] != 0 ? value / scale[j] : 0;
        }
}
""",
    "leave": """\
/* h = s * scale of n neurons, in their places among all. */
static void leave(int32_t size, int32_t n, int32_t width, const int32_t *which, const float *scale, const float *s,
                  float *h) {
    for (; size > 0; size--, h += width, s += GW_PADDED(n)) {
        for (int32_t j = 0; j < width; j++) h[j] = 0;
        for (int32_t j = 0; j < n; j++) h[which ? which[j] : j] = scale ? s[j] * scale[j] : s[j];
    }
}
""",
    "first_largest": """\
/* The first of the largest. */
static int32_t first_largest(int32_t n, const float *x) {
    int32_t best = 0;
    for (int32_t j = 1; j < n; j++)
        if (x[j] > x[best]) best = j;
    return best;
}
""",
    "softmax": """\
/* exp(y) / sum exp(y) along the middle one of three axes, in place. */
static void softmax(int32_t outer, int32_t n, int32_t inner, float *y) {
    for (int32_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < inner; i++) {
            float *x = y + o * n * inner + i, top = x[0], sum = 0;
            for (int32_t j = 1; j < n; j++) top = x[j * inner] > top ? x[j * inner] : top;
            for (int32_t j = 0; j < n; j++) sum += x[j * inner] = expf(x[j * inner] - top);
            for (int32_t j = 0; j < n; j++) x[j * inner] /= sum;
        }
}
""",
}


def source(function: Function, title: str, file: bytes | None, inside: bool) -> str:
    """NAME.c. Structs point to constants; of loaded weights only compute() knows where they lie, so it makes them."""
    body, loaded = function.body, file is not None
    constants = body.arrays.macros() + "\n"
    if not loaded:
        structs = "".join(f"static const {struct}\n\n" for struct in body.structs.found)
        constants = body.arrays.declarations() + structs
    text = "".join(f"    {line}\n" for line in computing(function, loaded))
    tests = checks(function, loaded)
    if "floor_div(" in text + tests:
        body.call("floor_div")
    return filled(
        SOURCE,
        TITLE=title,
        KERNELS=INSIDE if inside else '#include "gw.h"\n',
        FLAT="GW_FLAT " if inside else "",
        INCLUDES="".join(f'#include "{name}"\n' for name in sorted(body.includes)),
        CONSTANTS=constants,
        HELPERS="".join(helper(name) + "\n" for name in body.helpers),
        GIVEN=given(function),
        BODY=text,
        LOADER=loader(file) if file else "",
        RESET=reset(function),
        CHECKS=tests,
        RUN=f"    return compute({given_to(function, 'm')});\n" if function.stream is None else run(function),
        STEP=step(function, "{ return model_run(" + step_call(function) + "); }") if function.goes_on else "",
    )


def computing(function: Function, loaded: bool) -> list[str]:
    """The lines of compute()."""
    body, lines = function.body, list[str]()
    if loaded:
        structs = (f"const {struct}" for struct in body.structs.found)
        lines += ["const unsigned char *const weights = m->weights;", *structs]
    if counts_steps(function):
        lines.append(f"const int32_t {variable('D')} = m->done;")
    lines += pointers(body)
    code = [*lines, *(line for statement in body.code for line in statement)]
    lines += [line for statement in body.statements for line in statement]
    if counts_steps(function):
        lines.append(f"m->done += {variable(function.letters[0])};")
    if function.stream is not None:
        lines.append("m->begun = 1;")
    return [*lines, *unused(function, "\n".join(code))]


def pointers(body: Body) -> list[str]:
    """Where buffers begin, and what is remembered."""
    places, _ = placed(body)
    found = []
    for name, place in sorted(places.items(), key=lambda item: int(item[0][1:])):
        kind, _ = body.buffers[name]
        found.append(f"{kind} *const {name} = m->{POOLS[kind]}{f' + {place}' if place else ''};")
    offset = 0
    for k, floats in enumerate(body.kept):
        found.append(f"float *const s{k} = m->state{f' + {offset}' if offset else ''};")
        offset += floats
    return found


def counts_steps(function: Function) -> bool:
    """Whether a value is numbered by its step."""
    text = "\n".join(line for statement in function.body.code for line in statement)
    return bool(re.search(rf"\b{variable('D')}\b", text))


def reset(function: Function) -> str:
    lines = ["m->begun = 0;"] if function.stream else ["(void)m;"]
    lines += ["m->done = 0;"] if counts_steps(function) else []
    return "".join(f"    {line}\n" for line in lines)


def run(function: Function) -> str:
    """Pieces of MODEL_BLOCK steps; answers of a whole sequence come with the last."""
    assert function.stream is not None
    steps = variable(function.stream.time)
    parts = ["m", "n"]
    for a in function.arguments:
        if function.every_step(a):
            place = f"{a.name} + (size_t)t{f' * {a.width}' if a.width != 1 else ''}"
            parts.append(place if a.reads else f"{a.name} ? {place} : NULL")
        else:
            parts.append(a.name if a.reads else f"t + n < {steps} ? NULL : {a.name}")
    begin = "" if function.goes_on else "    model_reset(m);\n"
    return begin + filled(PIECES, STEPS=steps, CALL=", ".join(parts))


def step(function: Function, end: str) -> str:
    given = ", ".join(["model_state *m", *(a.declared for a in function.arguments)])
    return f"\nint model_step({given}){' ' if end != ';' else ''}{end}\n"


def step_call(function: Function) -> str:
    return ", ".join(["m", "1", *(a.name for a in function.arguments)])


def helper(name: str) -> str:
    if name in HELPERS:
        return HELPERS[name]
    return functions.HELPERS[name] if name in functions.HELPERS else functions.body(name)


def unused(function: Function, text: str) -> list[str]:
    """Arguments that nothing reads."""
    names = ["m", *map(variable, function.letters), *(a.name for a in function.inputs)]
    return [f"(void){name};" for name in names if not re.search(rf"\b{name}\b", text)]


def given(function: Function) -> str:
    sizes = [f"int32_t {variable(letter)}" for letter in function.letters]
    return ", ".join(["model_state *m", *sizes, *(a.declared for a in function.arguments)])


def given_to(function: Function, state: str) -> str:
    return ", ".join([state, *map(variable, function.letters), *(a.name for a in function.arguments)])


def call(function: Function) -> str:
    """How it is run, for the README."""
    if function.goes_on:
        return f"model_step({', '.join(['&state', *(a.name for a in function.arguments)])});"
    return f"model_run({given_to(function, '&state')});"


def checks(function: Function, loaded: bool) -> str:
    lines = ["if (!m->weights) return MODEL_NOT_LOADED;"] if loaded else []
    for letter in function.letters:
        name = variable(letter)
        most = f" || {name} > MODEL_BLOCK" if function.stream is None else ""
        lines.append(f"if ({name} < 1{most}) return MODEL_BAD_STEPS;")
    made_of = {in_c(size): None for a in function.inputs for size in a.value.shape if letters_of(size)}
    for size in made_of.keys() - set(map(variable, function.letters)):
        lines.append(f"if ({size} < 1) return MODEL_BAD_STEPS;")
    for a in function.inputs:
        if a.name in function.body.checks:
            loop = f"for (int32_t k = 0; k < {in_c(a.value.count)}; k++)"
            wrong = f"{a.name}[k] < 0 || {a.name}[k] >= {function.body.checks[a.name]}"
            lines += [loop, f"    if ({wrong}) return MODEL_BAD_WORD;"]
    return "".join(f"    {line}\n" for line in lines)


def buffers(function: Function) -> dict[str, tuple[str, int]]:
    """Fields of the state struct: name -> type, entries."""
    _, sizes = placed(function.body)
    found = {"memory": ("float", sizes["memory"]), "numbers": ("int32_t", sizes["numbers"])}
    found |= {
        "scratch": ("float", max(function.body.scratch, 1)),
        "state": ("float", sum(function.body.kept)),
    }
    return {name: field for name, field in found.items() if field[1]}


def counters(function: Function) -> list[str]:
    """Whether a sequence has begun, and how many steps it has had."""
    return ["begun"] * (function.stream is not None) + ["done"] * counts_steps(function)


def header(function: Function, title: str, file: bytes | None) -> str:
    """NAME.h."""
    fields = [f"{kind} {name}[{size}];" for name, (kind, size) in buffers(function).items()]
    fields += [f"int32_t {name};" for name in counters(function)]
    fields = ["const unsigned char *weights;", *fields] if file else fields
    errors = {"BAD_STEPS", *function.body.errors}
    return filled(
        HEADER,
        TITLE=title,
        BLOCK=function.body.most,
        WIDTHS="".join(widths(function)),
        WEIGHT_BYTES=f"#define MODEL_WEIGHT_BYTES {len(file)} /* of the weight file */\n" if file else "",
        ERRORS="".join(
            f"    MODEL_{name}, /* {said} */\n" for name, said in ERRORS.items() if name in errors
        ),
        LOAD_ERRORS=LOAD_ERRORS if file else "",
        FIELDS="".join(f"    {field}\n" for field in fields),
        LOAD=LOAD_PROTOTYPE if file else "",
        INPUTS="".join(f" *   {a.said}\n" for a in function.inputs),
        OUTPUTS="".join(f" *   {a.said}\n" for a in function.outputs),
        SIZES="".join(f" *   {variable(letter)}: {letter}\n" for letter in function.letters),
        GIVEN=given(function),
        STREAMS=int(function.goes_on),
        LONGEST="steps computed at a time"
        if function.stream
        else "the largest size of every axis that a call chooses",
        BEGINS="begins." if function.goes_on else "begins, as every call of model_run() does.",
        SEQUENCE="Goes on from where the last call ended: a piece" if function.goes_on else "forward()",
        FINAL=FINAL if function.goes_on else "",
        STEP="\n/* One step: the same as model_run() with one. */" + step(function, ";")
        if function.goes_on
        else "",
    )


INSIDE = """\
#ifdef GW_APART /* with kernels that were compiled before */
#include "gw.h"
#else
#define GW_INSIDE
#if defined(__GNUC__) && !defined(__clang__) /* it warns of arrays in branches that these sizes never take */
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#endif
#include "gw.c"
#include "words.c"
#endif
"""


def widths(function: Function) -> list[str]:
    """How many numbers an argument has, of a step where it has steps; of words also how many there are."""
    lines = []
    for a in function.arguments:
        free = {letter for size in a.value.shape for letter in letters_of(size)}
        of = " a step" if function.every_step(a) else "" if not free else " for a size of 1"
        lines.append(f"#define MODEL_WIDTH_{a.name.upper()} {a.width} /* numbers of {a.name}{of} */\n")
        if a.reads and a.name in function.body.checks:
            words = function.body.checks[a.name]
            lines.append(
                f"#define MODEL_WORDS_{a.name.upper()} {words} /* its ids run from 0 to one less */\n"
            )
    return lines


PIECES = """\
    for (int32_t t = 0; t < @STEPS@; t += MODEL_BLOCK) {
        const int32_t n = @STEPS@ - t < MODEL_BLOCK ? @STEPS@ - t : MODEL_BLOCK;
        const int status = compute(@CALL@);
        if (status != MODEL_OK) return status;
    }
    return MODEL_OK;
"""

FINAL = """\
 * What forward() says of a whole sequence is said as if it ended here.
"""

SOURCE = """\
/* @TITLE@ */

#include "model.h"

#include <math.h>
#include <string.h>

@KERNELS@@INCLUDES@
@CONSTANTS@@HELPERS@@FLAT@static int compute(@GIVEN@) {
@BODY@    return MODEL_OK;
}

@LOADER@void model_reset(model_state *m) {
@RESET@}

int model_run(@GIVEN@) {
@CHECKS@@RUN@}
@STEP@"""

HEADER = """\
/* @TITLE@ */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MODEL_STREAMS @STREAMS@ /* 1: there is model_step() */
#define MODEL_BLOCK @BLOCK@ /* @LONGEST@ */
@WIDTHS@@WEIGHT_BYTES@
enum {
    MODEL_OK = 0,
@ERRORS@@LOAD_ERRORS@};

/* Working memory of one instance; only the functions below touch it. */
typedef struct {
@FIELDS@} model_state;

@LOAD@/* A new sequence @BEGINS@ */
void model_reset(model_state *m);

/* @SEQUENCE@ of one sequence, B = 1; everything row by row, int and bool as int32_t.
 *
@SIZES@@INPUTS@ *
 * Answers, where their pointer is not NULL; a state may replace the one before, no other may overlap an input:
 *
@OUTPUTS@@FINAL@ * Returns MODEL_OK, or why nothing was computed. */
int model_run(@GIVEN@);
@STEP@
#ifdef __cplusplus
}
#endif

#endif
"""
