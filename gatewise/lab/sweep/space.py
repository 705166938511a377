"""What a sweep searches: one range or a list of choices for each key of a recipe.

sparsify.group = "log 1e-4..1e-2"           evenly on a logarithmic scale
model.dropout  = "0..0.5"                   evenly; "linear 0..0.5" is the same
model.hidden   = "log 16..256"              whole numbers, as the key has them
train.epochs   = "10..40 step 10"
model.cell     = ["LSTM", "GRU"]            or "choices LSTM, GRU"
sparsify.warm_up_epochs = "0..5 only with sparsify.method=variational"
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatewise.lab.schema import KEYS, kinds_of, suggestion

RANGE = re.compile(r"(?:(log|linear|integer)\s+)?(\S+?)\.\.(\S+?)(?:\s+step\s+(\S+))?")
CONDITION = re.compile(r"(.*?)\s+only\s+with\s+([\w.]+)\s*=\s*(.+)", re.S)


class SweepError(ValueError):
    """A sweep that cannot begin or go on; the message names the thing and the way out."""


@dataclass(frozen=True)
class Condition:
    """The key is searched only where another one has this value."""

    key: str
    value: Any


@dataclass(frozen=True)
class Variable:
    """One key of a recipe: a range of numbers, or choices."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False
    choices: tuple[Any, ...] = ()
    only_with: Condition | None = None

    def suggested(self, trial: Any) -> Any:
        if self.choices:
            return trial.suggest_categorical(self.key, list(self.choices))
        if self.whole:
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            return trial.suggest_int(self.key, low, high, log=self.log, step=step)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log, step=self.step)

    def ends(self) -> tuple[Any, ...]:
        """The values that show whether a recipe takes the whole range."""
        return self.choices or tuple(int(end) if self.whole else end for end in (self.low, self.high))

    def __str__(self) -> str:
        if self.choices:
            text = "choices " + ", ".join(
                word if isinstance(word, str) else json.dumps(word) for word in self.choices
            )
        else:
            step = "" if self.step is None else f" step {self.step:g}"
            kind = "log" if self.log else "integer" if self.whole else "linear"
            text = f"{kind} {self.low:.12g}..{self.high:.12g}{step}"
        condition = self.only_with
        return text + (f" only with {condition.key}={condition.value}" if condition else "")


def parse_over(text: str) -> Variable:
    """`--over "section.key=log 1e-4..1e-2"`"""
    key, equals, spec = text.partition("=")
    if not equals or not spec.strip():
        raise SweepError(f"--over {text!r}: write it as section.key=LOW..HIGH, or section.key=choices A, B.")
    return parse_variable(key.strip(), spec.strip())


def parse_variable(key: str, spec: Any) -> Variable:
    if key not in KEYS:
        raise SweepError(f"[search] has an unknown key {key!r}{suggestion(key, list(KEYS))}")
    if isinstance(spec, str):
        conditional = CONDITION.fullmatch(spec)
        if conditional:
            spec, other, value = conditional.groups()
            return _variable(key, spec, Condition(other, toml_value(value)))
    return _variable(key, spec, None)


def toml_value(text: str) -> Any:
    """What TOML makes of it; other words are strings, as with --set."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _variable(key: str, spec: Any, condition: Condition | None) -> Variable:
    if isinstance(spec, str) and spec.startswith("choices "):
        spec = [toml_value(part) for part in spec.removeprefix("choices ").split(",")]
    if isinstance(spec, list):
        return Variable(key, choices=_choices(key, spec), only_with=condition)
    found = RANGE.fullmatch(spec.strip()) if isinstance(spec, str) else None
    if found is None:
        raise SweepError(
            f'[search] {key} = {spec!r}: write a range, "log 1e-4..1e-2" or "0..0.5", or a list of choices.'
        )
    kind, *texts = found.groups()
    low, high, step = (None if text is None else _number(key, text) for text in texts)
    assert low is not None
    assert high is not None
    whole = _is_whole(key, kind)
    _check_range(key, low, high, step, kind, whole)
    return Variable(key, low, high, kind == "log", step, whole, only_with=condition)


def _choices(key: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if not values or len(set(map(repr, values))) < len(values):
        raise SweepError(f"[search] {key}: its choices must be there, and differ: {list(values)}.")
    if not all(isinstance(value, str | int | float) for value in values):
        raise SweepError(f"[search] {key}: choices are numbers, words, or true and false: {list(values)}.")
    return tuple(values)


def _number(key: str, text: str) -> float:
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        raise SweepError(f"[search] {key}: {text!r} is not a number.") from None
    if not math.isfinite(value):
        raise SweepError(f"[search] {key}: {text!r} is not a finite number.")
    return value


def _is_whole(key: str, kind: str | None) -> bool:
    kinds = kinds_of(KEYS[key].annotation)
    if not {int, float} & kinds:
        raise SweepError(f"[search] {key}: it is no number, so it has no range; write a list of choices.")
    if kind == "integer" and int not in kinds:
        raise SweepError(f"[search] {key}: it is a number with digits behind the point; leave out `integer`.")
    return kind == "integer" or float not in kinds


def _check_range(
    key: str, low: float, high: float, step: float | None, kind: str | None, whole: bool
) -> None:
    given = f"[search] {key} = {low:g}..{high:g}"
    if not low < high:
        raise SweepError(f"{given}: the lower end comes first, and the ends differ.")
    if kind == "log" and low <= 0:
        raise SweepError(f"{given}: a logarithmic range begins above 0.")
    if kind == "log" and step is not None:
        raise SweepError(f"{given}: a logarithmic range has no step.")
    if step is not None and not 0 < step <= high - low:
        raise SweepError(f"{given} step {step:g}: a step is above 0 and at most the range.")
    if whole and any(number != int(number) for number in (low, high, step or 0)):
        raise SweepError(f"{given}: {key} is a whole number, and so are the ends and the step of its range.")


def in_order(variables: Iterable[Variable], base: Mapping[str, Any]) -> tuple[Variable, ...]:
    """Each after the one that its condition asks for; refused where a condition can never hold."""
    left = {variable.key: variable for variable in variables}
    found: dict[str, Variable] = {}
    while left:
        ready = [v for v in left.values() if v.only_with is None or v.only_with.key not in left]
        if not ready:
            raise SweepError(f"[search] {', '.join(left)}: their conditions wait for each other.")
        for variable in ready:
            _check_condition(variable, found, base)
            found[variable.key] = left.pop(variable.key)
    return tuple(found.values())


def _check_condition(variable: Variable, before: Mapping[str, Variable], base: Mapping[str, Any]) -> None:
    condition = variable.only_with
    if condition is None:
        return
    if condition.key not in KEYS:
        raise SweepError(
            f"[search] {variable.key}: only with {condition.key}: there is no such key"
            f"{suggestion(condition.key, list(KEYS))}"
        )
    other = before.get(condition.key)
    can_be = other.choices if other else (base.get(condition.key),)
    if condition.value not in can_be:
        named = " or ".join(map(str, can_be)) or "a number"
        raise SweepError(
            f"[search] {variable.key}: only with {condition.key}={condition.value}, but here that is {named}."
        )


def suggested(variables: Sequence[Variable], base: Mapping[str, Any], trial: Any) -> dict[str, Any]:
    """One value for each variable whose condition holds."""
    found: dict[str, Any] = {}
    for variable in variables:
        condition = variable.only_with
        if condition is None or {**base, **found}.get(condition.key) == condition.value:
            found[variable.key] = variable.suggested(trial)
    return found
