"""Operations that take every value by itself, in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gatewise.export.onnx.graph import Graph
from gatewise.export.onnx.tensors import Held, Tensors, floor_divided
from gatewise.program.graph import BOOL, FLOAT, INT, Node
from gatewise.program.operations import COMPARISONS, Cast, Choose, Combine, Map
from gatewise.program.sizes import same
from gatewise.runtime.narrow import Ints

# Functions that are one operator, without settings.
OPERATORS = {
    "relu": "Relu", "tanh": "Tanh", "selu": "Selu", "hardswish": "HardSwish", "softsign": "Softsign", "sin": "Sin",
    "tan": "Tan", "asin": "Asin", "atan": "Atan", "sinh": "Sinh", "erf": "Erf", "abs": "Abs", "neg": "Neg",
    "sqrt": "Sqrt", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sigmoid": "Sigmoid",
    "exp": "Exp", "log": "Log", "cos": "Cos", "cosh": "Cosh", "acos": "Acos", "reciprocal": "Reciprocal",
    "not": "Not", "isnan": "IsNaN", "isinf": "IsInf",
}  # fmt: skip
PAIRS = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "maximum": "Max", "minimum": "Min",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "and": "And",
    "or": "Or", "xor": "Xor",
}  # fmt: skip
LOGICAL = ("and", "or", "xor")
ORDER = (BOOL, INT, FLOAT)


def shrink(g: Graph, x: str, width: float, bias: float) -> str:
    return g.add("Shrink", x, lambd=width, bias=bias)


def softplus(g: Graph, x: str, beta: float = 1.0, threshold: float = 20.0) -> str:
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""
    scaled = times(g, x, beta)
    soft = times(g, g.add("Softplus", scaled), 1 / beta)
    return g.add("Where", g.add("Greater", scaled, g.number(threshold)), x, soft)


def gelu(g: Graph, x: str) -> str:
    """x (1 + erf(x / sqrt 2)) / 2"""
    return times(g, g.add("Mul", x, plus(g, g.add("Erf", times(g, x, math.sqrt(0.5))), 1)), 0.5)


def gelu_tanh(g: Graph, x: str) -> str:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2"""
    cubed = times(g, g.add("Mul", g.add("Mul", x, x), x), 0.044715)
    inner = times(g, g.add("Add", x, cubed), math.sqrt(2 / math.pi))
    return times(g, g.add("Mul", x, plus(g, g.add("Tanh", inner), 1)), 0.5)


def clamp(g: Graph, x: str, low: float, high: float) -> str:
    limits = ["" if math.isinf(limit) else g.number(limit) for limit in (low, high)]
    return g.add("Clip", x, *limits)


def times(g: Graph, x: str, factor: float) -> str:
    return x if factor == 1 else g.add("Mul", x, g.number(factor))


def plus(g: Graph, x: str, shift: float) -> str:
    return g.add("Add", x, g.number(shift))


FUNCTIONS: dict[str, Callable[..., str]] = {
    "relu6": lambda g, x: clamp(g, x, 0, 6),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda g, x: g.add("Mul", x, g.add("Sigmoid", x)),
    "elu": lambda g, x, alpha: g.add("Elu", x, alpha=alpha),
    "celu": lambda g, x, alpha: g.add("Celu", x, alpha=alpha),
    "leaky_relu": lambda g, x, slope: g.add("LeakyRelu", x, alpha=slope),
    "mish": lambda g, x: g.add("Mul", x, g.add("Tanh", softplus(g, x))),
    "tanhshrink": lambda g, x: g.add("Sub", x, g.add("Tanh", x)),
    "hardshrink": lambda g, x, width: shrink(g, x, width, 0.0),
    "softshrink": lambda g, x, width: shrink(g, x, width, width),
    "square": lambda g, x: g.add("Mul", x, x),
    "trunc": lambda g, x: g.add("Mul", g.add("Sign", x), g.add("Floor", g.add("Abs", x))),
    "expm1": lambda g, x: plus(g, g.add("Exp", x), -1),
    "log1p": lambda g, x: g.add("Log", plus(g, x, 1)),
    "hardsigmoid": lambda g, x: g.add("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "exp2": lambda g, x: g.add("Exp", times(g, x, math.log(2))),
    "log2": lambda g, x: times(g, g.add("Log", x), 1 / math.log(2)),
    "log10": lambda g, x: times(g, g.add("Log", x), 1 / math.log(10)),
    "softplus": softplus,
    "logsigmoid": lambda g, x: g.add("Neg", g.add("Softplus", g.add("Neg", x))),
    "clamp": clamp,
    "rsqrt": lambda g, x: g.add("Reciprocal", g.add("Sqrt", x)),
    "threshold": lambda g, x, limit, value: g.add(
        "Where", g.add("Greater", x, g.number(limit)), x, g.number(value)
    ),
}


def mapped(t: Tensors, node: Node, op: Map) -> Held:
    (source,) = node.inputs
    if op.function == "not":
        return Held(t.graph.add("Not", t.whole(source, BOOL)))
    held = t.some(source) if op.keeps_zero else Held(t.whole(source))
    # Whole numbers stay exact below 2^24, which is as far as counts of steps and words go.
    x = t.cast(held.name, source.kind, FLOAT)
    if op.function in OPERATORS:
        made = t.graph.add(OPERATORS[op.function], x)
    else:
        made = FUNCTIONS[op.function](t.graph, x, *op.settings)
    kind = BOOL if op.function in ("isnan", "isinf") else FLOAT
    return Held(t.cast(made, kind, node.kind), held.kept)


def combined(t: Tensors, node: Node, op: Combine) -> Held:
    a, b = node.inputs
    kind = operand_kind(op.function, node)
    kept = shared_channels(t, node, op.function)
    x, y = (
        t.whole(source, kind) if kept is None else t.cast(t.some(source).name, source.kind, kind)
        for source in (a, b)
    )
    return Held(
        t.cast(pair(t.graph, op.function, x, y, kind), result_kind(op.function, kind), node.kind), kept
    )


def operand_kind(function: str, node: Node) -> str:
    if function in LOGICAL:
        return BOOL
    if function in COMPARISONS:
        kind = max((source.kind for source in node.inputs), key=ORDER.index)
        return kind if function in ("eq", "ne") else max(kind, INT, key=ORDER.index)
    return FLOAT if function in ("div", "atan2", "pow") else max(node.kind, INT, key=ORDER.index)


def result_kind(function: str, kind: str) -> str:
    return BOOL if function in COMPARISONS else kind


def pair(g: Graph, function: str, x: str, y: str, kind: str) -> str:
    if function in PAIRS:
        return g.add(PAIRS[function], x, y)
    if function == "ne":
        return g.add("Not", g.add("Equal", x, y))
    if function == "atan2":
        return angle(g, x, y)
    if kind == INT:
        return g.add("Mod", x, y) if function == "remainder" else floor_divided(g, x, y)
    floor = g.add("Floor", g.add("Div", x, y))
    return floor if function == "floordiv" else g.add("Sub", x, g.add("Mul", floor, y))


def angle(g: Graph, y: str, x: str) -> str:
    """atan2(y, x): atan(y / x), half a turn further where x < 0, and +- a quarter where x = 0."""
    zero = g.number(0)
    flat = g.add("Atan", g.add("Div", y, x))
    turned = g.add("Where", g.add("Less", y, zero), plus(g, flat, -math.pi), plus(g, flat, math.pi))
    upright = times(g, g.add("Sign", y), math.pi / 2)
    sided = g.add("Where", g.add("Less", x, zero), turned, flat)
    return g.add("Where", g.add("Equal", x, zero), upright, sided)


def shared_channels(t: Tensors, node: Node, function: str) -> Ints | None:
    """Channels beyond which an answer is zero: both values have them, or one has and the other is a single factor."""
    a, b = (t.some(source) for source in node.inputs)
    if a.kept is not None and b.kept is not None:
        alike = node.inputs[0].shape[-1] == node.inputs[1].shape[-1] and np.array_equal(a.kept, b.kept)
        return a.kept if alike and function in ("add", "sub", "mul", "maximum", "minimum") else None
    single = [source.rank == 0 or same(source.shape[-1], 1) for source in node.inputs]
    if function == "mul" and a.kept is not None and single[1]:
        return a.kept
    return b.kept if function == "mul" and single[0] else None


def chosen(t: Tensors, node: Node, op: Choose) -> str:
    """ONNX Runtime chooses between numbers only."""
    kind = INT if node.kind == BOOL else node.kind
    asked, *values = node.inputs
    made = t.graph.add("Where", t.whole(asked, BOOL), *(t.whole(value, kind) for value in values))
    return t.cast(made, kind, node.kind)


def cast(t: Tensors, node: Node, op: Cast) -> Held:
    (source,) = node.inputs
    held = t.some(source)
    return Held(t.cast(held.name, source.kind, node.kind), held.kept)


RULES = {Map: mapped, Combine: combined, Choose: chosen, Cast: cast}
