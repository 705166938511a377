"""What torch's functions mean that look along axes: sums, largest values, softmax."""

from __future__ import annotations

from typing import Any

import torch

from gatewise.program.arithmetic import RULES, Rule, cast, clamp, combine, number, rule
from gatewise.program.fits import within
from gatewise.program.graph import BOOL, FLOAT, INT
from gatewise.program.operations import Cumulate, Reduce, Softmax
from gatewise.program.recorder import Recorder, kind_of
from gatewise.program.stand_ins import Recorded, Refused

# Along axes.


def axes_of(dim: Any, rank: int) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(rank))
    listed = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(sorted(within(axis, rank) for axis in listed))


def reduced(
    recorder: Recorder,
    function: str,
    x: Any,
    dim: Any = None,
    keep: bool = False,
    settings: tuple[float, ...] = (),
) -> Recorded:
    node = recorder.node(x)
    axes = axes_of(dim, node.rank)
    shape = [1 if k in axes else n for k, n in enumerate(node.shape) if keep or k not in axes]
    kind = {"any": BOOL, "all": BOOL, "argmax": INT, "argmin": INT}.get(function, node.kind)
    if function == "sum" and node.kind == BOOL:
        kind = INT
    if function in ("mean", "std", "var", "logsumexp", "norm"):
        kind = FLOAT
    return recorder.made(Reduce(function, axes, bool(keep), settings), [node], shape, kind)


def reduction(function: str) -> Rule:
    def call(
        recorder: Recorder,
        x: Any,
        *dims: Any,
        dim: Any = None,
        axis: Any = None,
        keepdim: Any = False,
        dtype: Any = None,
    ) -> Any:
        if dims and isinstance(dims[-1], bool):
            dims, keepdim = dims[:-1], dims[-1]
        given = dims if len(dims) > 1 else dims[0] if dims else dim if dim is not None else axis
        if dtype is not None:
            x = cast(recorder, x, kind_of(dtype))
        return reduced(recorder, function, x, given, keepdim)

    return call


for _name, _means in {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "any": "any", "all": "all",
                      "logsumexp": "logsumexp"}.items():  # fmt: skip
    RULES[_name] = reduction(_means)


def extreme(function: str) -> Rule:
    """max and min: of all values, along an axis with where they were, or of two tensors."""

    def call(recorder: Recorder, x: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        other = dim if isinstance(dim, torch.Tensor) else other
        if other is not None:
            return combine(recorder, {"max": "maximum", "min": "minimum"}[function], x, other)
        values = reduced(recorder, function, x, dim, keepdim)
        if dim is None:
            return values
        return Extremes(function, values, reduced(recorder, f"arg{function}", x, dim, keepdim))

    return call


class Extremes(tuple):  # type: ignore[type-arg]
    """(values, indices), as torch.return_types.max has them."""

    __slots__ = ()

    def __new__(cls, _: str, values: Recorded, indices: Recorded) -> Extremes:
        return super().__new__(cls, (values, indices))

    @property
    def values(self) -> Recorded:
        return self[0]  # type: ignore[no-any-return]

    @property
    def indices(self) -> Recorded:
        return self[1]  # type: ignore[no-any-return]


RULES["max"], RULES["min"] = extreme("max"), extreme("min")


for _name in ("argmax", "argmin"):

    def located(
        recorder: Recorder, x: Any, dim: Any = None, keepdim: bool = False, function: str = _name
    ) -> Recorded:
        if dim is None:
            raise Refused(f"{function}() over all axes at once")
        return reduced(recorder, function, x, dim, keepdim)

    RULES[_name] = located


@rule("prod")
def product(recorder: Recorder, x: Any, dim: Any = None, keepdim: bool = False) -> Recorded:
    return reduced(recorder, "prod", x, dim, keepdim)


def spread(function: str) -> Rule:
    def call(
        recorder: Recorder,
        x: Any,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        correction: Any = 1,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        settled = correction if unbiased is None else int(unbiased)
        return reduced(recorder, function, x, dim, keepdim, (number(settled),))

    return call


RULES["std"], RULES["var"] = spread("std"), spread("var")


@rule("norm", "vector_norm", "linalg_vector_norm")
def norm(
    recorder: Recorder,
    x: Any,
    p: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    ord: Any = None,
) -> Any:
    order = {"fro": 2, None: 2}.get(p if ord is None else ord, p if ord is None else ord)
    return reduced(recorder, "norm", x, dim, keepdim, (number(order),))


@rule("normalize")
def normalize(
    recorder: Recorder, x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any
) -> Recorded:
    length = reduced(recorder, "norm", x, dim, True, (number(p),))
    return combine(recorder, "div", x, clamp(recorder, length, eps))


def softmaxed(log: bool) -> Rule:
    def call(
        recorder: Recorder, x: Any, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None
    ) -> Recorded:
        if dim is None:
            raise Refused("softmax() without dim=")
        node = recorder.node(x)
        return recorder.made(Softmax(within(dim, node.rank), log), [node], node.shape, FLOAT)

    return call


RULES["softmax"], RULES["log_softmax"] = softmaxed(False), softmaxed(True)


@rule("cumsum")
def cumsum(recorder: Recorder, x: Any, dim: int, dtype: Any = None) -> Recorded:
    node = recorder.node(x)
    kind = INT if node.kind == BOOL else node.kind
    return recorder.made(Cumulate(within(dim, node.rank)), [node], node.shape, kind)
