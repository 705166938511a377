"""Operations of a program in C that remember something from one piece of a sequence to the next.

m->begun says whether there was a piece before, n_d how many steps there were.
"""

from __future__ import annotations

from gatewise.export.c import along, functions, operations
from gatewise.export.c.body import Body
from gatewise.export.c.operations import Write, shape_of
from gatewise.export.c.sizes import alone, in_c, letters_of, product
from gatewise.export.c.values import (
    Leaf,
    Value,
    copied,
    indented,
    nest,
    number,
    permuted,
    reshaped,
    sliced,
    stored,
)
from gatewise.program import operations as ops
from gatewise.program.graph import FLOAT, INT, Node
from gatewise.program.sizes import letter, replaced

# How two pieces are joined, and the helper that this calls.
JOINED = {
    "max": ("larger", "larger({0}, {1})"),
    "min": ("smaller", "smaller({0}, {1})"),
    "any": ("", "{0} != 0 || {1} != 0"),
    "all": ("", "{0} != 0 && {1} != 0"),
    "prod": ("", "{0} * {1}"),
    "logsumexp": ("log_add", "log_add({0}, {1})"),
}
DONE = letter("D")  # steps before this piece


def at_first(lines: list[str]) -> list[str]:
    return ["if (!m->begun) {", *indented(lines), "}"]


def count(body: Body, op: ops.Count, node: Node, given: list[Value]) -> Value:
    return Value(shape_of(node), node.kind, (Leaf("", (op.step,), op.start + DONE * op.step),))


def slice_(body: Body, op: ops.Slice, node: Node, given: list[Value]) -> Value:
    """The rows of a table that belong to these steps."""
    value, steps = given[0], shape_of(node)[op.axis]
    end = op.start + DONE + steps
    body.say(body.require(f"{in_c(end)} <= {in_c(value.shape[op.axis])}", "BAD_STEPS"))
    return sliced(value, op.axis, op.start + DONE, steps)


def pad(body: Body, op: ops.Pad, node: Node, given: list[Value]) -> Value:
    return with_past(body, given[0], op.axis, op.before, op.after, op.value)


def with_past(body: Body, value: Value, axis: int, before: int, after: int, filling: float) -> Value:
    """Steps with those before them in front; before the first step of all, one number."""
    shape = list(value.shape)
    steps = shape[axis]
    shape[axis] = steps + before + after
    made = body.room(tuple(shape), value.kind)
    shape[axis] = before
    past = stored(body.remembered(product(shape)), tuple(shape), value.kind)
    text = functions.constant(filling, value.kind)
    body.say(*at_first(copied(past, number(text, past.shape, value.kind))))
    body.say(*copied(sliced(made, axis, 0, before), past))
    body.say(*copied(sliced(made, axis, before, steps), value))
    if after:
        behind = sliced(made, axis, before + steps, after)
        body.say(*copied(behind, number(text, behind.shape, value.kind)))
    body.say(*copied(past, sliced(made, axis, steps, before)))
    return made


def convolve(body: Body, op: ops.Convolve, node: Node, given: list[Value]) -> Value:
    x, *others = given
    if op.padding[0]:
        x = with_past(body, x, 2, *op.padding, 0.0)
        op = ops.Convolve(op.stride, op.dilation, op.groups, (0, 0), op.biased)
    return along.convolve(body, op, node, [x, *others])


def cumulate(body: Body, op: ops.Cumulate, node: Node, given: list[Value]) -> Value:
    made = along.cumulate(body, op, node, given)
    shape = tuple(1 if k == op.axis else size for k, size in enumerate(made.shape))
    sums = stored(body.remembered(product(shape)), shape, node.kind)
    body.say(*at_first(copied(sums, number("0", shape, node.kind))))
    whole = operations.composed(body, [made, sums], made.shape, node.kind, lambda r: f"{r[0]} + {r[1]}")
    body.say(*copied(made, whole))
    body.say(*copied(sums, sliced(made, op.axis, made.shape[op.axis] - 1, 1)))
    return made


def extent(body: Body, op: ops.Extent, node: Node, given: list[Value]) -> Value:
    """How many steps there were by the end of this piece."""
    size = alone(op.size)
    so_far = {name: letter(name) + DONE for name in letters_of(size)}
    return Value((), node.kind, (Leaf("", (), replaced(size, so_far)),))


def reduce(body: Body, op: ops.Reduce, node: Node, given: list[Value]) -> Value:
    if op.function in ("sum", "mean"):
        return running_mean(body, op, node, given)
    helper, joint = JOINED[op.function]
    if helper:
        body.call(helper)
    return joined(body, along.reduce(body, op, node, given), joint)


def matmul(body: Body, op: ops.Matmul, node: Node, given: list[Value]) -> Value:
    return joined(body, along.matmul(body, op, node, given), "{0} + {1}")


def joined(body: Body, here: Value, joint: str) -> Value:
    """What this piece says, with what those before said."""
    so_far = stored(body.remembered(product(here.shape)), here.shape, here.kind)
    both = operations.composed(body, [so_far, here], here.shape, here.kind, lambda r: joint.format(*r))
    body.say(*at_first(copied(so_far, here)), "else {", *indented(copied(so_far, both)), "}")
    return body.fresh(so_far) if here.kind != FLOAT else so_far


def running_mean(body: Body, op: ops.Reduce, node: Node, given: list[Value]) -> Value:
    """mean' = mean + (x - mean) / n; a sum is the mean times how many there were.

    Added up in floats, a million steps of 0.1 would be off by a hundredth; their mean is not.
    """
    value = given[0]
    kept = [k for k in range(len(value.shape)) if k not in op.axes]
    outer = tuple(value.shape[k] for k in kept)
    value = permuted(value, [*op.axes, *kept])
    mean = stored(body.remembered(product(outer)), outer, FLOAT)
    body.say(*at_first(copied(mean, number("0", outer, FLOAT))))
    inner = tuple(value.shape[: len(op.axes)])
    others = product([size for size in inner if not letters_of(size)])  # that are summed up with every step

    def entry(at: list[str], entries: list[str]) -> list[str]:
        own, x = mean.read(entries), value.read([*at, *entries])
        return [f"{own} += ({x} - {own}) / {seen(at)};"]

    def seen(at: list[str]) -> str:
        places = stored("", inner, INT)
        return f"(float)({in_c(DONE * others)} + {places.read(at)} + 1)"

    body.say(*nest(inner, lambda at: nest(outer, lambda entries: entry(at, entries), "j")))
    found = mean
    if op.function == "sum":
        times = number(f"({in_c(DONE * others + product(inner))})", outer, INT)
        found = operations.composed(body, [mean, times], outer, FLOAT, lambda r: f"({r[0]} * (float){r[1]})")
    if node.kind != FLOAT:
        found = operations.composed(body, [found], outer, node.kind, lambda r: f"(int32_t)rintf({r[0]})")
    shaped = reshaped(found, shape_of(node))
    assert shaped is not None
    return shaped


WRITE: dict[type[ops.Operation], Write] = {
    ops.Count: count,
    ops.Extent: extent,
    ops.Slice: slice_,
    ops.Pad: pad,
    ops.Convolve: convolve,
    ops.Cumulate: cumulate,
    ops.Reduce: reduce,
    ops.Matmul: matmul,
}
