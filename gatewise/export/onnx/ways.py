"""Which way to call forward() an ONNX graph has, and what it takes and gives beside."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from gatewise.nn.lookup import cell_of, places_of
from gatewise.program.graph import BOOL, FLOAT, INT, Node, Program, copied, mapped, substituted
from gatewise.program.operations import (
    Cast,
    Choose,
    Combine,
    Constant,
    Count,
    Embed,
    Expand,
    Extent,
    Full,
    Gather,
    Input,
    LastState,
    Map,
    Recurrent,
    Reduce,
    Reshape,
    Slice,
)
from gatewise.program.sizes import letter


def chosen(found: Sequence[Program], states: bool | None, lengths: bool | None) -> Program:
    """The first way that takes states and lengths as asked; unasked, states where forward() returns them."""
    takes = any(map(returned_states, found)) if states is None else states
    wanted = [p for p in found if bool(state_arguments(p)) == takes] or found
    program = wanted[0]
    if lengths is not None:
        fitting = (p for p in wanted if bool(length_arguments(p)) == lengths)
        other = with_lengths if lengths else without_lengths
        program = next(fitting, None) or other(program)
    return from_zero(program) if states is False else program


def returned_states(program: Program) -> list[Node]:
    """Last states among several results, whole or in part."""
    if len(program.results) == 1:
        return []
    return [node for node in program.results if any(isinstance(n.op, LastState) for n in moved_from(node))]


def state_arguments(program: Program) -> list[str]:
    """Arguments, or their parts, that are first states of a recurrent layer."""
    starts = [
        start
        for node in program.nodes
        if isinstance(node.op, Recurrent) and node.op.states
        for start in node.inputs[-node.op.states :]
    ]
    found = [n.op.argument for start in starts for n in moved_from(start) if isinstance(n.op, Input)]
    return list(dict.fromkeys(found))


def length_arguments(program: Program) -> list[str]:
    """Whole numbers, one for every sequence, that are no words."""
    return [
        node.op.argument
        for node, users in program.users().items()
        if isinstance(node.op, Input)
        and (node.kind, node.rank) == (INT, 1)
        and not any(isinstance(user.op, Embed) for user in users)
    ]


def moved_from(node: Node) -> Iterator[Node]:
    """Where the values of a node come from, through operations that only put them elsewhere."""
    yield node
    if node.op.channels == "moved" and not isinstance(node.op, LastState):
        for source in node.inputs:
            yield from moved_from(source)


def without_states(program: Program) -> Program:
    """The program that returns no last states."""
    dropped = returned_states(program)
    return replace(program, outputs=mapped(lambda leaf: None if leaf in dropped else leaf, program.outputs))


def with_states(program: Program, model: nn.Module) -> Program:
    """The program whose recurrent layers take their first states, and leave all last ones among its effects."""
    calls = Counter(node.op.module for node in program.nodes if isinstance(node.op, Recurrent))
    if twice := [module for module, times in calls.items() if times > 1]:
        raise ValueError(f"states=True: forward() calls {twice[0] or 'the layer'} more than once.")
    copies: dict[Node, Node] = {}
    arguments, lasts = dict(program.arguments), []
    for node in program.nodes:
        op, sources = node.op, tuple(copies[source] for source in node.inputs)
        copies[node] = copied(node, sources)
        if isinstance(op, Recurrent):
            shape, parts = states_of(model.get_submodule(op.module), node.shape[0])
            if not op.states:
                names = [f"{op.module}." * (len(calls) > 1) + f"{part}0" for part in parts]
                first = [Node(Input(name), (), shape) for name in names]
                arguments |= zip(names, first)
                op, sources = replace(op, states=len(parts)), (*sources, *first)
                copies[node] = Node(op, sources, node.shape, node.kind, node.line)
            lasts += [Node(LastState(part), (copies[node],), shape) for part in parts]
    outputs = mapped(lambda leaf: copies[leaf] if isinstance(leaf, Node) else leaf, program.outputs)
    known = [(n.op, n.inputs) for n in replace(program, outputs=outputs).results]
    return replace(
        program,
        arguments=arguments,
        outputs=outputs,
        effects=tuple(last for last in lasts if (last.op, last.inputs) not in known),
    )


def without_lengths(program: Program) -> Program:
    """The program of sequences that are all as long as x."""
    names = length_arguments(program)
    given = [node for node in program.inputs if isinstance(node.op, Input) and node.op.argument in names]
    steps = Node(Extent(letter("T")), (), (), INT)
    return substituted(program, {node: Node(Expand(), (steps,), node.shape, INT) for node in given})


def from_zero(program: Program) -> Program:
    """The program whose recurrent layers start from zeros, whatever forward() is given."""
    names = state_arguments(program)
    given = [node for node in program.inputs if isinstance(node.op, Input) and node.op.argument in names]
    return substituted(program, {node: Node(Full(0.0), (), node.shape) for node in given})


class LengthsBeside(Input, streams="yes"):
    """Lengths that forward() does not take; a sequence may have no step."""


def with_lengths(program: Program) -> Program:
    """The program of a chain whose sequences end where an argument beside forward()'s says: layers stop there, the
    last step is that of the sequence, and mean, maximum and sum are over its steps."""
    lengths = Node(LengthsBeside("lengths"), (), (letter("B"),), INT)
    copies: dict[Node, Node] = {}
    for node in program.nodes:
        copies[node] = copied(node, tuple(copies[source] for source in node.inputs))
        if (ended := ENDED.get(type(node.op))) is not None:
            copies[node] = ended(copies[node], lengths)
    outputs = mapped(lambda leaf: copies[leaf] if isinstance(leaf, Node) else leaf, program.outputs)
    (name, x), *others = program.arguments.items()
    return replace(program, arguments={name: x, "lengths": lengths, **dict(others)}, outputs=outputs)


def ended_layer(node: Node, lengths: Node) -> Node:
    op, (x, *states) = node.op, node.inputs
    assert isinstance(op, Recurrent)
    return Node(replace(op, lengths=True), (x, lengths, *states), node.shape, node.kind, node.line)


def ended_slice(node: Node, lengths: Node) -> Node:
    """The last step of each sequence, in place of the last of all."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Slice)
    if axes_of(x)[op.axis] != "T":
        return node
    last = Node(Combine("sub"), (lengths, whole(1)), lengths.shape, INT)
    index = Node(Expand(), (along(last, x),), node.shape, INT)
    return Node(Gather(op.axis), (x, index), node.shape, node.kind, node.line)


def ended_pool(node: Node, lengths: Node) -> Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Reduce)
    (time,) = (k for k, axis in enumerate(axes_of(x)) if axis == "T") if "T" in axes_of(x) else (-1,)
    if op.axes != (time,):
        return node
    lengths = Node(
        Map("clamp", (1.0, math.inf)), (lengths,), lengths.shape, INT
    )  # none counts as one, of zeros
    steps = Node(Count(), (), (x.shape[time],), INT)
    mask = Node(Combine("lt"), (along(steps, x), along(lengths, x)), like(x, "BT"), BOOL)
    filler = Node(Full(-math.inf if op.function == "max" else 0.0), (), ())
    own = Node(Choose(), (mask, x, filler), x.shape, x.kind)
    if op.function != "mean":
        return Node(op, (own,), node.shape, node.kind, node.line)
    total = Node(replace(op, function="sum"), (own,), node.shape, node.kind, node.line)
    return Node(Combine("div"), (total, along(as_floats(lengths), node)), node.shape, node.kind, node.line)


def ended_mean(node: Node, lengths: Node) -> Node:
    """A sum by the number of steps: by those of each sequence."""
    op, (x, by) = node.op, node.inputs
    if not isinstance(by.op, Extent) or op != Combine("div"):
        return node
    return Node(op, (x, along(as_floats(lengths), node)), node.shape, node.kind, node.line)


ENDED = {Recurrent: ended_layer, Slice: ended_slice, Reduce: ended_pool, Combine: ended_mean}


def axes_of(node: Node) -> list[str]:
    return [str(size) for size in node.shape]


def like(x: Node, axes: str) -> tuple[int, ...]:
    """The shape of x with other axes of size 1."""
    return tuple(size if str(size) in axes else 1 for size in x.shape)


def along(values: Node, x: Node) -> Node:
    """A tensor of one axis, beside that of x of the same name."""
    return Node(Reshape(), (values,), like(x, str(values.shape[0])), values.kind)


def as_floats(node: Node) -> Node:
    return Node(Cast(), (node,), node.shape, FLOAT)


def whole(number: int) -> Node:
    return Node(Constant(np.asarray(number)), (), (), INT)


def states_of(module: Any, batch: int) -> tuple[tuple[int, ...], str]:
    """The shape of the states of a recurrent layer, and which it has: h, or h and c."""
    cell = cell_of(module)
    assert cell is not None
    return (len(list(places_of(module))), batch, module.hidden_size), "hc"[: cell.n_states]
