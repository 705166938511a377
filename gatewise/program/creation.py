"""What torch's functions mean that make new tensors."""

from __future__ import annotations

from typing import Any

import torch

from gatewise.program.arithmetic import RULES, Rule, cast, compare, rule
from gatewise.program.graph import FLOAT, INT
from gatewise.program.operations import Count, Full
from gatewise.program.recorder import Recorder, decide, kind_of
from gatewise.program.sizes import Size
from gatewise.program.stand_ins import Recorded, Refused

# New tensors.


def counted(recorder: Recorder, size: int, start: int = 0, step: int = 1) -> Recorded:
    return recorder.made(Count(start, step), [], (size,), INT)


@rule("arange")
def arange(
    recorder: Recorder,
    *args: Any,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
    dtype: Any = None,
    **_: Any,
) -> Any:
    first, last, by = {0: (start or 0, end, step), 1: (0, *args, step), 2: (*args, step), 3: args}[len(args)]
    if (
        isinstance(by, Size)
        or isinstance(first, Size)
        or not all(isinstance(v, int) for v in (first, last, by))
    ):
        raise Refused("arange() from or by what only a call knows")
    made = counted(recorder, -((first - last) // by), first, by)
    return made if dtype is None else cast(recorder, made, kind_of(dtype))


def filled(value: float | None) -> Rule:
    def call(recorder: Recorder, *size: Any, dtype: Any = None, **kwargs: Any) -> Recorded:
        shape = kwargs.get("size", size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size)
        if value is None:
            raise Refused("it makes a tensor of random or unknown values")
        return full(recorder, shape, value, dtype)

    return call


def as_kind_of(recorder: Recorder, x: Any, made: Recorded, dtype: Any) -> Recorded:
    """x.new_zeros() and the like are of the kind of x, which may show later."""
    if dtype is None:
        made.node.kind = recorder.node(x).kind
    return made


def full(recorder: Recorder, shape: Any, value: float, dtype: Any) -> Recorded:
    kind = FLOAT if dtype is None else kind_of(dtype)
    return recorder.made(Full(float(value)), [], tuple(shape), kind)


@rule("full")
def full_of(recorder: Recorder, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Recorded:
    if isinstance(fill_value, torch.Tensor | Size):
        return RULES["expand"](recorder, fill_value, *size)  # type: ignore[no-any-return]
    known = (
        torch.bool if isinstance(fill_value, bool) else torch.int64 if isinstance(fill_value, int) else None
    )
    return full(recorder, size, fill_value, known if dtype is None else dtype)


for _name, _value in {"zeros": 0.0, "ones": 1.0}.items():
    RULES[_name] = filled(_value)
    RULES["new_" + _name] = lambda recorder, x, *size, f=RULES[_name], **kw: as_kind_of(
        recorder, x, f(recorder, *size, **kw), kw.get("dtype")
    )

    def like(recorder: Recorder, x: Any, dtype: Any = None, value: float = _value, **_: Any) -> Recorded:
        node = recorder.node(x)
        made = recorder.made(Full(value), [], node.shape, node.kind)
        return made if dtype is None else cast(recorder, made, kind_of(dtype))

    RULES[_name + "_like"] = like
for _name in (
    "empty",
    "rand",
    "randn",
    "new_empty",
    "rand_like",
    "randn_like",
    "empty_like",
    "bernoulli",
    "normal_",
):
    RULES[_name] = filled(None)


@rule("new_full")
def new_full(recorder: Recorder, x: Any, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Recorded:
    return as_kind_of(recorder, x, full_of(recorder, size, fill_value, dtype), dtype)


@rule("full_like")
def full_like(recorder: Recorder, x: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Recorded:
    node = recorder.node(x)
    return cast(
        recorder, full_of(recorder, node.shape, fill_value), kind_of(dtype) if dtype else node.kind or FLOAT
    )


@rule("one_hot")
def one_hot(recorder: Recorder, x: Any, num_classes: int = -1) -> Recorded:
    if num_classes < 0:
        raise Refused("one_hot() without num_classes= gives as many columns as a call's largest number")
    decide(recorder.node(x), INT)
    return cast(
        recorder,
        compare(recorder, "eq", RULES["unsqueeze"](recorder, x, -1), counted(recorder, num_classes)),
        INT,
    )
