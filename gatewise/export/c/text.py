"""The text of NAME.c and NAME.h: pieces of C, written for the name `model`, and how they are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from gatewise.export.c.arrays import HEADER_BYTES, MAGIC, VERSION, Arrays


@dataclass(frozen=True)
class Program:
    """What the two files say: a model's sizes, its constants, and the calls that compute it."""

    title: str
    n_inputs: int
    n_words: int | None  # None: the input are vectors
    pad: int | None  # the word behind the end of a text, which is no part of it
    n_outputs: int
    final: bool  # one answer for a sequence
    streams: bool  # it can be fed step by step
    block: int
    buffers: Mapping[str, int]  # floats of the state struct by name
    arrays: Arrays
    file: bytes | None  # the arrays, where they are no constants of the source
    structs: Sequence[str]  # "gw_layer rnn_0 = {...};"
    helpers: Set[str]
    row_of: str  # the function that finds the row of a word; empty where that is its id
    body: Sequence[str]  # lines of compute()
    includes: Set[str]  # pool.h, norm.h: what it calls besides gw.h
    lowest: tuple[int, int]  # from where to where the state holds maxima, which begin below everything
    specialised: bool  # the kernels are compiled inside it


def source(p: Program) -> str:
    """NAME.c. Structs point to constants; of loaded weights only compute() knows where they lie, so it makes them."""
    by_word, loaded = p.n_words is not None, p.file is not None
    if loaded:
        constants = p.arrays.macros() + "\n"
        pointers = "    const unsigned char *const weights = m->weights;\n"
        pointers += "".join(f"    const {struct}\n" for struct in p.structs)
    else:
        constants = p.arrays.declarations() + "".join(f"static const {struct}\n\n" for struct in p.structs)
        pointers = ""
    body = "".join(f"    {line}\n" for line in p.body)
    if not by_word and not re.search(r"\bx\b", body):
        body += "    (void)x; /* nothing that reads it is left */\n"
    word = "words[t + k]"
    if p.row_of:
        word = f"row_of({'m->weights, ' if loaded else ''}{word})"
    return filled(
        SOURCE,
        TITLE=p.title,
        KERNELS=INSIDE if p.specialised else '#include "gw.h"\n',
        FLAT="GW_FLAT " if p.specialised else "",
        MATH="#include <math.h>\n" if "log_softmax" in p.helpers or p.lowest[1] else "",
        INCLUDES="".join(f'#include "{file}"\n' for file in sorted(p.includes)),
        CONSTANTS=constants,
        HELPERS="".join(text + "\n" for name, text in HELPERS.items() if name in p.helpers),
        ROW_OF=filled(p.row_of, GIVEN="const unsigned char *weights, " if loaded else ""),
        GIVEN="" if by_word else "const float *x, ",
        POINTERS=pointers,
        BODY=body,
        LOADER=loader(p.file) if p.file else "",
        TYPE="int32_t *words" if by_word else "float *x",
        LOADED="    if (!m->weights) return MODEL_NOT_LOADED;\n" if loaded else "",
        LIMIT="steps < 1" if p.streams else "steps < 1 || steps > MODEL_BLOCK",
        CHECK=filled(CHECK_WORDS, PAD="" if p.pad is None else f" || words[t] == {p.pad}") if by_word else "",
        LOWEST=filled(LOWEST, FROM=p.lowest[0], TO=p.lowest[1]) if p.lowest[1] else "",
        RESET="" if p.streams else "    model_reset(m);\n",
        ROWS=f"        for (int32_t k = 0; k < n; k++) m->rows[k] = {word};\n" if by_word else "",
        X="" if by_word else "x + (size_t)t * MODEL_INPUTS, ",
        Y="t + n < steps ? NULL : y" if p.final else "y ? y + (size_t)t * MODEL_OUTPUTS : NULL",
        STEP="" if not p.streams else STEP_WORD if by_word else STEP,
    )


def loader(file: bytes) -> str:
    crc = int(np.frombuffer(file, "<u4", 4)[3])
    return filled(
        LOADER, MAGIC=f"0x{MAGIC:08x}u", VERSION=f"{VERSION}u", HEADER=HEADER_BYTES, CRC=f"0x{crc:08x}u"
    )


def header(p: Program) -> str:
    """NAME.h."""
    by_word = p.n_words is not None
    one = "int32_t word" if by_word else "const float *x"
    fields = [f"float {name}[{size}];" for name, size in p.buffers.items()]
    fields += [f"int32_t rows[{p.block}];"] if by_word else []
    fields = ["const unsigned char *weights;", *fields] if p.file else fields
    return filled(
        HEADER,
        TITLE=p.title,
        INPUTS=p.n_inputs,
        WORDS=p.n_words or 0,
        OUTPUTS=p.n_outputs,
        FINAL=int(p.final),
        STREAMS=int(p.streams),
        BLOCK=p.block,
        LONGEST="steps computed at a time" if p.streams else "steps of the longest sequence",
        WEIGHT_BYTES=f"#define MODEL_WEIGHT_BYTES {len(p.file)} /* of the weight file */\n" if p.file else "",
        PAD="" if p.pad is None else f", or the padding, {p.pad}",
        LOAD_ERRORS=LOAD_ERRORS if p.file else "",
        FIELDS="".join(f"    {field}\n" for field in fields),
        LOAD=LOAD_PROTOTYPE if p.file else "",
        BEGINS="begins" if p.streams else "begins, as every call of model_run() does,",
        SEQUENCE="Goes on from where the last call ended" if p.streams else "A whole sequence",
        GIVEN="words: (steps) ids" if by_word else "x: (steps, MODEL_INPUTS)",
        ANSWER="(MODEL_OUTPUTS), the answer after the last step" if p.final else "(steps, MODEL_OUTPUTS)",
        SKIP="; NULL: only the state moves on" if p.streams else "",
        TYPE="int32_t *words" if by_word else "float *x",
        STEP=filled(STEP_PROTOTYPE, TYPE=one) if p.streams else "",
    )


def filled(template: str, **parts: object) -> str:
    """The template with every @NAME@ that is given replaced, in one pass: what is put in is not looked at."""
    return re.sub(r"@(\w+)@", lambda found: str(parts.get(found[1], found[0])), template)


def renamed(text: str, name: str) -> str:
    """Text written for the name `model`, for another one."""
    text = re.sub(r"\bMODEL_", f"{name.upper()}_", text)
    return re.sub(r"\bmodel(?=_|\.[hc]\b|\.bin\b)", name, text)


# No name here may end as the model's own do, _reset _step _run _load _state: the user chooses how those begin.
SHARED = {  # with programs that are no chain
    "pick": """\
/* The n channels that are read, of every vector. */
static void pick(int32_t steps, int32_t n, const int32_t *which, const float *x, int32_t width, float *y) {
    for (int32_t t = 0; t < steps; t++)
        for (int32_t j = 0; j < n; j++) y[t * n + j] = x[t * width + which[j]];
}
""",
    "widen": """\
/* n channels go to their places among all; the others are `rest`. */
static void widen(int32_t steps, int32_t n, const int32_t *places, const float *x, int32_t width, float rest,
                  float *y) {
    for (int32_t t = 0; t < steps; t++) {
        for (int32_t j = 0; j < width; j++) y[t * width + j] = rest;
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
}
HELPERS = SHARED | {
    "run_layer": """\
static void run_layer(const gw_layer *layer, int32_t steps, int32_t reverse, const float *x, ptrdiff_t width,
                      const int32_t *rows, float *s, float *c, float *y, ptrdiff_t out_width, float *scratch) {
    const gw_batch batch = {.steps = steps, .size = 1, .reverse = reverse};
    const gw_const_steps in = {x, width, width};
    const gw_words words = {rows, 1, 1};
    const gw_steps out = {y, out_width, out_width};
    gw_layer_run(layer, &batch, &in, rows ? &words : NULL, s, c, &out, scratch);
}
""",
    "last_h": """\
/* h = s * scale of n neurons. */
static void last_h(int32_t n, const float *s, const float *scale, float *y) {
    for (int32_t j = 0; j < n; j++) y[j] = scale ? s[j] * scale[j] : s[j];
}
""",
    "relu": """\
static void relu(size_t n, const float *x, float *y) {
    for (size_t j = 0; j < n; j++) y[j] = x[j] < 0 ? 0 : x[j];
}
""",
}

MAPPED = """\
/* The row of a word; -1: it was removed. */
static int32_t row_of(@GIVEN@int32_t word) { return word_rows[word]; }

"""

SEARCH = """\
/* The row of a word; -1: it was removed. */
static int32_t row_of(@GIVEN@int32_t word) {
    int32_t low = 0, high = @COUNT@;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if ((int32_t)kept_words[middle] < word)
            low = middle + 1;
        else
            high = middle;
    }
    return low < @COUNT@ && (int32_t)kept_words[low] == word ? low : -1;
}

"""

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

SOURCE = """\
/* @TITLE@ */

#include "model.h"

@MATH@#include <string.h>

@KERNELS@@INCLUDES@
@CONSTANTS@@HELPERS@@ROW_OF@/* A block of at most MODEL_BLOCK steps; without y only the state moves on. */
@FLAT@static void compute(model_state *m, int32_t steps, @GIVEN@float *y) {
@POINTERS@@BODY@}

@LOADER@void model_reset(model_state *m) {
    memset(m->state, 0, sizeof m->state);
@LOWEST@}

int model_run(model_state *m, int32_t steps, const @TYPE@, float *y) {
@LOADED@    if (@LIMIT@) return MODEL_BAD_STEPS;
@CHECK@@RESET@    for (int32_t t = 0; t < steps; t += MODEL_BLOCK) {
        const int32_t n = steps - t < MODEL_BLOCK ? steps - t : MODEL_BLOCK;
@ROWS@        compute(m, n, @X@@Y@);
    }
    return MODEL_OK;
}
@STEP@"""

LOWEST = "    for (int32_t j = @FROM@; j < @TO@; j++) m->state[j] = -INFINITY;\n"

CHECK_WORDS = """\
    for (int32_t t = 0; t < steps; t++)
        if (words[t] < 0 || words[t] >= MODEL_WORDS@PAD@) return MODEL_BAD_WORD;
"""

STEP = "\nint model_step(model_state *m, const float *x, float *y) { return model_run(m, 1, x, y); }\n"
STEP_WORD = "\nint model_step(model_state *m, int32_t word, float *y) { return model_run(m, 1, &word, y); }\n"

HEADER = """\
/* @TITLE@ */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MODEL_INPUTS @INPUTS@ /* width of a vector; 0: the input are words */
#define MODEL_WORDS @WORDS@ /* word ids run from 0 to one less */
#define MODEL_OUTPUTS @OUTPUTS@
#define MODEL_FINAL @FINAL@ /* 1: one answer for a sequence; 0: one for every step */
#define MODEL_STREAMS @STREAMS@ /* 1: there is model_step() */
#define MODEL_BLOCK @BLOCK@ /* @LONGEST@ */
@WEIGHT_BYTES@
enum {
    MODEL_OK = 0,
    MODEL_BAD_WORD,  /* a word id outside 0..MODEL_WORDS-1@PAD@ */
    MODEL_BAD_STEPS, /* no steps, or more than fit */
@LOAD_ERRORS@};

/* State and working memory of one instance; only the functions below touch it. */
typedef struct {
@FIELDS@} model_state;

@LOAD@/* A new sequence @BEGINS@ from the zero state. */
void model_reset(model_state *m);

/* @SEQUENCE@. @GIVEN@; y: @ANSWER@@SKIP@.
 * Returns MODEL_OK, or why nothing was computed. */
int model_run(model_state *m, int32_t steps, const @TYPE@, float *y);
@STEP@
#ifdef __cplusplus
}
#endif

#endif
"""

STEP_PROTOTYPE = """
/* One step of a stream: the same as model_run() with one. y: (MODEL_OUTPUTS) or NULL. */
int model_step(model_state *m, @TYPE@, float *y);
"""

LOAD_ERRORS = """\
    MODEL_BAD_ALIGNMENT, /* the weights do not begin at a multiple of 4 bytes */
    MODEL_BAD_MAGIC,     /* not a weight file, or of the other byte order */
    MODEL_BAD_VERSION,   /* of another format */
    MODEL_BAD_SIZE,      /* not MODEL_WEIGHT_BYTES long: cut off, or of another model */
    MODEL_OTHER_MODEL,   /* whole, but not the weights of this model */
    MODEL_CORRUPT,       /* its bytes do not match its checksum */
    MODEL_NOT_LOADED     /* no weights were given, or those that were had one of these errors */
"""

LOAD_PROTOTYPE = """\
/* Takes the contents of the weight file, which must stay where they are, and begins a new sequence.
 * A further instance may be a copy: b = a; model_reset(&b). Returns MODEL_OK or what is wrong with the file. */
int model_load(model_state *m, const void *weights, size_t size);

"""

LOADER = """\
/* CRC-32 (IEEE 802.3), four bits at a time. */
static uint32_t crc32(const unsigned char *p, size_t n) {
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu};
    uint32_t crc = 0xffffffffu;
    for (; n > 0; n--, p++) {
        crc = table[(crc ^ *p) & 15] ^ crc >> 4;
        crc = table[(crc ^ (uint32_t)*p >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

int model_load(model_state *m, const void *weights, size_t size) {
    uint32_t head[4]; /* magic, version, bytes, checksum */
    m->weights = NULL;
    if (!weights) return MODEL_NOT_LOADED;
    if ((uintptr_t)weights % 4) return MODEL_BAD_ALIGNMENT;
    if (size < sizeof head) return MODEL_BAD_SIZE;
    memcpy(head, weights, sizeof head);
    if (head[0] != @MAGIC@) return MODEL_BAD_MAGIC;
    if (head[1] != @VERSION@) return MODEL_BAD_VERSION;
    if (head[2] != MODEL_WEIGHT_BYTES || size != MODEL_WEIGHT_BYTES) return MODEL_BAD_SIZE;
    if (head[3] != @CRC@) return MODEL_OTHER_MODEL;
    if (crc32((const unsigned char *)weights + @HEADER@, size - @HEADER@) != head[3]) return MODEL_CORRUPT;
    m->weights = weights;
    model_reset(m);
    return MODEL_OK;
}

"""
