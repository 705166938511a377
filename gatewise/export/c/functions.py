"""Functions of one and of two values in C: an expression, or a small function that the source then has."""

from __future__ import annotations

import re

from gatewise.export.c.arrays import literal
from gatewise.program.graph import BOOL, FLOAT, INT

# Functions of <math.h> by the name of the operation.
OF_MATH = {
    name: f"{name}f"
    for name in "exp exp2 log log2 log10 sin cos tan asin acos atan sinh cosh tanh erf sqrt expm1 log1p".split()
} | {"floor": "floorf", "ceil": "ceilf", "trunc": "truncf", "abs": "fabsf", "round": "rintf"}

# Functions of one value and their settings, as a body of C; another function may be called if it stands before.
BODIES = {
    "relu": "x < 0 ? 0 : x",
    "relu6": "x < 0 ? 0 : x > 6 ? 6 : x",
    "sigmoid": "1 / (1 + expf(-x))",
    "hardsigmoid": "x < -3 ? 0 : x > 3 ? 1 : x / 6 + 0.5f",
    "gelu": "0.5f * x * (1 + erff(x * 0.707106781f))",
    "gelu_tanh": "0.5f * x * (1 + tanhf(0.797884561f * (x + 0.044715f * x * x * x)))",
    "silu": "x / (1 + expf(-x))",
    "hardswish": "x < -3 ? 0 : x > 3 ? x : x * (x + 3) / 6",
    "mish": "x * tanhf(x > 20 ? x : log1pf(expf(x)))",
    "elu": "x > 0 ? x : a * expm1f(x)",
    "celu": "x > 0 ? x : a * expm1f(x / a)",
    "selu": "1.05070099f * (x > 0 ? x : 1.67326324f * expm1f(x))",
    "leaky_relu": "x > 0 ? x : a * x",
    "softplus": "x * a > b ? x : log1pf(expf(x * a)) / a",
    "logsigmoid": "(x < 0 ? x : 0) - log1pf(expf(-fabsf(x)))",
    "softsign": "x / (1 + fabsf(x))",
    "tanhshrink": "x - tanhf(x)",
    "hardshrink": "x > a || x < -a ? x : 0",
    "softshrink": "x > a ? x - a : x < -a ? x + a : 0",
    "clamp": "x < a ? a : x > b ? b : x",
    "threshold": "x > a ? x : b",
    "square": "x * x",
    "sign": "(float)((x > 0) - (x < 0))",
    "reciprocal": "1 / x",
    "rsqrt": "1 / sqrtf(x)",
}
SETTINGS = {"elu": (1.0,), "celu": (1.0,), "leaky_relu": (0.01,), "softplus": (1.0, 20.0), "hardshrink": (0.5,),
            "softshrink": (0.5,)}  # fmt: skip

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
         "ge": ">="}  # fmt: skip
BITS = {"and": "&", "or": "|", "xor": "^"}
LARGEST_INT = 2**31 - 1


def mapped(function: str, settings: tuple[float, ...], x: str, given: str, kind: str) -> tuple[str, str]:
    """f(x) as an expression, and the name of the helper that it calls, or nothing."""
    if function == "neg":
        return f"(-{x})", ""
    if function == "not":
        return f"(!{x})", ""
    if function in ("isnan", "isinf"):
        return f"({function}({x}) != 0)", ""
    if function in OF_MATH:
        call, helper = f"{OF_MATH[function]}({x if given == FLOAT else f'(float){x}'})", ""
    elif function in BODIES:
        numbers = settings or SETTINGS.get(function, ())
        call, helper = f"{function}_of({', '.join([x, *map(literal, numbers)])})", function
    else:
        raise NotImplementedError(function)
    return (call if kind == FLOAT else f"(int32_t){call}"), helper


def body(function: str) -> str:
    """The helper of a function of one value."""
    given = "".join(f", float {name}" for name in "ab" if re.search(rf"\b{name}\b", BODIES[function]))
    return f"static float {function}_of(float x{given}) {{ return {BODIES[function]}; }}\n"


def combined(function: str, a: str, b: str, kinds: tuple[str, str], kind: str) -> tuple[str, str]:
    """f(a, b) as an expression, and the name of the helper that it calls, or nothing."""
    whole = FLOAT not in kinds
    if function == "div":
        return (f"((float){a} / {b})" if whole else f"({a} / {b})"), ""
    if function in SIGNS:
        return f"({a} {SIGNS[function]} {b})", ""
    if function in BITS:
        if kind == BOOL:
            a, b = (f"({x} != 0)" for x in (a, b))
        return f"({a} {BITS[function]} {b})", ""
    if function == "pow":
        return (f"powf({a}, {b})" if kind == FLOAT else f"(int32_t)powf({a}, {b})"), ""
    if function == "atan2":
        return f"atan2f({a}, {b})", ""
    if function in ("maximum", "minimum"):
        helper = "larger" if function == "maximum" else "smaller"
        return f"{'' if kind == FLOAT else '(int32_t)'}{helper}({a}, {b})", helper
    if function in ("floordiv", "remainder"):
        return divided(function, a, b, whole)
    raise NotImplementedError(function)


def divided(function: str, a: str, b: str, whole: bool) -> tuple[str, str]:
    if function == "floordiv":
        return (f"floor_div({a}, {b})", "floor_div") if whole else (f"floorf({a} / {b})", "")
    if whole:
        return f"({a} - floor_div({a}, {b}) * {b})", "floor_div"
    return f"({a} - floorf({a} / {b}) * {b})", ""


def constant(value: float, kind: str) -> str:
    """A number of a program, as C writes one of its kind."""
    if kind == FLOAT:
        text = literal(value)
        return f"({text})" if text.startswith("-") else text
    if kind == INT and abs(value) > LARGEST_INT:
        raise ValueError(f"{value} does not fit into a whole number of 4 bytes, which C computes with.")
    return f"({int(value)})" if value < 0 else str(int(value))
