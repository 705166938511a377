"""How well do a few words tell good reviews from bad ones? The bound of the IMDb rows.

    score = sum of w[word] n[word]^p over words + b        logistic regression, no order, no LSTM

n is how often a word stands in a review. With p = 1 every time counts as much, with p = 1/2 the second time less.

    python reproduction/few_words.py --data-dir DATA                 # p = 1
    python reproduction/few_words.py --data-dir DATA --power 0.5

The sparse IMDb networks keep some 300 words with one number each, and four neurons. A regression on as many words is
nearly as large. It begins with all words and drops those that add least to its scores: |w| times the root of the mean
square of n^p. Half of the words go at a time while there are thousands, a tenth from then on, and the rest is fitted
again each time. The L2 penalty is chosen on validation, for each number of words by itself. It takes a few minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.lab import recipe as recipes
from gatewise.lab.data.batches import Examples
from gatewise.lab.data.classification import FIRST_WORD
from gatewise.lab.data.corpus import load_data

WANTED = (20_000, 1000, 500, 348, 315)  # 348 and 315: all weights of the paper's W+N and W+G+N networks
DENSE_BELOW = 3000
PENALTIES = (3e-5, 1e-4, 3e-4)


class Line(NamedTuple):
    words: Tensor  # (n,) columns of the counts
    weight: Tensor  # (n,)
    bias: Tensor  # ()

    def accuracy(self, counts: Tensor, targets: Tensor) -> float:
        score = columns(counts, self.words) @ self.weight + self.bias
        return 100 * float(((score > 0) == (targets > 0)).double().mean())


def counted(examples: Examples, n_words: int) -> Tensor:  # (N, V) sparse
    """n: how often each word stands in each review; padding and unknown words do not count."""
    mask = examples.mask()
    rows = torch.arange(len(examples))[:, None].expand_as(mask)[mask]
    words = examples.inputs[mask]
    known = words >= FIRST_WORD
    at = torch.stack([rows[known], words[known]])
    shape = (len(examples), n_words)
    return torch.sparse_coo_tensor(at, torch.ones(at.shape[1]), shape, check_invariants=True).coalesce()


def columns(counts: Tensor, words: Tensor) -> Tensor:
    own = counts.index_select(1, words)
    return own.to_dense() if len(words) < DENSE_BELOW else own


def fitted(counts: Tensor, targets: Tensor, words: Tensor, penalty: float) -> Line:
    own = columns(counts, words)
    weight, bias = (torch.zeros(shape, requires_grad=True) for shape in ((len(words),), ()))
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        score = torch.mv(own, weight) + bias
        value = F.binary_cross_entropy_with_logits(score, targets) + penalty * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return Line(words, weight.detach(), bias.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--power", type=float, default=1.0, metavar="P")
    args = parser.parse_args()
    data = load_data(recipes.load("imdb-original"), args.data_dir)
    splits = {name: getattr(data, name) for name in ("train", "valid", "test")}
    n_words = 1 + max(int(part.inputs.max()) for part in splits.values())
    counts = {name: counted(part, n_words).pow(args.power) for name, part in splits.items()}
    targets = {name: part.targets.float() for name, part in splits.items()}
    train = counts["train"]
    spread = (torch.sparse.sum(train.square(), 0).to_dense() / len(targets["train"])).sqrt()
    found: dict[int, tuple[float, Line]] = {}
    for penalty in PENALTIES:
        words = spread.nonzero()[:, 0]
        for wanted in WANTED:
            while True:
                line = fitted(train, targets["train"], words, penalty)
                if len(words) <= wanted:
                    break
                moved = line.weight.abs() * spread[words]
                fewer = len(words) // 2 if len(words) >= DENSE_BELOW else len(words) * 9 // 10
                keep = moved.topk(max(wanted, fewer)).indices
                words = words[keep.sort().values]
            valid = line.accuracy(counts["valid"], targets["valid"])
            if wanted not in found or valid > found[wanted][0]:
                found[wanted] = valid, line
            print(f"L2 {penalty:g}, {len(words):,} words: {valid:.2f} on validation", flush=True)
    print("\nwords    train  valid  test")
    for valid, line in found.values():
        seen, unseen = (line.accuracy(counts[name], targets[name]) for name in ("train", "test"))
        print(f"{len(line.words):6,}   {seen:.2f}  {valid:.2f}  {unseen:.2f}")


if __name__ == "__main__":
    main()
