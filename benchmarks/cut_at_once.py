"""A stored network cut to its budget at once, by the norm of units or by what the loss would miss, before any refit.

    python benchmarks/cut_at_once.py ptb-char-bayes-w-cut imdb-bayes-w-cut

Arguments are recipes with [start] and [budget]. What is printed is quality on validation data. By norm is what
gw.Budget(steps=1) does without listen().
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

import torch

import gatewise as gw
from gatewise.lab import recipe as recipes
from gatewise.lab.training.options import Options
from gatewise.lab.training.shrinking import cut_to
from gatewise.lab.training.trainer import Run


def qualities(name: str, data_dir: str | None) -> dict[str, float]:
    row = recipes.load(name)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(row, Options(Path(folder), data_dir, "cpu", quiet=True))
    key = f"valid_{run.quality}"
    found = {"before": run.judged("valid")[key]}
    whole = copy.deepcopy(run.model.state_dict())
    gw.Budget(gw.GroupLasso(run.model, l1=1.0, group=1.0), steps=1, **row.budget.wanted()).step()
    found["cut by norm"] = run.judged("valid")[key]
    run.model.load_state_dict(whole)
    cut_to(row, run.step)
    return {
        f"{key} {how}": value for how, value in (found | {"cut by loss": run.judged("valid")[key]}).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--data-dir")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.recipes:
        print(
            name,
            *(f"{key} {value:.4f}" for key, value in qualities(name, given.data_dir).items()),
            sep="\n  ",
        )


if __name__ == "__main__":
    main()
