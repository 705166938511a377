"""Operations of a program in C that remember something from one piece of a sequence to the next.

m->begun says whether there was a piece before, n_d how many steps there were.
"""

from __future__ import annotations

from gatewise.export import calong, cfunctions, coperations
from gatewise.export.cbody import Body
from gatewise.export.coperations import Write, shape_of
from gatewise.export.csizes import in_c, letters_of, product
from gatewise.export.cstream import Stream
from gatewise.export.cvalues import (
    Leaf,
    Value,
    copied,
    expanded,
    nest,
    number,
    permuted,
    reshaped,
    sliced,
    stored,
)
from gatewise.program import operations as ops
from gatewise.program.graph import FLOAT, Node
from gatewise.program.sizes import letter

DONE = letter("D")  # steps before this piece


def at_first(lines: list[str]) -> list[str]:
    return ["if (!m->begun) {", *(f"    {line}" for line in lines), "}"]


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
    text = cfunctions.constant(filling, value.kind)
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
    return calong.convolve(body, op, node, [x, *others])


def cumulate(body: Body, op: ops.Cumulate, node: Node, given: list[Value]) -> Value:
    made = calong.cumulate(body, op, node, given)
    shape = tuple(1 if k == op.axis else size for k, size in enumerate(made.shape))
    sums = stored(body.remembered(product(shape)), shape, node.kind)
    body.say(*at_first(copied(sums, number("0", shape, node.kind))))
    whole = coperations.composed(body, [made, sums], made.shape, node.kind, lambda r: f"{r[0]} + {r[1]}")
    body.say(*copied(made, whole))
    body.say(*copied(sums, sliced(made, op.axis, made.shape[op.axis] - 1, 1)))
    return made


def reduce(body: Body, op: ops.Reduce, node: Node, given: list[Value]) -> Value:
    """A running maximum, minimum or mean; a sum is the mean times how many there were.

    Added up in floats, a million steps of 0.1 would be off by a hundredth; their mean is not.
    """
    value = given[0]
    kept = [k for k in range(len(value.shape)) if k not in op.axes]
    outer = tuple(value.shape[k] for k in kept)
    value = permuted(value, [*op.axes, *kept])
    answer = stored(body.remembered(product(outer)), outer, FLOAT)
    seen = body.remembered(1)
    extreme = op.function in ("max", "min")
    first = {"max": "-INFINITY", "min": "INFINITY"}.get(op.function, "0")
    body.say(*at_first([*copied(answer, number(first, outer, FLOAT)), f"{seen}[0] = 0;"]))
    better = body.call("larger" if op.function == "max" else "smaller") if extreme else ""

    def entry(at: list[str], entries: list[str]) -> list[str]:
        own, x = answer.read(entries), value.read([*at, *entries])
        return [f"{own} = {better}({own}, {x});" if extreme else f"{own} += ({x} - {own}) / {seen}[0];"]

    inner = tuple(value.shape[: len(op.axes)])
    body.say(
        *nest(inner, lambda at: [f"{seen}[0] += 1;", *nest(outer, lambda entries: entry(at, entries), "j")])
    )
    times = stored(seen, (1,) * len(outer), FLOAT)
    found = answer
    if op.function == "sum":
        found = coperations.composed(body, [answer, times], outer, FLOAT, lambda r: f"({r[0]} * {r[1]})")
    if node.kind != FLOAT:
        found = coperations.composed(body, [found], outer, node.kind, lambda r: f"(int32_t)rintf({r[0]})")
    shaped = reshaped(found, shape_of(node))
    assert shaped is not None
    return shaped


# A softmax over the steps, and the sum of what it weighs:
#
#     e_t = exp(x_t - top)     top' = max(top, x_t)     sum' = sum * factor + e_t     factor = exp(top - top')
#
# Sums so far are multiplied by the factor, and divided by the sum when they are read.


def softmax(body: Body, op: ops.Softmax, node: Node, given: list[Value]) -> Value:
    made = body.fresh(given[0])
    before, behind = made.shape[: op.axis], made.shape[op.axis + 1 :]
    rows = (*before, 1, *behind)
    top, total = (stored(body.remembered(product(rows)), rows, FLOAT) for _ in range(2))
    factor = body.room(rows)
    sizes = ", ".join(in_c(size) for size in (product(before), made.shape[op.axis], product(behind)))
    places = ", ".join(value.leaves[0].base for value in (made, top, total, factor))
    body.say(f"{body.call('go_on_softmax')}(m->begun, {sizes}, {places});")
    body.running[node] = (factor, total)
    return made


def weighing(body: Body, op: ops.Operation, node: Node, given: list[Value]) -> Value:
    """Weights that are moved or multiplied; their factors and sums go along."""
    shape = tuple(1 if letters_of(size) else size for size in shape_of(node))
    source = next(source for source in node.inputs if source in body.running)
    moved: list[Value] = []
    for value in body.running[source]:
        if isinstance(op, ops.Permute):
            moved.append(permuted(value, op.order))
        else:
            found = reshaped(value, shape) if isinstance(op, ops.Reshape) else expanded(value, shape)
            assert found is not None
            moved.append(found)
    body.running[node] = (moved[0], moved[1])
    return coperations.WRITE[type(op)](body, op, node, given)


def weighted_sum(body: Body, op: ops.Reduce | ops.Matmul, node: Node, given: list[Value]) -> Value:
    shape = shape_of(node)
    here = calong.WRITE[type(op)](body, op, node, given)
    source = next(source for source in node.inputs if source in body.running)
    if isinstance(op, ops.Reduce):
        without = tuple(1 if letters_of(size) else size for size in shape_of(source))
        pair = [reshaped(expanded(value, without), shape) for value in body.running[source]]
    else:
        pair = [expanded(value, shape) for value in body.running[source]]
    factor, total = pair
    assert factor is not None
    assert total is not None
    so_far = stored(body.remembered(product(shape)), shape, FLOAT)
    body.say(*at_first(copied(so_far, number("0", shape, FLOAT))))
    parts = [so_far, factor, here]
    body.say(
        *copied(
            so_far, coperations.composed(body, parts, shape, FLOAT, lambda r: f"{r[0]} * {r[1]} + {r[2]}")
        )
    )
    return coperations.composed(body, [so_far, total], shape, FLOAT, lambda r: f"({r[0]} / {r[1]})")


def soft(stream: Stream, node: Node) -> Write | None:
    """How what a softmax over the steps leads to is written."""
    kinds = {stream.flows[source].kind for source in node.inputs}
    if kinds & {"weights", "weighted"}:
        return weighing if stream.flows[node].has_steps else weighted_sum
    return softmax if stream.flows[node].kind == "weights" else None


def piecewise(stream: Stream, node: Node) -> Write | None:
    """How an operation is written that goes on from piece to piece; None where pieces do not matter."""
    attention = soft(stream, node)
    if attention is not None:
        return attention
    op, steps = node.op, [k for k, source in enumerate(node.inputs) if stream.is_steps(source)]
    axis = stream.flows[node.inputs[0]].axis if steps else None
    if isinstance(op, ops.Count) and letters_of(shape_of(node)[0]):
        return count
    if isinstance(op, ops.Slice) and not steps and stream.is_steps(node):
        return slice_
    if not steps:
        return None
    if isinstance(op, ops.Pad) and op.axis == axis and op.before:
        return pad
    if isinstance(op, ops.Convolve):
        return convolve
    if isinstance(op, ops.Cumulate) and op.axis == axis:
        return cumulate
    if isinstance(op, ops.Reduce) and axis in op.axes:
        return reduce
    return None
