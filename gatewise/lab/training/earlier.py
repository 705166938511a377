"""The network of an earlier run, which teaches another one, or begins it."""

from __future__ import annotations

from gatewise.export import attached, load
from gatewise.lab import recipe as recipes
from gatewise.lab.data.encoding import ENCODING, Corpus, content_of, encoding_of
from gatewise.lab.files import RECIPE, RunError, model_of
from gatewise.lab.models import TaskModel
from gatewise.lab.schema import Recipe

# Of [model], what a trained network has; the rest is about its training or its start.
BUILT = ("hidden", "embedding", "layers", "cell", "bidirectional", "backwards", "attention", "gates")


def network_of(key: str, run: str, corpus: Corpus) -> TaskModel:
    """The network in the folder of a finished run of the same symbols; `key` of the recipe names it.

    Raises:
        RunError: there is no such run, or it reads and answers with others.
    """
    file = model_of(run)
    known = attached(file).get(ENCODING)
    if known != content_of(encoding_of(corpus)):
        what = "reads other symbols, or answers with others, than this run does"
        raise RunError(
            f"{key} = {run!r}: its network {'does not say what its symbols are' if known is None else what}. Name a "
            "finished run of the same data."
        )
    model = load(file)
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
    told = model_of(run).parent / RECIPE
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
