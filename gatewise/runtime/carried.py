"""Which arguments of forward() are its state: they only start recurrent layers, and forward() returns them again.

logits, state = model(tokens, state)
"""

from __future__ import annotations

from typing import Any

from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program, leaves

MOVES = (ops.Reshape, ops.Permute, ops.Slice, ops.Expand, ops.Concat)


def carried_arguments(ways: list[Program]) -> tuple[str, ...]:
    """Names of the arguments that are the state, in the first way to call forward() that has any."""
    return next(filter(None, map(carried_in, ways)), ())


def carried_in(program: Program) -> tuple[str, ...]:
    users = program.users()
    starting = [
        name
        for name, argument in program.arguments.items()
        if all(starts(leaf, users) for leaf in leaves(argument))
    ]
    returned = last_parts(program.outputs, len(starting))
    alike = returned and all(is_like(program.arguments[name], part) for name, part in zip(starting, returned))
    return tuple(starting) if alike else ()


def returns_state(program: Program, carried: tuple[str, ...]) -> bool:
    """Whether a way to call forward() returns the state, given or not."""
    known = program.absent | program.arguments.keys()
    returned = [leaf for part in last_parts(program.outputs, len(carried)) for leaf in leaves(part)]
    layers = all(isinstance(leaf, Node) and comes_from_layer(leaf) for leaf in returned)
    return bool(carried) and known >= set(carried) and bool(returned) and layers


def last_parts(outputs: Any, count: int) -> Any:
    """As many of the last parts of an answer, if something is left in front of them."""
    if not count or not isinstance(outputs, tuple | list) or len(outputs) <= count:
        return ()
    return outputs[len(outputs) - count :]


def starts(node: Any, users: dict[Node, list[Node]]) -> bool:
    """Whether a value goes into first states of recurrent layers and nowhere else."""
    if not isinstance(node, Node) or not users[node]:
        return False
    return all(
        starts(user, users)
        if isinstance(user.op, MOVES)
        else isinstance(user.op, ops.Recurrent) and node in user.inputs[len(user.inputs) - user.op.states :]
        for user in users[node]
    )


def is_like(argument: Any, returned: Any) -> bool:
    """Whether the states that come back have the structure and shapes of those that went in."""
    if isinstance(argument, Node):
        fits = isinstance(returned, Node) and list(map(str, returned.shape)) == list(map(str, argument.shape))
        return fits and comes_from_layer(returned)
    if not isinstance(returned, tuple | list) or len(returned) != len(argument):
        return False
    return all(is_like(a, r) for a, r in zip(argument, returned))


def comes_from_layer(node: Node) -> bool:
    if isinstance(node.op, ops.LastState | ops.Recurrent):
        return True
    return isinstance(node.op, MOVES) and all(map(comes_from_layer, node.inputs))
