"""A program as an ONNX graph: inputs and outputs in forward()'s order, under forward()'s names.

    forward(self, words, state=None)  ->  words, state.0, state.1
    return {"logits": ..., "value": ...}  ->  logits, value        named tuples likewise
    return y, (h, c)                      ->  y, hn, cn            y0, y1, ... where there are several

Last states that were asked for beside come behind, and so do first states among the inputs: h0, c0.

Only the channels that compact layers have travel between them where nothing needs the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from gatewise.export.onnx import along, modules, places, pointwise
from gatewise.export.onnx.graph import Graph
from gatewise.export.onnx.tensors import Tensors
from gatewise.program.graph import Node, Program
from gatewise.program.operations import Input, LastState, Opaque, Recurrent, Reshape
from gatewise.program.sizes import Size
from gatewise.runtime.chained import ChainError

RULES: dict[type, Any] = {
    **modules.RULES, **pointwise.RULES, **places.RULES, **along.RULES,
}  # fmt: skip
AXES = {"B": "batch", "T": "time"}


def program_model(model: nn.Module, program: Program, opset: int) -> Any:
    """The ONNX model of one way to call forward(); `model` has the layers."""
    graph = Graph(opset)
    tensors = Tensors(graph, model, program.users())
    inputs = [
        as_value(graph, tensors, node.op.argument, node)
        for node in program.inputs
        if isinstance(node.op, Input)
    ]
    for node in program.nodes:
        tensors.put(node, written(tensors, node))
    names = output_names(program)
    outputs = [as_value(graph, tensors, name, node) for name, node in names.items()]
    return graph.model(inputs, outputs, [tensors.whole(node) for node in names.values()])


def written(tensors: Tensors, node: Node) -> Any:
    if isinstance(node.op, Input):
        return node.op.argument
    if isinstance(node.op, Opaque):
        raise ChainError(f"{node.line}: {node.op.what}; gatewise.accelerate(model) still runs it.")
    return RULES[type(node.op)](tensors, node, node.op)


def as_value(graph: Graph, tensors: Tensors, name: str, node: Node) -> Any:
    """Name, kind and shape of an input or output."""
    shape = [AXES.get(str(n), str(n)) if isinstance(n, Size) else n for n in node.shape]
    return graph.helper.make_tensor_value_info(name, tensors.kinds[node.kind], shape)


def output_names(program: Program) -> dict[str, Node]:
    """What forward() returns by name: its own where it has some, else y, and hn and cn of last states."""
    several = len({node.op.module for node in program.nodes if isinstance(node.op, Recurrent)}) > 1
    named = [
        (own_name(path) or (state_name(node, several) if path else "") or "y", node)
        for path, node in paths(program.outputs)
    ]
    named += [(state_name(node, several), node) for node in program.effects]
    counts = Counter(name for name, _ in named)
    taken = {node.op.argument for node in program.inputs if isinstance(node.op, Input)}
    found: dict[str, Node] = {}
    for name, node in named:
        if counts[name] > 1 or name in taken:
            used = {*found, *taken, *counts}
            name = next(f"{name}{k}" for k in range(len(used) + 1) if f"{name}{k}" not in used)
        found[name] = node
    return found


def own_name(path: tuple[Any, ...]) -> str:
    """`logits`, `states.0`: what has keys or fields; empty: a bare tuple."""
    return ".".join(map(str, path)) if any(isinstance(key, str) for key in path) else ""


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """Every node of a structure, with the keys, fields and positions that lead to it."""
    if isinstance(value, Node):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from paths(part, (*path, str(key)))
    elif isinstance(value, tuple | list):
        keys = getattr(value, "_fields", range(len(value)))
        for key, part in zip(keys, value):
            yield from paths(part, (*path, key))


def state_name(node: Node, several: bool) -> str:
    """hn, cn: a last state, or with several recurrent layers `rnn.hn`; empty: something else."""
    while isinstance(node.op, Reshape):
        (node,) = node.inputs
    if not isinstance(node.op, LastState):
        return ""
    (layer,) = node.inputs
    assert isinstance(layer.op, Recurrent)
    return (f"{layer.op.module}." if several and layer.op.module else "") + f"{node.op.part}n"
