"""A narrow chain as one C file and its header: const arrays or a weight file, and straight calls into the kernels.

The kernels are those of the engine (runtime/kernels/gw.h). What is written here is only what they are called with:
the packed arrays, the structs that point to them, and one function that runs every link over a block of steps.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.runtime.engine import folds, pack
from gatewise.runtime.narrow import (
    Affine,
    Function,
    Level,
    Link,
    NarrowChain,
    Table,
    takes_last_state,
)
from gatewise.runtime.packing import (
    BLOCK,
    SLICE,
    PackedLayer,
    PackedMatrix,
    pack_matrix,
    quantize,
)

CHUNK_ROWS, TRANSPOSE_FROM = 96, 4  # gw.c: what gw_layer_scratch() and gw_product_scratch() reckon with
MATRIX_BYTES, LAYER_BYTES = 9 * 4, 45 * 4  # gw_matrix and gw_layer where a pointer has 4 bytes
HEADER_BYTES, ALIGNMENT, MAGIC, VERSION = 64, 64, 0x57574731, 1  # of the weight file; "1GWW"
C_TYPES = {
    "float32": "float",
    "int32": "int32_t",
    "uint16": "uint16_t",
    "int16": "int16_t",
    "int8": "int8_t",
}
PER_LINE = {"float32": 8, "int32": 16, "uint16": 16, "int16": 16, "int8": 24}
POINTWISE = {"relu": "", "tanh": "GW_F_TANH", "sigmoid": "GW_F_SIGMOID"}
IN_PLACE = {*POINTWISE, "softmax", "log_softmax"}


@dataclass
class Arrays:
    """Every constant array by its name."""

    found: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(self, name: str, array: NDArray[Any]) -> str:
        self.found[name] = array.reshape(-1) if array.size else np.zeros(1, array.dtype)
        return name

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.found.values())

    def offsets(self) -> dict[str, int]:
        """Where each array begins in the weight file."""
        at, places = HEADER_BYTES, {}
        for name, array in self.found.items():
            places[name] = at
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return places

    def declarations(self) -> str:
        return "".join(declaration(f"static const {{}} {name}", a) for name, a in self.found.items())

    def macros(self) -> str:
        return "".join(
            f"#define {name} ((const {C_TYPES[self.found[name].dtype.name]} *)(const void *)(weights + {at}))\n"
            for name, at in self.offsets().items()
        )

    def file(self) -> bytes:
        """Header of four little-endian words (magic, version, bytes in all, CRC-32 of the rest), then the arrays."""
        body = b"".join(
            array.astype(array.dtype.newbyteorder("<"))
            .tobytes()
            .ljust(-(-array.nbytes // ALIGNMENT) * ALIGNMENT, b"\0")
            for array in self.found.values()
        )
        words = np.array([MAGIC, VERSION, HEADER_BYTES + len(body), zlib.crc32(body)], "<u4")
        return words.tobytes().ljust(HEADER_BYTES, b"\0") + body


def declaration(head: str, array: NDArray[Any]) -> str:
    """`head` with a type in its braces, as an initialised array."""
    kind = array.dtype.name
    numbers = [literal(v) for v in array.tolist()] if kind == "float32" else list(map(str, array.tolist()))
    step = PER_LINE[kind]
    lines = ("    " + ", ".join(numbers[k : k + step]) for k in range(0, len(numbers), step))
    return f"{head.format(C_TYPES[kind])}[{len(array)}] = {{\n" + ",\n".join(lines) + "};\n\n"


def literal(value: float) -> str:
    """Nine digits name a float32 exactly."""
    digits = f"{value:.9g}"
    return digits + ("f" if "." in digits or "e" in digits else ".0f")


@dataclass(frozen=True)
class Value:
    """Vectors on their way through the chain: where they lie, how wide, one for every step or a single one."""

    place: str
    width: int
    every: bool = True

    @property
    def count(self) -> str:
        return "steps" if self.every else "1"


@dataclass(frozen=True)
class CModel:
    """The text of NAME.c and NAME.h, what they need, and what `#define`s say about the model."""

    source: str
    header: str
    weight_file: bytes | None
    flash_bytes: int  # constant data without code; of the weight file, if there is one, without its header
    ram_bytes: int  # sizeof(NAME_state) where a pointer has 4 bytes
    streams: bool
    final: bool


class Writer:
    """Walks the links of a narrow chain and writes the calls of each."""

    def __init__(self, narrow: NarrowChain, name: str, int8: bool, block: int, fold: bool) -> None:
        self.narrow, self.name, self.int8, self.block, self.fold = narrow, name, int8, block, fold
        self.arrays = Arrays()
        self.structs: list[str] = []  # "gw_layer rnn_0 = {...};"
        self.struct_bytes = 0
        self.body: list[str] = []
        self.helpers: set[str] = set()
        self.sizes = {"first": 0, "second": 0, "scratch": 1}  # floats of the buffers in the state struct
        self.state = 0  # floats of all recurrent states
        self.final = any(is_last(link) for link in narrow.links)  # one answer for a sequence

    def write(self, file_above: int, title: str) -> CModel:
        self.walk()
        words = self.word_rows() if self.narrow.chain.words else ""
        file = self.arrays.file() if self.arrays.nbytes > file_above else None
        ram = 4 * (max(self.state, 1) + sum(self.sizes.values()) + (file is not None))
        ram += 4 * self.block if self.narrow.chain.words else 0
        return CModel(
            self.source(title, words, file),
            self.header(title, file),
            file,
            self.arrays.nbytes + self.struct_bytes,
            ram,
            self.streams,
            self.final,
        )

    @property
    def streams(self) -> bool:
        return all(len(link.directions) == 1 for link in self.narrow.links if isinstance(link, Level))

    # The chain.

    def walk(self) -> None:
        links = list(self.narrow.links)
        value = Value("x", self.narrow.n_inputs)
        for k, link in enumerate(links):
            after = links[k + 1 :]
            if isinstance(link, Table):
                value = self.table(link, after)
            elif isinstance(link, Level):
                value = self.level(k, link, value, after)
            elif isinstance(link, Affine):
                value = self.affine(k, link, value, after)
            else:
                value = self.function(link, value, after)
        self.finish(value)

    def place(self, value: Value, after: Iterable[Link], width: int, every: bool) -> str:
        """Where a link writes: y, if nothing after it moves the numbers again; else the buffer that is free."""
        whole = len(self.narrow.kept) == self.narrow.width
        if whole and all(isinstance(link, Function) and link.name in IN_PLACE for link in after):
            return "y"
        buffer = "second" if value.place.startswith("m->first") else "first"
        self.sizes[buffer] = max(self.sizes[buffer], width * (self.block if every else 1), 1)
        return f"m->{buffer}"

    def need(self, floats: int) -> None:
        self.sizes["scratch"] = max(self.sizes["scratch"], floats)

    def say(self, *lines: str) -> None:
        self.body += lines

    def table(self, link: Table, after: list[Link]) -> Value:
        if self.fold:
            return Value("", link.weight.shape[1])
        dim = link.weight.shape[1]
        place = self.place(Value("", 0), after, dim, True)
        if self.int8 and dim > 1:
            codes, scale = quantize(link.weight)
            arrays = [self.arrays.add("embedding_codes", codes), self.arrays.add("embedding_scale", scale)]
        else:
            arrays = [self.arrays.add("embedding", link.weight)]
        function = "gw_embed_int8" if len(arrays) == 2 else "gw_embed"
        self.say(
            f"/* embedding of {len(link.weight)} words */",
            f"{function}({', '.join(arrays)}, {dim}, (size_t)steps, m->rows, {place});",
        )
        return Value(place, dim)

    def level(self, index: int, link: Level, value: Value, after: list[Link]) -> Value:
        width = sum(r.kept for r in link.directions)
        last_only = takes_last_state(link, after)
        top = not any(isinstance(later, Level) for later in after)
        rows = sum(len(r.slots) for r in link.directions)
        hidden = sum(r.hidden for r in link.directions)
        name = ", ".join(filter(None, (link.module.replace("*/", "* /"), f"layer {link.layer}")))
        self.say(f"/* {name}: {link.cell.name}, {width} of {hidden} neurons, {rows} live gates */")
        place = "NULL" if last_only else self.place(value, after, width, True)
        folded = self.fold and index == 1
        states, done = [], 0
        for d, r in enumerate(link.directions):
            table = self.narrow.links[0] if folded else None
            assert table is None or isinstance(table, Table)
            packed = pack(link, r, None if table is None else table.weight, tight=True, int8=self.int8)
            struct = self.layer(f"layer_{index}" + ("_back" if r.reverse else ""), packed)
            padded = -(-r.kept // BLOCK) * BLOCK
            state = f"m->state + {self.state}"
            cell = f"m->state + {self.state + padded}" if link.cell.n_states == 2 else "NULL"
            self.state += padded * link.cell.n_states
            self.need(layer_scratch(packed, self.block))
            out = place if not d or place == "NULL" else f"{place} + {done}"
            given = "NULL, 0, m->rows" if folded else f"{value.place}, {value.width}, NULL"
            guard = f"{place} ? {out} : NULL" if d and place == "y" else out
            self.helpers.add("run_layer")
            how = f"&{struct}, steps, {int(r.reverse)}"
            self.say(f"run_layer({how}, {given}, {state}, {cell}, {guard}, {width}, m->scratch);")
            states.append((state, packed.n_units, f"{struct}_scale" if packed.scale is not None else "NULL"))
            done += r.kept
        if top:
            self.say("if (!y) return;")
        if not last_only:
            return Value(place, width)
        place = self.place(value, after[1:], width, False)
        done = 0
        self.helpers.add("take_state")
        for state, n_units, scale in states:
            self.say(f"take_state({n_units}, {state}, {scale}, {place} + {done});")
            done += n_units
        return Value(place, width, every=False)

    def affine(self, index: int, link: Affine, value: Value, after: list[Link]) -> Value:
        rows, cols = link.weight.shape
        place = self.place(value, after, rows, value.every)
        count, n_most = value.count, self.block if value.every else 1
        name = f"linear_{index}"
        self.say(f"/* linear: {cols} of {value.width} channels to {rows} of {link.out_features} */")
        if not rows:
            return Value(place, 0, value.every)
        packed = pack_matrix(link.weight, tight=True, int8=self.int8)
        struct = self.matrix(name, packed)
        bias = self.arrays.add(f"{name}_bias", link.bias)
        scratch, source, width = "m->scratch", value.place, value.width
        needed = product_scratch(packed, n_most)
        if not np.array_equal(link.inputs, np.arange(value.width)):
            self.helpers.add("pick")
            inputs = self.arrays.add(f"{name}_inputs", link.inputs.astype(np.int32))
            self.say(f"pick({count}, {cols}, {inputs}, {value.place}, {value.width}, m->scratch);")
            scratch, source, width = f"m->scratch + {n_most * cols}", "m->scratch", cols
            needed += n_most * cols
        self.need(needed)
        self.say(f"gw_product(&{struct}, {bias}, {count}, {source}, {width}, {place}, {rows}, {scratch});")
        return Value(place, rows, value.every)

    def function(self, link: Function, value: Value, after: list[Link]) -> Value:
        if is_last(link):
            if not value.every:
                return value
            return Value(f"{value.place} + (steps - 1) * {value.width}", value.width, every=False)
        place = value.place
        if place == "x":
            place = self.place(value, after, value.width, value.every)
        if not value.width:
            return Value(place, 0, value.every)
        total = f"(size_t){value.count} * {value.width}"
        if link.name == "relu":
            self.helpers.add("relu")
            self.say(f"relu({total}, {value.place}, {place});")
        elif link.name in POINTWISE:
            self.say(f"gw_map({POINTWISE[link.name]}, {total}, {value.place}, {place});")
        else:
            if place != value.place:
                self.say(f"memcpy({place}, {value.place}, sizeof(float) * {total});")
            self.helpers |= {"log_softmax"} & {link.name}
            function = "gw_softmax" if link.name == "softmax" else "log_softmax"
            self.say(f"{function}({value.count}, {value.width}, {place});")
        return Value(place, value.width, value.every)

    def finish(self, value: Value) -> None:
        """All original output channels, in y."""
        narrow = self.narrow
        if len(narrow.kept) < narrow.width:
            self.helpers.add("widen")
            kept = self.arrays.add("output_channels", narrow.kept.astype(np.int32))
            rest = literal(float(narrow.rest[0]))
            self.say(
                f"/* {len(narrow.kept)} of {narrow.width} output channels; the others are constant */",
                f"widen({value.count}, {value.width}, {kept}, {value.place}, {narrow.width}, {rest}, y);",
            )
        elif value.place != "y":
            self.say(f"memcpy(y, {value.place}, sizeof(float) * (size_t){value.count} * {value.width});")

    # Structs.

    def layer(self, name: str, p: PackedLayer) -> str:
        self.struct_bytes += LAYER_BYTES
        fields = [
            f".cell = GW_{p.cell}",
            f".squash = GW_{p.squash.upper()}",
            f".n_units = {p.n_units}",
            ".gate_start = {" + ", ".join(map(str, p.gate_start)) + "}",
        ]
        folded = p.table is not None
        for field_name, matrix in (("w_ih", p.w_ih), ("w_hh", p.w_hh), ("w_hn", p.w_hn)):
            empty = folded and field_name == "w_ih"
            fields.append(f".{field_name} = {self.matrix_fields(f'{name}_{field_name}', matrix, empty)}")
        for field_name in ("inputs", "reads", "bias", "bias_hn", "live", "fixed", "fixed_hn", "scale"):
            array = getattr(p, field_name)
            if array is not None and (p.cell == "GRU" or not field_name.endswith("_hn")):
                fields.append(f".{field_name} = {self.arrays.add(f'{name}_{field_name}', array)}")
        if p.table is not None:
            kind = "table" if p.table_scale is None else "table_codes"
            fields.append(f".{kind} = {self.arrays.add(f'{name}_{kind}', p.table)}")
        if p.table_scale is not None:
            fields.append(f".table_scale = {self.arrays.add(f'{name}_table_scale', p.table_scale)}")
        self.structs.append(f"gw_layer {name} = {{\n        " + ",\n        ".join(fields) + "};")
        return name

    def matrix(self, name: str, packed: PackedMatrix) -> str:
        self.struct_bytes += MATRIX_BYTES
        self.structs.append(f"gw_matrix {name} = {self.matrix_fields(name, packed)};")
        return name

    def matrix_fields(self, name: str, p: PackedMatrix, empty: bool = False) -> str:
        fields = [f".rows = {p.rows}", f".cols = {p.cols}", f".last = {p.last}"]
        if p.rows and not empty:
            kind = "values" if p.scale is None else "codes"
            fields.append(f".{kind} = {self.arrays.add(f'{name}_{kind}', p.values)}")
            for field_name in ("scale", "start", "column", "row"):
                array = getattr(p, field_name)
                if array is not None:
                    fields.append(f".{field_name} = {self.arrays.add(f'{name}_{field_name}', array)}")
        return "{" + ", ".join(fields) + "}"

    # Words.

    def word_rows(self) -> str:
        """row_of(): the row of a word, -1 for a removed one; by map or by search, whichever takes fewer bytes."""
        table = self.narrow.links[0]
        assert isinstance(table, Table)
        if table.rows is None:
            return ""
        kept = np.flatnonzero(table.rows >= 0)
        narrow = len(table.weight) <= np.iinfo(np.int16).max
        listed = kept.astype(np.uint16 if table.n_words <= 1 << 16 else np.int32)
        mapped = table.rows.astype(np.int16 if narrow else np.int32)
        if np.array_equal(table.rows[kept], np.arange(len(kept))) and listed.nbytes < mapped.nbytes:
            self.arrays.add("kept_words", listed)
            return SEARCH.format(count=len(kept))
        self.arrays.add("word_rows", mapped)
        return MAPPED

    # Text.

    def source(self, title: str, words: str, file: bytes | None) -> str:
        by_word = self.narrow.chain.words
        helpers = [HELPERS[key] for key in HELPERS if key in self.helpers]
        include = "#include <math.h>\n" if "log_softmax" in self.helpers else ""
        parts = [
            f'/* {title} */\n\n#include "model.h"\n\n{include}#include <string.h>\n\n#include "gw.h"\n\n'
        ]
        start = ""
        if file is None:
            parts.append(self.arrays.declarations())
            parts += [f"static const {struct}\n\n" for struct in self.structs]
        else:
            parts.append(self.arrays.macros() + "\n")
            start = "    const unsigned char *const weights = m->weights;\n" + "".join(
                f"    const {struct}\n" for struct in self.structs
            )
            words = words.replace("int32_t word)", "const unsigned char *weights, int32_t word)")
        parts += helpers
        parts.append(words)
        given = "" if by_word else "const float *x, "
        body = "".join(f"    {line}\n" for line in self.body)
        if not by_word and not re.search(r"\bx\b", body):
            body += "    (void)x; /* nothing that reads it is left */\n"
        parts.append(
            "/* A block of at most MODEL_BLOCK steps; without y only the state moves on. */\n"
            f"static void compute(model_state *m, int32_t steps, {given}float *y) {{\n{start}{body}}}\n\n"
        )
        if file is not None:
            crc = int(np.frombuffer(file, "<u4", 4)[3])
            parts.append(LOADER.replace("@CRC@", f"0x{crc:08x}u"))
        one_row = (
            f"row_of({'m->weights, ' if file is not None else ''}words[t + k])" if words else "words[t + k]"
        )
        parts.append(
            RUN.replace("@TYPE@", "int32_t *words" if by_word else "float *x")
            .replace("@LIMIT@", "steps < 1" if self.streams else "steps < 1 || steps > MODEL_BLOCK")
            .replace("@CHECK@", CHECK_WORDS if by_word else "")
            .replace("@RESET@", "" if self.streams else "    model_reset(m);\n")
            .replace(
                "@ROWS@",
                f"        for (int32_t k = 0; k < n; k++) m->rows[k] = {one_row};\n" if by_word else "",
            )
            .replace("@X@", "" if by_word else "x + (size_t)t * MODEL_INPUTS, ")
            .replace(
                "@Y@",
                "t + n < steps ? NULL : y" if self.final else "y ? y + (size_t)t * MODEL_OUTPUTS : NULL",
            )
        )
        if self.streams:
            parts.append(STEP_WORD if by_word else STEP)
        return renamed("".join(parts), self.name)

    def header(self, title: str, file: bytes | None) -> str:
        narrow, by_word = self.narrow, self.narrow.chain.words
        table = narrow.links[0]
        n_words = table.n_words if isinstance(table, Table) else 0
        fields = [f"float state[{max(self.state, 1)}];"]
        fields += [f"float {buffer}[{size}];" for buffer, size in self.sizes.items() if size]
        fields += [f"int32_t rows[{self.block}];"] if by_word else []
        fields = (["const unsigned char *weights;"] if file is not None else []) + fields
        given = "const int32_t *words" if by_word else "const float *x"
        each = "(MODEL_OUTPUTS), the answer after the last step" if self.final else "(steps, MODEL_OUTPUTS)"
        text = [
            f"/* {title} */\n#ifndef MODEL_H\n#define MODEL_H\n\n#include <stddef.h>\n#include <stdint.h>\n"
        ]
        text.append('\n#ifdef __cplusplus\nextern "C" {\n#endif\n\n')
        text.append(
            f"#define MODEL_INPUTS {narrow.n_inputs} /* width of a vector; 0: the input are words */\n"
        )
        text.append(f"#define MODEL_WORDS {n_words} /* word ids run from 0 to one less */\n")
        text.append(f"#define MODEL_OUTPUTS {narrow.width}\n")
        text.append(
            f"#define MODEL_FINAL {int(self.final)} /* 1: one answer for a sequence; 0: one for every step */\n"
        )
        text.append(f"#define MODEL_STREAMS {int(self.streams)} /* 1: there is model_step() */\n")
        longest = "steps computed at a time" if self.streams else "steps of the longest sequence"
        text.append(f"#define MODEL_BLOCK {self.block} /* {longest} */\n")
        if file is not None:
            text.append(f"#define MODEL_WEIGHT_BYTES {len(file)} /* of the weight file */\n")
        text.append(
            "\nenum {\n    MODEL_OK = 0,\n    MODEL_BAD_WORD,  /* a word id outside 0..MODEL_WORDS-1 */\n"
            "    MODEL_BAD_STEPS, /* no steps, or more than fit */\n"
        )
        text.append(LOAD_ERRORS if file is not None else "")
        text.append(
            "};\n\n/* State and working memory of one instance; only the functions below touch it. */\n"
            "typedef struct {\n" + "".join(f"    {line}\n" for line in fields) + "} model_state;\n\n"
        )
        text.append(LOAD_PROTOTYPE if file is not None else "")
        again = "begins" if self.streams else "begins, as every call of model_run() does,"
        text.append(
            f"/* A new sequence {again} from the zero state. */\nvoid model_reset(model_state *m);\n\n"
        )
        shape = "(steps) ids" if by_word else "(steps, MODEL_INPUTS)"
        kind = "words" if by_word else "x"
        goes_on = "goes on from where the last call ended" if self.streams else "a whole sequence"
        skip = "; NULL: only the state moves on" if self.streams else ""
        text.append(
            f"/* {goes_on[0].upper()}{goes_on[1:]}. {kind}: {shape}; y: {each}{skip}.\n"
            " * Returns MODEL_OK, or why nothing was computed. */\n"
            f"int model_run(model_state *m, int32_t steps, {given}, float *y);\n"
        )
        if self.streams:
            one = "int32_t word" if by_word else "const float *x"
            text.append(
                f"\n/* One step of a stream: the same as model_run() with one. y: (MODEL_OUTPUTS) or NULL. */\n"
                f"int model_step(model_state *m, {one}, float *y);\n"
            )
        text.append("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n")
        return renamed("".join(text), self.name)


def is_last(link: Link) -> bool:
    return isinstance(link, Function) and link.name in ("last_step", "last_state")


def check_finite(narrow: NarrowChain) -> None:
    for k, link in enumerate(narrow.links):
        where = f"{link.module}, layer {link.layer}" if isinstance(link, Level) else f"link {k} of the chain"
        for part in link.directions if isinstance(link, Level) else (link,):
            for field_name in ("weight", "w_ih", "w_hh", "bias", "bias_gated", "scale"):
                if not np.isfinite(getattr(part, field_name, 0)).all():
                    raise ValueError(
                        f"{where}: {field_name} is not finite, and NaN or infinity is not exported."
                    )


def should_fold(narrow: NarrowChain, wish: bool | None) -> bool:
    """Whether the embedding becomes part of the first level: as in the engine, where it takes fewer bytes."""
    table, level = narrow.links[0], narrow.links[1] if len(narrow.links) > 1 else None
    return isinstance(table, Table) and isinstance(level, Level) and folds(table, level, wish)


def product_scratch(w: PackedMatrix, m: int) -> int:
    return w.cols * SLICE if w.start is not None and w.scale is None and m >= TRANSPOSE_FROM else 0


def layer_scratch(layer: PackedLayer, steps: int) -> int:
    """gw_layer_scratch() of a single sequence, in floats."""
    m = min(steps, CHUNK_ROWS)
    padded = -(-layer.w_ih.rows // BLOCK) * BLOCK
    inputs = m * layer.w_ih.cols + product_scratch(layer.w_ih, m)
    return m * padded + layer.w_hn.rows + 2 * BLOCK + max(inputs, layer.w_hh.cols)


def renamed(text: str, name: str) -> str:
    """Text written for the name `model`, for another one."""
    text = re.sub(r"\bMODEL_", f"{name.upper()}_", text)
    return re.sub(r"\bmodel(?=_|\.[hc]\b|\.bin\b)", name, text)


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
    "take_state": """\
/* h = s * scale of n neurons. */
static void take_state(int32_t n, const float *s, const float *scale, float *y) {
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
    if (@LIMIT@) return MODEL_BAD_STEPS;
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

STEP = "\nint model_step(model_state *m, const float *x, float *y) { return model_run(m, 1, x, y); }\n"
STEP_WORD = "\nint model_step(model_state *m, int32_t word, float *y) { return model_run(m, 1, &word, y); }\n"

LOAD_ERRORS = """\
    MODEL_BAD_ALIGNMENT, /* the weights do not begin at a multiple of 4 bytes */
    MODEL_BAD_MAGIC,     /* not a weight file, or of the other byte order */
    MODEL_BAD_VERSION,   /* of another format */
    MODEL_BAD_SIZE,      /* not MODEL_WEIGHT_BYTES long: cut off, or of another model */
    MODEL_OTHER_MODEL,   /* whole, but not the weights of this model */
    MODEL_CORRUPT        /* its bytes do not match its checksum */
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
