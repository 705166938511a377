"""The table of docs/g2p.md: runs that differ in their seed alone are one line."""

from __future__ import annotations

from pathlib import Path

from g2p import lines, markdown, spread

from gatewise.lab import recipe
from gatewise.lab.finished.opened import FinishedRun


def run(seed: int, error: float, *changes: str) -> FinishedRun:
    row = recipe.load("g2p-original", [f"seed={seed}", *changes])
    names = ("valid_word_error", "test_word_error", "test_phoneme_error")
    quality = dict.fromkeys((*names, "test_word_error_unstressed", "test_phoneme_error_unstressed"), error)
    counts = {"nonzero": 1000, "bytes_int8": 1500, "neurons": {"encoder.l0": 3, "decoder.l0": 4}}
    result = {"name": row.name, "recipe": row.steering(), "quality": quality, "counts": counts}
    return FinishedRun(Path("nowhere"), Path("nowhere"), row.title, row, result)


def test_seeds_are_one_line_and_other_sizes_another() -> None:
    found = lines(
        [run(0, 30.0), run(1, 32.0), run(0, 40.0, "hidden=64", "train.epochs=9", "train.after=3")], None
    )
    assert [(line.name, len(line.runs)) for line in found] == [
        ("g2p-original", 2),
        ("g2p-original hidden=64 epochs=9 after=3", 1),
    ]
    first, second = markdown(found).splitlines()[2:]
    assert "| 2 | 31.00 +- 1.41 |" in first
    assert "| 1,000 +- 0 | 1,500 +- 0 | 7 +- 0 |" in first
    assert "| 1 | 40.00 |" in second


def test_nothing_has_no_mean() -> None:
    assert (spread([]), spread([2.0]), spread([1.0, 3.0], 1)) == ("-", "2.00", "2.0 +- 1.4")
