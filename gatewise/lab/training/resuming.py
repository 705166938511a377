"""What a checkpoint holds of a run, and how a run goes on from it.

Ranks put their parts together: streams of a text side by side, as one process has them, and random numbers below one
another. So a run of several ranks goes on with as many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gatewise.lab.files import CHECKPOINT, RunError
from gatewise.lab.training.parts import Position
from gatewise.lab.training.ranks import Ranks
from gatewise.lab.training.run_folder import refuse_other_data, refuse_other_recipe
from gatewise.sparsify import Refit

if TYPE_CHECKING:
    from gatewise.lab.training.trainer import Run

STREAMS = 1  # the axis of a carried state along which streams lie


def content_of(run: Run) -> dict[str, Any]:
    ranks, step = run.ranks, run.step
    content: dict[str, Any] = {
        "recipe": run.recipe.steering(),
        "data": run.about,
        "digest": run.digest,
        "position": {key: value for key, value in vars(run.position).items() if key != "best"},
        "best": run.position.best,
        "model": run.model.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "step": {"k": step.k, "sums": ranks.total(step.sums), "bad": step.bad},
        "state": [ranks.gathered(part, STREAMS) for state in step.carried for part in state.parts],
        "rng": stacked(ranks, torch.get_rng_state()),
        "ranks": ranks.size,
    }
    if run.device.type == "cuda":
        content["cuda_rng"] = stacked(ranks, torch.cuda.get_rng_state(run.device))
    if isinstance(run.sparsifier, Refit):
        content["sparsifier"] = run.sparsifier.state_dict()
    if run.budget is not None:
        content["budget"] = run.budget.state_dict()
    if run.average is not None:
        content["average"] = run.average.state_dict()
    if run.shrinking.every:
        content["shrinking"] = run.shrinking.state_dict()
    return content


def restore(run: Run, content: dict[str, Any]) -> None:
    path, ranks = run.options.out / CHECKPOINT, run.ranks
    refuse_other_recipe(content["recipe"], run.recipe, path, content["position"].get("part") == "refit")
    refuse_other_data(content["data"], content["digest"], run.about, run.digest, path)
    if (before := content["ranks"]) != ranks.size:
        raise RunError(
            f"{path}: the run was made by {before} ranks, here are {ranks.size}: each has streams and noise of its "
            f"own. Resume with torchrun --nproc-per-node {before}, or begin anew in another --out."
        )
    run.position = Position(**content["position"])
    run.position.best = {name: tensor.to(run.device) for name, tensor in content["best"].items()}
    if run.shrinking.every:
        run.shrinking.load_state_dict(content["shrinking"])
        if run.shrinking.again(run.model, run.step.optimizer) and run.position.part == "train":
            run.take(run.shrunk_part())
    if run.position.part == "refit":
        run.take(run.refit_part(run.position.first, content["sparsifier"]))
    run.model.load_state_dict(content["model"])
    restore_step(run, content)
    if run.budget is not None:
        run.budget.load_state_dict(content["budget"])
    if run.average is not None:
        run.average.load_state_dict(content["average"])
    torch.set_rng_state(own(ranks, content["rng"]))
    if run.device.type == "cuda" and "cuda_rng" in content:
        torch.cuda.set_rng_state(own(ranks, content["cuda_rng"]), run.device)
    run.saved_position = f"{path}, at {run.place}"


def restore_step(run: Run, content: dict[str, Any]) -> None:
    step = run.step
    step.optimizer.load_state_dict(content["optimizer"])
    for group in step.optimizer.param_groups:
        group["lr"] = step.lr  # the tensor that the step writes to, not the copy from the file
    for name, value in content["step"].items():
        getattr(step, name).copy_(value)
    if not run.ranks.is_first:
        step.sums.zero_()  # the first has those of all
    parts = [part for state in step.carried for part in state.parts]
    for part, value in zip(parts, content["state"], strict=True):
        part.copy_(run.ranks.own(value, STREAMS))


def stacked(ranks: Ranks, state: Tensor) -> Tensor:
    """(ranks, n), or (n,) of one process."""
    return state if ranks.size == 1 else ranks.gathered(state[None], 0)


def own(ranks: Ranks, state: Tensor) -> Tensor:
    return state if ranks.size == 1 else state[ranks.rank].clone()  # torch reads a view from its start
