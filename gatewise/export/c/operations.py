"""Operations of a program in C, except layers and what looks along axes: views, functions, joins, lookups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gatewise.export.c import functions
from gatewise.export.c.body import C_KINDS, Body
from gatewise.export.c.sizes import alone, in_c, letters_of, same, variable
from gatewise.export.c.values import (
    Leaf,
    Value,
    copied,
    expanded,
    flipped,
    nest,
    number,
    permuted,
    reshaped,
    sliced,
    stored,
)
from gatewise.program import operations as ops
from gatewise.program.graph import BOOL, FLOAT, Node

Write = Callable[[Body, Any, Node, list[Value]], Value]


def shape_of(node: Node) -> tuple[int, ...]:
    return tuple(alone(size) for size in node.shape)


# Numbers without inputs.


def constant(body: Body, op: ops.Constant, node: Node, given: list[Value]) -> Value:
    values = np.asarray(op.values)
    if values.size == 1:
        return number(functions.constant(values.reshape(-1)[0].item(), node.kind), shape_of(node), node.kind)
    if node.kind != FLOAT and np.abs(values.astype(np.int64)).max(initial=0) > functions.LARGEST_INT:
        raise ValueError("a constant does not fit into whole numbers of 4 bytes, which C computes with")
    name = body.constant(f"constant_{len(body.arrays.found)}", values, finite=False)
    return stored(name, shape_of(node), node.kind)


def extent(body: Body, op: ops.Extent, node: Node, given: list[Value]) -> Value:
    return Value((), node.kind, (Leaf("", (), alone(op.size)),))


def count(body: Body, op: ops.Count, node: Node, given: list[Value]) -> Value:
    return Value(shape_of(node), node.kind, (Leaf("", (op.step,), op.start),))


def full(body: Body, op: ops.Full, node: Node, given: list[Value]) -> Value:
    return number(functions.constant(op.value, node.kind), shape_of(node), node.kind)


# Every value by itself.


def joint(body: Body, values: Sequence[Value], shape: tuple[int, ...]) -> list[Value]:
    """Values in one shape. What is repeated is computed before, once."""
    found = []
    for value in values:
        repeated = not same(value.count, Value(shape, value.kind, ()).count)
        found.append(expanded(body.plain(value) if repeated else value, shape))
    return found


def composed(
    body: Body, values: list[Value], shape: tuple[int, ...], kind: str, text: Callable[[list[str]], str]
) -> Value:
    """f(a, b, ...) of values, on the fly."""
    values = joint(body, values, shape)
    ends = np.cumsum([0, *(len(value.leaves) for value in values)]).tolist()

    def whole(reads: Sequence[str]) -> str:
        return text([v.text(reads[a:b]) for v, a, b in zip(values, ends, ends[1:])])

    return Value(shape, kind, tuple(leaf for value in values for leaf in value.leaves), whole)


def applied(body: Body, op: ops.Map, node: Node, given: list[Value]) -> Value:
    def text(reads: list[str]) -> str:
        return functions.mapped(op.function, op.settings, reads[0], given[0].kind, node.kind)[0]

    helper = functions.mapped(op.function, op.settings, "", given[0].kind, node.kind)[1]
    if helper:
        body.call(helper)
    return composed(body, given, shape_of(node), node.kind, text)


def combined(body: Body, op: ops.Combine, node: Node, given: list[Value]) -> Value:
    a, b = (value.kind for value in given)

    def text(reads: list[str]) -> str:
        return functions.combined(op.function, reads[0], reads[1], (a, b), node.kind)[0]

    helper = functions.combined(op.function, "", "", (a, b), node.kind)[1]
    if helper:
        body.call(helper)
        given = [body.plain(value) for value in given]  # what a quotient reads twice
    return composed(body, given, shape_of(node), node.kind, text)


def chosen(body: Body, op: ops.Choose, node: Node, given: list[Value]) -> Value:
    return composed(body, given, shape_of(node), node.kind, lambda r: f"({r[0]} ? {r[1]} : {r[2]})")


def cast(body: Body, op: ops.Cast, node: Node, given: list[Value]) -> Value:
    (value,) = given
    if value.kind == node.kind or (value.kind == BOOL and node.kind != FLOAT):
        return replace(value, kind=node.kind)
    if node.kind == BOOL:
        return composed(body, given, shape_of(node), BOOL, lambda r: f"({r[0]} != 0)")
    kind = C_KINDS[node.kind]
    return composed(body, given, shape_of(node), node.kind, lambda r: f"({kind}){r[0]}")


# The same values in other places.


def permute(body: Body, op: ops.Permute, node: Node, given: list[Value]) -> Value:
    return permuted(given[0], op.order)


def reshape(body: Body, op: ops.Reshape, node: Node, given: list[Value]) -> Value:
    found = reshaped(given[0], shape_of(node))
    if found is None:
        found = reshaped(body.fresh(given[0]), shape_of(node))
    assert found is not None
    return found


def expand(body: Body, op: ops.Expand, node: Node, given: list[Value]) -> Value:
    return joint(body, given, shape_of(node))[0]


def slice_(body: Body, op: ops.Slice, node: Node, given: list[Value]) -> Value:
    (value,) = given
    start, stop, size = alone(op.start), alone(op.stop), value.shape[op.axis]
    if letters_of(start) and not same(start, size - 1):
        body.say(body.require(f"{in_c(start)} >= 0", "BAD_STEPS"))
    if not same(stop, size) and (letters_of(stop) or letters_of(size)):
        body.say(body.require(f"{in_c(stop)} <= {in_c(size)}", "BAD_STEPS"))
    return sliced(value, op.axis, start, shape_of(node)[op.axis], op.step)


def concat(body: Body, op: ops.Concat, node: Node, given: list[Value]) -> Value:
    made, at = body.room(shape_of(node), node.kind), 0
    for value in given:
        size = value.shape[op.axis]
        body.say(*copied(sliced(made, op.axis, at, size), value))
        at = at + size
    return made


def flip(body: Body, op: ops.Flip, node: Node, given: list[Value]) -> Value:
    return flipped(given[0], op.axes)


def pad(body: Body, op: ops.Pad, node: Node, given: list[Value]) -> Value:
    (value,) = given
    made, size = body.room(shape_of(node), node.kind), value.shape[op.axis]
    filling = functions.constant(op.value, node.kind)
    for start, length in ((0, op.before), (op.before + size, op.after)):
        if length:
            part = sliced(made, op.axis, start, length)
            body.say(*copied(part, number(filling, part.shape, node.kind)))
    body.say(*copied(sliced(made, op.axis, op.before, size), value))
    return made


# By whole numbers.


def index(body: Body, op: ops.Index, node: Node, given: list[Value]) -> Value:
    value, *numbers = given
    value, shape = body.plain(value), shape_of(node)
    places = shape[op.axis : len(shape) - (len(value.shape) - op.axis - len(numbers))]
    numbers = joint(body, numbers, places)
    made = body.room(shape, node.kind)
    behind = op.axis + len(places)

    def entry(at: list[str]) -> list[str]:
        lines, names = [], []
        for k, found in enumerate(numbers):
            lines += looked_up(body, f"k{k}", found.read(at[op.axis : behind]), value.shape[op.axis + k])
            names.append(f"k{k}")
        source = value.read([*at[: op.axis], *names, *at[behind:]])
        return [*lines, f"{made.read(at)} = {source};"]

    body.say(*nest(shape, entry))
    return made


def gather(body: Body, op: ops.Gather, node: Node, given: list[Value]) -> Value:
    value, numbers = body.plain(given[0]), given[1]
    made = body.room(shape_of(node), node.kind)

    def entry(at: list[str]) -> list[str]:
        lines = looked_up(body, "k0", numbers.read(at), value.shape[op.axis])
        source = value.read([*at[: op.axis], "k0", *at[op.axis + 1 :]])
        return [*lines, f"{made.read(at)} = {source};"]

    body.say(*nest(made.shape, entry))
    return made


def looked_up(body: Body, name: str, read: str, size: int) -> list[str]:
    """A place along an axis, counted from its end where it is negative."""
    return [
        f"int32_t {name} = {read};",
        f"if ({name} < 0) {name} += {in_c(size)};",
        body.require(f"{name} >= 0 && {name} < {in_c(size)}", "BAD_INDEX"),
    ]


def unpack(body: Body, op: ops.Unpack, node: Node, given: list[Value]) -> Value:
    """Of one sequence, its first steps; where the whole is to be longer, `value` behind them."""
    value, lengths = given
    shape = shape_of(node)
    own = letters_of(shape[1]) - letters_of(value.count)
    if own:
        (letter,) = own
        name = variable(letter)
        body.say(f"const int32_t {name} = {lengths.read(['0'])};")
        body.say(body.require(f"{name} >= 1 && {name} <= {in_c(value.shape[1])}", "BAD_LENGTH"))
        return sliced(value, 1, 0, shape[1])
    made = body.room(shape, node.kind)
    filling = functions.constant(op.value, node.kind)

    def entry(at: list[str]) -> list[str]:
        inside = f"{at[1]} < {lengths.read(['0'])} && {at[1]} < {in_c(value.shape[1])}"
        return [f"{made.read(at)} = {inside} ? {value.read(at)} : {filling};"]

    body.say(*nest(shape, entry))
    return made


WRITE: dict[type[ops.Operation], Write] = {
    ops.Constant: constant,
    ops.Extent: extent,
    ops.Count: count,
    ops.Full: full,
    ops.Map: applied,
    ops.Combine: combined,
    ops.Choose: chosen,
    ops.Cast: cast,
    ops.Permute: permute,
    ops.Reshape: reshape,
    ops.Expand: expand,
    ops.Slice: slice_,
    ops.Concat: concat,
    ops.Flip: flip,
    ops.Pad: pad,
    ops.Index: index,
    ops.Gather: gather,
    ops.Unpack: unpack,
}
