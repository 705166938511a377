"""The paper's tables beside our runs: one line per recipe, from the result.json files of finished runs.

results/ROW/result.json            the run of seed 0
results/ROW/seeds/1/result.json    the same recipe from another seed; where there are some, ours is their mean
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewise.lab import recipe as recipes
from gatewise.lab import recorded
from gatewise.lab.analyse.history import rises
from gatewise.lab.files import RESULT, RunError

QUALITY = tuple(
    f"{split}_{name}" for name in ("ppl", "bpc", "accuracy", "word_error") for split in ("valid", "test")
)


@dataclass(frozen=True)
class Row:
    """One row of a table: what the paper prints, what the authors' log says, and what runs of ours gave."""

    name: str
    paper: Mapping[str, Any]
    log: Mapping[str, Any]
    ours: Mapping[str, Any] | None  # the mean over seeds; None: not run yet
    spread: Mapping[str, Any] | None = None  # the standard deviation over seeds, where there are several
    seeds: int = 0
    note: str = ""


def table(results: Path) -> list[Row]:
    """A row for every recipe of the package, with our numbers where `results/NAME/result.json` exists."""
    if not results.is_dir():
        raise RunError(
            f"{results}: no such folder of results. Name one, or train a row: gatewise reproduce --run NAME."
        )
    return [row(name, results / name) for name in recipes.names()]


def row(name: str, folder: Path) -> Row:
    expect = dict(recipes.load(name).expect)
    log = expect.pop("log", {})
    files = [seed / RESULT for seed in seed_folders(folder)]
    if not files[0].is_file():
        return Row(name, expect, log, None)
    read = [read_result(file) for file in files if file.is_file()]
    runs = [found for found, _ in read]
    spread = over_seeds(statistics.stdev, runs) if len(runs) > 1 else None
    return Row(name, expect, log, over_seeds(statistics.mean, runs), spread, len(runs), note=read[0][1])


def seed_folder(folder: Path, seed: int) -> Path:
    """Where the run of a row's folder lies that began from this seed."""
    return folder / "seeds" / str(seed) if seed else folder


def seed_folders(folder: Path) -> list[Path]:
    """Seed 0, whether it is there or not, and the others that are."""
    return [folder, *sorted(folder.glob("seeds/*"))]


def read_result(file: Path) -> tuple[dict[str, Any], str]:
    """The numbers of a run, and what is special about its data."""
    try:
        result = recorded.result("it", json.loads(file.read_text(encoding="utf-8")))
        return numbers(result), result["data"]["note"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: is not the result of a run ({error!r}). Train the row again.") from error


def numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    """Quality, compression, neurons and live gates, of what result.json holds."""
    counts = result["counts"]
    return {
        **{key: value for key, value in result["quality"].items() if key in QUALITY},
        "compression": counts["compression"],
        "neurons": list(counts["neurons"].values()),
        "live_gates": list(counts["gates"].values()),
    }


def over_seeds(
    summary: Callable[[Sequence[float]], float], runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """One number for each number of the runs; lists, one entry per layer, layer by layer."""
    return {key: over_values(summary, [run[key] for run in runs]) for key in runs[0]}


def over_values(summary: Callable[[Sequence[float]], float], values: Sequence[Any]) -> Any:
    """JSON has no infinity: None stands for it, and what is infinite in one run is so over all of them."""
    if isinstance(values[0], list):
        return [summary(layer) for layer in zip(*values)]
    return None if None in values else summary(values)


def line(numbers: Mapping[str, Any] | None) -> str:
    """`113.86 - 109.00, 11.90x, 40-136, 153-368`: quality, compression, neurons, gates, with what is there."""
    if not numbers:
        return "-"
    parts = [" - ".join(shown(key, numbers[key]) for key in QUALITY if key in numbers)]
    if "compression" in numbers:
        parts.append(shown("compression", numbers["compression"]))
    parts += [
        "-".join(f"{n:.0f}" for n in numbers[key]) for key in ("neurons", "live_gates") if key in numbers
    ]
    return ", ".join(part for part in parts if part)


def shortfall(ours: Mapping[str, Any] | None, paper: Mapping[str, Any]) -> str:
    """`test_ppl +0.7%, neurons +8.7%`: what is worse than the paper's, layers added up; empty where nothing is."""
    found = []
    for key in (*QUALITY, "compression", "neurons", "live_gates"):
        if not ours or ours.get(key) is None or key not in paper:
            continue
        mine, theirs = (sum(x) if isinstance(x, list) else x for x in (ours[key], paper[key]))
        more = mine / theirs - 1
        worse = -more if key == "compression" or rises(key) else more
        if worse >= 0.0005:  # what the first decimal shows
            found.append(f"{key.replace('_', ' ')} {more:+.1%}")
    return ", ".join(found)


def shown(key: str, value: float | None) -> str:
    """`109.00`, `1.373` bits, `11.90x`, `18,458x`, or `infinite`."""
    if value is None:
        return "infinite"
    if key == "compression":
        return f"{value:.2f}x" if value < 100 else f"{value:,.0f}x"
    return f"{value:.3f}" if "bpc" in key else f"{value:.2f}"


def markdown(rows: list[Row]) -> str:
    """The table for README and docs; rows without a run are left out."""
    lines = [
        "| row | ours | over seeds, +- | paper | authors' log | worse than the paper in |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        if r.ours is not None:
            spread = f"{line(r.spread)} ({r.seeds})" if r.seeds > 1 else "one seed"
            ours = f"{line(r.ours)} ({r.note})" if r.note else line(r.ours)
            worse = shortfall(r.ours, r.paper) or "-"
            lines.append(f"| `{r.name}` | {ours} | {spread} | {line(r.paper)} | {line(r.log)} | {worse} |")
    return "\n".join(lines)
