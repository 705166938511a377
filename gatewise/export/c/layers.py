"""Layers of a program in C: calls into the kernels with arranged matrices of what compress() kept.

Values have the original widths: what a layer does not read is passed over, what it lost comes back as zeros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactLinear, CompactRecurrent
from gatewise.export.c.body import Body
from gatewise.export.c.operations import shape_of
from gatewise.export.c.sizes import in_c, is_one, largest, letters_of, product, same
from gatewise.export.c.structs import MATRIX_BYTES, layer_scratch, product_scratch
from gatewise.export.c.values import Value, indented, merged, nest, stored
from gatewise.nn.lookup import bias_of, is_compact, matrix_of, word_scale_of
from gatewise.program import operations as ops
from gatewise.program.graph import INT, Node
from gatewise.runtime.arrangement import BLOCK, ArrangedLayer, ArrangedMatrix, Form, arrange_matrix
from gatewise.runtime.narrow import Level, Narrower, Recurrence, floats, integers
from gatewise.runtime.rounding import quantize
from gatewise.runtime.scaled import Channels, Doubles
from gatewise.runtime.stages import arrange

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Rows(ops.Operation, streams="yes"):
    """ids (...) -> the row of each word in the tables that an embedding is folded into (..., 1)."""

    module: str  # the embedding; empty: one-hot vectors, ids (..., 1)
    words: int


class Scaled(ops.Linear, streams="yes", eq=False):
    """W (scale * x + shift) + b, with scale and shift in the matrix."""

    scale: Doubles
    shift: Doubles


@dataclass(frozen=True)
class Frame:
    """How many sequences a layer reads at once, and of how many steps."""

    batch: int
    steps: int
    length: str  # a pointer, or NULL
    remembers: bool  # whether the next piece goes on with the states


@dataclass
class State:
    """The last state of one layer and direction: s and c where the kernels leave them."""

    recurrence: Recurrence
    name: str
    s: str
    c: str


@dataclass
class Layers:
    """The layers of one model, each written once however often forward() calls it."""

    model: nn.Module
    body: Body
    inputs: Mapping[str, int]  # how many entries every argument has
    narrow: Mapping[Node, Ints]  # values without their removed channels, and which are kept
    matrices: dict[tuple[int, bytes], tuple[str, ArrangedMatrix]] = field(
        default_factory=dict
    )  # by parameter, columns
    arranged: dict[str, ArrangedLayer] = field(default_factory=dict)
    read_by: dict[str, Ints] = field(default_factory=dict)  # which of the channels that travel, by layer
    states: dict[Node, list[State]] = field(default_factory=dict)

    # Embedding.

    def embed(self, node: Node, given: list[Value]) -> Value:
        op, body = node.op, self.body
        assert isinstance(op, ops.Embed)
        module: Any = self.model.get_submodule(op.module)
        weight, rows, components = table_of(module)
        name, made = c_name(op.module), body.room(shape_of(node))
        found = self.found(name, given[0], rows)
        n, dim = in_c(given[0].count), weight.shape[1]
        whole = dim == made.shape[-1]
        to = made.leaves[0].base if whole else body.buffer(given[0].count * dim)
        body.say(f"{self.vectors(op.module, module, weight)}, (size_t)({n}), {found.leaves[0].begin}, {to});")
        if not whole:
            self.widen(n, components, to, made, name)
        return made

    def rows(self, node: Node, given: list[Value]) -> Value:
        """The rows of words alone, where their vectors are folded into the layers that read them."""
        op = node.op
        assert isinstance(op, Rows)
        found = self.found(c_name(op.module), given[0], vectors_of(op, self.model)[1])
        return stored(found.leaves[0].begin, shape_of(node), INT)

    def found(self, name: str, ids: Value, rows: Ints) -> Value:
        """The row of each word, one behind the other."""
        body, row, checked = self.body, self.row(name, rows), self.checked_before(ids, len(rows))
        if checked and row == "k":
            return body.whole(ids)
        found = stored(body.buffer(ids.count, INT), ids.shape, INT)
        body.say(*nest(found.shape, lambda at: [
            f"const int32_t k = {ids.read(at)};",
            *([] if checked else [body.require(f"k >= 0 && k < {len(rows)}", "BAD_WORD")]),
            f"{found.read(at)} = {row};",
        ]))  # fmt: skip
        return found

    def checked_before(self, ids: Value, words: int) -> bool:
        """Whether ids are a whole argument: it is checked before anything is computed."""
        name = ids.leaves[0].base
        if not ids.in_memory or not same(self.inputs.get(name, 0), ids.count):
            return False
        self.body.checks[name] = min(self.body.checks.get(name, words), words)
        self.body.errors.add("BAD_WORD")
        return True

    def row(self, name: str, rows: Ints) -> str:
        """The row of word k, -1 for a removed one; by map or by search, whichever takes fewer bytes."""
        kept = np.flatnonzero(rows >= 0)
        if len(kept) == len(rows):
            return "k"
        mapped = rows.astype(np.int16 if len(kept) <= np.iinfo(np.int16).max else np.int32)
        listed = kept.astype(np.uint16 if len(rows) <= 1 << 16 else np.int32)
        if listed.nbytes >= mapped.nbytes or not np.array_equal(rows[kept], np.arange(len(kept))):
            return f"{self.once(f'{name}_rows', mapped)}[k]"
        find = self.body.call("find_row" if listed.dtype == np.uint16 else "find_wide_row")
        return f"{find}({self.once(f'{name}_words', listed)}, {len(kept)}, k)"

    def vectors(self, module_name: str, module: Any, weight: Floats) -> str:
        """The beginning of the call that reads them, from whichever form takes the fewest bytes."""
        name, dim, body = c_name(module_name), weight.shape[1], self.body
        if tied(self.model, module):
            return f"gw_embed_matrix(&{self.matrix(name, module, weight, ('dense', 'masked'))[0]}"
        int8 = body.int8 and is_compact(module)
        masked = arrange_matrix(weight, "masked", tight=True, int8=int8)
        if int8 and dim > 1:
            codes, scale = quantize(weight)
            if masked.nbytes + MATRIX_BYTES >= codes.nbytes + scale.nbytes:
                codes_name = self.once(f"{name}_codes", codes)
                return f"gw_embed_int8({codes_name}, {self.once(f'{name}_scale', scale)}, {dim}"
        elif masked.nbytes + MATRIX_BYTES >= weight.nbytes:
            return f"gw_embed({self.once(f'{name}_weight', weight)}, {dim}"
        return f"gw_embed_matrix(&{self.matrix(name, module, weight, ('masked',))[0]}"

    # Linear.

    def linear(self, node: Node, given: list[Value]) -> Value:
        op, body = node.op, self.body
        assert isinstance(op, ops.Linear)
        module: Any = self.model.get_submodule(op.module)
        weight, bias, inputs, outputs = linear_of(module)
        channels = self.channels(node.inputs[0], module.in_features)
        if isinstance(op, Scaled):
            channels = channels.then(op.scale, op.shift)
        weight, inputs, constant = channels.read(weight, inputs)
        bias = (bias + constant).astype(np.float32)
        name, (made, wanted) = c_name(op.module), body.answer(node, shape_of(node))
        rows, cols = weight.shape
        count = product(made.shape[:-1])
        n, most = in_c(count), largest(count, body.most)
        x, width = self.vectors_of(given[0])
        if cols != given[0].shape[-1]:
            picked = body.buffer(count * max(cols, 1))
            which = self.once(f"{name}_inputs", inputs.astype(np.int32))
            body.say(f"{body.call('pick')}({n}, {cols}, {which}, {x}, {width}, {picked});")
            x, width = picked, str(cols)
        whole = rows == made.shape[-1]
        to = made.leaves[0].base if whole else body.buffer(count * max(rows, 1))
        if rows:
            forms: tuple[Form | None, ...] = ("dense", "masked") if tied(self.model, module) else (None,)
            struct, arranged = self.matrix(name, module, weight, forms)
            bias_name = self.once(f"{name}_bias", bias)
            body.need(product_scratch(arranged, most))
            body.say(
                f"{wanted}gw_product(&{struct}, {bias_name}, {n}, {x}, {width}, {to}, {rows}, m->scratch);"
            )
        if not whole:
            self.widen(n, outputs, to, made, name, wanted)
        return made

    def channels(self, node: Node, width: int) -> Channels:
        """Which channels of a layer's input travel."""
        return Channels.plain(self.narrow.get(node, np.arange(width)), width)

    def vectors_of(self, value: Value) -> tuple[str, str]:
        """Where vectors begin and how far they are apart; they are copied where they do not lie so."""
        if value.in_memory and same(value.leaves[0].strides[-1], 1):
            first = value.moved(value.shape[:-1], lambda leaf: replace(leaf, strides=leaf.strides[:-1]))
            (rows,) = merged([first])
            if len(rows.shape) <= 1:
                step = rows.leaves[0].strides[0] if rows.shape else value.shape[-1]
                return value.leaves[0].begin, in_c(step)
        made = self.body.fresh(value)
        return made.leaves[0].base, in_c(value.shape[-1])

    # Recurrent.

    def recurrent(self, node: Node, given: list[Value], wants_y: bool, remembers: bool) -> Value:
        op, body = node.op, self.body
        assert isinstance(op, ops.Recurrent)
        module = recurrent_of(self.model.get_submodule(op.module), op.module)
        if "B" in letters_of(node.shape[1]):
            raise NotImplementedError(f"{op.module} over what was taken for the batch")
        batch, steps = given[0].shape[:2]
        frame = Frame(batch, steps, self.length(given[1], batch, steps) if op.lengths else "NULL", remembers)
        first = [body.whole(value).leaves[0].begin for value in given[len(given) - op.states :]]
        narrower = Narrower(module.input_size)
        narrower.channels = self.channels(node.inputs[0], module.input_size)
        narrower.recurrent(op.module, module)
        table, (x, width) = self.read(node.inputs[0], given[0])
        self.states[node] = []
        for level in narrower.links:
            assert isinstance(level, Level)
            kept = sum(r.kept for r in level.directions)
            unread = not wants_y and level.layer == module.num_layers - 1
            y = "NULL" if unread else body.buffer(batch * steps * max(kept, 1))
            self.level(node, level, frame, first, (x, width), (y, kept), table)
            table, x, width = None, y, str(kept)
        made = stored(x, shape_of(node), node.kind)
        if wants_y and len(narrower.channels.kept) < made.shape[-1]:
            made = body.room(shape_of(node))
            self.widen(in_c(batch * steps), narrower.channels.kept, x, made, c_name(op.module))
        return made

    def read(self, node: Node, value: Value) -> tuple[Floats | None, tuple[str, str]]:
        """Where the vectors are that a layer reads, and how far apart; or the table of words and their rows."""
        if node.kind != INT:
            return None, self.vectors_of(value)
        while not isinstance(node.op, Rows):
            (node,) = node.inputs
        return vectors_of(node.op, self.model)[0], (self.body.whole(value).leaves[0].begin, "")

    def level(
        self,
        node: Node,
        level: Level,
        frame: Frame,
        first: list[str],
        x: tuple[str, str],
        y: tuple[str, int],
        table: Floats | None = None,
    ) -> None:
        """The directions of one layer of a stack, side by side in y."""
        begun, done = self.states[node], 0
        for r in level.directions:
            begun.append(self.begin(level, r, first, len(begun), frame, table))
            self.run(begun[-1], frame, x, y, done)
            done += r.kept

    def run(self, state: State, frame: Frame, x: tuple[str, str], y: tuple[str, int], at: int = 0) -> None:
        """The steps of one layer and direction, from its state; its channels begin at this one of y."""
        body, r = self.body, state.recurrence
        if not r.kept:
            return
        body.need(
            layer_scratch(
                self.arranged[state.name], largest(frame.steps, body.most), largest(frame.batch, body.most)
            )
        )
        to = y[0] if y[0] == "NULL" or not at else f"{y[0]} + {at}"
        sizes = f"{in_c(frame.batch)}, {in_c(frame.steps)}, {frame.length}"
        source, helper = (f"{x[0]}, {x[1]}", "run_layer") if x[1] else (x[0], "run_words")
        given = f"&{state.name}, {sizes}, {int(r.reverse)}, {source}, {state.s}, {state.c}, {to}"
        body.say(f"{body.call(helper)}({given}, {y[1]}, m->scratch);")

    def length(self, lengths: Value, batch: int, steps: int) -> str:
        """A pointer to how long the sequence is."""
        if not is_one(batch):
            raise NotImplementedError(f"with the lengths of {batch} sequences at once")
        name = f"length{len(self.body.statements)}"
        self.body.say(f"const int32_t {name} = {lengths.read(['0'])};")
        self.body.say(self.body.require(f"{name} >= 1 && {name} <= {in_c(steps)}", "BAD_LENGTH"))
        return f"&{name}"

    def begin(
        self,
        level: Level,
        r: Recurrence,
        first: Sequence[str],
        place: int,
        frame: Frame,
        table: Floats | None = None,
    ) -> State:
        """Memory for the states of a layer, filled with the first ones."""
        if not r.kept:
            return State(r, "", "NULL", "NULL")
        body, name = self.body, self.layer(level, r, table)
        padded = -(-r.kept // BLOCK) * BLOCK
        entries, n = frame.batch * padded, level.cell.n_states
        parts = [body.remembered(int(entries)) if frame.remembers else body.buffer(entries) for _ in range(n)]
        lines = [f"memset({part}, 0, sizeof(float) * (size_t)({in_c(entries)}));" for part in parts]
        for k, (source, part) in enumerate(zip(first, parts)):
            scale = self.scale(name, r) if k == 0 else "NULL"
            own = f"{source} + {in_c(place * r.hidden * frame.batch)}" if place else source
            sizes = f"{in_c(frame.batch)}, {r.kept}, {r.hidden}"
            lines.append(f"{body.call('enter')}({sizes}, {self.neurons(name, r)}, {scale}, {own}, {part});")
        body.say(*(["if (!m->begun) {", *indented(lines), "}"] if frame.remembers else lines))
        return State(r, name, parts[0], parts[1] if len(parts) > 1 else "NULL")

    def layer(self, level: Level, r: Recurrence, table: Floats | None) -> str:
        """The struct of a layer and direction."""
        name = f"{c_name(level.module)}_{level.layer}" + ("_back" if r.reverse else "")
        while name in self.arranged and not np.array_equal(self.read_by[name], r.inputs):
            name += "_"  # the same layer, which reads other channels here
        if name not in self.arranged:
            self.arranged[name], self.read_by[name] = (
                arrange(level, r, table, tight=True, int8=self.body.int8),
                r.inputs,
            )
            self.body.structs.layer(name, self.arranged[name])
        return name

    def neurons(self, name: str, r: Recurrence) -> str:
        return "NULL" if r.kept == r.hidden else self.once(f"{name}_neurons", r.neurons.astype(np.int32))

    def scale(self, name: str, r: Recurrence) -> str:
        return "NULL" if (r.state_scale == 1).all() else self.once(f"{name}_state_scale", r.state_scale)

    def last_state(self, node: Node) -> Value:
        op, body = node.op, self.body
        assert isinstance(op, ops.LastState)
        shape, states = shape_of(node), self.states[node.inputs[0]]
        states = states if op.place is None else [states[op.place]]
        if node not in body.direct and is_one(shape[1]) and len(states) == 1:
            (state,) = states
            scaled = op.part == "h" and bool((state.recurrence.state_scale != 1).any())
            if state.recurrence.kept == shape[-1] > 0 and not scaled:
                return stored(
                    state.s if op.part == "h" else state.c, shape, node.kind
                )  # until the next piece
        made, wanted = body.answer(node, shape)
        for place, state in enumerate(states):
            r = state.recurrence
            source, scale = (state.s, self.scale(state.name, r)) if op.part == "h" else (state.c, "NULL")
            to = made.leaves[0].base + (f" + {in_c(place * r.hidden * shape[1])}" if place else "")
            which = self.neurons(state.name, r) if r.kept and node not in self.narrow else "NULL"
            sizes = f"{in_c(shape[1])}, {r.kept}, {shape[-1]}"
            body.say(f"{wanted}{body.call('leave')}({sizes}, {which}, {scale}, {source}, {to});")
        return made

    # Arrays.

    def parameter(self, name: str, shape: tuple[int, ...], kind: str) -> Value:
        tensor = dict(self.model.named_parameters(remove_duplicate=False)).get(name)
        array = (self.model.get_buffer(name) if tensor is None else tensor).detach().cpu().numpy()
        return stored(self.once(c_name(name), array, finite=False), shape, kind)

    def once(self, name: str, array: NDArray[np.generic], finite: bool = True) -> str:
        """The name of a constant array; the same one again where the same was asked for before."""
        flat = array.reshape(-1)
        for other, known in self.body.arrays.found.items():
            if known.dtype == flat.dtype and np.array_equal(known, flat):
                return other
        while name in self.body.arrays.found and not np.array_equal(self.body.arrays.found[name], flat):
            name += "_"
        return name if name in self.body.arrays.found else self.body.constant(name, array, finite)

    def matrix(
        self, name: str, module: Any, weight: Floats, forms: Sequence[Form | None]
    ) -> tuple[str, ArrangedMatrix]:
        """A matrix by its parameter and columns: what two layers share is stored once."""
        key = (id(module.weight), weight.tobytes())
        if key not in self.matrices:
            int8 = self.body.int8 and is_compact(module)
            every = (arrange_matrix(weight, form, tight=True, int8=int8) for form in forms)
            arranged = min(every, key=lambda matrix: matrix.nbytes)
            while name in (taken for taken, _ in self.matrices.values()):
                name += "_"  # the same layer, which reads other channels here
            self.matrices[key] = (self.body.structs.matrix(name, arranged), arranged)
        return self.matrices[key]

    def widen(self, n: str, places: Ints, source: str, made: Value, name: str, wanted: str = "") -> None:
        """All original channels; those that were removed are zero."""
        which = self.once(f"{name}_outputs", places.astype(np.int32))
        given = f"{n}, {len(places)}, {which}, {source}, {in_c(made.shape[-1])}, {made.leaves[0].base}"
        self.body.say(f"{wanted}{self.body.call('widen')}({given});")


def c_name(name: str) -> str:
    """A module or parameter as a name of C, which no word of C or of the kernels has."""
    return "p_" + re.sub(r"\W", "_", name)


def table_of(module: nn.Module) -> tuple[Floats, Ints, Ints]:
    """Vectors, the row of every word, and which components they have."""
    if isinstance(module, CompactEmbedding):
        return floats(module.weight), integers(module.rows), integers(module.components)
    weight, scale = floats(matrix_of(module)), word_scale_of(module)
    if scale is not None:
        weight = weight * floats(scale)[:, None]
    return weight, np.arange(len(weight)), np.arange(weight.shape[1])


def vectors_of(rows: Rows, model: nn.Module) -> tuple[Floats, Ints]:
    """All components of the vectors, and the row of every word."""
    if not rows.module:
        return np.eye(rows.words, dtype=np.float32), np.arange(rows.words)
    module: Any = model.get_submodule(rows.module)
    weight, numbers, components = table_of(module)
    whole = np.zeros((len(weight), module.embedding_dim), np.float32)
    whole[:, components] = weight
    return whole, numbers


def linear_of(module: Any) -> tuple[Floats, Floats, Ints, Ints]:
    """Matrix, bias, which inputs it reads and which outputs it gives."""
    compact = isinstance(module, CompactLinear)
    matrix, own = (module.weight, module.bias) if compact else (matrix_of(module), bias_of(module))
    weight = floats(matrix)
    bias = np.zeros(len(weight), np.float32) if own is None else floats(own)
    if compact:
        return weight, bias, integers(module.inputs), integers(module.outputs)
    return weight, bias, np.arange(weight.shape[1]), np.arange(len(weight))


def recurrent_of(module: nn.Module, name: str) -> CompactRecurrent:
    if isinstance(module, CompactCell):
        return module.as_layer()
    if not isinstance(module, CompactRecurrent):
        raise ValueError(
            f"{name}: {type(module).__name__} was left as it is by compress(), so there is no C for it; "
            "gw.accelerate(model) still runs it."
        )
    return module


def kept_neurons(module: CompactRecurrent) -> Ints:
    """The channels that the last layer of a stack gives."""
    layers = [module.layer(module.num_layers - 1, d) for d in range(module.num_directions)]
    return np.concatenate([integers(r.neurons) + d * module.hidden_size for d, r in enumerate(layers)])


def tied(model: nn.Module, module: Any) -> bool:
    """Whether an embedding and a linear layer share its matrix, which is then stored once, as both can read it."""
    sharing = {
        isinstance(other, nn.Embedding)
        for other in model.modules()
        if getattr(other, "weight", None) is module.weight
    }
    return len(sharing) > 1
