"""What weights of int8 cost in quality: stored networks, judged on their test data in every form.

Matrices are rounded as gw.Engine(weights=...) rounds them, embeddings stay; bytes are those of the matrices.

    python benchmarks/rounded_weights.py results/ptb-word-small-bayes-wgn-best results/imdb-bayes-wgn-best
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from torch import nn

import gatewise as gw
from gatewise.compact import CompactLayer, CompactLinear
from gatewise.lab.data.corpus import load_data
from gatewise.lab.data.encoding import load_encoding
from gatewise.lab.files import model_of
from gatewise.lab.finished.saved import recipe_of
from gatewise.lab.training.assembly import make_feeds, objective_of
from gatewise.lab.training.evaluation import Evaluator
from gatewise.runtime.rounding import Weights, rounded

BYTES: dict[Weights, int] = {"float32": 4, "int8": 1}


def matrices(model: nn.Module) -> list[torch.Tensor]:
    """What the kernels multiply."""
    layers = [module for module in model.modules() if isinstance(module, CompactLayer | CompactLinear)]
    named = [getattr(layer, name, None) for layer in layers for name in ("weight_ih", "weight_hh", "weight")]
    return [matrix.data for matrix in named if isinstance(matrix, torch.Tensor)]


def with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    model = copy.deepcopy(model)
    for matrix in matrices(model):
        matrix.copy_(torch.from_numpy(rounded(matrix.numpy(), weights)))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    print("| network | weights | kB | test |")
    print("| --- | --- | --- | --- |")
    for run in args.runs:
        path, place = model_of(run), torch.device("cpu")
        recipe = recipe_of(path, None, [])
        model = gw.load(path).eval()
        corpus = load_data(recipe, args.data_dir, load_encoding(path))
        objective, feed = objective_of(recipe, corpus), make_feeds(recipe, corpus, place).test
        count = sum(matrix.numel() for matrix in matrices(model))
        for weights, size in BYTES.items():
            judged = Evaluator(with_weights(model, weights), objective, feed, place, graph=False)()
            said = ", ".join(f"{name} {value:.4f}" for name, value in judged.items())
            print(f"| {run.name} | {weights} | {size * count / 1e3:.1f} | {said} |", flush=True)


if __name__ == "__main__":
    main()
