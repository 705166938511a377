"""Removed channels that need not travel: a program in which some values have the kept ones alone.

A value is narrow where its removed channels are zero and all who read it are layers, which know what they read, or
hand it on as it is. The rest of the program stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gatewise.compact import CompactEmbedding, CompactLinear
from gatewise.export.c.layers import kept_neurons, linear_of, recurrent_of
from gatewise.export.c.sizes import is_one, same
from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program, mapped
from gatewise.runtime.narrow import integers

Ints = NDArray[np.int64]
POOLS = ("sum", "mean", "max", "min")


def narrowed(program: Program, model: nn.Module, int8: bool) -> tuple[Program, dict[Node, Ints]]:
    """The program with narrow values, and which channels each of them has."""
    order = Program(program.arguments, program.outputs).nodes
    users = program.users()
    allowed = set(order) - set(program.results)
    layers = {node for node in order if of_layer(node, model) is not None}
    while True:
        kept = candidates(order, allowed, model)
        found: dict[Node, Ints] = {}
        for node in reversed([node for node in order if node in kept]):
            handing = found.keys() - layers  # a layer has channels of its own, whatever it reads
            if all(
                reader in handing or reads(reader, node, kept[node], model, int8) for reader in users[node]
            ):
                found[node] = kept[node]
        if len(found) == len(kept):
            return rebuilt(program, order, found)
        allowed = set(found)


def candidates(order: Sequence[Node], allowed: set[Node], model: nn.Module) -> dict[Node, Ints]:
    """Values with channels that are always zero, and which the others are."""
    kept: dict[Node, Ints] = {}
    for node in order:
        channels = of_layer(node, model) if node in allowed else None
        if channels is None and node in allowed and any(source in kept for source in node.inputs):
            channels = handed_on(node, kept)
        if channels is not None and len(channels) < node.shape[-1]:
            kept[node] = channels
    return kept


def of_layer(node: Node, model: nn.Module) -> Ints | None:
    """The channels that a compact layer gives."""
    op = node.op
    if isinstance(op, ops.Embed | ops.Linear):
        module = model.get_submodule(op.module)
        if isinstance(module, CompactEmbedding):
            return integers(module.components)
        return integers(module.outputs) if isinstance(module, CompactLinear) else None
    if isinstance(op, ops.Recurrent):
        return kept_neurons(recurrent_of(model.get_submodule(op.module), op.module))
    if isinstance(op, ops.LastState) and same(node.shape[0], 1):
        layer = node.inputs[0].op
        assert isinstance(layer, ops.Recurrent)
        module = recurrent_of(model.get_submodule(layer.module), layer.module)
        return integers(module.layers[op.place or 0].neurons)
    return None


def handed_on(node: Node, kept: Mapping[Node, Ints]) -> Ints | None:
    """The channels of an answer that stay apart, and zero where they were."""
    op, first, last = node.op, node.inputs[0], node.rank - 1
    if isinstance(op, ops.Concat) and op.axis == last:
        return joined(node, kept)
    if isinstance(op, ops.Matmul):
        return kept.get(node.inputs[1]) if first not in kept else None
    if isinstance(op, ops.Combine):
        narrow, other = node.inputs if first in kept else reversed(node.inputs)
        linear = op.function == "mul" or (op.function == "div" and narrow is first)
        single = other not in kept and (not other.rank or is_one(other.shape[-1]))
        return kept[narrow] if linear and single and narrow.rank == node.rank else None
    if len(node.inputs) > 1 or not node.rank:
        return None
    return kept[first] if keeps_channels(op, first, node) else None


def keeps_channels(op: Any, before: Node, node: Node) -> bool:
    last = before.rank - 1
    if isinstance(op, ops.Map):
        return op.keeps_zero
    if isinstance(op, ops.Permute):
        return op.order[-1] == last
    if isinstance(op, ops.Reshape | ops.Expand):
        return same(node.shape[-1], before.shape[-1])
    if isinstance(op, ops.Slice):
        return op.axis != last
    if isinstance(op, ops.Flip):
        return last not in op.axes
    if isinstance(op, ops.Pad):
        return op.axis != last and op.value == 0
    return isinstance(op, ops.Reduce) and op.function in POOLS and last not in op.axes


def joined(node: Node, kept: Mapping[Node, Ints]) -> Ints:
    """Channels side by side."""
    at, parts = 0, []
    for source in node.inputs:
        width = int(source.shape[-1])
        parts.append(kept.get(source, np.arange(width)) + at)
        at += width
    return np.concatenate(parts)


def reads(reader: Node, node: Node, kept: Ints, model: nn.Module, int8: bool) -> bool:
    """Whether a layer takes the kept channels alone. With int8 the scale of a row is that of all its columns."""
    op = reader.op
    if isinstance(op, ops.LastState):
        return True
    if isinstance(op, ops.Linear):
        inputs = linear_of(model.get_submodule(op.module))[2]
        return not int8 or bool(np.isin(inputs, kept).all())
    if isinstance(op, ops.Recurrent) and node is reader.inputs[0] and node not in reader.inputs[1:]:
        module = recurrent_of(model.get_submodule(op.module), op.module)
        layers = [module.layer(0, d) for d in range(module.num_directions)]
        return not int8 or all(bool(np.isin(integers(layer.inputs), kept).all()) for layer in layers)
    return False


def rebuilt(
    program: Program, order: Sequence[Node], kept: Mapping[Node, Ints]
) -> tuple[Program, dict[Node, Ints]]:
    new: dict[Node, Node] = {}
    for node in order:
        if isinstance(node.op, ops.Input):
            new[node] = node
            continue
        shape = (*node.shape[:-1], len(kept[node])) if node in kept else node.shape
        inputs = tuple(new[source] for source in node.inputs)
        new[node] = Node(node.op, inputs, shape, node.kind, node.line)
    outputs = mapped(lambda leaf: new[leaf] if isinstance(leaf, Node) else leaf, program.outputs)
    made = Program(program.arguments, outputs, program.absent)
    return made, {new[node]: channels for node, channels in kept.items()}
