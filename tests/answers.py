"""Ways in which forward() wraps its answer: containers, objects, and what cannot be looked into."""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal


class Named(NamedTuple):
    logits: Tensor
    hidden: Any = None


@dataclass
class Output:
    logits: Tensor
    hidden: Any = None


@dataclass(frozen=True, slots=True)
class FrozenOutput:
    logits: Tensor
    hidden: Any = None


@dataclass
class Nested:
    inner: Output
    extras: dict[str, Any] = field(default_factory=dict)


class Plain:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Slotted:
    __slots__ = ("_logits",)

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits


class Lazy:
    """An object that computes its answer when it is asked."""

    def __init__(self, logits: Tensor) -> None:
        self.get = lambda: logits


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """A dict whose items are attributes, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__.update(self)


class Listed(list):  # type: ignore[type-arg]
    """A list with the answer beside its items."""


def listed(z: Tensor) -> Listed:
    made = Listed([1])
    made.logits = z  # type: ignore[attr-defined]
    return made


def generated(z: Tensor) -> Any:
    yield z


class Way(NamedTuple):
    """How an answer is wrapped, and how a caller gets it again."""

    wrap: Callable[[Tensor], Any]
    unwrap: Callable[[Any], Any]


CONTAINERS: dict[str, Way] = {
    "tuple": Way(lambda z: (z, 1), lambda a: a[0]),
    "list": Way(lambda z: [None, z], lambda a: a[1]),
    "dict": Way(lambda z: {"logits": z}, lambda a: a["logits"]),
    "named tuple": Way(lambda z: Named(z), lambda a: a.logits),
    "nested": Way(lambda z: {"a": [(z,), None]}, lambda a: a["a"][0][0]),
    "OrderedDict": Way(lambda z: OrderedDict(logits=z), lambda a: a["logits"]),
    "model output": Way(lambda z: ModelOutput(logits=z), lambda a: a.logits),
    "defaultdict": Way(lambda z: defaultdict(list, logits=z), lambda a: a["logits"]),
    "list subclass": Way(listed, lambda a: a.logits),
    "dataclass": Way(Output, lambda a: a.logits),
    "frozen dataclass": Way(FrozenOutput, lambda a: a.logits),
    "nested dataclass": Way(lambda z: Nested(Output(z)), lambda a: a.inner.logits),
    "dataclass in a dict": Way(lambda z: Nested(Output(None), {"z": z}), lambda a: a.extras["z"]),  # type: ignore[arg-type]
    "object": Way(Plain, lambda a: a.logits),
    "object with slots": Way(Slotted, lambda a: a._logits),
    "object with a function": Way(Lazy, lambda a: a.get()),
    "SimpleNamespace": Way(lambda z: SimpleNamespace(logits=z), lambda a: a.logits),
    "deque": Way(lambda z: deque([z]), lambda a: a[0]),
    "set": Way(lambda z: {z}, lambda a: next(iter(a))),
    "frozenset": Way(lambda z: frozenset([z]), lambda a: next(iter(a))),
    "UserDict": Way(lambda z: UserDict(logits=z), lambda a: a["logits"]),
    "UserList": Way(lambda z: UserList([z]), lambda a: a[0]),
    "ChainMap": Way(lambda z: ChainMap({}, {"logits": z}), lambda a: a["logits"]),
    "mapping proxy": Way(lambda z: MappingProxyType({"logits": z}), lambda a: a["logits"]),
    "dict values": Way(lambda z: {"logits": z}.values(), lambda a: next(iter(a))),
    "generator": Way(generated, next),
    "generator expression": Way(lambda z: (part for part in [z]), next),
    "iterator": Way(lambda z: iter([z]), next),
    "map": Way(lambda z: map(torch.clone, [z]), next),
    "function": Way(lambda z: lambda: z, lambda a: a()),
    "function with a default": Way(lambda z: lambda part=z: part, lambda a: a()),
    "partial": Way(lambda z: partial(lambda part: part, z), lambda a: a()),
    "method": Way(lambda z: z.clone, lambda a: a()),
    "array of objects": Way(lambda z: in_array(z), lambda a: a[0]),
    "Categorical": Way(lambda z: Categorical(logits=z, validate_args=False), lambda a: a.logits),
    "Normal": Way(lambda z: Normal(z, 1.0, validate_args=False), lambda a: a.loc),
    "Independent": Way(
        lambda z: Independent(Normal(z, 1.0, validate_args=False), 1, validate_args=False),
        lambda a: a.base_dist.loc,
    ),
}  # fmt: skip


def in_array(z: Tensor) -> Any:
    made = np.empty(1, object)
    made[0] = z
    return made
