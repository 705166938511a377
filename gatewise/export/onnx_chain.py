"""A chain of layers as an ONNX graph: loops around cells, and sequences that are padded beside forward().

    input    x          as forward() takes it: float32 vectors or int64 word ids, batch and time of any size
             lengths    int64 (B), if asked for, or if forward() takes them: sequences are padded on the right
             h0, c0     (layers * directions, B, H) of the recurrent layer, in the original width and scale
    output   y          as forward() gives it
             hn, cn     the last states, in the same form

With several recurrent layers states bear their names: `rnn.h0`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gatewise.export.onnx_graph import Graph, TimeAxis, not_empty, text_lengths
from gatewise.export.onnx_layers import enter, layer_norm, leave, looked_up, read, recurrence, widened
from gatewise.runtime.narrow import (
    Affine,
    Floats,
    Function,
    Ints,
    Level,
    NarrowChain,
    Recurrence,
    Table,
    is_diagonal,
    pools,
    takes_last_state,
)

OPERATORS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


def chain_model(narrow: NarrowChain, opset: int, states: bool | None, lengths: bool | None) -> Any:
    chain = narrow.chain
    if lengths and chain.no_lengths:
        raise ValueError(f"lengths=True: {chain.no_lengths}, so the graph takes no lengths.")
    return Writer(
        narrow,
        opset,
        chain.returns_state if states is None else states,
        bool(chain.lengths) if lengths is None else lengths,
    ).model()


@dataclass(frozen=True)
class Value:
    """A tensor on its way, its channels last. Runtimes trip over width 0, so no channels are one column of zeros."""

    name: str
    width: int
    scale: Floats | None = None  # (width,) to be multiplied in by whoever reads it
    sequence: bool = True  # (T, B, channels), else (B, channels)

    @property
    def columns(self) -> int:
        return max(self.width, 1)


class Writer:
    """Walks the links of a narrow chain and writes the nodes of each."""

    def __init__(self, narrow: NarrowChain, opset: int, states: bool, lengths: bool) -> None:
        self.narrow, self.states = narrow, states
        self.graph, chain = Graph(opset), narrow.chain
        levels = narrow.levels
        self.modules = list(dict.fromkeys(level.module for level in levels))
        self.levels = {name: [level for level in levels if level.module == name] for name in self.modules}
        # Last states by module and place: h, or h and c.
        self.finals: dict[str, list[list[str]]] = {name: [] for name in self.modules}
        self.vectors = ""  # the constant of the embedding, where its rows are those of its parameter
        self.time_first = "x"
        if chain.batch_axis == 0:
            axes = [1, 0] if chain.words else [1, 0, 2]
            self.time_first = self.graph.add("Transpose", "x", perm=axes)
        self.takes_lengths = lengths
        self.lengths = "lengths" if self.takes_lengths else ""
        if chain.pad is not None:
            self.lengths = text_lengths(self.graph, self.time_first, chain.pad)
        elif self.lengths and chain.least:
            self.lengths = not_empty(self.graph, self.lengths)
        self.time = TimeAxis(self.graph, self.lengths)
        self.cut = bool(self.lengths) and chain.cut
        if self.cut:
            self.time_first = self.time.up_to_longest(self.time_first)

    def model(self) -> Any:
        tensors = {"y": self.walk()}
        for module in self.modules if self.states else ():
            for part, names in enumerate(zip(*self.finals[module])):
                last = names[0] if len(names) == 1 else self.graph.add("Concat", *names, axis=0)
                tensors[self.state_name(module, part, "n")] = last
        inputs, outputs = self.signature()
        return self.graph.model(inputs, outputs, [tensors[output.name] for output in outputs])

    def signature(self) -> tuple[list[Any], list[Any]]:
        """Inputs and outputs with their shapes."""

        def tensor(name: str, shape: list[Any], kind: int = self.graph.float32) -> Any:
            return self.graph.helper.make_tensor_value_info(name, kind, shape)

        chain = self.narrow.chain
        frame = ["batch", "time"] if chain.batch_axis == 0 else ["time", "batch"]
        vectors = tensor("x", [*frame, self.narrow.n_inputs])
        x = tensor("x", frame, self.graph.int64) if chain.words else vectors
        axes = {"T": "longest" if self.cut else "time", "B": "batch", "R": "rows", "C": self.narrow.width}
        shape = [axes[axis] for axis in chain.output_axes]
        inputs, outputs = [x], [tensor("y", shape[:-1] if chain.squeezed else shape)]
        if self.takes_lengths:
            inputs.append(tensor("lengths", ["batch"], self.graph.int64))
        for module in self.modules if self.states else ():
            places, level = self.finals[module], self.levels[module][0]
            shape = [len(places), "batch", level.directions[0].hidden]
            for part in range(level.cell.n_states):
                for end, group in (("0", inputs), ("n", outputs)):
                    group.append(tensor(self.state_name(module, part, end), shape))
        return inputs, outputs

    def state_name(self, module: str, part: int, end: str) -> str:
        return (f"{module}." if len(self.modules) > 1 else "") + "hc"[part] + end

    def walk(self) -> str:
        links = list(self.narrow.links)
        value = Value(self.time_first, self.narrow.n_inputs)
        for k, link in enumerate(links):
            if isinstance(link, Table):
                value = self.table(link)
            elif isinstance(link, Level):
                value = self.level(link, value, final=takes_last_state(link, links[k + 1 :]))
            elif isinstance(link, Affine):
                value = self.affine(link, value)
            else:
                value = self.function(link, value)
        return self.outward(value)

    # What a link becomes.

    def table(self, link: Table) -> Value:
        width = link.weight.shape[1]
        if not width:
            return self.nothing()
        vectors, table = looked_up(self.graph, self.time_first, link.weight, link.rows)
        self.vectors = table if link.rows is None else ""
        return Value(vectors, width)

    def level(self, link: Level, value: Value, final: bool) -> Value:
        """One node for each direction, side by side. With `final`, their last h in place of every step's."""
        parts: list[str] = []
        scales: list[Floats] = []
        for r in link.directions:
            if not r.kept:
                self.finals[link.module].append(
                    [self.zero_state(r) for _ in range(link.cell.n_states)] if self.states else []
                )
                continue
            every, last = self.recurrence(link, r, value, final)
            name, axis = (last, 0) if final else (every, 1)
            parts.append(self.graph.add("Squeeze", name, self.graph.integers(axis)))
            scales.append(r.scale)
        if not parts:
            return self.nothing(sequence=not final)
        scale = np.concatenate(scales)
        name = parts[0] if len(parts) == 1 else self.graph.add("Concat", *parts, axis=-1)
        return Value(name, len(scale), None if (scale == 1).all() else scale, sequence=not final)

    def recurrence(self, link: Level, r: Recurrence, value: Value, final: bool) -> tuple[str, str]:
        """The node of one direction: every step's output (T, 1, B, K) and the last h (1, B, K)."""
        graph, states, finals = self.graph, range(link.cell.n_states), self.finals[link.module]
        places = sum(len(level.directions) for level in self.levels[link.module])
        starts = [
            enter(graph, self.state_name(link.module, part, "0"), places, len(finals), part, r)
            for part in (states if self.states else ())
        ]
        x, w_ih = self.read(value, r.inputs, r.w_ih)
        wanted = [not final, final or self.states, self.states]
        every, *lasts = recurrence(graph, link, r, x, w_ih, starts, self.lengths, wanted)
        finals.append([leave(graph, lasts[part], part, r) for part in (states if self.states else ())])
        return every, lasts[0]

    def affine(self, link: Affine, value: Value) -> Value:
        if not len(link.weight):
            return self.nothing(value.sequence)
        if is_diagonal(link, value.width):
            own = np.diagonal(link.weight)
            scaled = self.settle(replace(value, scale=own if value.scale is None else own * value.scale))
            return replace(scaled, name=self.graph.add("Add", scaled.name, self.graph.constant(link.bias)))
        if link.tied is not None and len(link.tied) and self.vectors:
            x, matrix = self.read_tied(value, link.inputs, link.tied)
        else:
            x, weight = self.read(value, link.inputs, link.weight)
            matrix = self.graph.constant(weight.T)
        product = self.graph.add("MatMul", x, matrix)
        total = self.graph.add("Add", product, self.graph.constant(link.bias))
        return Value(total, len(link.weight), sequence=value.sequence)

    def function(self, link: Function, value: Value) -> Value:
        if link.name in ("last_state", "last_step"):
            if not value.sequence:
                return value
            return replace(value, name=self.time.last(value.name), sequence=False)
        if pools(link):
            # A negative scale would make a maximum the minimum.
            value = self.settle(value) if link.name == "max" else value
            return replace(value, name=self.time.pool(link.name, value.name), sequence=False)
        settled = self.settle(value)
        if not settled.width:
            return settled
        if link.name in OPERATORS:
            return replace(settled, name=self.graph.add(OPERATORS[link.name], settled.name))
        if link.name == "layer_norm":
            return replace(settled, name=layer_norm(self.graph, settled.name, [settled.width], link.eps))
        operator = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[link.name]
        return replace(settled, name=self.graph.add(operator, settled.name, axis=-1))

    # How channels are read, and what stands for none.

    def read(self, value: Value, inputs: Ints, weight: Floats) -> tuple[str, Floats]:
        """The tensor that a matrix reads, and the matrix on its columns."""
        if value.scale is not None:
            weight = weight * value.scale[inputs]
        return read(self.graph, value.name, value.columns, inputs, weight)

    def read_tied(self, value: Value, inputs: Ints, tied: Ints) -> tuple[str, str]:
        """The same with the columns `tied` of the embedding, which is stored already, by nodes on constants alone."""
        graph, x, matrix = self.graph, value.name, self.vectors
        if len(tied) < self.narrow.table.weight.shape[1]:
            matrix = graph.add("Gather", matrix, graph.constant(tied), axis=1)
        if value.scale is not None:
            matrix = graph.add("Mul", matrix, graph.constant(value.scale[inputs]))
        if len(inputs) < value.columns:
            x = graph.add("Gather", x, graph.constant(inputs), axis=-1)
        return x, graph.add("Transpose", matrix, perm=[1, 0])

    def settle(self, value: Value) -> Value:
        if value.scale is None:
            return value
        name = self.graph.add("Mul", value.name, self.graph.constant(value.scale))
        return replace(value, name=name, scale=None)

    def nothing(self, sequence: bool = True) -> Value:
        sizes = self.graph.add("Shape", self.time_first, start=0 if sequence else 1, end=2)
        shape = self.graph.add("Concat", sizes, self.graph.integers(1), axis=0)
        return Value(self.graph.add("ConstantOfShape", shape), 0, sequence=sequence)

    # States, and the answer, in their original form.

    def zero_state(self, r: Recurrence) -> str:
        batch = self.graph.add("Shape", self.time_first, start=1, end=2)
        one, hidden = (self.graph.integers(k) for k in (1, r.hidden))
        return self.graph.add("ConstantOfShape", self.graph.add("Concat", one, batch, hidden, axis=0))

    def outward(self, value: Value) -> str:
        graph, narrow, chain = self.graph, self.narrow, self.narrow.chain
        value = self.settle(value)
        rank = 3 if value.sequence else 2
        rest = float(narrow.rest[0]) if len(narrow.rest) else 0.0
        name = widened(graph, value.name, rank, narrow.kept, narrow.width, value.columns, rest)
        rows = chain.output_axes == "RC"
        if chain.output_axes == "BTC" or (rows and not chain.rows_time_first):
            name = graph.add("Transpose", name, perm=[1, 0, 2])
        if rows and value.sequence:
            name = graph.add("Reshape", name, graph.integers(-1, narrow.width))
        return graph.add("Squeeze", name, graph.integers(-1)) if chain.squeezed else name
