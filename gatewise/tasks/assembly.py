"""Everything an update needs, put together from a recipe and its data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.sparsify import GroupLasso, Variational
from gatewise.tasks.encoding import Corpus
from gatewise.tasks.evaluation import Evaluator
from gatewise.tasks.graph import Replayed
from gatewise.tasks.models import TaskModel
from gatewise.tasks.objectives import Objective
from gatewise.tasks.recipe import Recipe
from gatewise.tasks.setup import Feeds, build_model, make_feeds, make_sparsifier, objective_of
from gatewise.tasks.step import TrainStep


@dataclass(frozen=True)
class Assembly:
    model: TaskModel
    sparsifier: GroupLasso | Variational | None
    objective: Objective
    feeds: Feeds
    step: TrainStep
    update: Replayed
    evaluators: dict[str, Evaluator]


def assemble(
    recipe: Recipe, corpus: Corpus, device: torch.device, graph: bool = True, rows: Tensor | None = None
) -> Assembly:
    """Draws starting values from torch's global generator, on the CPU, so that every device starts alike.

    `rows` are pretrained rows of the embedding.
    """
    objective, feeds = objective_of(recipe, corpus), make_feeds(recipe, corpus, device)
    model = build_model(recipe, corpus)
    if rows is not None:
        with torch.no_grad():
            model.get_parameter("emb.weight").copy_(rows)
    model = model.to(device).train()
    sparsifier = make_sparsifier(recipe, model, feeds.n_train, feeds.train.n_batches)
    step = TrainStep(
        model,
        sparsifier,
        objective,
        feeds.train,
        optimizer=recipe.train.optimizer,
        clip=recipe.train.clip,
        window_sum=recipe.train.loss == "window-sum",
        device=device,
    )
    evaluators = {
        split: Evaluator(model, objective, feed, device, graph)
        for split, feed in (("valid", feeds.valid), ("test", feeds.test))
    }
    return Assembly(model, sparsifier, objective, feeds, step, Replayed(step, device, graph), evaluators)
