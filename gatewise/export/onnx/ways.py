"""Which way to call forward() an ONNX graph has, and what it takes and gives beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from gatewise.nn.lookup import cell_of, places_of
from gatewise.program.graph import INT, Node, Program, copied, mapped, substituted
from gatewise.program.operations import (
    Embed,
    Expand,
    Extent,
    Full,
    Input,
    LastState,
    Recurrent,
)
from gatewise.program.sizes import letter


def chosen(found: Sequence[Program], states: bool | None, lengths: bool | None) -> Program:
    """The first way that takes states and lengths as asked; unasked, states where forward() returns them."""
    takes = any(map(returned_states, found)) if states is None else states
    wanted = [p for p in found if bool(state_arguments(p)) == takes] or found
    program = wanted[0]
    if lengths is not None:
        fitting = (p for p in wanted if bool(length_arguments(p)) == lengths)
        found_one = next(fitting, None)
        if lengths and found_one is None:
            raise ValueError("lengths=True: forward() takes no lengths; pack the sequences in forward().")
        program = found_one or without_lengths(program)
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


def states_of(module: Any, batch: int) -> tuple[tuple[int, ...], str]:
    """The shape of the states of a recurrent layer, and which it has: h, or h and c."""
    cell = cell_of(module)
    assert cell is not None
    return (len(list(places_of(module))), batch, module.hidden_size), "hc"[: cell.n_states]
