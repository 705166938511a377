"""The answers of a sweep: which runs are best, by the definition; figure and page show them all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "analyse"))
from browser import Browser

from gatewise.lab.sweep.front import Front, Point, best_under, table, write_front
from gatewise.lab.sweep.plan import Under
from gatewise.lab.sweep.space import SweepError

NAMES = ("quality", "bytes", "time")


def front_of(rows: list[tuple[int, ...]], higher: bool = False) -> Front:
    points = [
        Point(
            f"{('sparse', 'dense')[k % 2]}/{k // 2:04d}",
            Path("none"),
            dict(zip(NAMES, map(float, row))),
            {"model.dropout": k / 10},
        )
        for k, row in enumerate(rows)
    ]
    return Front("<b>sweep</b>", "valid_ppl", higher, tuple(points), 1)


@given(st.integers(2, 3), st.data(), st.booleans())
def test_a_run_is_best_if_none_beats_it(many: int, data: st.DataObject, higher: bool) -> None:
    """By the definition, value by value, with a time or without one; equal runs stay together."""
    rows = data.draw(st.lists(st.tuples(*many * [st.integers(0, 4)]), max_size=12))
    front = front_of(rows, higher)
    found = {point.name for point in front.best}
    costs = [(-row[0] if higher else row[0], *row[1:]) for row in rows]
    for point, own in zip(front.points, costs):
        beaten = any(all(a <= b for a, b in zip(other, own)) and other != own for other in costs)
        assert (point.name in found) == (not beaten)


ROWS = [(100, 5000, 9), (120, 2000, 4), (95, 9000, 20), (130, 2500, 6), (99, 9500, 30)]


def test_the_table_has_a_line_for_each_of_the_best() -> None:
    lines = table(front_of(ROWS)).splitlines()
    assert [line.split()[0] for line in lines] == ["run", "dense/0000", "sparse/0000", "sparse/0001"]
    assert lines[1].split() == ["dense/0000", "120.00", "2,000", "4.0", "0.1"]


@pytest.mark.parametrize(
    ("limits", "higher", "expected"),
    [
        ([], False, "sparse/0001"),
        ([Under("bytes", 5000)], False, "sparse/0000"),
        ([Under("bytes", 9000), Under("time", 5)], False, "dense/0000"),
        ([Under("bytes", 5000)], True, "dense/0001"),
    ],
)
def test_the_best_under_a_limit_is_picked(limits: list[Under], higher: bool, expected: str) -> None:
    assert best_under(front_of(ROWS, higher), limits).name == expected


def test_a_limit_that_nobody_keeps_says_what_the_least_is() -> None:
    with pytest.raises(SweepError, match=r"--under bytes<=10: no run .* The least is 2,000"):
        best_under(front_of(ROWS), [Under("bytes", 10)])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.driver.quit()


def test_a_point_of_the_page_shows_its_run(browser: Browser, tmp_path: Path) -> None:
    """Every trial is a point of both charts; a click shows its numbers, and names are text, not HTML."""
    paths = write_front(front_of(ROWS), tmp_path)
    assert all(path.stat().st_size > 500 for path in paths)
    browser.open(paths[-1])
    assert browser.text("h1") == "<b>sweep</b>"
    assert browser.run("return document.querySelectorAll('circle.point').length") == 2 * len(ROWS)
    assert (
        browser.run("return document.querySelectorAll('#charts .chart:first-child circle.pale').length") == 2
    )
    browser.run("document.querySelector('[data-name=\"dense/0000\"]').dispatchEvent(new Event('click'))")
    assert "2,000" in browser.text("#detail")
    assert browser.run("return document.querySelectorAll('#best tr').length") == 4
    assert browser.complaints() == []
    assert len(browser.requests()) == 1
