"""Operations of a program in C that look along axes: sums and maxima, softmax, products, convolutions, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gatewise.export.c.arrays import literal
from gatewise.export.c.body import C_KINDS, Body
from gatewise.export.c.operations import Write, composed, shape_of
from gatewise.export.c.sizes import in_c, product
from gatewise.export.c.values import Value, copied, expanded, indented, looped, nest, permuted, reshaped
from gatewise.program import operations as ops
from gatewise.program.graph import FLOAT, Node

# How an answer begins, what every entry x does to it, and what is made of it at the end; n is how many there are.
FOLDS = {
    "sum": ("0", "a += {x};", "a"),
    "mean": ("0", "a += {x};", "a / (float)({n})"),
    "prod": ("1", "a *= {x};", "a"),
    "any": ("0", "a |= {x} != 0;", "a"),
    "all": ("1", "a &= {x} != 0;", "a"),
    "max": ("-INFINITY", "a = larger(a, {x});", "a"),
    "min": ("INFINITY", "a = smaller(a, {x});", "a"),
}
OF_INTEGERS = {
    "max": ("INT32_MIN", "if ({x} > a) a = {x};", "a"),
    "min": ("INT32_MAX", "if ({x} < a) a = {x};", "a"),
}


def reduce(body: Body, op: ops.Reduce, node: Node, given: list[Value]) -> Value:
    value = body.plain(given[0]) if op.function not in FOLDS else given[0]
    kept = [k for k in range(len(value.shape)) if k not in op.axes]
    outer = tuple(value.shape[k] for k in kept)
    inner = tuple(value.shape[k] for k in op.axes)
    value = permuted(value, [*kept, *op.axes])
    made = body.room(outer, node.kind)

    def each(at: list[str], line: Callable[[str], list[str]]) -> list[str]:
        return nest(inner, lambda within: line(value.read([*at, *within])), "j")

    def entry(at: list[str]) -> list[str]:
        return folded(body, op, inner, lambda line: each(at, line), made.read(at), C_KINDS[node.kind])

    body.say(*nest(outer, entry))
    found = reshaped(made, shape_of(node))
    assert found is not None
    return found


Each = Callable[[Callable[[str], list[str]]], list[str]]


def folded(body: Body, op: ops.Reduce, inner: Sequence[int], each: Each, answer: str, kind: str) -> list[str]:
    """One answer of a reduction."""
    n = in_c(product(inner))
    if op.function not in FOLDS:
        if op.function not in FURTHER:
            raise NotImplementedError(op.function)
        return FURTHER[op.function](op, each, answer, n)
    begin, step, end = FOLDS[op.function]
    if op.function in OF_INTEGERS:
        if kind == "float":
            body.call("larger" if op.function == "max" else "smaller")
        else:
            begin, step, end = OF_INTEGERS[op.function]
    return [f"{kind} a = {begin};", *each(lambda x: [step.format(x=x)]), f"{answer} = {end.format(n=n)};"]


def extreme(op: ops.Reduce, each: Each, answer: str, n: str) -> list[str]:
    """The first place of the largest or smallest entry, counted row by row."""
    sign = ">" if op.function == "argmax" else "<"
    first = "-INFINITY" if op.function == "argmax" else "INFINITY"
    return [
        f"float a = {first};",
        "int32_t place = 0, best = 0;",
        *each(lambda x: [f"if ({x} {sign} a) a = {x}, best = place;", "place++;"]),
        f"{answer} = best;",
    ]


def logsumexp(op: ops.Reduce, each: Each, answer: str, n: str) -> list[str]:
    return [
        "float a = -INFINITY, sum = 0;",
        *each(lambda x: [f"if ({x} > a) a = {x};"]),
        *each(lambda x: [f"sum += expf({x} - a);"]),
        f"{answer} = a + logf(sum);",
    ]


def deviation(op: ops.Reduce, each: Each, answer: str, n: str) -> list[str]:
    less = literal(op.settings[0] if op.settings else 1.0)
    variance = f"sum / ((float)({n}) - {less})"
    return [
        "float a = 0, sum = 0;",
        *each(lambda x: [f"a += {x};"]),
        f"a /= (float)({n});",
        *each(lambda x: [f"sum += ({x} - a) * ({x} - a);"]),
        f"{answer} = {variance if op.function == 'var' else f'sqrtf({variance})'};",
    ]


def norm(op: ops.Reduce, each: Each, answer: str, n: str) -> list[str]:
    p = op.settings[0] if op.settings else 2.0
    if p in (float("inf"), float("-inf")):
        begin, sign = ("0", ">") if p > 0 else ("INFINITY", "<")
        return [
            f"float a = {begin};",
            *each(lambda x: [f"if (fabsf({x}) {sign} a) a = fabsf({x});"]),
            f"{answer} = a;",
        ]
    if p == 2:
        return ["float a = 0;", *each(lambda x: [f"a += {x} * {x};"]), f"{answer} = sqrtf(a);"]
    power = literal(p)
    return [
        "float a = 0;",
        *each(lambda x: [f"a += powf(fabsf({x}), {power});"]),
        f"{answer} = powf(a, 1 / {power});",
    ]


FURTHER: dict[str, Callable[[ops.Reduce, Each, str, str], list[str]]] = {
    "argmax": extreme,
    "argmin": extreme,
    "logsumexp": logsumexp,
    "std": deviation,
    "var": deviation,
    "norm": norm,
}


def softmax(body: Body, op: ops.Softmax, node: Node, given: list[Value]) -> Value:
    made, wanted = body.answer(node, shape_of(node))
    n, inner = made.shape[op.axis], product(made.shape[op.axis + 1 :])
    outer = product(made.shape[: op.axis])
    helper = body.call("log_softmax" if op.log else "softmax")
    call = f"{helper}({in_c(outer)}, {in_c(n)}, {in_c(inner)}, {made.leaves[0].begin});"
    body.say(f"{wanted}{{", *indented([*copied(made, given[0]), call]), "}")
    return made


def cumulate(body: Body, op: ops.Cumulate, node: Node, given: list[Value]) -> Value:
    made = body.room(shape_of(node), node.kind)
    order = [k for k in range(len(made.shape)) if k != op.axis]
    value, target = permuted(given[0], [*order, op.axis]), permuted(made, [*order, op.axis])
    n, kind = made.shape[op.axis], C_KINDS[node.kind]

    def entry(at: list[str]) -> list[str]:
        step = f"{target.read([*at, 't'])} = a += {value.read([*at, 't'])};"
        return [f"{kind} a = 0;", f"for (int32_t t = 0; t < {in_c(n)}; t++) {step}"]

    body.say(*nest(target.shape[:-1], entry))
    return made


def matmul(body: Body, op: ops.Matmul, node: Node, given: list[Value]) -> Value:
    a, b = (body.plain(value) for value in given)
    made = body.room(shape_of(node), node.kind)
    front = made.shape[:-2]
    a, b = expanded(a, (*front, *a.shape[-2:])), expanded(b, (*front, *b.shape[-2:]))
    k = a.shape[-1]

    def entry(at: list[str]) -> list[str]:
        *before, row, column = at
        one, other = a.read([*before, row, "k"]), b.read([*before, "k", column])
        return [
            "float a = 0;",
            f"for (int32_t k = 0; k < {in_c(k)}; k++) a += {one} * {other};",
            f"{made.read(at)} = a;",
        ]

    body.say(*nest(made.shape, entry))
    return made


def layer_norm(body: Body, op: ops.LayerNorm, node: Node, given: list[Value]) -> Value:
    value, *affine = given
    made = body.fresh(value)
    rows, n = product(made.shape[: -op.axes]), product(made.shape[-op.axes :])
    body.includes.add("norm.h")
    place = made.leaves[0].begin
    body.say(f"gw_layer_norm({in_c(rows)}, {in_c(n)}, {literal(op.eps)}, {place});")
    signs = [sign for sign, there in ((" * ", op.scaled), (" + ", op.shifted)) if there]

    def text(reads: list[str]) -> str:
        return "(" + reads[0] + "".join(sign + read for sign, read in zip(signs, reads[1:])) + ")"

    return composed(body, [made, *affine], made.shape, FLOAT, text) if affine else made


def convolve(body: Body, op: ops.Convolve, node: Node, given: list[Value]) -> Value:
    x, weight, *bias = (body.plain(value) for value in given)
    made = body.room(shape_of(node))
    filters, each, width = weight.shape
    steps, group = x.shape[2], filters // op.groups
    body.say(body.require(f"{in_c(made.shape[2])} >= 1", "BAD_STEPS"))

    def entry(at: list[str]) -> list[str]:
        batch, out, t = at
        channel = "c" if op.groups == 1 else f"{out} / {group} * {each} + c"
        source = [f"a += {x.read([batch, 'g', 'p'])} * {weight.read([out, 'c', 'k'])};"]
        place = [f"const int32_t g = {channel}, p = {window(t, 'k', op)};"]
        inside = [*place, *within(op.padding, "p", steps, source)]
        return [
            f"float a = {bias[0].read([out]) if bias else '0'};",
            *looped("c", each, looped("k", width, inside)),
            f"{made.read(at)} = a;",
        ]

    body.say(*nest(made.shape, entry))
    return made


def window(t: str, k: str, op: ops.Convolve | ops.Pool) -> str:
    begin = t if op.stride == 1 else f"{t} * {op.stride}"
    step = k if op.dilation == 1 else f"{k} * {op.dilation}"
    return f"{begin} + {step}" + (f" - {op.padding[0]}" if op.padding[0] else "")


def within(padding: tuple[int, int], place: str, size: int, lines: list[str]) -> list[str]:
    if padding == (0, 0):
        return lines
    return [f"if ({place} >= 0 && {place} < {in_c(size)}) {lines[0]}", *lines[1:]]


def pool(body: Body, op: ops.Pool, node: Node, given: list[Value]) -> Value:
    x = body.plain(given[0])
    made = body.room(shape_of(node))
    size = x.shape[-1]
    body.say(body.require(f"{in_c(made.shape[-1])} >= 1", "BAD_STEPS"))
    maximum = op.function == "max"
    if maximum:
        body.call("larger")

    def entry(at: list[str]) -> list[str]:
        *before, t = at
        read = x.read([*before, "p"])
        step = [f"a = larger(a, {read});"] if maximum else [f"a += {read}, n++;"]
        inside = [f"const int32_t p = {window(t, 'k', op)};", *within(op.padding, "p", size, step)]
        divisor = str(op.kernel) if op.counts_padding else "n"
        loop = looped("k", op.kernel, inside)
        if maximum:
            return ["float a = -INFINITY;", *loop, f"{made.read(at)} = a;"]
        return ["float a = 0;", "int32_t n = 0;", *loop, f"{made.read(at)} = a / (float){divisor};"]

    body.say(*nest(made.shape, entry))
    return made


WRITE: dict[type[ops.Operation], Write] = {
    ops.Reduce: reduce,
    ops.Softmax: softmax,
    ops.Cumulate: cumulate,
    ops.Matmul: matmul,
    ops.LayerNorm: layer_norm,
    ops.Convolve: convolve,
    ops.Pool: pool,
}
