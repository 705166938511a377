"""The table of ours and the paper's numbers comes from result.json files and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gatewise.lab import recipe as recipes
from gatewise.lab.cli import main
from gatewise.lab.files import RunError
from gatewise.lab.finished.reproduce import Row, line, markdown, seed_folder, shortfall, table

NAME = "ptb-word-small-bayes-wgn"
RESULT: dict[str, Any] = {
    "quality": {"valid_ppl": 120.5, "test_ppl": 115.25, "compact_test_ppl": 115.25},
    "counts": {
        "weights": 4_642_400,
        "nonzero": 403_687,
        "compression": 11.5,
        "neurons": {"rnn.l0": 40, "rnn.l1": 136},
        "gates": {"rnn.l0": 153, "rnn.l1": 368},
    },
    "seconds": 61.7,
    "data": {"note": ""},
}


def test_a_run_stands_beside_the_paper(tmp_path: Path) -> None:
    """Our numbers are those of the file, the paper's those of the recipe; rows without a run say so."""
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "result.json").write_text(json.dumps(RESULT))
    rows = {row.name: row for row in table(tmp_path)}
    assert set(rows) == set(recipes.names())
    assert line(rows[NAME].ours) == "120.50 - 115.25, 11.50x, 40-136, 153-368"
    assert line(rows[NAME].paper) == "109.98 - 104.45, 11.44x, 52-108, 197-349"
    assert rows["imdb-bayes-w"].ours is None
    assert line(rows["imdb-bayes-w"].ours) == "-"
    assert line(rows["imdb-bayes-wgn"].log) == "83.87, 18,458x, 7, 8"
    assert shortfall(rows[NAME].ours, rows[NAME].paper) == (
        "valid ppl +9.6%, test ppl +10.3%, neurons +10.0%"  # not compression 11.5, nor the 521 gates of 546
    )
    text = markdown(list(rows.values()))
    assert text.count("\n") == 2
    assert "| one seed |" in text
    noted = RESULT | {"data": {"note": "trained on a part of it"}}
    (tmp_path / NAME / "result.json").write_text(json.dumps(noted))
    assert "153-368 (trained on a part of it) |" in markdown(table(tmp_path))


def test_worse_is_lower_for_accuracy_and_compression() -> None:
    paper = {"test_accuracy": 80.0, "compression": 100.0, "neurons": [10], "live_gates": [4, 6]}
    assert shortfall({**paper, "test_accuracy": 81.0, "compression": 101.0, "neurons": [9]}, paper) == ""
    worse = {"test_accuracy": 79.2, "compression": 90.0, "neurons": [11], "live_gates": [6, 5]}
    assert (
        shortfall(worse, paper)
        == "test accuracy -1.0%, compression -10.0%, neurons +10.0%, live gates +10.0%"
    )
    assert shortfall({**paper, "compression": None}, paper) == ""  # everything was removed
    assert shortfall(None, paper) == ""


def row_of(results: Path, by_seed: dict[int, dict[str, Any]]) -> Row:
    """The row of NAME in a folder with these results."""
    for seed, result in by_seed.items():
        folder = seed_folder(results / NAME, seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result))
    return next(row for row in table(results) if row.name == NAME)


def test_seeds_give_a_mean_and_a_spread(tmp_path: Path) -> None:
    """Two runs of 120.5 and 121.5: mean 121, standard deviation 0.71."""
    other = {**RESULT, "quality": {"valid_ppl": 121.5, "test_ppl": 115.25}}
    row = row_of(tmp_path, {0: RESULT, 1: other})
    assert row.seeds == 2
    assert line(row.ours) == "121.00 - 115.25, 11.50x, 40-136, 153-368"
    assert line(row.spread) == "0.71 - 0.00, 0.00x, 0-0, 0-0"
    assert "0.71 - 0.00, 0.00x, 0-0, 0-0 (2)" in markdown([row])


def test_seed_0_is_the_row_and_others_lie_below_it(tmp_path: Path) -> None:
    """Without it there is no row; what is special about its data is special about the row's."""
    assert seed_folder(tmp_path, 0) == tmp_path
    assert seed_folder(tmp_path, 2) == tmp_path / "seeds" / "2"
    assert row_of(tmp_path, {2: RESULT}).ours is None
    assert row_of(tmp_path, {0: RESULT | {"data": {"note": "a part"}}}).note == "a part"


def test_what_is_infinite_is_said_to_be_so(tmp_path: Path) -> None:
    """result.json has null for it; a network without weights must not cost the rest of the table."""
    counts = RESULT["counts"] | {"compression": None}
    nothing = RESULT | {"quality": {"valid_ppl": None, "test_ppl": 115.25}, "counts": counts}
    expected = "infinite - 115.25, infinite, 40-136, 153-368"
    assert line(row_of(tmp_path, {0: nothing}).ours) == expected
    row = row_of(tmp_path, {1: RESULT})
    assert line(row.ours) == expected
    assert line(row.spread) == "infinite - 0.00, infinite, 0-0, 0-0"


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    """A file that is no result must not become a row of zeros."""
    (tmp_path / "imdb-original").mkdir()
    (tmp_path / "imdb-original" / "result.json").write_text("{}")
    with pytest.raises(RunError, match=r"imdb-original.result\.json: is not the result of a run"):
        table(tmp_path)
    with pytest.raises(RunError, match="no such folder"):
        table(tmp_path / "absent")


def test_a_trained_row_is_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, with the way to train it elsewhere; another seed of it would run."""
    row_of(tmp_path, {0: RESULT})
    command = ["reproduce", "--run", NAME, "--results", str(tmp_path)]
    assert main(command) == 1
    assert f"{NAME}: is trained already" in "".join(capsys.readouterr().err.split("\n"))
    assert main([*command, "--seed", "1", "--data-dir", str(tmp_path / "none")]) == 1
    assert "trained already" not in capsys.readouterr().err


def test_the_documented_table_is_that_of_the_results() -> None:
    """docs/reproduction.md says of every row what results/ says now."""
    root = Path(__file__).parents[3]
    text = (root / "docs" / "reproduction.md").read_text(encoding="utf-8").replace(",", "")
    first_table = text[text.index("| row | ours |") :].split("\n\n")[0]
    documented = {row.split("`")[1]: row.strip("| ").split(" | ") for row in first_table.splitlines()[2:]}
    found = {row.name: row for row in table(root / "results") if row.ours is not None}
    assert documented.keys() == found.keys()
    for name, row in found.items():
        cells = documented[name]
        assert cells[1] == line(row.ours).replace(",", ""), name
        assert cells[3] == line(row.paper).replace(",", ""), name
        assert cells[5] == (shortfall(row.ours, row.paper) or "-").replace(",", ""), name
