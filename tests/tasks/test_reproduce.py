"""The table of ours and the paper's numbers comes from result.json files and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatewise.tasks import recipe as recipes
from gatewise.tasks.files import RunError
from gatewise.tasks.reproduce import line, markdown, table

RESULT = {
    "quality": {"valid_ppl": 120.5, "test_ppl": 115.25, "compact_test_ppl": 115.25},
    "counts": {
        "compression": 11.5,
        "neurons": {"rnn.l0": 40, "rnn.l1": 136},
        "gates": {"rnn.l0": 153, "rnn.l1": 368},
    },
    "seconds": 61.7,
    "data": {"note": ""},
}


def test_a_run_stands_beside_the_paper(tmp_path: Path) -> None:
    """Our numbers are those of the file, the paper's those of the recipe; rows without a run say so."""
    name = "ptb-word-small-bayes-wgn"
    (tmp_path / name).mkdir()
    (tmp_path / name / "result.json").write_text(json.dumps(RESULT))
    rows = {row.name: row for row in table(tmp_path)}
    assert set(rows) == set(recipes.names())
    assert line(rows[name].ours) == "120.50 - 115.25, 11.50x, 40-136, 153-368"
    assert line(rows[name].paper) == "109.98 - 104.45, 11.44x, 52-108, 197-349"
    assert rows["imdb-bayes-w"].ours is None
    assert line(rows["imdb-bayes-w"].ours) == "-"
    assert line(rows["imdb-bayes-wgn"].log) == "83.87, 18458x, 7, 8"
    text = markdown(list(rows.values()))
    assert text.count("\n") == 2
    assert "| one seed |" in text
    noted = RESULT | {"data": {"note": "trained on a part of it"}}
    (tmp_path / name / "result.json").write_text(json.dumps(noted))
    assert "153-368 (trained on a part of it) |" in markdown(table(tmp_path))


def test_seeds_give_a_mean_and_a_spread(tmp_path: Path) -> None:
    """Two runs of 120.5 and 121.5: mean 121, standard deviation 0.71."""
    name = "ptb-word-small-bayes-wgn"
    other = {**RESULT, "quality": {"valid_ppl": 121.5, "test_ppl": 115.25}}
    for folder, result in ((tmp_path / name, RESULT), (tmp_path / name / "seeds" / "1", other)):
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result))
    [row] = [row for row in table(tmp_path) if row.name == name]
    assert row.seeds == 2
    assert line(row.ours) == "121.00 - 115.25, 11.50x, 40-136, 153-368"
    assert line(row.spread) == "0.71 - 0.00, 0.00x, 0-0, 0-0"
    assert "0.71 - 0.00, 0.00x, 0-0, 0-0 (2)" in markdown([row])


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    """A file that is no result must not become a row of zeros."""
    (tmp_path / "imdb-original").mkdir()
    (tmp_path / "imdb-original" / "result.json").write_text("{}")
    with pytest.raises(RunError, match=r"imdb-original.result\.json: is not the result of a run"):
        table(tmp_path)
    with pytest.raises(RunError, match="no such folder"):
        table(tmp_path / "absent")
