"""`gatewise demo`: the tour on text that every Python carries, the language reference as `help("...")` prints it.

A language model is trained dense and sparse, timed against its dense original, drawn, and laid out neuron by neuron:
two recipes, and what `gatewise train`, `bench`, `figures` and `report` do with their runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from rich.console import Console
from rich.table import Table

from gatewise.export import load
from gatewise.lab import plot
from gatewise.lab.files import MODEL
from gatewise.lab.finished.explore import write_report
from gatewise.lab.schema import Recipe, parse
from gatewise.lab.timing import race
from gatewise.lab.training.options import Options
from gatewise.lab.training.trainer import train
from gatewise.report import dashed, show
from gatewise.runtime.bindings import NativeLibraryError

TOKEN = re.compile(r"[^\W\d]+(?:'[a-z]+)?|\d+|[^\w\s]")  # a word, a number, or one mark
BLOCK = 20  # paragraphs that stay together
SPLITS = ("train", "valid", "test")
TITLES = {"none": "dense", "lasso": "group lasso", "bayes": "variational dropout"}
# What differs between the three recipes; chosen on the validation text. The lambdas belong to a loss that is summed
# over the window. The threshold is five times the paper's: there are fewer steps to shrink in, and larger ones.
SUMMED = {"optimizer": "sgd", "lr": 1.0, "loss": "window-sum"}
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({"method": "none"}, SUMMED | {"epochs": 12, "after": 7, "decay": 0.6, "keep": "best"}),
    "lasso": (
        {"method": "group-lasso", "l1": 5e-5, "group": 3e-3, "threshold": 5e-4},
        SUMMED | {"epochs": 24, "after": 14, "decay": 0.7},
    ),
    "bayes": (
        {"method": "variational", "noise": "batch", "warm_up_epochs": 12.0},
        {"lr": 4e-3, "epochs": 24, "after": 12, "decay": 0.85},
    ),
}
# Every stage in seconds, and numbers that mean nothing.
QUICK: dict[str, dict[str, Any]] = {
    "none": {"epochs": 3},
    "lasso": {"epochs": 8, "after": 4},
    "bayes": {"epochs": 3, "after": 3},
}


def paragraphs() -> list[str]:
    """Every paragraph once, as tokens with blanks between them.

    Many topics quote others whole. Without removing repetitions, half of the validation text would also be
    training text. Lines without a letter (rulers, table borders) go too.
    """
    found: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            lines = [line for line in paragraph.splitlines() if any(map(str.isalpha, line))]
            tokens = TOKEN.findall("\n".join(lines).lower())
            if tokens:
                found.setdefault(" ".join(tokens))
    return list(found)


def write_text(folder: Path, n_blocks: int | None = None) -> None:
    """Of every ten blocks of 20 paragraphs, eight are for training, one for validation, one for test."""
    whole = paragraphs()
    blocks = [whole[k : k + BLOCK] for k in range(0, len(whole), BLOCK)][:n_blocks]
    folder.mkdir(parents=True, exist_ok=True)
    for split, lasts in zip(SPLITS, (set(range(10)) - {4, 9}, {4}, {9})):
        lines = [line for k, block in enumerate(blocks) if k % 10 in lasts for line in block]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def recipe(method: str, text: Path, seed: int = 0, quick: bool = False) -> Recipe:
    """One of the three; with `quick` narrow and short."""
    sparsify, training = METHODS[method]
    width, words = (32, 500) if quick else (128, 2000)
    paths = {f"{split}_path": str(text / f"{split}.txt") for split in SPLITS}
    data = {"task": "words", "batch": 20, "steps": 20, "vocabulary_size": words, "remainder": "drop"}
    model: dict[str, float] = {"hidden": width, "embedding": width, "layers": 2}
    if method != "bayes":  # which brings noise of its own
        model |= {"dropout": 0.15}
    if quick and method == "lasso":
        sparsify = sparsify | {"group": 1e-3}
    return parse(
        {
            "name": f"demo-{method}",
            "title": f"The demo's language model, {TITLES[method]}",
            "data": data | {"path": paths.pop("train_path")} | paths,
            "model": model,
            "sparsify": sparsify,
            "train": {"schedule": "power", "clip": 5.0, "seed": seed}
            | training
            | (QUICK[method] if quick else {}),
        }
    )


def run_demo(method: str, out: Path, seed: int = 0, quick: bool = False) -> Table:
    """The tour, in a folder; the table of what was found."""
    write_text(out / "text", 40 if quick else None)
    results = {}
    for name, kind in (("dense", "none"), ("compressed", method)):
        options = Options(out / name, device="cpu", overwrite=True)
        results[name] = train(recipe(kind, out / "text", seed, quick), options)
    small = load(out / "compressed" / MODEL)
    plot.save(plot.gate_structure(small, title=results["compressed"]["title"]), out / "gates.png")
    write_report([out / "compressed"], out / "report.html", lags=60, sequences=8)
    times = {}
    with suppress(NativeLibraryError):  # the package was installed without its compiled part
        timings = race(small, steps=20, batch=20, seconds=0.1 if quick else 1.0)
        times = {timing.name: timing.seconds for timing in timings if timing.situation == "one step"}
    found = Table("", *results, title="Word-level language model", title_justify="left")
    for row in rows(results["dense"], results["compressed"], times):
        found.add_row(*row)
    return found


def rows(
    dense: Mapping[str, Any], small: Mapping[str, Any], times: Mapping[str, float]
) -> Iterator[tuple[str, ...]]:
    """A name and a value for the dense and the compressed network."""
    both = (dense, small)
    for split in ("valid", "test"):
        yield f"perplexity, {split}", *(f"{one['quality'][f'{split}_ppl']:.2f}" for one in both)
    counts = [one["counts"] for one in both]
    yield "weights that are not zero", *(f"{one['nonzero']:,}" for one in counts)
    yield "compression", *(show(one["compression"]) for one in counts)
    yield "neurons", *(dashed(one["neurons"]) for one in counts)
    yield "live gates", *(dashed(one["gates"]) for one in counts)
    yield "size on disk", *(f"{one['model_bytes'] / 1000:,.0f} kB" for one in both)
    for name, seconds in times.items():
        shown = f"{seconds * 1e6:,.0f} us"
        yield f"time of a word, {name}", *((shown, "") if "dense" in name else ("", shown))


def show_demo(method: str, out: Path, seed: int = 0, quick: bool = False) -> None:
    console = Console()
    console.print(run_demo(method, out, seed, quick))
    console.print(
        f"Picture of the gates: {out / 'gates.png'}   compressed model: {out / 'compressed' / MODEL}"
    )
    console.print(f"Explore it neuron by neuron, in a browser: {out / 'report.html'}")
