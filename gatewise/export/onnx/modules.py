"""Layers of a program, and what needs no input, in ONNX."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactLinear, CompactRecurrent, compress
from gatewise.export.onnx.graph import Graph, not_empty
from gatewise.export.onnx.layers import enter, leave, looked_up, read, recurrence
from gatewise.export.onnx.tensors import ARRAYS, Held, Tensors
from gatewise.nn.lookup import bias_of, cell_of, matrix_of, why_not_recurrent
from gatewise.program.graph import INT, Node
from gatewise.program.operations import (
    Constant,
    Count,
    Embed,
    Extent,
    Full,
    LastState,
    Linear,
    Parameter,
    Recurrent,
)
from gatewise.program.sizes import Size
from gatewise.runtime.chained import ChainError
from gatewise.runtime.narrow import Floats, Ints, Level, Narrower, Recurrence, floats, integers
from gatewise.runtime.scaled import Channels

# Without inputs.


def parameter(t: Tensors, node: Node, op: Parameter) -> str:
    owner, _, name = op.tensor.rpartition(".")
    tensor = getattr(t.model.get_submodule(owner), name)
    return t.graph.constant(tensor.detach().cpu().numpy().astype(ARRAYS[node.kind]))


def constant(t: Tensors, node: Node, op: Constant) -> str:
    return t.graph.constant(np.asarray(op.values, ARRAYS[node.kind]))


def extent(t: Tensors, node: Node, op: Extent) -> str:
    return t.graph.add("Squeeze", t.sizes.number(op.size))


def counted(t: Tensors, node: Node, op: Count) -> str:
    graph, (size,) = t.graph, node.shape
    if not isinstance(size, Size):
        return graph.constant((op.start + op.step * np.arange(size)).astype(ARRAYS[node.kind]))
    counts = graph.count(t.sizes.number(size))
    if op.step != 1:
        counts = graph.add("Mul", counts, graph.integer(op.step))
    if op.start:
        counts = graph.add("Add", counts, graph.integer(op.start))
    return t.cast(counts, INT, node.kind)


def filled(t: Tensors, node: Node, op: Full) -> str:
    value: Any = np.array([op.value], ARRAYS[node.kind])
    if not node.rank:
        return t.graph.constant(value[0])
    shape = t.sizes.vector(node.shape)
    return t.graph.add("ConstantOfShape", shape, value=t.graph.to_tensor(value))


# Embeddings and linear layers.


def embedded(t: Tensors, node: Node, op: Embed) -> Held:
    module, (ids,) = t.model.get_submodule(op.module), node.inputs
    if not isinstance(module, CompactEmbedding):
        return Held(looked_up(t.graph, t.whole(ids), table_of(module), None)[0])
    weight, components = floats(module.weight), integers(module.components)
    if not weight.size:
        return no_channels(t, node)
    rows = None if len(weight) == module.num_embeddings else integers(module.rows)
    name, table = looked_up(t.graph, t.whole(ids), weight, rows)
    if rows is None:
        t.tables[id(module.weight)] = table
    return Held(name, some(components, module.embedding_dim))


def table_of(module: nn.Module) -> Floats:
    """Of an embedding that was left as it is; nn.Embedding shortens rows when they are looked up."""
    assert isinstance(module, nn.Embedding)
    weight = matrix_of(module)
    if module.max_norm is not None:
        weight = torch.renorm(weight, module.norm_type, 0, module.max_norm)
    return floats(weight)


def linear(t: Tensors, node: Node, op: Linear) -> Held:
    """x W^T + b, of the channels that are there and are read."""
    module, (source,) = t.model.get_submodule(op.module), node.inputs
    weight, bias, inputs, outputs = linear_parts(module)
    if not len(outputs):
        return no_channels(t, node)
    name, channels = channels_of(t, source)
    if id(module.weight) in t.tables and np.isin(inputs, channels.kept).any():
        x, matrix = tied(t.graph, name, channels, inputs, t.tables[id(module.weight)])
    else:
        own, places, _ = channels.read(weight, inputs)
        x, own = read(t.graph, name, len(channels.kept), places, own)
        matrix = t.graph.constant(np.ascontiguousarray(own.T))
    made = t.graph.add("MatMul", x, matrix)
    if bias is not None:
        made = t.graph.add("Add", made, t.graph.constant(floats(bias)))
    return Held(made, some(outputs, node.shape[-1]))


def channels_of(t: Tensors, source: Node) -> tuple[str, Channels]:
    """A tensor, and which channels a matrix finds in it."""
    held, width = t.unscaled[source], source.shape[-1]
    kept, scale = np.arange(width) if held.kept is None else held.kept, np.ones(width)
    if held.scale is not None:
        scale[kept] = held.scale
    return held.name, Channels(kept, scale, np.zeros(width))


def linear_parts(module: nn.Module) -> tuple[Floats, Tensor | None, Ints, Ints]:
    """Weight, bias, and the original numbers of its columns and rows."""
    if isinstance(module, CompactLinear):
        return floats(module.weight), module.bias, integers(module.inputs), integers(module.outputs)
    weight = floats(matrix_of(module))
    return weight, bias_of(module), np.arange(weight.shape[1]), np.arange(len(weight))


def tied(graph: Graph, x: str, channels: Channels, inputs: Ints, table: str) -> tuple[str, str]:
    """What a matrix reads that is an embedding's, too, by nodes on its constant, which runtimes compute once."""
    kept = channels.kept
    here = np.flatnonzero(np.isin(inputs, kept))
    if len(here) < len(inputs):
        table = graph.add("Gather", table, graph.constant(here), axis=1)
    scale = channels.scale[inputs[here]].astype(np.float32)
    if (scale != 1).any():
        table = graph.add("Mul", table, graph.constant(scale))
    if len(here) < len(kept):
        x = graph.add("Gather", x, graph.constant(np.searchsorted(kept, inputs[here])), axis=-1)
    return x, graph.add("Transpose", table, perm=[1, 0])


def some(kept: Ints, width: int) -> Ints | None:
    return None if len(kept) == width else kept


def no_channels(t: Tensors, node: Node) -> Held:
    """Runtimes trip over width 0: one channel, of zeros."""
    return Held(t.zeros([*node.shape[:-1], 1]), some(np.zeros(1, np.int64), node.shape[-1]))


# Recurrent layers.


def recurrent(t: Tensors, node: Node, op: Recurrent) -> Held:
    """One node for each layer and direction, of its own width; time first, as ONNX has it."""
    module, source = compact_layer(op.module, t.model.get_submodule(op.module)), node.inputs[0]
    name, channels = channels_of(t, source)
    stack, levels = Stack(t, node, op, module), levels_of(op.module, module, channels)
    x, columns = t.graph.transposed(name, 1, 0, 2), len(channels.kept)
    for level in levels:
        x, columns = stack.level(level, x, columns)
    t.lasts[node] = stack.lasts()
    neurons = np.concatenate(
        [integers(module.layer(module.num_layers - 1, d).neurons) + d * module.hidden_size
         for d in range(module.num_directions)]
    )  # fmt: skip
    if not len(neurons):
        return no_channels(t, node)
    scale = np.concatenate([r.scale for r in levels[-1].directions])
    return Held(
        t.graph.transposed(x, 1, 0, 2),
        some(neurons, node.shape[-1]),
        None if (scale == 1).all() else scale,
    )


def compact_layer(name: str, module: nn.Module) -> CompactRecurrent:
    if isinstance(module, CompactRecurrent):
        return module
    if isinstance(module, CompactCell):
        return module.as_layer()
    if cell_of(module) is None:
        raise ChainError(f"{name}: {why_not_recurrent(module)}; gatewise.accelerate(model) still runs it.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a layer by itself; what stays was named when the model was cut
        return compact_layer(name, compress(module))  # forward() reads its parameters, too


def levels_of(name: str, module: CompactRecurrent, channels: Channels) -> list[Level]:
    """The layers of a stack, the first of which reads these channels."""
    narrower = Narrower(module.input_size)
    narrower.channels = channels
    narrower.recurrent(name, module)
    return [link for link in narrower.links if isinstance(link, Level)]


class Stack:
    """The layers of one recurrent module, one after another."""

    def __init__(self, t: Tensors, node: Node, op: Recurrent, module: CompactRecurrent) -> None:
        self.t, self.node, self.module = t, node, module
        self.lengths = (
            not_empty(t.graph, t.whole(node.inputs[1])) if op.lengths else ""
        )  # no step is not packed
        self.starts = [t.whole(state) for state in node.inputs[len(node.inputs) - op.states :]]
        self.wanted = {user.op.part for user in t.users[node] if isinstance(user.op, LastState)}
        self.finals: list[list[str]] = []  # by place: h, or h and c, (1, B, H); empty where nobody wants one

    @property
    def places(self) -> int:
        return self.module.num_layers * self.module.num_directions

    def level(self, level: Level, x: str, columns: int) -> tuple[str, int]:  # (T, B, columns)
        graph, parts = self.t.graph, []
        for r in level.directions:
            if r.kept:
                every = self.direction(level, r, x, columns)
                parts.append(graph.add("Squeeze", every, graph.integers(1)))
            else:
                nothing = self.t.zeros([1, self.node.shape[0], r.hidden])
                self.finals.append([nothing] * level.cell.n_states)
        kept = sum(r.kept for r in level.directions)
        if not parts:
            batch, time = self.node.shape[:2]
            return self.t.zeros([time, batch, 1]), 1
        return (parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=-1)), kept

    def direction(self, level: Level, r: Recurrence, x: str, columns: int) -> str:
        graph = self.t.graph
        place = len(self.finals)
        starts = [enter(graph, state, self.places, place, k, r) for k, state in enumerate(self.starts)]
        source, w_ih = read(graph, x, columns, r.inputs, r.w_ih)
        wanted = [True, "h" in self.wanted, "c" in self.wanted]
        every, *lasts = recurrence(graph, level, r, source, w_ih, starts, self.lengths, wanted)
        self.finals.append([last and leave(graph, last, k, r) for k, last in enumerate(lasts)])
        return every

    def lasts(self) -> dict[str, str]:
        """h and c of all places, as far as they are wanted."""
        parts = dict(zip("hc", zip(*self.finals)))
        return {
            part: places[0] if len(places) == 1 else self.t.graph.add("Concat", *places, axis=0)
            for part, places in parts.items()
            if part in self.wanted
        }


def last_state(t: Tensors, node: Node, op: LastState) -> str:
    return t.lasts[node.inputs[0]][op.part]


RULES: dict[type, Any] = {
    Parameter: parameter, Constant: constant, Extent: extent, Count: counted, Full: filled, Embed: embedded,
    Linear: linear, Recurrent: recurrent, LastState: last_state,
}  # fmt: skip
