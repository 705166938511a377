"""Seconds of an epoch of every recipe, and of its update against that of the dense network.

    python benchmarks/train_epoch.py --device cuda -o train_epoch.json
    python benchmarks/train_epoch.py ptb-word-small-prune-wgn --steps 50

The corpus is made of random symbols of the right number, so nothing is downloaded. They are as unequal as words are,
the k-th symbol with a probability of 1 / (k + 2.7) (Zipf and Mandelbrot): the gradient of an embedding has to add up
the places of a frequent one. An epoch is its number of updates times the median update, plus one look at the
validation set. The dense network has the same layers, batches and optimiser, and no sparsifier. Blocks of updates of
both take turns, so that a slow moment of the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from recurrence_share import recurrence_share, timed

from gatewise.lab import provenance, recipe
from gatewise.lab.data.batches import Examples
from gatewise.lab.data.classification import TextData
from gatewise.lab.data.language import LanguageData, Vocabulary
from gatewise.lab.schema import Dense, Recipe
from gatewise.lab.training.assembly import Assembly, assemble
from gatewise.lab.training.graph import WARM_UP
from gatewise.lab.training.options import use_tf32

STREAMS = {"word-ptb": (10_000, (929_589, 73_760, 82_430)), "char-ptb": (50, (5_017_482, 393_042, 442_423))}
TEXTS = {"imdb": (2, 200, 230, (21_250, 3_750, 25_000)), "agnews": (4, 100, 40, (113_999, 6_000, 7_599))}


def drawn(symbols: int, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    rank = torch.arange(symbols, dtype=torch.float64)
    n = math.prod(shape)
    return torch.multinomial(1 / (rank + 2.7), n, replacement=True, generator=generator).view(shape)


def corpus_of(task: str) -> LanguageData | TextData:
    """Random symbols in the numbers of the real corpus."""
    generator = torch.Generator().manual_seed(0)
    if task in STREAMS:
        symbols, sizes = STREAMS[task]
        streams = [drawn(symbols, (n,), generator) for n in sizes]
        vocabulary = Vocabulary(tuple(str(k) for k in range(symbols)))
        return LanguageData(*streams, vocabulary, "word" if task == "word-ptb" else "char")
    classes, steps, mean, sizes = TEXTS[task]
    parts = []
    for n in sizes:
        ids = drawn(20_000, (n, steps), generator)
        lengths = torch.randint(mean // 2, 3 * mean // 2, (n,), generator=generator).clamp(max=steps)
        parts.append(Examples(ids, lengths, torch.randint(classes, (n,), generator=generator)))
    words = tuple(str(k) for k in range(20_000))
    return TextData(*parts, words, tuple(str(k) for k in range(classes)), {})


def dense(row: Recipe) -> Recipe:
    return row.model_copy(update={"sparsify": Dense()})


def begin(made: Assembly, row: Recipe) -> None:
    made.step.begin([row.train.lr] * made.feeds.train.n_batches)


def measure(name: str, device: torch.device, steps: int) -> dict[str, Any]:
    row = recipe.load(name)
    corpus = corpus_of(row.data.task)
    contenders = {"sparse": row} if row.sparsify.method == "none" else {"sparse": row, "dense": dense(row)}
    made = {}
    for key, version in contenders.items():
        torch.manual_seed(0)
        made[key] = assemble(version, corpus, device)
        begin(made[key], version)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for one in made.values():
        timed(one.update, device, WARM_UP + 2)  # thrown away: compilation, capture
    block = max(1, steps // 5)
    times: dict[str, list[float]] = {key: [] for key in made}
    for _ in range(5):
        for key, one in made.items():
            begin(one, row)
            times[key].append(timed(one.update, device, min(block, one.feeds.train.n_batches)))
    seconds = {key: statistics.median(values) for key, values in times.items()}
    sparse = made["sparse"]
    sparse.evaluators["valid"]()
    start = time.perf_counter()
    sparse.evaluators["valid"]()
    evaluation = time.perf_counter() - start
    updates = sparse.feeds.train.n_batches
    epoch = updates * seconds["sparse"] + evaluation
    return {
        "recipe": name,
        "updates": updates,
        "ms_per_update": 1e3 * seconds["sparse"],
        "ratio_to_dense": seconds["sparse"] / seconds.get("dense", seconds["sparse"]),
        "seconds_per_epoch": epoch,
        "minutes_in_all": epoch * row.train.epochs / 60,
        "validation_seconds": evaluation,
        "recurrence_share": recurrence_share(
            sparse.model, sparse.feeds.train, sparse.step, sparse.update, device
        ),
        "graph": sparse.update.graph is not None,
        "why_no_graph": sparse.update.why_not,
        "peak_memory": provenance.peak_memory(device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", help="all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100, help="updates timed, in five blocks")
    parser.add_argument("-o", "--out", type=Path, help="JSON file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        use_tf32()
    rows = []
    for name in arguments.recipes or recipe.names():
        rows.append(measure(name, device, arguments.steps))
        r = rows[-1]
        share = "" if r["recurrence_share"] is None else f"recurrence {r['recurrence_share']:4.0%}  "
        graph = f"no CUDA graph: {r['why_no_graph']}" if r["why_no_graph"] else ""
        print(
            f"{name:32s} {r['ms_per_update']:9.3f} ms  {r['ratio_to_dense']:5.2f} x dense  "
            f"{r['seconds_per_epoch']:8.2f} s/epoch  {r['minutes_in_all']:7.2f} min  "
            f"{share}{graph}",
            file=sys.stderr,
            flush=True,
        )
        if device.type == "cuda":
            torch.cuda.empty_cache()
        result = {"hardware": provenance.hardware(device), "versions": provenance.versions(), "rows": rows}
        if arguments.out is not None:  # after every row: a run that is cut off keeps what it measured
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.out is None:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
