"""What a sweep searches: one range or a list of choices for each key of a recipe.

sparsify.group = "log 1e-4..1e-2"           evenly on a logarithmic scale
model.dropout  = "0..0.5"                   evenly; "linear 0..0.5" is the same
model.hidden   = "log 16..256"              whole numbers, as the key has them
train.epochs   = "10..40 step 10"
model.cell     = ["LSTM", "GRU"]            or "choices LSTM, GRU"
"""

from __future__ import annotations

import math
import re
import tomllib
import warnings
from collections.abc import Mapping
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from gatewise.lab.schema import KEYS, TAGS, is_read, kinds_of, suggestion

Space = dict[str, Any]  # section.key -> Optuna's distribution
RANGE = re.compile(r"(?:(log|linear|integer)\s+)?(\S+?)\.\.(\S+?)(?:\s+step\s+(\S+))?")


class SweepError(ValueError):
    """A sweep that cannot begin or go on; the message names the thing and the way out."""


def suggested(space: Space, base: Mapping[str, Any], trial: Any) -> dict[str, Any]:
    """One value for each key, but for those that the task and framework of this trial do not read."""
    found: dict[str, Any] = {}
    for key in sorted(space, key=lambda key: key not in TAG_KEYS):
        if is_read(key, {**base, **found}):
            values = space[key]
            if isinstance(values, CategoricalDistribution):
                found[key] = trial.suggest_categorical(key, values.choices)
            else:
                suggest = trial.suggest_int if isinstance(values, IntDistribution) else trial.suggest_float
                found[key] = suggest(key, values.low, values.high, log=values.log, step=values.step)
    return found


TAG_KEYS = {f"{section}.{tag}" for section, tag in TAGS.items()}  # what says which other keys are read


def ends_of(values: Any) -> tuple[Any, ...]:
    """All choices, or both ends of a range."""
    return values.choices if isinstance(values, CategoricalDistribution) else (values.low, values.high)


def parse_over(text: str) -> Space:
    """`--over "section.key=log 1e-4..1e-2"`"""
    key, equals, spec = text.partition("=")
    if not equals or not spec.strip():
        raise SweepError(f"--over {text!r}: write it as section.key=LOW..HIGH, or section.key=choices A, B.")
    return {key.strip(): parse_values(key.strip(), spec.strip())}


def parse_values(key: str, spec: Any) -> Any:
    """The distribution that a range or a list of choices means."""
    if key not in KEYS:
        raise SweepError(f"[search] has an unknown key {key!r}{suggestion(key, list(KEYS))}")
    choices = spec
    if isinstance(spec, str) and spec.startswith("choices "):
        choices = [toml_value(part) for part in spec.removeprefix("choices ").split(",")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Optuna's, of a step that does not divide its range
            return CategoricalDistribution(choices) if isinstance(choices, list) else range_of(key, spec)
    except (ValueError, UserWarning) as error:
        raise SweepError(f"[search] {key} = {spec!r}: {error}") from None


def toml_value(text: str) -> Any:
    """What TOML makes of it; other words are strings, as with --set."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def range_of(key: str, spec: Any) -> Any:
    found = RANGE.fullmatch(spec.strip()) if isinstance(spec, str) else None
    if found is None:
        raise ValueError('write a range, "log 1e-4..1e-2" or "0..0.5", or a list of choices.')
    kind, *ends, step = found.groups()
    numbers = {int, float} & kinds_of(KEYS[key].annotation)
    if not numbers:
        raise ValueError("it is no number, so it has no range; write a list of choices.")
    if kind == "integer" and int not in numbers:
        raise ValueError("it is a number with digits behind the point; leave out `integer`.")
    if kind == "integer" or float not in numbers:
        return IntDistribution(*map(int, ends), kind == "log", int(step or 1))
    if not all(map(math.isfinite, map(float, ends))):
        raise ValueError("the ends are finite numbers.")
    return FloatDistribution(*map(float, ends), kind == "log", step and float(step))
