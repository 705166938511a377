"""What forward() answers with, opened: the tensors inside containers and objects of any kind."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MappingView
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from gatewise.program.graph import Node
from gatewise.program.layers import RecordedPack
from gatewise.program.stand_ins import Recorded

# Values, and what may do anything with those it holds.
CLOSED = (Tensor, PackedSequence, RecordedPack, Node, np.ndarray, int, float, complex, str, bytes,
          nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)  # fmt: skip
ORDERED = (tuple, list, deque, MappingView)  # a set has no order in which two answers could be compared


def opened(answer: Any) -> list[Any]:
    """Everything in an answer that is no container: items, values of mappings, attributes of objects."""
    found: list[Any] = []
    seen: dict[int, Any] = {}  # what is in it must live on, or its id would be given again
    waiting = [answer]
    while waiting:
        value = waiting.pop()
        parts = None if issubclass(type(value), CLOSED) else inside(value)
        if parts is None:
            found.append(value)
        elif id(value) not in seen:
            seen[id(value)] = value
            waiting += reversed(parts)
    return found


def inside(value: Any) -> list[Any] | None:
    """Items and attributes; None of what has neither."""
    kind = type(value)  # not what it says it is
    attributes = [
        getattr(value, name)
        for own in kind.__mro__
        for name in slots(own)
        if not name.startswith("__") and hasattr(value, name)
    ]
    if issubclass(kind, Mapping):
        items = list(value.values())
    elif issubclass(kind, ORDERED):
        items = list(value)
    elif not attributes and not hasattr(value, "__dict__"):
        return None
    else:
        items = []
    return [*items, *attributes, *getattr(value, "__dict__", {}).values()]


def slots(kind: type) -> Iterable[str]:
    """The names that a class keeps room for."""
    named = vars(kind).get("__slots__", ())
    return (named,) if isinstance(named, str) else tuple(named)


def held(made: Iterable[ref[Recorded]], known: Iterable[Any]) -> list[Recorded]:
    """Stand-ins that somebody refers to, beside the known ones: a closure, a generator, a set, a cache."""
    expected = {id(value.data_first if type(value) is RecordedPack else value) for value in known}

    def alive() -> list[Recorded]:
        values = (found() for found in made)
        return [v for v in values if v is not None and v.is_shaped and id(v) not in expected]

    if alive():
        gc.collect(0)  # what refers to itself only is nobody's
    return alive()


@contextmanager
def all_young() -> Iterator[None]:
    """No garbage is collected meanwhile: what is made stays in the youngest generation, a short list."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()
