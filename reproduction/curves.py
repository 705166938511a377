"""Our runs along training, beside the authors': quality, compression, neurons and live gates by epoch.

A row of panels per task, a colour per level, further seeds as thin lines. Points are what the authors' released logs
say at some epochs; they exist for IMDb, AG News and characters. A dotted line is the paper's final number where there
is no log: the word models. Tasks without a stored run are left out and named. Neurons and gates are those of all
layers together; test quality that was not computed along the way has its last value only.

    python reproduction/curves.py --plot docs/curves.png --json reproduction/curves.json
    python reproduction/curves.py --markdown
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from stored import RESULTS, StoredRun, stored_runs

from gatewise.lab import recipe as recipes
from gatewise.lab.analyse.history import curve, named, quality_key
from gatewise.lab.plot import save
from gatewise.lab.plot.style import INK, SERIES, blank, plain


@dataclass(frozen=True)
class Point:
    """What a log says after an epoch."""

    epoch: int
    valid: float
    test: float
    neurons: float | None = None  # a dense network has no counts
    gates: float | None = None
    compression: float | None = None


# Read off the training logs that the authors released with their code; accuracies in percent.
AUTHORS = {
    "imdb-bayes-wn": (
        Point(20, 79.5, 79.6, 128, 156, 672),
        Point(40, 79.9, 79.2, 125, 150, 1317),
        Point(100, 82.4, 82.7, 62, 52, 3252),
        Point(200, 82.8, 83.5, 26, 32, 8798),
        Point(400, 83.8, 84.2, 12, 24, 14365),
        Point(800, 84.19, 84.01, 7, 19, 16676),
    ),
    "imdb-bayes-wgn": (
        Point(20, 78.7, 78.5, 128, 353, 889),
        Point(40, 81.3, 80.9, 123, 229, 1453),
        Point(100, 82.7, 83.2, 44, 80, 4308),
        Point(200, 82.7, 83.3, 24, 27, 8736),
        Point(400, 84.0, 83.7, 14, 15, 15246),
        Point(800, 84.16, 83.87, 7, 8, 18457.5),
    ),
    "agnews-bayes-wn": (
        Point(5, 88.4, 88.1, 512, 1990, 49.9),
        Point(10, 89.1, 88.7, 511, 645, 101),
        Point(20, 89.9, 88.9, 378, 309, 174),
        Point(50, 89.8, 89.2, 46, 91, 310),
        Point(100, 89.6, 89.0, 20, 67, 486),
        Point(150, 89.35, 88.55, 17, 62, 645.4),
    ),
    "agnews-bayes-wgn": (
        Point(5, 88.5, 88.0, 512, 2048, 56.4),
        Point(10, 89.4, 88.6, 507, 2028, 111),
        Point(20, 89.9, 89.0, 216, 356, 188),
        Point(50, 89.9, 89.2, 33, 74, 324),
        Point(100, 89.8, 89.1, 18, 42, 496),
        Point(150, 89.35, 88.41, 14, 39, 639.6),
    ),
    "ptb-char-original": (
        Point(1, 1.875, 1.831),
        Point(2, 1.663, 1.617),
        Point(5, 1.526, 1.483),
        Point(9, 1.498, 1.455),
        Point(20, 1.530, 1.479),
    ),
    "ptb-char-bayes-wn": (
        Point(1, 2.214, 2.180, 1000, 4000, 2.63),
        Point(5, 1.665, 1.617, 999, 3414, 5.99),
        Point(10, 1.585, 1.539, 686, 2124, 8.12),
        Point(20, 1.538, 1.491, 572, 1728, 8.58),
        Point(50, 1.504, 1.457, 397, 1569, 9.02),
        Point(250, 1.4777, 1.4297, 390, 1560, 10.007),
    ),
    "ptb-char-bayes-wgn": (
        Point(1, 2.127, 2.090, 1000, 4000, 2.66),
        Point(5, 1.634, 1.590, 1000, 3169, 6.28),
        Point(10, 1.560, 1.518, 693, 1940, 7.70),
        Point(20, 1.518, 1.477, 443, 1609, 8.18),
        Point(50, 1.487, 1.447, 408, 1588, 8.70),
        Point(250, 1.4672, 1.4250, 404, 1563, 9.816),
    ),
}

LEVELS = {
    "W": "w",
    "W, best": "w-best",
    "W+N": "wn",
    "W+N, best": "wn-best",
    "W+G+N": "wgn",
    "W+G+N, best": "wgn-best",
}
TASKS = {
    "IMDb, Bayes": {level: f"imdb-bayes-{row}" for level, row in LEVELS.items()},
    "AG News, Bayes": {level: f"agnews-bayes-{row}" for level, row in LEVELS.items()},
    "Character PTB, dense and Bayes": {
        "dense": "ptb-char-original",
        **{level: f"ptb-char-bayes-{row}" for level, row in LEVELS.items()},
    },
    "Word PTB small, Bayes": {level: f"ptb-word-small-bayes-{row}" for level, row in LEVELS.items()},
    "Word PTB small, pruning": {
        "W+N": "ptb-word-small-prune-wn",
        "W+N, best": "ptb-word-small-prune-wn-best",
        "W+G+N": "ptb-word-small-prune-wgn",
        "W+G+N, best": "ptb-word-small-prune-wgn-best",
    },
    "Word PTB large, pruning": {
        "W+N": "ptb-word-large-prune-wn",
        "W+N, best": "ptb-word-large-prune-wn-best",
        "W+G+N": "ptb-word-large-prune-wgn",
        "W+G+N, best": "ptb-word-large-prune-wgn-best",
    },
}
COLOURS = {
    "W+G+N": SERIES[0],
    "W+N": SERIES[1],
    "W": SERIES[2],
    "W, best": SERIES[3],
    "W+N, best": SERIES[4],
    "W+G+N, best": SERIES[5],
    "dense": "#777777",
}
QUALITIES = ("valid", "test")
MEASURES = (*QUALITIES, "compression", "neurons", "gates")
TITLES = {"gates": "live gates"}


def key_of(measure: str, run: StoredRun) -> str:
    """valid, test: the quality of the run's task under its own name, valid_ppl."""
    quality = (quality_key(run.metrics) or "").partition("_")[2]
    return f"{measure}_{quality}" if measure in QUALITIES else measure


def series(run: StoredRun, measure: str) -> tuple[list[int], list[float]]:
    """Epochs and values; a test quality that was not computed along the way has its last value only."""
    key = key_of(measure, run)
    epochs, values = curve(run.metrics, key)
    final = run.result["quality"].get(key)
    return (epochs, values) if epochs or final is None else ([run.result["epoch"]], [final])


def thinned(epochs: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Of many epochs the first ten and every tenth: drawn side by side the others only hide each other."""
    kept = [k for k, epoch in enumerate(epochs) if len(epochs) <= 200 or epoch < 10 or epoch % 10 == 0]
    return [epochs[k] for k in kept], [values[k] for k in kept]


def paper(row: str, measure: str, run: StoredRun) -> float | None:
    """The final number of the paper's table, layers added up."""
    found = recipes.load(row).expect.get("live_gates" if measure == "gates" else key_of(measure, run))
    return sum(found) if isinstance(found, list) else found


def draw(present: Mapping[str, Mapping[str, Sequence[StoredRun]]]) -> Figure:
    figure = blank(13.0, 2.75 * len(present))
    strips = figure.subfigures(len(present), 1, squeeze=False)[:, 0]
    for strip, (task, levels) in zip(strips, present.items()):
        strip.subplots_adjust(left=0.04, right=0.99, top=0.76, bottom=0.17, wspace=0.26)
        strip.text(0.012, 0.95, task, size=12, weight="bold", color=INK, va="center")
        handles = entries(levels)
        strip.legend(
            handles=handles, loc="center right", bbox_to_anchor=(0.995, 0.95), ncols=len(handles),
            fontsize=8.5, frameon=False, labelcolor=INK, handlelength=1.8, columnspacing=1.3,
        )  # fmt: skip
        for axes, measure in zip(strip.subplots(1, len(MEASURES)), MEASURES):
            panel(axes, measure, levels)
    return figure


def entries(levels: Mapping[str, Sequence[StoredRun]]) -> list[Line2D]:
    found = [Line2D([], [], color=COLOURS[level], linewidth=2, label=level) for level in levels]
    rows = [runs[0].row for runs in levels.values()]
    if any(row in AUTHORS for row in rows):
        found.append(Line2D([], [], color=INK, marker="o", markersize=5, markerfacecolor="white", linestyle="",
                            label="authors' log"))  # fmt: skip
    if any(row not in AUTHORS for row in rows):
        found.append(Line2D([], [], color=INK, linewidth=1, linestyle=":", label="paper, final"))
    return found


def panel(axes: Axes, measure: str, levels: Mapping[str, Sequence[StoredRun]]) -> None:
    """Epochs on a logarithmic scale: most of the pruning happens in the first tenth of them."""
    # Of the quality what follows an eighth of the epochs must be in sight: those before would flatten it.
    longest = max(run.metrics[-1]["epoch"] for runs in levels.values() for run in runs)
    first = longest / 8 if measure in QUALITIES else 0
    late: list[float] = []
    for level, runs in levels.items():
        row, colour = runs[0].row, COLOURS[level]
        for k, run in enumerate(runs):
            epochs, values = thinned(*series(run, measure))
            axes.plot(epochs, values, color=colour, linewidth=0.7 if k else 1.6, alpha=0.6 if k else 1,
                      marker="_" if len(epochs) == 1 else None, markersize=10)  # fmt: skip
            late += [value for epoch, value in zip(epochs, values) if epoch >= min(first, max(epochs))]
        log = [(point.epoch, getattr(point, measure)) for point in AUTHORS.get(row, ())]
        points = [(epoch, value) for epoch, value in log if value is not None]
        if points:
            axes.plot(*zip(*points), color=colour, marker="o", markersize=5, markerfacecolor="white", linestyle="",
                      zorder=4)  # fmt: skip
            late += [value for epoch, value in points if epoch >= first]
        final = paper(row, measure, runs[0])
        if final is not None and row not in AUTHORS:
            axes.axhline(final, color=colour, linewidth=1, linestyle=":")
            late.append(final)
    quality = named(key_of(measure, next(iter(levels.values()))[0]))
    plain(axes, quality if measure in QUALITIES else TITLES.get(measure, measure), "epoch", "")
    axes.set_visible(bool(late))
    if late:
        scales(axes, late, longest)


def scales(axes: Axes, shown: Sequence[float], epochs: int) -> None:
    low, high = min(shown), max(shown)
    axes.set_xscale("log")
    axes.set_xlim(0.9, epochs * 1.15)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if epochs <= 100 else (1, 3)))
    if high > 15 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        axes.set_ylim(low / 1.2, high * 1.2)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        margin = 0.06 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())


def beside(row: str, runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Ours, the mean over seeds, at the epochs of the authors' log; else at the end, beside the paper's number."""
    found = []
    theirs = [{"epoch": p.epoch, **{m: getattr(p, m) for m in MEASURES}} for p in AUTHORS.get(row, ())]
    last = {"epoch": runs[0].result["epoch"], **{m: paper(row, m, runs[0]) for m in MEASURES}}
    for point in theirs or [last]:
        ours = {}
        for measure in MEASURES:
            at = [dict(zip(*series(run, measure))).get(point["epoch"]) for run in runs]
            known = [value for value in at if value is not None]
            ours[measure] = statistics.mean(known) if known else None
        source = "authors' log" if theirs else "paper"
        found.append({"row": row, "seeds": len(runs), "source": source, "ours": ours, "theirs": point})
    return found


def shown(numbers: Mapping[str, float | None]) -> str:
    """`110.05 / 105.44, 184, 650, 11.90x`: validation / test, neurons, gates, compression."""
    small = max(numbers["valid"] or 0, numbers["test"] or 0) < 10  # bits per character
    large = (numbers["compression"] or 0) >= 100
    forms = {"valid": ".3f" if small else ".2f", "neurons": ".0f", "gates": ".0f"}
    forms |= {"test": forms["valid"], "compression": ",.0f" if large else ".2f"}
    text = {
        key: "-" if value is None else format(value, forms[key])
        for key, value in numbers.items()
        if key in forms
    }
    return "{valid} / {test}, {neurons}, {gates}, {compression}x".format_map(text).replace(", -, -, -x", "")


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    head = ["| run | epoch | ours | theirs | source |", "| --- | --- | --- | --- | --- |"]
    return "\n".join(
        head
        + [
            f"| `{line['row']}` | {line['theirs']['epoch']} | {shown(line['ours'])} | {shown(line['theirs'])} | "
            f"{line['source']} |"
            for line in lines
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs = {task: {level: stored_runs(arguments.results, row) for level, row in levels.items()}
            for task, levels in TASKS.items()}  # fmt: skip
    present = {task: {level: own for level, own in levels.items() if own} for task, levels in runs.items()}
    missing = [
        TASKS[task][level] for task, levels in runs.items() for level, own in levels.items() if not own
    ]
    lines = [
        line for levels in present.values() for own in levels.values() for line in beside(own[0].row, own)
    ]
    if arguments.markdown:
        print(markdown(lines))
    else:
        for line in lines:
            print(f"{line['row']:30} {line['theirs']['epoch']:4}  ours {shown(line['ours']):44} "
                  f"{line['source']} {shown(line['theirs'])}")  # fmt: skip
        print("not run yet:", ", ".join(missing) or "nothing")
    if arguments.json:
        arguments.json.write_text(json.dumps({"points": lines, "not_run_yet": missing}, indent=1) + "\n")
    if arguments.plot:
        save(draw({task: levels for task, levels in present.items() if levels}), arguments.plot, dpi=110)


if __name__ == "__main__":
    main()
