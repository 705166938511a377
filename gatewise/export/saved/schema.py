"""What a JSON file may say, declared: a check for each field, made of a few; nothing is allocated or built here.

    CONFIG = record(format=whole(1, 1), frozen=Optional(listed(text), []))
    CONFIG("it", json.loads(...))      what was read, or SchemaError with the place of what is wrong

A check takes where a value stands and the value, and returns it. Fields that a record does not name stay as they are:
later versions may write more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Check = Callable[[str, Any], Any]
LARGEST = 2**40  # of a size: with four bytes each far more than any memory, far less than what overflows


class SchemaError(ValueError):
    """A value that is not what its place asks for; says where, what was expected and what is there."""


LEFT_OUT = object()


class Optional(NamedTuple):
    """A field that may be left out: then it is read as something else, or stays left out."""

    check: Check
    instead: Any = LEFT_OUT


def wrong(where: str, expected: str, value: Any) -> SchemaError:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return SchemaError(f"{where} must be {expected}, not {shown[:60]}")


def whole(low: int = 0, high: int = LARGEST) -> Check:
    """A whole number from low to high."""

    def check(where: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            span = f"from {low} on" if high == LARGEST else f"from {low} to {high}"
            raise wrong(where, f"a whole number {span}", value)
        return value

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number from low to high."""

    def check(where: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            raise wrong(where, f"a finite number from {low} to {high}", value)
        assert isinstance(value, int | float)
        return value

    return check


def flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(where, "a text", value)
    return value


def one_of(*choices: str) -> Check:
    def check(where: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise wrong(where, f"one of {', '.join(choices)}", value)
        return value

    return check


def plain(where: str, value: Any) -> Any:
    """null, true, false, a text or a finite number of a usual size; or a list of them."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        return [plain(f"{where}[{k}]", item) for k, item in enumerate(value)]
    return whole(-LARGEST)(where, value) if isinstance(value, int) else number()(where, value)


def maybe(check: Check) -> Check:
    """null, or what the check takes."""
    return lambda where, value: None if value is None else check(where, value)


def listed(check: Check, most: int = LARGEST) -> Check:
    def every(where: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            raise wrong(where, "a list" if most == LARGEST else f"a list of {most} at most", value)
        return [check(f"{where}[{k}]", item) for k, item in enumerate(value)]

    return every


def table(check: Check) -> Check:
    """An object with any keys."""

    def every(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(where, "an object", value)
        return {key: check(f"{where}.{key}", item) for key, item in value.items()}

    return every


def record(**fields: Check | Optional) -> Check:
    """An object with these fields."""

    def every(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(where, "an object", value)
        read = {name: field(where, value, name, check) for name, check in fields.items()}
        return value | {name: item for name, item in read.items() if item is not LEFT_OUT}

    return every


def field(where: str, fields: Mapping[str, Any], name: str, check: Check | Optional) -> Any:
    if name not in fields:
        if isinstance(check, Optional):
            return check.instead
        raise SchemaError(f"{where} has no {name!r}")
    return (check.check if isinstance(check, Optional) else check)(f"{where}.{name}", fields[name])
