"""Tables and the figure of docs/g2p.md.

    python reproduction/g2p.py --figure docs/g2p.png        # of all trials that are written down, on validation words
    python reproduction/g2p.py runs/g2p-* --data-dir DATA   # of finished runs: mean and deviation over seeds

Runs of one recipe that differ in their seed alone are one line. With --data-dir the word error with int8 weights is
evaluated, too, where a run has its model.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewise.lab import recipe as recipes
from gatewise.lab.files import MODEL
from gatewise.lab.finished.opened import FinishedRun, open_run
from gatewise.lab.finished.saved import evaluate_saved

TRIALS = Path(__file__).parent / "choice_g2p.json"
KINDS = {
    "g2p_en": "g2p_en",
    "prune": "pruned",
    "bayes": "variational",
}  # by what stands in the name of a trial
ERRORS = (
    "test_word_error",
    "test_phoneme_error",
    "test_word_error_unstressed",
    "test_phoneme_error_unstressed",
)
COLUMNS = ("network", "seeds", "valid word error", "test word error", "phoneme error", "word, no stress",
           "phoneme, no stress", "test word error, int8", "weights", "bytes, int8", "neurons")  # fmt: skip


@dataclass(frozen=True)
class Line:
    """Runs that differ in their seed alone."""

    name: str
    runs: tuple[FinishedRun, ...]
    int8: tuple[float, ...] = ()  # word errors on test words

    def values(self, *path: str) -> list[float]:
        return [float(at(run.result, path)) for run in self.runs]


def at(content: Any, path: Sequence[str]) -> Any:
    return at(content[path[0]], path[1:]) if path else content


def name_of(run: FinishedRun) -> str:
    """`g2p-original hidden=64`: the recipe and what differs from it, but for the seed."""
    name, own = run.result["name"], run.result["recipe"]
    packaged = recipes.load(name).steering()
    keys = [key for key in packaged if own.get(key) != packaged[key] and key != "train.seed"]
    # A refit and a budget have keys of other sections.
    short = {key: key if key.startswith(("refit.", "budget.")) else key.partition(".")[2] for key in keys}
    return " ".join([name, *(f"{short[key]}={own.get(key)}" for key in keys)])


def lines(runs: Sequence[FinishedRun], data_dir: str | None) -> list[Line]:
    by_name: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_name.setdefault(name_of(run), []).append(run)
    return [
        Line(name, tuple(own), tuple(int8_errors(own, data_dir) if data_dir else ()))
        for name, own in sorted(by_name.items())
    ]


def int8_errors(runs: Sequence[FinishedRun], data_dir: str) -> list[float]:
    there = [run for run in runs if (run.folder / MODEL).is_file()]
    return [evaluate_saved(run.folder, data_dir=data_dir, int8=True)[0]["test_word_error"] for run in there]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """`31.20 +- 0.15`"""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):,.{digits}f}"
    return f"{mean} +- {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean


def markdown(found: Sequence[Line]) -> str:
    rows = [COLUMNS, tuple("---" for _ in COLUMNS)]
    for line in found:
        neurons = [sum(run.result["counts"]["neurons"].values()) for run in line.runs]
        rows.append(
            (
                f"`{line.name}`",
                str(len(line.runs)),
                spread(line.values("quality", "valid_word_error")),
                *(spread(line.values("quality", key)) for key in ERRORS),
                spread(line.int8),
                spread(line.values("counts", "nonzero"), 0),
                spread(line.values("counts", "bytes_int8"), 0),
                spread(neurons, 0),
            )
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def draw(trials: Mapping[str, Any], path: Path) -> None:
    """Word error on validation words against bytes of the export and against weights, every run a point."""
    from gatewise.lab import plot

    def points(*sizes: str) -> list[plot.Point]:
        found = []
        for group, own in trials.items():
            for trial in own if isinstance(own, list) else ():
                size = next((trial[key] for key in sizes if key in trial), None)
                errors = trial["valid_word_error"]
                said = f"{group} {trial['set']}"
                method = next((kind for word, kind in KINDS.items() if word in said), "dense")
                for error in errors if isinstance(errors, list) else [errors]:
                    if size is not None:
                        found.append(plot.Point(trial["set"], float(size), error, method))
        return found

    panels = {
        "bytes, int8 (g2p_en: float32)": points("bytes_int8", "bytes"),
        "weights that are not zero": points("weights"),
    }
    quality = "word error on validation words, %"
    plot.save(plot.front(panels, quality, False, "Spelling to phonemes"), path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--data-dir", help="of the dictionary: evaluates int8 weights as well")
    parser.add_argument("--figure", type=Path, help="PNG to write")
    given = parser.parse_args()
    folders = [folder for folder in given.runs if (folder / "result.json").is_file()]
    if folders:
        print(markdown(lines([open_run(folder) for folder in folders], given.data_dir)))
    if given.figure:
        draw(json.loads(TRIALS.read_text()), given.figure)


if __name__ == "__main__":
    main()
