"""claims.json is what the stored runs say now, as far as that needs no corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import claims
import pytest
from stored import RESULTS, stored_runs

from gatewise.lab.files import GATES, MODEL, RESULT

WRITTEN = Path(claims.__file__).with_name("claims.json")


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return {one["claim"]: one for one in json.loads(WRITTEN.read_text())["claims"]}


def test_every_claim_is_written_down(written: dict[str, Any]) -> None:
    assert list(written) == [claim.key for claim in claims.CLAIMS]
    assert len(set(written)) == len(claims.CLAIMS)


@pytest.mark.parametrize("claim", [c for c in claims.CLAIMS if c.needs != MODEL], ids=lambda claim: claim.key)
def test_the_verdict_is_that_of_the_results(claim: claims.Claim, written: dict[str, Any]) -> None:
    """The line has the numbers, as they are printed."""
    asked = claim.ask(RESULTS)
    for key in ("text", "threshold", "verdict", "line", "seeds"):
        assert asked[key] == written[claim.key][key]


def test_a_row_without_runs_is_not_judged(tmp_path: Path) -> None:
    """Seeds count from what they have: one without gates.json cannot say which gates are live."""
    for row, files in (("a", [RESULT, GATES]), ("b", [RESULT])):
        (tmp_path / row).mkdir()
        for file in files:
            (tmp_path / row / file).write_text("{}")
    assert [len(stored_runs(tmp_path, row, GATES)) for row in "abc"] == [1, 0, 0]
    asked = claims.Claim("x", "", "", ["b"], GATES, lambda runs: pytest.fail("was judged")).ask(tmp_path)
    assert (asked["verdict"], asked["line"]) == (claims.NOT_RUN, f"without {GATES}: b")


def test_claims_are_numbered_where_a_letter_has_several() -> None:
    some = [claims.Claim(key, "", "", [], RESULT, lambda: ("", {}, "")) for key in "aba"]
    assert [claim.key for claim in claims.numbered(some)] == ["a1", "b", "a2"]


def test_other_seeds_come_after_the_first(tmp_path: Path) -> None:
    for folder in ("row", "row/seeds/2", "row/seeds/1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / RESULT).write_text(
            json.dumps({"seed": int(folder[-1]) if folder[-1] != "w" else 0})
        )
    assert [run.seed for run in stored_runs(tmp_path, "row")] == [0, 1, 2]
