"""Pieces of C that a model's source is put together from, written for the name `model`."""

from __future__ import annotations

import re

from gatewise.export.carrays import HEADER_BYTES, MAGIC, VERSION


def renamed(text: str, name: str) -> str:
    """Text written for the name `model`, for another one."""
    text = re.sub(r"\bMODEL_", f"{name.upper()}_", text)
    return re.sub(r"\bmodel(?=_|\.[hc]\b|\.bin\b)", name, text)


# No name here may end as the model's own do, _reset _step _run _load _state: the user chooses how those begin.
HELPERS = {
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
    "pick": """\
/* The n channels that are read, of every vector. */
static void pick(int32_t steps, int32_t n, const int32_t *which, const float *x, int32_t width, float *y) {
    for (int32_t t = 0; t < steps; t++)
        for (int32_t j = 0; j < n; j++) y[t * n + j] = x[t * width + which[j]];
}

""",
    "relu": """\
static void relu(size_t n, const float *x, float *y) {
    for (size_t j = 0; j < n; j++) y[j] = x[j] < 0 ? 0 : x[j];
}

""",
    "log_softmax": """\
static void log_softmax(int32_t steps, int32_t n, float *y) {
    for (; steps > 0; steps--, y += n) {
        float top = y[0], sum = 0;
        for (int32_t j = 1; j < n; j++) top = y[j] > top ? y[j] : top;
        for (int32_t j = 0; j < n; j++) sum += expf(y[j] - top);
        top += logf(sum);
        for (int32_t j = 0; j < n; j++) y[j] -= top;
    }
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
}

MAPPED = """\
/* The row of a word; -1: it was removed. */
static int32_t row_of(int32_t word) { return word_rows[word]; }

"""

SEARCH = """\
/* The row of a word; -1: it was removed. */
static int32_t row_of(int32_t word) {{
    int32_t low = 0, high = {count};
    while (low < high) {{
        const int32_t middle = low + (high - low) / 2;
        if ((int32_t)kept_words[middle] < word)
            low = middle + 1;
        else
            high = middle;
    }}
    return low < {count} && (int32_t)kept_words[low] == word ? low : -1;
}}

"""

RUN = """\
void model_reset(model_state *m) { memset(m->state, 0, sizeof m->state); }

int model_run(model_state *m, int32_t steps, const @TYPE@, float *y) {
@LOADED@    if (@LIMIT@) return MODEL_BAD_STEPS;
@CHECK@@RESET@    for (int32_t t = 0; t < steps; t += MODEL_BLOCK) {
        const int32_t n = steps - t < MODEL_BLOCK ? steps - t : MODEL_BLOCK;
@ROWS@        compute(m, n, @X@@Y@);
    }
    return MODEL_OK;
}
"""

CHECK_WORDS = """\
    for (int32_t t = 0; t < steps; t++)
        if (words[t] < 0 || words[t] >= MODEL_WORDS) return MODEL_BAD_WORD;
"""

CHECK_LOADED = "    if (!m->weights) return MODEL_NOT_LOADED;\n"

STEP = "\nint model_step(model_state *m, const float *x, float *y) { return model_run(m, 1, x, y); }\n"
STEP_WORD = "\nint model_step(model_state *m, int32_t word, float *y) { return model_run(m, 1, &word, y); }\n"

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

LOADER = (
    """\
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

""".replace("@MAGIC@", f"0x{MAGIC:08x}u")
    .replace("@VERSION@", f"{VERSION}u")
    .replace("@HEADER@", str(HEADER_BYTES))
)
