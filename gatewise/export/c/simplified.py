"""A program of one sequence in fewer operations, before it becomes C: each rule rewrites a node that it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from torch import nn

from gatewise.export.c.layers import Scaled, tied
from gatewise.export.c.sizes import is_one, same
from gatewise.program import operations as ops
from gatewise.program.graph import INT, Node, Program, mapped
from gatewise.program.sizes import Size, letter, replaced
from gatewise.runtime.scaled import Doubles, doubles

Rule = Callable[[Node, tuple[Node, ...]], Node | None]  # of a node and its rewritten inputs; None: it stays
MOVES = (ops.Reshape, ops.Permute, ops.Expand, ops.Slice, ops.Cast)


def simplified(program: Program, model: nn.Module, int8: bool) -> Program:
    """The same answers; with int8 weights the columns of a row share a scale, so that normalisations stay apart."""

    def last(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return last_step(node, inputs, model)

    def scaled(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return None if int8 else with_affine(node, inputs, model, users)

    users = program.users()
    for rule in (scaled, first_states, last, one_state):
        program = rewritten(program, rule)
    return program


def rewritten(program: Program, rule: Rule) -> Program:
    new: dict[Node, Node] = {}
    for node in Program(program.arguments, program.outputs).nodes:
        inputs = tuple(new[source] for source in node.inputs)
        changed = None if isinstance(node.op, ops.Input) else rule(node, inputs)
        same_inputs = all(a is b for a, b in zip(inputs, node.inputs))
        new[node] = changed or (node if same_inputs else like(node, inputs))
    outputs = mapped(lambda leaf: new[leaf] if isinstance(leaf, Node) else leaf, program.outputs)
    return Program(program.arguments, outputs, program.absent, program.unread)


def like(node: Node, inputs: tuple[Node, ...], **changed: Any) -> Node:
    """A node that says the same of other inputs."""
    return replace(node, inputs=inputs, **changed)


# Recurrent layers.


def first_states(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """A layer begins with zeros by itself."""
    op = node.op
    if isinstance(op, ops.Recurrent) and op.states and all(map(is_zero, inputs[-op.states :])):
        return like(node, inputs[: -op.states], op=replace(op, states=0))
    return None


def is_zero(node: Node) -> bool:
    if isinstance(node.op, MOVES):
        return is_zero(node.inputs[0])
    if isinstance(node.op, ops.Full):
        return node.op.value == 0
    return isinstance(node.op, ops.Constant) and not np.any(np.asarray(node.op.values))


def last_step(node: Node, inputs: tuple[Node, ...], model: nn.Module) -> Node | None:
    """The last step of a layer with one direction is its last state."""
    op = node.op
    if (
        not isinstance(op, ops.Slice)
        or not is_one(op.stop - op.start)
        or not same(op.stop, inputs[0].shape[op.axis])
    ):
        return None
    layer, axis = inputs[0], op.axis
    while isinstance(layer.op, ops.Permute):
        axis, layer = layer.op.order[axis], layer.inputs[0]
    read = layer.op
    if (
        not isinstance(read, ops.Recurrent)
        or read.lengths
        or axis != 1
        or not isinstance(layer.shape[1], Size)
    ):
        return None
    if getattr(model.get_submodule(read.module), "bidirectional", False):
        return None
    h = Node(ops.LastState("h", -1), (layer,), (1, layer.shape[0], layer.shape[2]), line=node.line)
    return like(node, (h,), op=ops.Reshape())


def one_state(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """The state of one layer and direction, of those of all."""
    op, before = node.op, inputs[0].op if inputs else None
    if not isinstance(op, ops.Slice) or not isinstance(before, ops.LastState) or before.place is not None:
        return None
    if op.axis or isinstance(op.start, Size) or not is_one(op.stop - op.start) or is_one(inputs[0].shape[0]):
        return None
    return like(node, inputs[0].inputs, op=replace(before, place=int(op.start)))


# Normalisations with fixed numbers.


def with_affine(
    node: Node, inputs: tuple[Node, ...], model: nn.Module, users: Mapping[Node, list[Node]]
) -> Node | None:
    """W (scale * x + shift) + b with scale and shift in the matrix, also where channels lay elsewhere in between."""
    if type(node.op) is not ops.Linear or tied(model, model.get_submodule(node.op.module)):
        return None
    x, axis, moves = inputs[0], inputs[0].rank - 1, list(range(inputs[0].rank))
    scale, shift = np.ones(x.shape[axis]), np.zeros(x.shape[axis])
    found = False
    if isinstance(x.op, ops.LayerNorm) and x.op.axes == 1 and len(users[node.inputs[0]]) == 1:
        x, scale, shift, found = unscaled(x, model)
    while True:
        numbers = by_channel(x, axis)
        if numbers is not None:
            (function, other), x, found = numbers, x.inputs[0], True
            scale, shift = (scale * other, shift) if function == "mul" else (scale, shift + scale * other)
        elif isinstance(x.op, ops.Permute):
            moves = [x.op.order[k] for k in moves]
            axis, x = x.op.order[axis], x.inputs[0]
        else:
            break
    if moves != sorted(moves):
        x = like(x, (x,), op=ops.Permute(tuple(moves)), shape=inputs[0].shape)
    return like(node, (x,), op=Scaled(node.op.module, scale, shift)) if found else None


def unscaled(node: Node, model: nn.Module) -> tuple[Node, Doubles, Doubles, bool]:
    """LayerNorm without its scale and shift, those, and whether it has any."""
    op, rest = node.op, list(node.inputs[1:])
    assert isinstance(op, ops.LayerNorm)
    width = int(node.shape[-1])
    ends = [(rest.pop(0) if given else None) for given in (op.scaled, op.shifted)]
    if any(end is not None and not isinstance(end.op, ops.Parameter) for end in ends):
        return node, np.ones(width), np.zeros(width), False
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    scale, shift = (
        doubles(tensors[end.op.tensor]) if end is not None and isinstance(end.op, ops.Parameter) else None
        for end in ends
    )
    plain = like(node, node.inputs[:1], op=replace(op, scaled=False, shifted=False))
    return (
        plain,
        np.ones(width) if scale is None else scale,
        np.zeros(width) if shift is None else shift,
        True,
    )


def by_channel(node: Node, axis: int) -> tuple[str, Doubles] | None:
    """How a node changes its first input channel by channel: "mul" or "add", and by what."""
    op = node.op
    if not isinstance(op, ops.Combine) or op.function not in ("mul", "add", "sub", "div"):
        return None
    x, other = node.inputs
    if (
        not isinstance(other.op, ops.Constant)
        or x.rank != node.rank
        or not same(x.shape[axis], node.shape[axis])
    ):
        return None
    values = np.asarray(other.op.values, np.float64)
    values = values.reshape((1,) * (node.rank - values.ndim) + values.shape)
    if values.size != values.shape[axis]:
        return None
    line = np.broadcast_to(values.reshape(-1), (int(node.shape[axis]),))
    if op.function in ("sub", "add"):
        return "add", -line if op.function == "sub" else line
    return ("mul", line) if op.function == "mul" else ("mul", 1 / line) if line.all() else None


# Lengths.


def unpadded(program: Program) -> Program:
    """The program of one sequence that ends with its last step, without an argument that says how long it is."""
    for length in program.inputs:
        uses = [node for node in program.nodes if length in node.inputs[1:2] and is_packed(node)]
        if not uses and only_ends(program, length):
            uses = [node for node in program.nodes if takes_end(node, length)]
        others = {name: value for name, value in program.arguments.items() if value is not length}
        if uses and len(others) < len(program.arguments):
            found = rewritten(program, lambda node, inputs: of_whole(node, inputs, length))  # noqa: B023
            letters = {str(node.shape[1]) for node in uses if isinstance(node.op, ops.Unpack)} - {"T"}
            found = rewritten(found, lambda node, inputs: resized(node, inputs, letters))  # noqa: B023
            return replace(found, arguments=others)
    return program


def is_packed(node: Node) -> bool:
    return (isinstance(node.op, ops.Recurrent) and node.op.lengths) or isinstance(node.op, ops.Unpack)


def only_ends(program: Program, length: Node) -> bool:
    """Whether all answers are about last steps; else what looks like a length may be any number of a step."""
    leaving = [node for node in program.nodes if not timed(node) and any(map(timed, node.inputs))]
    return not any(map(timed, program.results)) and all(takes_end(node, length) for node in leaving)


def timed(node: Node) -> bool:
    return any("T" in getattr(size, "letters", ()) for size in node.shape)


def takes_end(node: Node, length: Node) -> bool:
    """Whether it takes the entries of the last steps: gather(1, length - 1), x[arange(B), length - 1]."""
    if isinstance(node.op, ops.Gather):
        return is_end(node.inputs[1], length) and same(node.inputs[0].shape[node.op.axis], letter("T"))
    if not isinstance(node.op, ops.Index) or node.op.axis or len(node.inputs) != 3:
        return False
    (at,) = [k for k in (0, 1) if same(node.inputs[0].shape[k], letter("T"))] or [-1]
    return at >= 0 and is_end(node.inputs[1 + at], length) and node.inputs[2 - at].op == ops.Count()


def is_end(index: Node, length: Node) -> bool:
    """Whether it is length - 1."""
    while isinstance(index.op, MOVES):
        index = index.inputs[0]
    if not isinstance(index.op, ops.Combine) or index.op.function != "sub" or index.inputs[0] is not length:
        return False
    one = index.inputs[1].op
    return isinstance(one, ops.Constant) and np.array_equal(one.values, 1)


def of_whole(node: Node, inputs: tuple[Node, ...], length: Node) -> Node | None:
    op, steps = node.op, letter("T")
    if isinstance(op, ops.Recurrent) and op.lengths and inputs[1] is length:
        return like(node, (inputs[0], *inputs[2:]), op=replace(op, lengths=False))
    if isinstance(op, ops.Unpack) and inputs[1] is length:
        return inputs[0]
    if takes_end(node, length):
        axis = next(k for k, size in enumerate(inputs[0].shape) if same(size, steps))
        shape = tuple(1 if k == axis else size for k, size in enumerate(inputs[0].shape))
        last = like(node, inputs[:1], op=ops.Slice(axis, steps - 1, steps), shape=shape)
        return like(node, (last,), op=ops.Reshape())
    if length not in inputs:
        return None
    extent = Node(ops.Extent(steps), (), (), INT)
    every = Node(ops.Expand(), (Node(ops.Reshape(), (extent,), (1,), INT),), length.shape, INT)
    return like(node, tuple(every if source is length else source for source in inputs))


def resized(node: Node, inputs: tuple[Node, ...], letters: set[str]) -> Node:
    """The longest length is the number of steps."""
    steps = dict.fromkeys(letters, letter("T"))
    said = {own.name: getattr(node.op, own.name) for own in fields(node.op)}
    changed = {name: replaced(size, steps) for name, size in said.items() if isinstance(size, Size)}
    shape = tuple(replaced(size, steps) for size in node.shape)
    return like(node, inputs, op=replace(node.op, **changed), shape=shape)
