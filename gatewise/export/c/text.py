"""Pieces of C written for the name `model`: how they are filled in and renamed, and the loader of weights."""

from __future__ import annotations

import re

import numpy as np

from gatewise.export.c.arrays import HEADER_BYTES, MAGIC, VERSION


def loader(file: bytes) -> str:
    crc = int(np.frombuffer(file, "<u4", 4)[3])
    return filled(
        LOADER, MAGIC=f"0x{MAGIC:08x}u", VERSION=f"{VERSION}u", HEADER=HEADER_BYTES, CRC=f"0x{crc:08x}u"
    )


def filled(template: str, **parts: object) -> str:
    """The template with every @NAME@ that is given replaced, in one pass: what is put in is not looked at."""
    return re.sub(r"@(\w+)@", lambda found: str(parts.get(found[1], found[0])), template)


def renamed(text: str, name: str) -> str:
    """Text written for the name `model`, for another one."""
    text = re.sub(r"\bMODEL_", f"{name.upper()}_", text)
    return re.sub(r"\bmodel(?=_|\.[hc]\b|\.bin\b)", name, text)


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
