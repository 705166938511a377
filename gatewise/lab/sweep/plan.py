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
from typing import Any

from gatewise.lab import recipe as recipes
from gatewise.lab.schema import KEYS, SECTIONS, Budget, Dense, Recipe, RecipeError, Refit, parse, suggestion
from gatewise.lab.sweep.space import SweepError, Variable, in_order, parse_over, parse_variable

SPARSE, DENSE = "sparse", "dense"
OBJECTIVES = ("quality", "bytes", "time")
OWN_KEYS = ("name", "base", "trials", "minutes", "objectives", "under", "dense", "set", "search")
UNDER = re.compile(r"\s*(\w+)\s*<=\s*([\d_.eE+]+)\s*")
SMALLEST = 16  # the smallest dense rival has a sixteenth of the neurons
MOST_CORNERS = 64


@dataclass(frozen=True)
class Under:
    """What a network may have at most: `bytes<=200_000`."""

    objective: str
    most: float

    def __str__(self) -> str:
        return f"{self.objective}<={self.most:g}"


@dataclass(frozen=True)
class Plan:
    name: str
    recipe: Recipe  # with what [set] says
    source: str  # the recipe, as `recipes.load` finds it
    fixed: tuple[str, ...]  # changes of [set] and --set
    search: tuple[Variable, ...]
    objectives: tuple[str, ...] = OBJECTIVES
    under: Under | None = None
    trials: int | None = None
    minutes: float | None = None
    dense: bool = True

    @property
    def kinds(self) -> tuple[str, ...]:
        return (SPARSE, DENSE) if self.dense else (SPARSE,)

    def variables(self, kind: str) -> tuple[Variable, ...]:
        return self.search if kind == SPARSE else dense_search(self)

    def base(self, kind: str) -> Recipe:
        return self.recipe if kind == SPARSE else dense_recipe(self.recipe)

    def recipe_of(self, kind: str, values: Mapping[str, Any]) -> Recipe:
        """The recipe of one trial."""
        if kind == SPARSE:
            changes = [f"{key}={json.dumps(value)}" for key, value in values.items()]
            return recipes.load(self.source, [*self.fixed, *changes])
        return with_values(self.base(kind), values)

    def to_dict(self) -> dict[str, Any]:
        """What must be the same when a sweep goes on; limits may change."""
        return {
            **{f"base.{key}": value for key, value in self.recipe.steering().items()},
            **{f"search.{variable.key}": str(variable) for variable in self.search},
            "objectives": list(self.objectives),
            "under": str(self.under) if self.under else None,
        }


def dense_recipe(recipe: Recipe) -> Recipe:
    """Trained for as long as the sparse network, its refit included; nothing is cut on the way."""
    epochs = recipe.train.epochs + recipe.refit.epochs
    train = recipe.train.model_copy(update={"epochs": epochs, "shrink_every": 0})
    update = {"sparsify": Dense(), "budget": Budget(), "refit": Refit(), "train": train, "expect": {}}
    return recipe.model_copy(update=update)


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    content = recipe.model_dump(exclude_none=True)
    for key, value in values.items():
        section, _, name = key.partition(".")
        content[section][name] = value
    return parse(content)


def dense_search(plan: Plan) -> tuple[Variable, ...]:
    """Smaller networks with the optimiser and the dropout of the sparse ones: those of their keys that a dense
    network reads, and its size instead of what is searched about it."""
    sizes = ("model.hidden", "model.embedding")
    own = {
        v.key: v
        for v in plan.search
        if v.key.startswith(("data.", "model.", "train."))
        and v.key not in sizes
        and (v.only_with is None or v.only_with.key.startswith(("data.", "model.", "train.")))
    }
    data, values = plan.recipe.data, plan.recipe.steering()
    tasks = ("word-ptb", "words", "imdb", "agnews", "csv")
    scaled = sizes if data.task in tasks and values.get("data.vectors", "none") == "none" else sizes[:1]
    for key in scaled:
        searched = next((v for v in plan.search if v.key == key), None)
        most = max(searched.ends()) if searched else values[key]
        least = max(2, most // SMALLEST)
        if least < most:
            own[key] = Variable(key, least, most, log=True, whole=True)
    return tuple(own.values())


# Reading.


def read_plan(
    source: str,
    over: Sequence[str] = (),
    changes: Sequence[str] = (),
    **options: Any,
) -> Plan:
    """A sweep file, or a recipe with `--over`; what the command line says goes before what the file says."""
    content = _content(source)
    unknown = [key for key in content if key not in OWN_KEYS]
    if unknown:
        raise SweepError(f"{source}: unknown key {unknown[0]!r}{suggestion(unknown[0], OWN_KEYS)}")
    given = {**content, **{key: value for key, value in options.items() if value is not None}}
    base = given.get("base", source)
    if not isinstance(base, str):
        raise SweepError(
            f"{source}: base = {base!r} must be the name of a recipe, or a file that ends in .toml."
        )
    if "base" in content and base.endswith(".toml"):
        base = str(Path(source).parent / base)
    fixed = [
        f"{key}={json.dumps(value)}" for key, value in _flat(source, "set", given.get("set", {})).items()
    ]
    fixed += changes
    recipe = recipes.load(base, fixed)
    listed = {
        key: parse_variable(key, spec)
        for key, spec in _flat(source, "search", given.get("search", {})).items()
    }
    listed |= {variable.key: variable for variable in map(parse_over, over)}
    if not listed:
        raise SweepError(
            f"{source}: there is nothing to search. Give it a [search] table, or say --over "
            '"sparsify.group=log 1e-4..1e-2".'
        )
    search = in_order(listed.values(), recipe.steering())
    under = parse_under(given["under"]) if given.get("under") is not None else None
    objectives = ("quality",) if under else _objectives(given.get("objectives", OBJECTIVES))
    plan = Plan(
        str(given.get("name") or Path(source).stem),
        recipe,
        base,
        tuple(fixed),
        search,
        objectives,
        under,
        _limit("trials", given.get("trials"), int),
        _limit("minutes", given.get("minutes"), float),
        bool(given.get("dense", True)) and _has_sparse(recipe, search),
    )
    if plan.trials is None and plan.minutes is None:
        raise SweepError(
            f"{source}: a sweep needs an end: trials = 40 or minutes = 60, --trials or --minutes."
        )
    check_corners(plan)
    return plan


def _content(source: str) -> dict[str, Any]:
    """A sweep file; nothing, where the source is a recipe."""
    if Path(source).suffix != ".toml":
        return {}
    try:
        found = tomllib.loads(Path(source).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SweepError(f"{source}: cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SweepError(f"{source}: is not TOML ({error}).") from error
    # A recipe has sections, which no sweep has; it may have a base, too.
    return {} if set(found) & {*SECTIONS, "title", "expect"} else found


def _flat(source: str, where: str, table: Any) -> dict[str, Any]:
    """`section.key` of the tables that TOML makes of dotted keys."""
    if not isinstance(table, Mapping):
        raise SweepError(f"{source}: [{where}] must be a table, not {table!r}.")
    found: dict[str, Any] = {}
    for section, keys in table.items():
        if not isinstance(keys, Mapping):
            if "." in section:
                found[section] = keys
                continue
            hint = next((full for full in KEYS if full.endswith(f".{section}")), "")
            better = f"; did you mean {hint!r}?" if hint else suggestion(section, list(KEYS))
            raise SweepError(f"{source}: [{where}] {section}: name the section, too{better}")
        found |= {f"{section}.{key}": value for key, value in keys.items()}
    return found


def parse_under(text: Any) -> Under:
    found = UNDER.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in OBJECTIVES[1:]:
        raise SweepError(
            f"under = {text!r}: write it as bytes<=200_000 or time<=50, the latter in microseconds."
        )
    return Under(found[1], float(found[2].replace("_", "")))


def _objectives(names: Any) -> tuple[str, ...]:
    listed = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    for name in listed:
        if name not in OBJECTIVES:
            raise SweepError(
                f"objectives: {name!r} is none{suggestion(str(name), OBJECTIVES)} There are {', '.join(OBJECTIVES)}."
            )
    if "quality" not in listed or len(set(listed)) < len(listed):
        raise SweepError(f"objectives: {', '.join(listed)}: name quality, and each one once.")
    return tuple(name for name in OBJECTIVES if name in listed)


def _limit(key: str, value: Any, kind: type[Any]) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value != kind(value):
        raise SweepError(f"{key} = {value!r} must be a {'whole ' if kind is int else ''}number above 0.")
    return kind(value)


def _has_sparse(recipe: Recipe, search: Sequence[Variable]) -> bool:
    """Where every trial is dense, rivals would be more of the same."""
    return recipe.sparsify.method != "none" or any(v.key == "sparsify.method" for v in search)


def check_corners(plan: Plan) -> None:
    """Both ends of every range make a recipe: what cannot be is said before the first trial."""
    for kind in plan.kinds:
        variables, base = plan.variables(kind), plan.base(kind).steering()
        chosen = itertools.product(*(v.choices for v in variables if v.choices))
        for choices in itertools.islice(chosen, MOST_CORNERS):
            picked = dict(zip((v.key for v in variables if v.choices), choices))
            for end in (0, -1):
                values: dict[str, Any] = {}
                for v in variables:
                    c = v.only_with
                    if c is None or {**base, **picked, **values}.get(c.key) == c.value:
                        values[v.key] = picked[v.key] if v.choices else v.ends()[end]
                _check_corner(plan, kind, values)


def _check_corner(plan: Plan, kind: str, values: Mapping[str, Any]) -> None:
    try:
        plan.recipe_of(kind, values)
    except RecipeError as error:
        said = ", ".join(f"{key}={value}" for key, value in values.items())
        raise SweepError(
            f"{plan.name}: a {kind} trial with {said} is no recipe: {error} Narrow the range, or search the key "
            '"only with" another one.'
        ) from error
