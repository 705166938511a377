"""What torch's functions mean that make new tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gatewise.program.arithmetic import RULES, cast, compare, rule
from gatewise.program.graph import FLOAT, INT
from gatewise.program.operations import Count, Full
from gatewise.program.recorder import decide, kind_of, made
from gatewise.program.sizes import Size
from gatewise.program.stand_ins import Recorded, Refused


def counted(size: int, start: int = 0, step: int = 1) -> Recorded:
    return made(Count(start, step), [], (size,), INT)


@rule("arange")
def arange(
    *args: Any, start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, **_: Any
) -> Recorded:
    first, last, by = {0: (start, end, step), 1: (0, *args, step), 2: (*args, step), 3: args}[len(args)]
    plain = all(isinstance(v, int) for v in (first, last, by))
    if not plain or isinstance(by, Size) or isinstance(first, Size):
        raise Refused("arange() from or by what only a call knows")
    numbers = counted(-((first - last) // by), first, by)
    return numbers if dtype is None else cast(numbers, kind_of(dtype))


@rule("full")
def full(size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Recorded:
    if isinstance(fill_value, torch.Tensor | Size):
        return RULES["expand"](fill_value, *size)  # type: ignore[no-any-return]
    usual = {bool: torch.bool, int: torch.int64}.get(type(fill_value), torch.float32)
    return made(Full(float(fill_value)), [], tuple(size), kind_of(dtype or usual))


@rule("new_full")
def new_full(x: Recorded, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Recorded:
    """x.new_full(), x.new_zeros() and the like are of the kind of x, which may show later."""
    stand_in = full(size, fill_value, dtype)
    if dtype is None:
        stand_in.node.kind = x.node.kind
    return stand_in


@rule("full_like")
def full_like(x: Recorded, fill_value: Any, dtype: Any = None, **_: Any) -> Recorded:
    return cast(full(x.node.shape, fill_value), kind_of(dtype) if dtype else x.node.kind or FLOAT)


def filled(value: float, *size: Any, dtype: Any = None, **kwargs: Any) -> Recorded:
    shape = kwargs.get("size", size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size)
    return full(shape, value, dtype)


def filled_of_kind(value: float, x: Recorded, *size: Any, dtype: Any = None, **kwargs: Any) -> Recorded:
    return new_full(x, filled(value, *size, **kwargs).node.shape, value, dtype)


def filled_like(value: float, x: Recorded, dtype: Any = None, **_: Any) -> Recorded:
    stand_in = made(Full(value), [], x.node.shape, x.node.kind)
    return stand_in if dtype is None else cast(stand_in, kind_of(dtype))


for _name, _value in {"zeros": 0.0, "ones": 1.0}.items():
    RULES[_name], RULES[f"new_{_name}"] = partial(filled, _value), partial(filled_of_kind, _value)
    RULES[f"{_name}_like"] = partial(filled_like, _value)


@rule("empty", "rand", "randn", "new_empty", "rand_like", "randn_like", "empty_like", "bernoulli", "normal_")
def unknown(*_: Any, **__: Any) -> Recorded:
    raise Refused("it makes a tensor of random or unknown values")


@rule("one_hot")
def one_hot(x: Recorded, num_classes: int = -1) -> Recorded:
    if num_classes < 0:
        raise Refused("one_hot() without num_classes= gives as many columns as a call's largest number")
    decide(x.node, INT)
    return cast(compare("eq", x.unsqueeze(-1), counted(num_classes)), INT)
