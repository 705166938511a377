"""What torch's functions mean that take every value by itself: of one tensor, or of two.

A rule takes what torch's function takes. Its tensors are stand-ins, whatever they were, so a rule may be written in
torch itself: a * b is recorded like that of forward().
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import torch

from gatewise.program import operations as ops
from gatewise.program.fits import broadcast, require
from gatewise.program.graph import BOOL, FLOAT, INT, Node
from gatewise.program.operations import Cast, Choose, Combine, Constant, Input, Map
from gatewise.program.recorder import decide, kind_of, made, node_of, tensor_of
from gatewise.program.sizes import Size, same_shape
from gatewise.program.stand_ins import Recorded, Refused, current

Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Register a function for the names under which torch calls it."""

    def register(function: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def also_called(**names: str) -> None:
    """Further names of rules: `negative="neg"`."""
    RULES.update({other: RULES[name] for other, name in names.items()})


# Functions of one value.

TO_BOOL = ("isnan", "isinf", "not")
KEEP_KIND = ("neg", "abs", "square", "sign", "clamp", "relu")
# Settings that functions have: their names in torch, and what they are unless said; None: they must be.
SETTINGS: dict[str, dict[str, float | None]] = {
    **{function: {} for function in ops.KEEPS_ZERO | ops.MOVES_ZERO},
    "elu": {"alpha": 1.0},
    "celu": {"alpha": 1.0},
    "leaky_relu": {"negative_slope": 0.01},
    "softplus": {"beta": 1.0, "threshold": 20.0},
    "hardshrink": {"lambd": 0.5},
    "softshrink": {"lambd": 0.5},
    "threshold": {"threshold": None, "value": None},
}


def pointwise(x: Recorded, function: str, settings: Iterable[Any] = ()) -> Recorded:
    kind = BOOL if function in TO_BOOL else x.node.kind if function in KEEP_KIND else FLOAT
    return made(Map(function, tuple(map(number, settings))), [x], x.node.shape, kind)


def number(value: Any) -> float:
    if isinstance(value, Recorded | Size) or not isinstance(value, int | float):
        raise Refused("a setting of a function is a tensor or a size")
    return float(value)


def of_one(function: str, x: Recorded, *given: Any, **named: Any) -> Recorded:
    usual = SETTINGS[function]
    settings = {**usual, **dict(zip(usual, given)), **named}
    if len(given) > len(usual) or settings.keys() != usual.keys():
        raise Refused(f"{function}() with settings that a program does not have")
    return pointwise(x, function, settings.values())


RULES.update({function: partial(of_one, function) for function in SETTINGS})
also_called(absolute="abs", negative="neg", arctan="atan", arcsin="asin", arccos="acos", fix="trunc",
            log_sigmoid="logsigmoid", _threshold="threshold")  # fmt: skip


@rule("gelu")
def gelu(x: Recorded, approximate: str = "none") -> Recorded:
    return pointwise(x, "gelu_tanh" if approximate == "tanh" else "gelu")


@rule("prelu")
def prelu(x: Recorded, weight: Recorded) -> Any:
    """max(x, 0) + a min(x, 0), with one a, or one for every channel of axis 1."""
    if weight.node.shape != (1,) and x.node.rank > 1:
        weight = weight.reshape(-1, *[1] * (x.node.rank - 2))  # type: ignore[assignment]
    return pointwise(x, "relu") + pointwise(x, "clamp", (-math.inf, 0.0)) * weight


@rule("clamp", "clip")
def clamp(x: Recorded, min: Any = None, max: Any = None) -> Recorded:
    if any(isinstance(limit, torch.Tensor | Size) for limit in (min, max)):
        low = x if min is None else combine("maximum", x, min)
        return low if max is None else combine("minimum", low, max)
    if any(isinstance(limit, float) for limit in (min, max)):  # counts become floats, as in torch
        x = cast(x, FLOAT)
    return pointwise(x, "clamp", (-math.inf if min is None else min, math.inf if max is None else max))


RULES["clamp_min"] = clamp
RULES["clamp_max"] = lambda x, max: clamp(x, None, max)
RULES["hardtanh"] = lambda x, min_val=-1.0, max_val=1.0: clamp(x, min_val, max_val)


@rule("glu")
def glu(x: Recorded, dim: int = -1) -> Any:
    one, other = x.chunk(2, dim)
    return one * other.sigmoid()


@rule("invert", "bitwise_not", "logical_not")
def invert(x: Recorded) -> Recorded:
    decide(x.node, BOOL)
    if x.node.kind != BOOL:
        raise Refused("it inverts the bits of numbers")
    return pointwise(x, "not")


# Functions that hand on what they are given: in evaluation, on one device, without gradients.


@rule("contiguous", "detach", "dropout", "dropout1d", "feature_dropout", "alpha_dropout", "cpu", "cuda",
      "requires_grad_", "detach_", "feature_alpha_dropout", "positive", "alias", "pin_memory", "data",
      "resolve_conj")  # fmt: skip
def handed_on(x: Recorded, *args: Any, **kwargs: Any) -> Any:
    training = kwargs.get("training", args[1] if len(args) > 1 else False)
    if isinstance(training, Recorded):
        raise Refused("it drops values if a tensor says so")
    if training is True and kwargs.get("p", args[0] if args else 0.5) and not current().lenient:
        raise Refused("it drops values in evaluation, too")
    return x.alias()


RULES["clone"] = lambda x, **_: Recorded.of(x.node)
RULES["requires_grad"] = lambda x: False


def cast(x: Recorded, kind: str | None) -> Recorded:
    node = x.node
    if node.kind is None and kind == INT and isinstance(node.op, Input) and node.rank < 3:
        decide(node, INT)  # words or lengths
    return x.alias() if kind is None or node.kind == kind else made(Cast(), [x], node.shape, kind)


def cast_to(x: Recorded, dtype: torch.dtype) -> Recorded:
    """Numbers of another type. One that holds fewer changes what it is given, unless that is true or false."""
    if dtype in NARROW and x.node.kind != BOOL and not current().lenient:
        raise Refused(f"a cast to {dtype} changes what it is given")
    return cast(x, kind_of(dtype))


NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16)
for _name, _dtype in {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
    "long": torch.int64, "int": torch.int32, "short": torch.int16, "byte": torch.uint8, "bool": torch.bool,
}.items():  # fmt: skip
    RULES[_name] = lambda x, *_, dtype=_dtype, **__: cast_to(x, dtype)


@rule("to", "type", "type_as")
def converted(x: Recorded, *args: Any, **kwargs: Any) -> Recorded:
    for other in (*args, *kwargs.values()):
        if isinstance(other, Recorded):
            tensor = tensor_of(other)
            return cast(x, other.node.kind) if tensor is None else cast_to(x, tensor.dtype)
        if isinstance(other, torch.dtype):
            return cast_to(x, other)
    return x.alias()


# Functions of two values.


def promoted(function: str, a: Node, b: Node) -> str | None:
    """The kind of what two values give; None while that of an argument is not known."""
    kinds = (a.kind, b.kind)
    if function == "div" or FLOAT in kinds:
        return FLOAT
    if None in kinds:
        return None
    return INT if INT in kinds else BOOL


def combine(function: str, a: Any, b: Any) -> Recorded:
    one, other = node_of(a), node_of(b)
    shape = broadcast(one.shape, other.shape)
    return made(Combine(function), [one, other], shape, promoted(function, one, other))


def compare(function: str, a: Any, b: Any) -> Recorded:
    one, other = node_of(a), node_of(b)
    shape = broadcast(one.shape, other.shape)
    for node, with_it in ((one, other), (other, one)):
        if with_it.kind == INT and not isinstance(with_it.op, Constant):  # ids, lengths, numbers of steps
            decide(node, INT)
    return made(Combine(function), [one, other], shape, BOOL)


def arithmetic(function: str, a: Any, b: Any, *, alpha: Any = 1, rounding_mode: Any = None) -> Recorded:
    if rounding_mode not in (None, "floor"):
        raise Refused(f"it divides with rounding_mode={rounding_mode!r}")
    if alpha != 1:
        b = combine("mul", b, alpha)
    return combine("floordiv" if rounding_mode else function, a, b)


def swapped(function: str, b: Any, a: Any, *, alpha: Any = 1) -> Recorded:
    """other - alpha * x, as torch.rsub() and Python's own have it."""
    return arithmetic(function, a, b, alpha=alpha)


def logical(function: str, a: Any, b: Any) -> Recorded:
    for node in (node_of(a), node_of(b)):
        decide(node, BOOL)
        if node.kind != BOOL:
            raise Refused("it combines the bits of numbers")
    return compare(function, a, b)


LOGICAL = ("and", "or", "xor")
RULES.update({name: partial(arithmetic, name) for name in ops.ARITHMETIC})
RULES.update({f"r{name}": partial(swapped, name) for name in ops.ARITHMETIC})
RULES.update({name: partial(logical if name in LOGICAL else compare, name) for name in ops.COMPARISONS})
for _name in LOGICAL:
    also_called(**{f"logical_{_name}": _name, f"bitwise_{_name}": _name, f"r{_name}": _name})
also_called(truediv="div", rtruediv="rdiv", true_divide="div", divide="div", multiply="mul", subtract="sub",
            floor_divide="floordiv", mod="remainder", rmod="rremainder", less="lt", greater="gt", not_equal="ne",
            less_equal="le", greater_equal="ge")  # fmt: skip


RULES["addcmul"] = lambda x, a, b, *, value=1: x + (a * b if value == 1 else a * b * value)
RULES["lerp"] = lambda a, b, weight: a + combine("mul", weight, b - a)


@rule("where")
def where(condition: Any, a: Any = None, b: Any = None) -> Recorded:
    if a is None or b is None:
        raise Refused("torch.where(mask) gives as many places as the mask has, which only a call knows")
    asked, one, other = map(node_of, (condition, a, b))
    decide(asked, BOOL)
    shape = broadcast(asked.shape, one.shape, other.shape)
    return made(Choose(), [asked, one, other], shape, promoted("add", one, other))


@rule("masked_fill")
def masked_fill(x: Recorded, mask: Recorded, value: Any) -> Recorded:
    decide(mask.node, BOOL)
    require(same_shape(broadcast(x.node.shape, mask.node.shape), x.node.shape))
    return made(Choose(), [mask, value, x], x.node.shape, x.node.kind)


@rule("nan_to_num")
def nan_to_num(x: Recorded, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Recorded:
    if posinf is not None or neginf is not None:
        raise Refused("nan_to_num() with limits for infinite values")
    return where(x.isnan(), nan, x)
