"""evaluate_saved(): quality and counts of a saved compact model, from the data and the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatewise.export import load
from gatewise.export.c.rounded import rounded_model
from gatewise.lab import recipe as recipes
from gatewise.lab.data.corpus import describe, load_data
from gatewise.lab.data.encoding import load_encoding
from gatewise.lab.files import RECIPE, model_of
from gatewise.lab.schema import Own, Recipe, RecipeError
from gatewise.lab.training.assembly import make_feeds, objective_of
from gatewise.lab.training.evaluation import Evaluator
from gatewise.lab.training.options import chosen_device
from gatewise.report import Report, measure

SPLITS: tuple[str, ...] = ("valid", "test")
NO_VALID = (
    "no validation quality: data.test_path cuts its part of data.path anew, with some of what was trained on"
)


def recipe_of(model: Path, task: str | None, changes: list[str]) -> Recipe:
    """The recipe that is named; without a name the one beside the model, as `gatewise train` leaves it."""
    if task is not None:
        return recipes.load(task, changes)
    beside = model.parent / RECIPE
    if beside.is_file():
        return recipes.load(beside, changes)
    raise RecipeError(
        f"{model}: there is no {RECIPE} beside it that says which data and how. Name a recipe with --task, for "
        "instance --task ptb-word-small-prune-wgn."
    )


def cut_anew(trained: Path, recipe: Recipe) -> bool:
    """Whether a test file makes another validation part of the file of training, with some of what was trained on."""
    if not trained.is_file():
        return False
    before, now = recipes.load(trained).data, recipe.data
    if not isinstance(now, Own) or not isinstance(before, Own) or now.path != before.path:
        return False
    if now.valid_fraction != before.valid_fraction:
        raise RecipeError(
            f"data.valid_fraction = {now.valid_fraction}, but {now.path} was cut by "
            f"{before.valid_fraction or 'the default'} for training; cut anew, its parts have what was trained on. "
            "Leave it out."
        )
    return getattr(now, "valid_path", None) is None and (now.test_path is None) != (before.test_path is None)


def evaluate_saved(
    path: Path,
    task: str | None = None,
    changes: list[str] | None = None,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    int8: bool = False,
) -> tuple[dict[str, Any], Report]:
    """Qualities by split and data notes, and the counts. `path` is a model, or the folder of a run.

    The data are encoded as those of training were, by the encoding that is attached to the model; without one
    words are counted again. With `int8` the quality is that of to_c(weights="int8"): its rounded weights, and float32
    all else.
    """
    path = model_of(path)
    recipe = recipe_of(path, task, changes or [])
    place = chosen_device(device)
    model = load(path).eval()
    report = measure(model)
    if int8:
        model = rounded_model(model)
    model = model.to(place)
    corpus = load_data(recipe, data_dir, load_encoding(path))
    objective = objective_of(recipe, corpus)
    feeds = make_feeds(recipe, corpus, place)
    found: dict[str, Any] = {"task": recipe.name, "data": describe(corpus), "note": corpus.note}
    splits = SPLITS
    if cut_anew(path.parent / RECIPE, recipe):
        splits, found["note"] = ("test",), "; ".join(filter(None, (corpus.note, NO_VALID)))
    for split in splits:
        try:
            judged = Evaluator(model, objective, getattr(feeds, split), place, graph=False)()
        except (IndexError, RuntimeError, ValueError) as error:
            raise RecipeError(
                f"{path}: the model does not fit the data of {recipe.name} ({str(error).splitlines()[0]}). Name the "
                "recipe it was trained with: --task."
            ) from error
        found |= {f"{split}_{name}": value for name, value in judged.items()}
    return found, report
