"""The paper's tables beside our runs: one line per recipe, from the result.json files of finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewise.tasks import recipe as recipes
from gatewise.tasks.checkpoints import RunError

QUALITY = ("valid_ppl", "test_ppl", "valid_bpc", "test_bpc", "valid_accuracy", "test_accuracy")


@dataclass(frozen=True)
class Row:
    """One row of a table: what the paper prints, what the authors' log says, and what a run of ours gave."""

    name: str
    paper: Mapping[str, Any]
    log: Mapping[str, Any]
    ours: Mapping[str, Any] | None  # None: not run yet
    seconds: float | None = None
    note: str = ""


def table(results: Path) -> list[Row]:
    """A row for every recipe of the package, with our numbers where `results/NAME/result.json` exists."""
    if not results.is_dir():
        raise RunError(
            f"{results}: no such folder of results. Name one, or train a row: gatewise reproduce --run NAME."
        )
    return [row(name, results / name / "result.json") for name in recipes.names()]


def row(name: str, file: Path) -> Row:
    expect = dict(recipes.load(name).expect)
    log = expect.pop("log", {})
    if not file.is_file():
        return Row(name, expect, log, None)
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        counts = result["counts"]
        ours = {key: value for key, value in result["quality"].items() if key in QUALITY}
        ours |= {
            "compression": counts["compression"],
            "neurons": list(counts["neurons"].values()),
            "live_gates": list(counts["gates"].values()),
        }
        return Row(name, expect, log, ours, result["seconds"], result["data"]["note"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: is not the result of a run ({error!r}). Train the row again.") from error


def line(numbers: Mapping[str, Any] | None) -> str:
    """`113.86 - 109.00, 11.90x, 40-136, 153-368`: quality, compression, neurons, gates, with what is there."""
    if not numbers:
        return "-"
    given = [(key, numbers[key]) for key in QUALITY if numbers.get(key) is not None]
    parts = [" - ".join(f"{value:.3f}" if "bpc" in key else f"{value:.2f}" for key, value in given)]
    if "compression" in numbers:
        ratio = numbers["compression"]
        parts.append(f"{ratio:.2f}x" if ratio < 100 else f"{ratio:.0f}x")
    parts += ["-".join(str(n) for n in numbers[key]) for key in ("neurons", "live_gates") if key in numbers]
    return ", ".join(part for part in parts if part)


def markdown(rows: list[Row]) -> str:
    """The table for README and docs; rows without a run are left out."""
    lines = ["| row | ours | paper | authors' log | training |", "| --- | --- | --- | --- | --- |"]
    for r in rows:
        if r.ours is not None:
            time = "" if r.seconds is None else f"{r.seconds:.0f} s"
            lines.append(f"| `{r.name}` | {line(r.ours)} | {line(r.paper)} | {line(r.log)} | {time} |")
    return "\n".join(lines)
