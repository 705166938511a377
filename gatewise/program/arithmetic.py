"""What torch's functions mean that take every value by itself: of one tensor, or of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from gatewise.program.fits import broadcast
from gatewise.program.graph import BOOL, FLOAT, INT, Node
from gatewise.program.operations import Cast, Choose, Combine, Constant, Input, Map
from gatewise.program.recorder import Recorder, decide, kind_of
from gatewise.program.sizes import Size, same_shape
from gatewise.program.stand_ins import Impossible, Recorded, Refused

Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Register a function for the names under which torch calls it."""

    def register(function: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


# Functions of one value.

PLAIN = (
    "relu relu6 tanh silu selu hardswish mish softsign tanhshrink sin cos tan asin acos atan sinh cosh erf abs "
    "square sqrt sign floor ceil round trunc exp exp2 expm1 log log2 log10 log1p sigmoid hardsigmoid "
    "logsigmoid reciprocal rsqrt isnan isinf neg"
)
OTHER_NAMES = {
    "absolute": "abs",
    "negative": "neg",
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    "fix": "trunc",
}
TO_BOOL = ("isnan", "isinf", "not")


def mapped(function: str) -> Rule:
    def call(recorder: Recorder, x: Any, *_: Any, **__: Any) -> Recorded:
        return pointwise(recorder, x, function)

    return call


def pointwise(recorder: Recorder, x: Any, function: str, settings: tuple[float, ...] = ()) -> Recorded:
    node = recorder.node(x)
    kind = (
        BOOL
        if function in TO_BOOL
        else node.kind
        if function in ("neg", "abs", "square", "sign", "clamp", "relu")
        else FLOAT
    )
    return recorder.made(Map(function, tuple(map(number, settings))), [node], node.shape, kind)


def number(value: Any) -> float:
    if isinstance(value, Recorded | Size) or not isinstance(value, int | float):
        raise Refused("a setting of a function is a tensor or a size")
    return float(value)


for _name in PLAIN.split():
    RULES[_name] = mapped(_name)
for _name, _means in OTHER_NAMES.items():
    RULES[_name] = mapped(_means)
RULES["log_sigmoid"] = mapped("logsigmoid")


# Functions with settings: their names in torch, and what they are unless said; None: they must be.
SETTINGS: dict[str, dict[str, float | None]] = {
    "elu": {"alpha": 1.0},
    "celu": {"alpha": 1.0},
    "leaky_relu": {"negative_slope": 0.01},
    "softplus": {"beta": 1.0, "threshold": 20.0},
    "hardshrink": {"lambd": 0.5},
    "softshrink": {"lambd": 0.5},
    "threshold": {"threshold": None, "value": None},
}


def with_settings(function: str, usual: dict[str, float | None]) -> Rule:
    def call(recorder: Recorder, x: Any, *given: Any, **named: Any) -> Recorded:
        settings = usual | dict(zip(usual, given)) | named
        return pointwise(recorder, x, function, tuple(settings[name] for name in usual))

    return call


for _name, _usual in SETTINGS.items():
    RULES[_name] = with_settings(_name, _usual)
RULES["_threshold"] = RULES["threshold"]


@rule("gelu")
def gelu(recorder: Recorder, x: Any, approximate: str = "none") -> Recorded:
    return pointwise(recorder, x, "gelu_tanh" if approximate == "tanh" else "gelu")


@rule("prelu")
def prelu(recorder: Recorder, x: Any, weight: Any) -> Recorded:
    """max(x, 0) + a min(x, 0), with one a, or one for every channel of axis 1."""
    slope = recorder.node(weight)
    node = recorder.node(x)
    if slope.shape != (1,) and node.rank > 1:
        slope = recorder.node(RULES["reshape"](recorder, weight, (slope.shape[0], *[1] * (node.rank - 2))))
    below = combine(recorder, "mul", pointwise(recorder, x, "clamp", (-math.inf, 0.0)), slope)
    return combine(recorder, "add", pointwise(recorder, x, "relu"), below)


@rule("clamp", "clip")
def clamp(recorder: Recorder, x: Any, min: Any = None, max: Any = None) -> Recorded:
    if any(isinstance(limit, torch.Tensor | Size) for limit in (min, max)):
        low = x if min is None else combine(recorder, "maximum", x, min)
        return low if max is None else combine(recorder, "minimum", low, max)
    if any(isinstance(limit, float) for limit in (min, max)):  # counts become floats, as in torch
        x = cast(recorder, x, FLOAT)
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    return pointwise(recorder, x, "clamp", (low, high))


@rule("clamp_min")
def clamp_min(recorder: Recorder, x: Any, min: Any) -> Recorded:
    return clamp(recorder, x, min)


@rule("clamp_max")
def clamp_max(recorder: Recorder, x: Any, max: Any) -> Recorded:
    return clamp(recorder, x, None, max)


@rule("hardtanh")
def hardtanh(recorder: Recorder, x: Any, min_val: float = -1.0, max_val: float = 1.0, **_: Any) -> Recorded:
    return clamp(recorder, x, min_val, max_val)


@rule("glu")
def glu(recorder: Recorder, x: Any, dim: int = -1) -> Recorded:
    one, other = RULES["chunk"](recorder, x, 2, dim)
    return combine(recorder, "mul", one, pointwise(recorder, other, "sigmoid"))


@rule("invert", "bitwise_not", "logical_not")
def invert(recorder: Recorder, x: Any) -> Recorded:
    node = recorder.node(x)
    decide(node, BOOL)
    if node.kind != BOOL:
        raise Refused("it inverts the bits of numbers")
    return recorder.made(Map("not"), [node], node.shape, BOOL)


# Functions that hand on what they are given: in evaluation, on one device, without gradients.


@rule("contiguous", "detach", "dropout", "dropout1d", "feature_dropout", "alpha_dropout", "cpu", "cuda", "clone",
      "requires_grad", "requires_grad_", "detach_", "feature_alpha_dropout", "positive", "alias", "pin_memory",
      "data", "resolve_conj")  # fmt: skip
def handed_on(recorder: Recorder, x: Any, *args: Any, **kwargs: Any) -> Any:
    training = kwargs.get("training", args[1] if len(args) > 1 else False)
    if isinstance(training, Recorded):
        raise Refused("it drops values if a tensor says so")
    if training is True and kwargs.get("p", args[0] if args else 0.5) and not recorder.lenient:
        raise Refused("it drops values in evaluation, too")
    return Recorded.of(recorder.node(x), x.memory) if isinstance(x, Recorded) else x


RULES["clone"] = lambda recorder, x, **_: Recorded.of(recorder.node(x))
RULES["requires_grad"] = lambda recorder, x: False


def cast(recorder: Recorder, x: Any, kind: str | None) -> Recorded:
    node = recorder.node(x)
    if node.kind is None and kind == INT and isinstance(node.op, Input) and node.rank < 3:
        decide(node, INT)  # words or lengths
    if kind is None or node.kind == kind:
        return Recorded.of(node, getattr(x, "memory", None))
    return recorder.made(Cast(), [node], node.shape, kind)


def cast_to(recorder: Recorder, x: Any, dtype: torch.dtype) -> Recorded:
    """Numbers of another type. One that holds fewer changes what it is given, unless that is true or false."""
    if dtype in NARROW and recorder.node(x).kind != BOOL and not recorder.lenient:
        raise Refused(f"a cast to {dtype} changes what it is given")
    return cast(recorder, x, kind_of(dtype))


NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16)
for _name, _dtype in {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
    "long": torch.int64, "int": torch.int32, "short": torch.int16, "byte": torch.uint8, "bool": torch.bool,
}.items():  # fmt: skip
    RULES[_name] = lambda recorder, x, *_, dtype=_dtype, **__: cast_to(recorder, x, dtype)


@rule("to", "type", "type_as")
def converted(recorder: Recorder, x: Any, *args: Any, **kwargs: Any) -> Recorded:
    for other in (*args, *kwargs.values()):
        if isinstance(other, torch.dtype):
            return cast_to(recorder, x, other)
        if isinstance(other, Recorded):
            return cast(recorder, x, recorder.node(other).kind)
        if isinstance(other, torch.Tensor):
            return cast_to(recorder, x, other.dtype)
    return cast(recorder, x, None)


# Functions of two values.

ARITHMETIC = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "div": "div", "pow": "pow", "maximum": "maximum",
    "minimum": "minimum", "floordiv": "floordiv", "floor_divide": "floordiv", "remainder": "remainder",
    "mod": "remainder", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "atan2": "atan2",
}  # fmt: skip
COMPARISONS = {
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "less": "lt", "greater": "gt",
    "not_equal": "ne", "less_equal": "le", "greater_equal": "ge", "equal_to": "eq",
}  # fmt: skip
LOGICAL = {"and": "and", "or": "or", "xor": "xor", "logical_and": "and", "logical_or": "or", "logical_xor": "xor",
           "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}  # fmt: skip


def promoted(function: str, a: Node, b: Node) -> str | None:
    """The kind of what two values give; None while that of an argument is not known."""
    kinds = (a.kind, b.kind)
    if function == "div" or FLOAT in kinds:
        return FLOAT
    if None in kinds:
        return None
    return INT if INT in kinds else BOOL


def combine(recorder: Recorder, function: str, a: Any, b: Any) -> Recorded:
    one, other = recorder.node(a), recorder.node(b)
    kind = promoted(function, one, other)
    return recorder.made(Combine(function), [one, other], broadcast(one.shape, other.shape), kind)


def compare(recorder: Recorder, function: str, a: Any, b: Any) -> Recorded:
    one, other = recorder.node(a), recorder.node(b)
    shape = broadcast(one.shape, other.shape)
    for node, with_it in ((one, other), (other, one)):
        if with_it.kind == INT and not isinstance(with_it.op, Constant):  # ids, lengths, numbers of steps
            decide(node, INT)
    return recorder.made(Combine(function), [one, other], shape, BOOL)


def arithmetic(function: str, swapped: bool = False) -> Rule:
    def call(recorder: Recorder, a: Any, b: Any, *, alpha: Any = 1, rounding_mode: Any = None) -> Any:
        if rounding_mode not in (None, "floor"):
            raise Refused(f"it divides with rounding_mode={rounding_mode!r}")
        if alpha != 1:
            b = combine(recorder, "mul", b, alpha)
        if swapped:
            a, b = b, a
        return combine(recorder, "floordiv" if rounding_mode else function, a, b)

    return call


for _name, _means in ARITHMETIC.items():
    RULES[_name] = arithmetic(_means)
    RULES["r" + _name] = arithmetic(_means, swapped=True)
for _name, _means in COMPARISONS.items():
    RULES[_name] = lambda recorder, a, b, f=_means: compare(recorder, f, a, b)
RULES["rsub"] = arithmetic("sub", swapped=True)


def logical(function: str) -> Rule:
    def call(recorder: Recorder, a: Any, b: Any) -> Recorded:
        for value in (a, b):
            decide(recorder.node(value), BOOL)
            if recorder.node(value).kind != BOOL:
                raise Refused("it combines the bits of numbers")
        return compare(recorder, function, a, b)

    return call


for _name, _means in LOGICAL.items():
    RULES[_name] = RULES["r" + _name] = logical(_means)


@rule("addcmul")
def addcmul(recorder: Recorder, x: Any, a: Any, b: Any, *, value: Any = 1) -> Recorded:
    product = combine(recorder, "mul", a, b)
    return combine(recorder, "add", x, product if value == 1 else combine(recorder, "mul", product, value))


@rule("lerp")
def lerp(recorder: Recorder, a: Any, b: Any, weight: Any) -> Recorded:
    return combine(recorder, "add", a, combine(recorder, "mul", weight, combine(recorder, "sub", b, a)))


@rule("where")
def where(recorder: Recorder, condition: Any, a: Any = None, b: Any = None) -> Recorded:
    if a is None or b is None:
        raise Refused("torch.where(mask) gives as many places as the mask has, which only a call knows")
    asked, one, other = (recorder.node(v) for v in (condition, a, b))
    decide(asked, BOOL)
    shape = broadcast(asked.shape, one.shape, other.shape)
    return recorder.made(Choose(), [asked, one, other], shape, promoted("add", one, other))


@rule("masked_fill")
def masked_fill(recorder: Recorder, x: Any, mask: Any, value: Any) -> Recorded:
    node, asked, fill = (recorder.node(v) for v in (x, mask, value))
    decide(asked, BOOL)
    if not same_shape(broadcast(node.shape, asked.shape), node.shape):
        raise Impossible
    return recorder.made(Choose(), [asked, fill, node], node.shape, node.kind)


@rule("nan_to_num")
def nan_to_num(
    recorder: Recorder, x: Any, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> Recorded:
    if posinf is not None or neginf is not None:
        raise Refused("nan_to_num() with limits for infinite values")
    return where(recorder, pointwise(recorder, x, "isnan"), nan, x)
