"""A sweep written down: a TOML file, or the same on the command line.

base       = "ptb-word-small-prune-wgn"         a recipe by name, or a file
trials     = 40                                 of sparse networks; as many dense rivals beside them
minutes    = 60                                 after which no trial begins
objectives = ["quality", "bytes", "time"]       on validation data; of the int8 export; of a step
under      = "bytes<=200_000"                   quality alone, among networks that are small enough
dense      = true

[set]                                           keys of the recipe that are the same in every trial
train.epochs = 20
[search]                                        keys that are searched; see space.py
sparsify.group = "log 1e-4..1e-2"
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optuna.distributions import IntDistribution
from optuna.trial import FixedTrial
from pydantic import Field, ValidationError

from gatewise.lab import recipe as recipes
from gatewise.lab.schema import (
    SECTIONS,
    Count,
    Positive,
    Recipe,
    RecipeError,
    Section,
    is_read,
    parse,
    suggestion,
)
from gatewise.lab.sweep.space import Space, SweepError, ends_of, parse_over, parse_values, suggested

KINDS = SPARSE, DENSE = "sparse", "dense"
OBJECTIVES = ("quality", "bytes", "time")
UNDER = re.compile(r"\s*(bytes|time)\s*<=\s*(\d[\d_]*(?:\.\d*)?(?:e\d+)?)\s*")
SMALLEST = 16  # the smallest dense rival has a sixteenth of the neurons
MOST_CORNERS = 256


class Written(Section):
    """The keys of a sweep file, and what may stand behind them."""

    name: str | None = None
    base: str | None = None
    trials: Count | None = None
    minutes: Positive | None = None
    objectives: Sequence[Literal["quality", "bytes", "time"]] = ("quality", "bytes", "time")
    under: str | None = None
    dense: bool = True
    set: Mapping[str, Any] = Field(default_factory=dict)
    search: Mapping[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Under:
    """What a network may have at most: `bytes<=200_000`."""

    objective: str
    most: float

    def __str__(self) -> str:
        return f"{self.objective}<={self.most:.15g}"


@dataclass(frozen=True)
class Plan:
    name: str
    recipe: Recipe  # with what [set] says
    source: str  # the recipe, as `recipes.load` finds it
    fixed: tuple[str, ...]  # changes of [set] and --set
    search: Space
    objectives: tuple[str, ...] = OBJECTIVES
    under: Under | None = None
    trials: int | None = None
    minutes: float | None = None
    dense: bool = True

    @property
    def kinds(self) -> tuple[str, ...]:
        return KINDS if self.dense else (SPARSE,)

    @property
    def needs_time(self) -> bool:
        return "time" in self.objectives or (self.under is not None and self.under.objective == "time")

    def base(self, kind: str) -> Recipe:
        return self.recipe if kind == SPARSE else dense_recipe(self.recipe)

    def space(self, kind: str) -> Space:
        return self.search if kind == SPARSE else dense_space(self)

    def values(self, kind: str, trial: Any) -> dict[str, Any]:
        return suggested(self.space(kind), self.base(kind).steering(), trial)

    def recipe_of(self, kind: str, values: Mapping[str, Any]) -> Recipe:
        """The recipe of one trial."""
        if kind == SPARSE:
            return recipes.load(self.source, [*self.fixed, *as_changes(values)])
        content = self.base(kind).model_dump(exclude_none=True)
        for key, value in values.items():
            section, _, name = key.partition(".")
            content[section][name] = value
        return parse(content)

    def to_dict(self) -> dict[str, Any]:
        """What must be the same when a sweep goes on; limits may change."""
        return {
            **{f"base.{key}": value for key, value in self.recipe.steering().items()},
            **{f"search.{key}": str(values) for key, values in self.search.items()},
            "objectives": list(self.objectives),
            "under": str(self.under) if self.under else None,
        }


def dense_recipe(recipe: Recipe) -> Recipe:
    """Trained for as long as the sparse network, its refit included; nothing is cut on the way."""
    content = recipe.model_dump(exclude_none=True, exclude={"sparsify", "budget", "refit", "expect"})
    content["train"] |= {"epochs": recipe.train.epochs + recipe.refit.epochs, "shrink_every": 0}
    return parse(content)


def dense_space(plan: Plan) -> Space:
    """Smaller networks with the optimiser and the dropout of the sparse ones: those of their keys that a dense
    network reads, and its size instead of what is searched about it."""
    base, sizes = plan.base(DENSE).steering(), ["model.hidden"]
    if is_read("model.embedding", base) and base.get("data.vectors", "none") == "none":
        sizes.append("model.embedding")
    read = ("data.", "model.", "train.")
    own = {key: v for key, v in plan.search.items() if key.startswith(read) and is_read(key, base)}
    for key in sizes:
        most = max(ends_of(own[key])) if key in own else base[key]
        own[key] = IntDistribution(min(most, max(2, most // SMALLEST)), most, log=True)
    return own


def as_changes(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


# Reading.


def read_plan(source: str, over: Sequence[str] = (), changes: Sequence[str] = (), **options: Any) -> Plan:
    """A sweep file, or a recipe with `--over`; what the command line says goes before what the file says."""
    content = content_of(source) | {key: value for key, value in options.items() if value is not None}
    given = checked(source, content)
    base = given.base or source
    if given.base and base.endswith(".toml"):
        base = str(Path(source).parent / base)
    fixed = (*as_changes(flat(given.set)), *changes)
    recipe = recipes.load(base, fixed)
    search = {key: parse_values(key, spec) for key, spec in flat(given.search).items()}
    for text in over:
        search |= parse_over(text)
    if not search:
        raise SweepError(
            f"{source}: there is nothing to search. Give it a [search] table, or say --over "
            '"sparsify.group=log 1e-4..1e-2".'
        )
    if given.trials is None and given.minutes is None:
        raise SweepError(
            f"{source}: a sweep needs an end: trials = 40 or minutes = 60, --trials or --minutes."
        )
    under = None if given.under is None else parse_under(given.under)
    objectives = tuple(name for name in OBJECTIVES if name in given.objectives)
    # Where every trial is dense, rivals would be more of the same.
    dense = given.dense and (recipe.sparsify.method != "none" or "sparsify.method" in search)
    objectives = ("quality",) if under else objectives
    name = given.name or Path(source).stem
    plan = Plan(name, recipe, base, fixed, search, objectives, under, given.trials, given.minutes, dense)
    if plan.needs_time and recipe.data.task == "g2p":
        raise SweepError(
            f"{source}: a network that spells has no steps to time: name --objectives quality,bytes."
        )
    check_corners(plan)
    return plan


def content_of(source: str) -> dict[str, Any]:
    """A sweep file; nothing, where the source is a recipe."""
    if Path(source).suffix != ".toml":
        return {}
    try:
        found = tomllib.loads(Path(source).read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SweepError(f"{source}: is not TOML ({error}).") from error
    # A recipe has sections, which no sweep has; it may have a base, too.
    return {} if set(found) & {*SECTIONS, "title", "expect"} else found


def checked(source: str, content: dict[str, Any]) -> Written:
    if isinstance(names := content.get("objectives"), str):
        content["objectives"] = [part.strip() for part in names.split(",")]
    try:
        found = Written.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key, given = str(first["loc"][0]), first["input"]
        told = first["msg"].replace("Input", f"{key} = {given!r}", 1) + "."
        if first["type"] == "extra_forbidden":
            told = f"unknown key {key!r}{suggestion(key, Written.model_fields)}"
        raise SweepError(f"{source}: {told}") from None
    if "quality" not in found.objectives:
        raise SweepError(f"objectives: {', '.join(found.objectives)}: name quality, too.")
    return found


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """`section.key` of the tables that TOML makes of dotted keys."""
    found: dict[str, Any] = {}
    for section, keys in table.items():
        inner = keys if isinstance(keys, Mapping) else {"": keys}
        found |= {f"{section}.{key}".rstrip("."): value for key, value in inner.items()}
    return found


def parse_under(text: str) -> Under:
    found = UNDER.fullmatch(text)
    if found is None:
        raise SweepError(
            f"under = {text!r}: write it as bytes<=200_000 or time<=50, the latter in microseconds."
        )
    return Under(found[1], float(found[2]))


def check_corners(plan: Plan) -> None:
    """Both ends of every range make a recipe: what cannot be is said before the first trial."""
    unread = set(plan.search)
    for kind in plan.kinds:
        space = plan.space(kind)
        corners = itertools.product(*map(ends_of, space.values()))
        for corner in itertools.islice(corners, MOST_CORNERS):
            values = plan.values(kind, FixedTrial(dict(zip(space, corner))))
            unread -= set(values)
            try:
                plan.recipe_of(kind, values)
            except RecipeError as error:
                raise SweepError(
                    f"{plan.name}: a {kind} trial with {said(values)} is no recipe: {error} Narrow the range."
                ) from error
    if unread:
        raise SweepError(f"{plan.name}: no trial reads {', '.join(sorted(unread))}. Leave it out.")


def said(values: Mapping[str, Any]) -> str:
    """`sparsify.group 0.0017, model.dropout 0.2`"""
    parts = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in values.items()}
    return ", ".join(f"{key} {text}" for key, text in parts.items())
