"""From parsed TOML to a recipe: every key, type and range is checked, and what no single key can say."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gatewise.lab.schema import OWN_DATA, PAPER_DATA, SECTIONS, Recipe, RecipeError, Train

# What a number may be, in words and as a test, and whose range it is; a key that is left out is not asked.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "above 0": (
        lambda value: value > 0,
        "data.batch data.steps data.chunk data.test_batch data.max_len model.hidden model.embedding model.layers "
        "model.init_range sparsify.snr_threshold train.epochs train.lr train.clip train.patience "
        "train.evaluate_every train.count_every refit.lr refit.patience budget.gates budget.neurons budget.weights "
        "budget.bytes budget.end",
    ),
    "at least 0": (
        lambda value: value >= 0,
        "sparsify.l1 sparsify.group sparsify.threshold sparsify.warm_up_epochs train.after train.warm_up "
        "train.test_every train.shrink_every train.average refit.epochs refit.after refit.average budget.begin "
        "model.attention train.weight_decay",
    ),
    "at least 2": (lambda value: value >= 2, "data.vocabulary_size"),
    "in (0, 1)": (lambda value: 0 < value < 1, "data.valid_fraction"),
    "in (0, 1]": (lambda value: 0 < value <= 1, "teacher.share"),
    "in [0, 1)": (
        lambda value: 0 <= value < 1,
        "model.dropout refit.dropout train.drop_recurrent train.drop_words",
    ),
    "in [0, 0.5)": (lambda value: 0 <= value < 0.5, "train.clip_probabilities"),
    "in [0, 2^64)": (lambda value: 0 <= value < 2**64, "train.seed"),
}


def parse(content: Mapping[str, Any]) -> Recipe:
    """Check every key and value, and build the recipe."""
    known = [*SECTIONS, "name", "title", "expect"]
    for key in content:
        if key not in known:
            raise RecipeError(f"unknown section or key {key!r}{suggestion(key, known)}")
    parts = {name: _section(content.get(name, {}), kind, f"[{name}]") for name, kind in SECTIONS.items()}
    expect = content.get("expect", {})
    if not isinstance(expect, Mapping):
        raise RecipeError("[expect] must be a section.")
    recipe = Recipe(
        str(content.get("name", "recipe")), str(content.get("title", "")), expect=dict(expect), **parts
    )
    _check(recipe)
    return recipe


def suggestion(word: str, known: Sequence[str]) -> str:
    """`; did you mean ...?`, or a full stop."""
    close = difflib.get_close_matches(word, known, 3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else "."


def _section(values: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(values, Mapping):
        raise RecipeError(f"{where} must be a section, not {values!r}.")
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise RecipeError(f"{where} has an unknown key {key!r}{suggestion(key, list(hints))}")
    missing = [f.name for f in fields(kind) if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise RecipeError(f"{where} lacks {', '.join(missing)}.")
    return kind(**{key: _typed(value, hints[key], f"{where} {key}") for key, value in values.items()})


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The value if it fits the type of its key; a whole number serves as float."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value in choices:
            return value
        raise RecipeError(f"{where} = {value!r} is not one of {', '.join(choices)}.")
    if get_origin(hint) in (types.UnionType, Union):
        hints = [arg for arg in get_args(hint) if arg is not type(None)]
        return _typed(value, type(value) if type(value) in hints else hints[0], where)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise RecipeError(f"{where} = {value} must be a finite number.")
        return float(value)
    if type(value) is hint:
        return value
    kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a string in quotes"}
    raise RecipeError(f"{where} = {value!r} must be {kinds[hint]}.")


def _check(recipe: Recipe) -> None:
    """Ranges of numbers, and what no single key can say."""
    flat = recipe.steering()
    for words, (allowed, keys) in RANGES.items():
        for key in keys.split():
            if flat[key] is not None and not allowed(flat[key]):
                raise RecipeError(f"{key} = {flat[key]} must be {words}.")
    data, sparsify, train = recipe.data, recipe.sparsify, recipe.train
    if data.task in OWN_DATA and data.path is None:
        raise RecipeError(f"data.task = {data.task!r} needs data.path, the file to read.")
    for key in ("path", "valid_path", "test_path") if data.task in PAPER_DATA else ():
        if getattr(data, key) is not None:
            raise RecipeError(
                f"data.{key} = {getattr(data, key)!r}: data.task = {data.task!r} has files of its own. Leave it out, "
                f"or set data.task to one of {', '.join(OWN_DATA)}."
            )
    if data.task == "csv" and data.valid_path is not None:
        raise RecipeError(
            f"data.valid_path = {data.valid_path!r}: validation texts are rows of data.path, the part "
            "data.valid_fraction of them. Leave it out, or put its rows into data.path."
        )
    if data.fill_from != "none" and data.vectors in ("none", data.fill_from):
        raise RecipeError(
            f"data.fill_from = {data.fill_from!r} with data.vectors = {data.vectors!r}: it predicts vectors of one "
            "kind from those of another. Name two kinds, or leave it out."
        )
    if sparsify.method == "group-lasso" and (sparsify.levels == "W") != (sparsify.group == 0):
        raise RecipeError(
            f"sparsify.method = 'group-lasso', levels = {sparsify.levels!r}, group = {sparsify.group}: it needs "
            "group > 0 on the levels W+N and W+G+N, and 0 on W."
        )
    if train.average and sparsify.method == "variational":
        raise RecipeError(
            f"train.average = {train.average}, sparsify.method = 'variational': its weights are distributions, which "
            "are not averaged. Set refit.average."
        )
    for key in ("drop_recurrent", "drop_words", "weight_decay") if sparsify.method == "variational" else ():
        if getattr(train, key):
            raise RecipeError(
                f"train.{key} = {getattr(train, key)}, sparsify.method = 'variational': its weights have noise "
                "and a penalty already. Leave it out, or prune by group lasso."
            )
    _check_schedule("train", train)
    _check_budget(recipe)
    _check_shrinking(recipe)
    if recipe.start.run is not None and not recipe.refit.epochs:
        raise RecipeError(
            f"start.run = {recipe.start.run!r}: that network takes the place of [train], so there is nothing to do "
            "without refit.epochs. Set it, too."
        )
    if recipe.refit.epochs:
        if sparsify.method == "none" and recipe.start.run is None:
            raise RecipeError(
                f"refit.epochs = {recipe.refit.epochs}, sparsify.method = 'none': a dense network has no zeros to "
                "hold. Leave it out and set train.epochs, or name a sparsify.method."
            )
        _check_schedule("refit", recipe.refit_train())
    if train.loss == "window-sum" and (
        data.chunk is not None or data.task in ("imdb", "agnews", "csv", "npz", "g2p")
    ):
        raise RecipeError("train.loss = 'window-sum' belongs to language models cut into windows.")


def _check_schedule(section: str, train: Train) -> None:
    if train.average > train.epochs:
        raise RecipeError(f"{section}.average = {train.average}, but there are {train.epochs} epochs.")
    if train.schedule in ("power", "stairs") and not 0 < train.decay <= 1:
        raise RecipeError(f"{section}.decay = {train.decay} must be in (0, 1].")
    if train.schedule == "stairs" and train.after < 1:
        raise RecipeError(f"{section}.schedule 'stairs' needs {section}.after, the epochs of a step.")
    if train.schedule == "linear" and not 0 <= train.after < train.epochs:
        raise RecipeError(
            f"{section}.after = {train.after} must be below {section}.epochs = {train.epochs}, because the rate "
            f"falls from there on. Set both, for instance --set {section}.after={train.epochs // 2}."
        )


def _check_budget(recipe: Recipe) -> None:
    budget, wanted = recipe.budget, recipe.budget.wanted()
    if len(wanted) > 1:
        raise RecipeError(f"[budget] has {' and '.join(wanted)}; keep one of them.")
    if not wanted:
        return
    ((kind, value),) = wanted.items()
    if kind in ("weights", "bytes") and recipe.refit.epochs and recipe.refit.hold == "structure":
        raise RecipeError(
            f"budget.{kind} = {value}, refit.hold = 'structure': zeros between what is kept would fill again, and "
            "the network would outgrow its budget. Set refit.hold = 'weights', or use budget.gates or neurons."
        )
    if recipe.start.run is not None:
        return
    if recipe.sparsify.method == "none":
        raise RecipeError(
            f"budget.{kind} = {value}, sparsify.method = 'none': nothing would go. Name a sparsify.method, or train "
            "a smaller network: model.hidden."
        )
    if recipe.train.keep == "best":
        raise RecipeError(
            f"budget.{kind} = {value} is met at the end of [train], train.keep = 'best' may take an earlier epoch. "
            "Set train.keep = 'last'."
        )
    if not budget.begin < budget.end <= 1:
        raise RecipeError(
            f"budget.begin = {budget.begin}, budget.end = {budget.end}: 0 <= begin < end <= 1, parts of [train]."
        )


def _check_shrinking(recipe: Recipe) -> None:
    said = f"train.shrink_every = {recipe.train.shrink_every}"
    if not recipe.train.shrink_every:
        return
    if recipe.sparsify.method == "none":
        raise RecipeError(f"{said}, sparsify.method = 'none': nothing becomes zero. Name a sparsify.method.")
    if recipe.sparsify.method == "variational" and not recipe.refit.epochs:
        raise RecipeError(
            f"{said}: variational layers are cut when [train] is over, before a refit. Set refit.epochs, too, "
            "or leave it out."
        )
    if recipe.sparsify.method == "group-lasso" and recipe.train.keep == "best":
        raise RecipeError(
            f"{said}: what was cut does not come back, train.keep = 'best' may take an epoch before the cut. Set "
            "train.keep = 'last'."
        )
