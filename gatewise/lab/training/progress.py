"""What a run shows: a bar on a terminal, a line per epoch, and what is left at its end, or why nothing is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from gatewise.report import dashed, show


class Progress:
    """`epoch` starts a bar, `advance` moves it, `line` says how an epoch ended."""

    def __init__(self, title: str, epochs: int, quiet: bool = False) -> None:
        self.title, self.epochs = title, epochs
        self.console = Console(stderr=True, quiet=quiet, emoji=False, markup=False, highlight=False)
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        shown = self.console.is_terminal and not quiet
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not shown)
        self.task = self.bar.add_task(title, total=None)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def epoch(self, epoch: int, batches: int, done: int) -> None:
        self.bar.update(self.task, description=f"epoch {epoch}/{self.epochs}", total=batches, completed=done)

    def advance(self, done: int, loss: float | None = None) -> None:
        description = None if loss is None else f"{self.title} loss {loss:.3f}"
        self.bar.update(self.task, completed=done, description=description)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def line(self, metrics: Mapping[str, Any], quality: str) -> None:
        self.say(summary(metrics, self.epochs, quality))


def summary(metrics: Mapping[str, Any], epochs: int, quality: str) -> str:
    """`epoch 3/20  loss 4.912  valid 131.20  1.05x  200-198 neurons  771-640 gates  0.9 s`"""
    parts = [f"epoch {metrics['epoch']}/{epochs}", f"loss {metrics['train_loss']:.4f}"]
    for split in ("valid", "test"):
        value = metrics.get(f"{split}_{quality}")
        if value is not None:
            parts.append(
                f"{split} {quality} {value:.4g}" if quality == "mse" else f"{split} {quality} {value:.3f}"
            )
    if "neurons" in metrics:
        gates = {layer: sum(kinds.values()) for layer, kinds in metrics["gates"].items()}
        parts.append(f"{metrics['compression']:.2f}x  {by_layer(metrics['neurons'], gates)}")
    return "  ".join([*parts, f"{metrics['seconds']:.1f} s"])


def result_line(result: Mapping[str, Any]) -> str:
    """`valid_ppl 110.03  test_ppl 105.64  1.49x  neurons 64-115  gates 193-442  in 71 s`"""
    quality = [
        f"{key} {shown_quality(value)}"
        for key, value in result["quality"].items()
        if not key.startswith("compact")
    ]
    counts = result["counts"]
    before = result.get("before_refit", {}).get("quality", {})
    quality += [f"before the refit {' '.join(map(shown_quality, before.values()))}"] if before else []
    left = f"{show(counts['compression'])}  {by_layer(counts['neurons'], counts['gates'])}"
    return "  ".join([*quality, left, f"in {result['seconds']:.0f} s"])


def nothing_left(result: Mapping[str, Any]) -> str:
    """Where a layer has lost all neurons the answer is the same for every input: why, and the way out; else empty."""
    empty = [layer for layer, n in result["counts"]["neurons"].items() if n == 0]
    if not empty:
        return ""
    recipe = result["recipe"]
    if recipe["sparsify.method"] == "group-lasso":
        way_out = f"A lower sparsify.group (here {recipe['sparsify.group']:g}) leaves some."
    else:
        way_out = (
            "The penalty outweighed the data, as it does where they are few: let it grow, for instance over a "
            f"quarter of the epochs with --set sparsify.warm_up_epochs={max(1, recipe['train.epochs'] // 4)}."
        )
    return f"{', '.join(empty)}: no neuron is left, so every input has the same answer. {way_out}"


def by_layer(neurons: Mapping[str, int], gates: Mapping[str, int]) -> str:
    """`neurons 64-115  gates 193-442`"""
    return f"neurons {dashed(neurons)}  gates {dashed(gates)}"


def shown_quality(value: float | None) -> str:
    """JSON has no infinity: it was written as null."""
    if value is None or value == math.inf:
        return "infinite"
    return f"{value:.2f}" if value >= 10 else f"{value:.4g}"
