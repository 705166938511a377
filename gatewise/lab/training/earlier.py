"""The network of an earlier run, which teaches another one, or begins it."""

from __future__ import annotations

from pathlib import Path

from gatewise.export import load
from gatewise.lab import recipe as recipes
from gatewise.lab import recorded
from gatewise.lab.data.corpus import digest
from gatewise.lab.data.encoding import Corpus, content_of, encoding_of, read_encoding
from gatewise.lab.files import RECIPE, RESULT, RunError, model_folder, read_json
from gatewise.lab.models import TaskModel
from gatewise.lab.schema import Recipe

# Of [model], what a trained network has; the rest is about its training or its start.
BUILT = ("hidden", "embedding", "layers", "cell", "bidirectional", "backwards", "attention", "gates")


def network_of(key: str, run: str, corpus: Corpus) -> TaskModel:
    """The network in the folder of a finished run of the same symbols; `key` of the recipe names it.

    Raises:
        RunError: there is no such run, or it reads and answers with others.
    """
    folder = model_folder(Path(run))
    encoding = read_encoding(folder)
    same = made_from(folder, corpus) if encoding is None else encoding == content_of(encoding_of(corpus))
    if not same:
        raise RunError(
            f"{key} = {run!r}: its network reads other symbols, or answers with others, than this run does. Name a "
            "finished run of the same data."
        )
    model = load(folder)
    if not isinstance(model, TaskModel):
        raise RunError(f"{key} = {run!r}: holds a {type(model).__name__}, which no recipe makes.")
    return model


def first_network(recipe: Recipe, corpus: Corpus) -> TaskModel:
    """The network of start.run, which is one of the [model] that this recipe tells of.

    Raises:
        RunError: as in network_of(), or the other run had another [model].
    """
    run = str(recipe.start.run)
    model = network_of("start.run", run, corpus)
    told = model_folder(Path(run)).parent / RECIPE
    if told.is_file():
        was = recipes.load(told).model
        for key in BUILT:
            here, there = getattr(recipe.model, key), getattr(was, key)
            if here != there:
                raise RunError(
                    f"start.run = {run!r}: its network has model.{key} = {there!r}, this recipe {here!r}. [start] "
                    f"takes that network as it is: say model.{key} = {there!r}, or name another run."
                )
    return model


def made_from(model: Path, corpus: Corpus) -> bool:
    """By the digest that result.json tells: runs of before there was an encoding."""
    result = model.parent / RESULT
    told = read_json(result, dict, recorded.result).get("data", {}) if result.is_file() else {}
    return bool(told.get("digest") == digest(corpus))
