"""Two processes that make one run, several times: each writes down what it has in the end.

`python two_rank_runs.py FOLDER DATA`, with RANK and WORLD_SIZE as torchrun sets them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from rank_recipes import RECIPES
from tiny_corpora import tiny
from tiny_runs import Killed, options

from gatewise.compact import compress
from gatewise.lab.files import RunError
from gatewise.lab.training import trainer
from gatewise.lab.training.trainer import train
from gatewise.masks import find_masks

RANK, FOLDER, DATA = int(os.environ["RANK"]), Path(sys.argv[1]), Path(sys.argv[2])
made: list[trainer.Run] = []


class Kept(trainer.Run):
    """A run that can be looked at when it is over."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        made.append(self)


def left(run: trainer.Run) -> dict[str, Any]:
    """What a rank has: weights, masks, and the compact network that it would write."""
    masks = {name: mask.int().sum().item() for name, mask in find_masks(run.model).matrix.items()}
    small = {
        name: tensor.double().sum().item() for name, tensor in compress(run.model.eval()).state_dict().items()
    }
    weights = {name: tensor.double().sum().item() for name, tensor in run.model.state_dict().items()}
    return {"masks": masks, "compact": small, "weights": weights}


def finished(name: str) -> dict[str, Any]:
    task, more = RECIPES[name]
    dist.barrier()  # the first rank has written the run that this one may begin with
    result = train(
        tiny(task, DATA, *(text.format(runs=FOLDER) for text in more)), options(FOLDER / name, DATA)
    )
    return {"quality": result["quality"], **left(made[-1])}


def cut_and_resumed(name: str, after: int) -> dict[str, Any]:
    """The same run, ended on both ranks behind a checkpoint inside an epoch, and gone on with."""
    task, more = RECIPES[name]
    row, out = tiny(task, DATA, *more), FOLDER / f"{name}-cut"
    original, saves = Kept.save, iter(range(after))

    def save(self: trainer.Run) -> None:
        original(self)
        if next(saves, None) is None:
            raise Killed

    Kept.save = save  # type: ignore[method-assign]
    try:
        train(row, options(out, DATA, checkpoint_every=0))
    except Killed:
        torch.manual_seed(99)  # another process would not have the generator of this one
    finally:
        Kept.save = original  # type: ignore[method-assign]
    dist.barrier()
    result = train(row, options(out, DATA, resume=True))
    return {"quality": result["quality"], **left(made[-1])}


def apart() -> str:
    """What is said where one rank has another weight."""
    task, more = RECIPES["lasso"]
    original = Kept.one_epoch

    def one_epoch(self: trainer.Run, progress: Any) -> None:
        if RANK == 1:
            with torch.no_grad():
                next(self.model.parameters()).view(-1)[0].add_(1e-3)
        original(self, progress)

    Kept.one_epoch = one_epoch  # type: ignore[method-assign]
    try:
        train(tiny(task, DATA, *more), options(FOLDER / "apart", DATA))
    except RunError as error:
        return str(error)
    finally:
        Kept.one_epoch = original  # type: ignore[method-assign]
    return ""


def refused() -> str:
    try:
        train(tiny("words", DATA, "data.batch=3"), options(FOLDER / "refused", DATA))
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer.Run = Kept  # type: ignore[misc]
    dist.init_process_group("gloo", init_method=f"file://{FOLDER / 'meeting'}", rank=RANK, world_size=2)
    seen: dict[str, Any] = {name: finished(name) for name in RECIPES}
    seen["lasso-cut"] = cut_and_resumed("lasso", 3)
    seen["bayes-cut"] = cut_and_resumed("bayes", 5)
    seen["refused"] = refused()
    seen["apart"] = apart()
    (FOLDER / f"{RANK}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()
