"""How forward() can be called: its arguments, those that are optional, and what an example shows of them."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from gatewise.program.graph import mapped

MOST_WAYS = 64  # to call forward(); where there are more, one argument at a time leaves the first
GIVEN = object()  # an argument that is recorded


def ways(model: nn.Module, flags: bool = False) -> tuple[list[dict[str, Any]], Exception | None]:
    """What arguments hold, by name: GIVEN, or a value; those that are not there have their default.

    With `flags`, for an analysis, a flag is true and false, any other argument with a default is given too, and each
    one without is None once. Also that some ways are missing, if so.
    """
    choices: dict[str, Sequence[Any]] = {}
    defaults: dict[str, Any] = {}
    for p in inspect.signature(model.forward).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.default is None:
            choices[p.name] = [GIVEN, None]
        elif p.default is p.empty:
            choices[p.name] = [GIVEN]
        elif flags and isinstance(p.default, bool):
            choices[p.name] = [p.default, not p.default]
        elif flags:
            defaults[p.name] = p.default
    required = [name for name, values in choices.items() if len(values) == 1]
    number = math.prod(map(len, choices.values()))
    if number <= MOST_WAYS:
        found = [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
        too_many = None
    else:
        first = {name: values[0] for name, values in choices.items()}
        found = [first, *(first | {name: v} for name, values in choices.items() for v in values[1:])]
        too_many = ValueError(f"optional arguments can be combined in {number} ways, more than {MOST_WAYS}")
    if flags:
        found += [way | dict.fromkeys(defaults, GIVEN) for way in found if defaults]
        found += [found[0] | {name: None} for name in required]
    return found, too_many


def optional(model: nn.Module) -> frozenset[str]:
    """Arguments that forward() may ask about: those whose default is None."""
    return frozenset(
        p.name for p in inspect.signature(model.forward).parameters.values() if p.default is None
    )


def required(model: nn.Module) -> frozenset[str]:
    """Arguments without a default."""
    parameters = inspect.signature(model.forward).parameters.values()
    return frozenset(
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    )


def fixed(model: nn.Module) -> dict[str, Any]:
    """Arguments whose default is no None, with that: a program knows no other value of them."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not None and p.default is not p.empty}


def not_default(model: nn.Module, given: Mapping[str, Any]) -> list[str]:
    """Those of them that have another value."""
    return [
        name
        for name, default in fixed(model).items()
        if (value := given.get(name, default)) is not default
        and not (isinstance(value, bool | int | float | str) and value == default)
    ]


def bound_example(model: nn.Module, example: Any) -> dict[str, Any]:
    """The arguments of an example call by name, those in tuples as `state.0`."""
    if example is None:
        return {}
    args = mapped(as_tensor, example if isinstance(example, tuple) else (example,))
    found = dict(inspect.signature(model.forward).bind_partial(*args).arguments)
    return dict(flat(found))


def as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield name, value
        if isinstance(value, tuple | list):
            yield from flat({f"{name}.{k}": part for k, part in enumerate(value)})
