"""A narrow chain as straight calls into the kernels, with const arrays or a weight file; `text` has the files.

The kernels are those of the engine (runtime/kernels/gw.h). What is written here is only what they are called with:
the arranged arrays, the structs that point to them, and one function that runs every link over a block of steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.export.c.arrays import Arrays, literal
from gatewise.export.c.structs import MATRIX_BYTES, Structs, layer_scratch, product_scratch
from gatewise.export.c.text import MAPPED, SEARCH, Program, filled, header, renamed, source
from gatewise.runtime.arrangement import BLOCK, Form, arrange_matrix
from gatewise.runtime.narrow import (
    Affine,
    Function,
    Level,
    Link,
    NarrowChain,
    Table,
    pools,
    takes_last_state,
)
from gatewise.runtime.rounding import quantize
from gatewise.runtime.stages import arrange, folds

POINTWISE = {"relu": "", "tanh": "GW_F_TANH", "sigmoid": "GW_F_SIGMOID"}
# Below these a network is faster for it and, having only the code that it runs, not larger.
SPECIALISED_BYTES, SPECIALISED_CALLS = 128 << 10, 2
IN_PLACE = {*POINTWISE, "softmax", "log_softmax", "layer_norm"}


@dataclass(frozen=True)
class Vectors:
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
    call: str  # how it is run, for the README
    example: str = "reads numbers from standard input"  # what main.c does
    texts: Mapping[str, str] = field(default_factory=dict)  # files in place of those that all chains have
    specialised: bool = False  # the kernels are compiled inside NAME.c


class Writer:
    """Walks the links of a narrow chain and writes the calls of each."""

    def __init__(self, narrow: NarrowChain, name: str, int8: bool, block: int, fold: bool) -> None:
        self.narrow, self.name, self.int8, self.block, self.fold = narrow, name, int8, block, fold
        self.tied = None if fold else tied_link(narrow)
        self.arrays = Arrays()
        self.structs = Structs(self.arrays)
        self.body: list[str] = []
        self.helpers: set[str] = set()
        self.sizes = {"first": 0, "second": 0, "scratch": 1}  # floats of the buffers in the state struct
        self.state = 0  # floats of all recurrent states, and of what is pooled
        self.includes, self.lowest = set[str](), (0, 0)

    def write(self, file_above: int, title: str, specialise: bool | None = None) -> CModel:
        self.walk()
        by_word = self.narrow.chain.words
        row_of = self.row_of() if by_word else ""
        file = self.arrays.file() if self.arrays.nbytes > file_above else None
        buffers = {"state": max(self.state, 1)} | {name: size for name, size in self.sizes.items() if size}
        program = Program(
            title=title,
            n_inputs=self.narrow.n_inputs,
            n_words=self.narrow.table.n_words if by_word else None,
            pad=self.narrow.chain.pad,
            n_outputs=self.narrow.width,
            final=any(is_last(link) or pools(link) for link in self.narrow.links),
            streams=self.streams,
            block=self.block,
            buffers=buffers,
            arrays=self.arrays,
            file=file,
            structs=self.structs.found,
            helpers=self.helpers,
            row_of=row_of,
            body=self.body,
            includes=self.includes,
            lowest=self.lowest,
            specialised=self.specialised(specialise, file is not None),
        )
        ram = 4 * (sum(buffers.values()) + (self.block if by_word else 0) + (file is not None))
        return CModel(
            renamed(source(program), self.name),
            renamed(header(program), self.name),
            file,
            self.arrays.nbytes + self.structs.nbytes,
            ram,
            renamed(
                "model_step(&state, x, y);" if self.streams else "model_run(&state, steps, x, y);", self.name
            ),
            specialised=program.specialised,
        )

    @property
    def streams(self) -> bool:
        return not self.narrow.both_ways

    def specialised(self, wish: bool | None, loaded: bool) -> bool:
        """Whether kernels are compiled for the sizes of this network: with constants alone, and few calls of them."""
        if wish and loaded:
            raise ValueError(
                f"specialise=True: {self.arrays.nbytes:,} bytes of constants are a weight file, of which a compiler "
                "knows nothing; raise file_above, or leave it out."
            )
        if wish is not None or loaded:
            return bool(wish)
        calls = sum("run_layer(" in line or "gw_product(" in line for line in self.body)
        return self.arrays.nbytes <= SPECIALISED_BYTES and calls <= SPECIALISED_CALLS

    # The chain.

    def walk(self) -> None:
        links = list(self.narrow.links)
        value = Vectors("x", self.narrow.n_inputs)
        for k, link in enumerate(links):
            after = links[k + 1 :]
            if isinstance(link, Table):
                value = self.embedding(link, after)
            elif isinstance(link, Level):
                value = self.level(k, link, value, after)
            elif isinstance(link, Affine):
                value = self.affine(k, link, value, after)
            else:
                value = self.function(link, value, after)
        self.finish(value)

    def place(self, value: Vectors, after: Iterable[Link], width: int, every: bool) -> str:
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

    def embedding(self, link: Table, after: list[Link]) -> Vectors:
        if self.fold:
            return Vectors("", link.weight.shape[1])
        dim = link.weight.shape[1]
        place = self.place(Vectors("", 0), after, dim, True)
        call = f"gw_embed_matrix(&linear_{self.tied}" if self.tied else self.own_vectors(link)
        self.say(f"/* embedding of {len(link.weight)} words */", f"{call}, (size_t)steps, m->rows, {place});")
        return Vectors(place, dim)

    def own_vectors(self, link: Table) -> str:
        """The beginning of the call that reads them, from whichever form takes the fewest bytes."""
        dim = link.weight.shape[1]
        function, arrays = "gw_embed", dict[str, NDArray[Any]](embedding=link.weight)
        if self.int8 and dim > 1:
            codes, scale = quantize(link.weight)
            function, arrays = "gw_embed_int8", {"embedding_codes": codes, "embedding_scale": scale}
        masked = arrange_matrix(link.weight, "masked", tight=True, int8=self.int8)
        if masked.nbytes + MATRIX_BYTES < sum(array.nbytes for array in arrays.values()):
            return f"gw_embed_matrix(&{self.structs.matrix('embedding', masked)}"
        return f"{function}({', '.join(self.arrays.add(*pair) for pair in arrays.items())}, {dim}"

    def level(self, index: int, link: Level, value: Vectors, after: list[Link]) -> Vectors:
        width = sum(r.kept for r in link.directions)
        last_only = takes_last_state(link, after)
        top = not any(isinstance(later, Level) for later in after)
        rows = sum(len(r.slots) for r in link.directions)
        hidden = sum(r.hidden for r in link.directions)
        # A module's name may hold anything, what ends or opens a comment too.
        module = re.sub(r"[^\w .:-]", "_", link.module, flags=re.ASCII)
        name = ", ".join(filter(None, (module, f"layer {link.layer}")))
        self.say(f"/* {name}: {link.cell.name}, {width} of {hidden} neurons, {rows} live gates */")
        place = "NULL" if last_only else self.place(value, after, width, True)
        folded = self.fold and index == 1
        states, done = [], 0
        for d, r in enumerate(link.directions):
            arranged = arrange(
                link, r, self.narrow.table.weight if folded else None, tight=True, int8=self.int8
            )
            struct = self.structs.layer(f"layer_{index}" + ("_back" if r.reverse else ""), arranged)
            padded = -(-r.kept // BLOCK) * BLOCK
            state = f"m->state + {self.state}"
            cell = f"m->state + {self.state + padded}" if link.cell.n_states == 2 else "NULL"
            self.state += padded * link.cell.n_states
            self.need(layer_scratch(arranged, self.block))
            out = place if not d or place == "NULL" else f"{place} + {done}"
            given = "NULL, 0, m->rows" if folded else f"{value.place}, {value.width}, NULL"
            guard = f"{place} ? {out} : NULL" if d and place == "y" else out
            self.helpers.add("run_layer")
            how = f"&{struct}, steps, {int(r.reverse)}"
            self.say(f"run_layer({how}, {given}, {state}, {cell}, {guard}, {width}, m->scratch);")
            states.append(
                (state, arranged.n_units, f"{struct}_scale" if arranged.scale is not None else "NULL")
            )
            done += r.kept
        if top and not any(pools(later) for later in after):
            self.say("if (!y) return;")
        if not last_only:
            return Vectors(place, width)
        place = self.place(value, after[1:], width, False)
        done = 0
        self.helpers.add("last_h")
        for state, n_units, scale in states:
            self.say(f"last_h({n_units}, {state}, {scale}, {place} + {done});")
            done += n_units
        return Vectors(place, width, every=False)

    def affine(self, index: int, link: Affine, value: Vectors, after: list[Link]) -> Vectors:
        rows, cols = link.weight.shape
        place = self.place(value, after, rows, value.every)
        count, n_most = value.count, self.block if value.every else 1
        name = f"linear_{index}"
        self.say(f"/* linear: {cols} of {value.width} channels to {rows} of {link.out_features} */")
        if not rows:
            return Vectors(place, 0, value.every)
        # The rows of a sparse matrix are sorted, so a word would not be found in it.
        forms: tuple[Form | None, ...] = ("dense", "masked") if index == self.tied else (None,)
        every = (arrange_matrix(link.weight, form, tight=True, int8=self.int8) for form in forms)
        arranged = min(every, key=lambda matrix: matrix.nbytes)
        struct = self.structs.matrix(name, arranged)
        bias = self.arrays.add(f"{name}_bias", link.bias)
        scratch, source, width = "m->scratch", value.place, value.width
        needed = product_scratch(arranged, n_most)
        if not np.array_equal(link.inputs, np.arange(value.width)):
            self.helpers.add("pick")
            inputs = self.arrays.add(f"{name}_inputs", link.inputs.astype(np.int32))
            self.say(f"pick({count}, {cols}, {inputs}, {value.place}, {value.width}, m->scratch);")
            scratch, source, width = f"m->scratch + {n_most * cols}", "m->scratch", cols
            needed += n_most * cols
        self.need(needed)
        self.say(f"gw_product(&{struct}, {bias}, {count}, {source}, {width}, {place}, {rows}, {scratch});")
        return Vectors(place, rows, value.every)

    def function(self, link: Function, value: Vectors, after: list[Link]) -> Vectors:
        if is_last(link):
            if not value.every:
                return value
            return Vectors(f"{value.place} + (steps - 1) * {value.width}", value.width, every=False)
        if pools(link):
            return self.pool(link.name, value, after)
        place = value.place
        if place == "x" or place.startswith("m->state"):  # to be read only
            place = self.place(value, after, value.width, value.every)
        if not value.width:
            return Vectors(place, 0, value.every)
        total = f"(size_t){value.count} * {value.width}"
        if link.name == "relu":
            self.helpers.add("relu")
            self.say(f"relu({total}, {value.place}, {place});")
        elif link.name in POINTWISE:
            self.say(f"gw_map({POINTWISE[link.name]}, {total}, {value.place}, {place});")
        else:
            if place != value.place:
                self.say(f"memcpy({place}, {value.place}, sizeof(float) * {total});")
            given = f"{value.count}, {value.width}"
            if link.name == "log_softmax":
                self.helpers.add("log_softmax")
                self.say(f"log_softmax({given}, 1, {place});")
            elif link.name == "layer_norm":
                self.includes.add("norm.h")
                self.say(f"gw_layer_norm({given}, {literal(link.eps)}, {place});")
            else:
                self.say(f"gw_{link.name}({given}, {place});")
        return Vectors(place, value.width, value.every)

    def pool(self, name: str, value: Vectors, after: list[Link]) -> Vectors:
        """Into the state, where it is read: a stream goes on from there."""
        place, begin, done = f"m->state + {self.state}", self.state, f"m->state[{self.state + value.width}]"
        if value.width:
            given = f"steps, {value.width}, {value.place}, {value.width}, {place}"
            if name == "max":
                self.say(f"gw_pool_max({given});")
                self.lowest = (begin, begin + value.width)
            else:  # and behind the mean, how many steps there were
                self.say(f"{done} = gw_pool_mean({done}, {given});")
            self.state += value.width + (name != "max")
            self.includes.add("pool.h")
        self.say("if (!y) return;")
        pooled = Vectors(place, value.width, every=False)
        if name != "sum" or not value.width:
            return pooled
        place = self.place(pooled, after, value.width, False)
        self.say(f"gw_pool_sum({done}, {value.width}, {pooled.place}, {place});")
        return Vectors(place, value.width, every=False)

    def finish(self, value: Vectors) -> None:
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

    # Words.

    def row_of(self) -> str:
        """row_of(): the row of a word, -1 for a removed one; by map or by search, whichever takes fewer bytes."""
        table = self.narrow.table
        if table.rows is None:
            return ""
        kept = np.flatnonzero(table.rows >= 0)
        narrow = len(table.weight) <= np.iinfo(np.int16).max
        listed = kept.astype(np.uint16 if table.n_words <= 1 << 16 else np.int32)
        mapped = table.rows.astype(np.int16 if narrow else np.int32)
        if np.array_equal(table.rows[kept], np.arange(len(kept))) and listed.nbytes < mapped.nbytes:
            self.arrays.add("kept_words", listed)
            return filled(SEARCH, COUNT=len(kept))
        self.arrays.add("word_rows", mapped)
        return MAPPED


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
    """Whether the embedding becomes part of the first level: as in the engine, where it takes fewer bytes.

    One that is the matrix of a later link takes none of its own.
    """
    if wish is None and tied_link(narrow):
        return False
    table, level = narrow.links[0], narrow.links[1] if len(narrow.links) > 1 else None
    return isinstance(table, Table) and isinstance(level, Level) and folds(table, level, wish)


def tied_link(narrow: NarrowChain) -> int | None:
    """The link whose matrix is the embedding's, column for column: it is stored once, in the form that multiplies."""
    for k, link in enumerate(narrow.links):
        tied = link.tied if isinstance(link, Affine) else None
        if tied is not None and len(tied) == narrow.table.weight.shape[1] and narrow.table.weight.size:
            return k
    return None
