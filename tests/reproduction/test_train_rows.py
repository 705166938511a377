"""Runs that share a GPU: order, shares, second tries, and what is told of the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest
from train_rows import Run, parsed, train_all


def test_an_argument_is_a_recipe_its_changes_and_a_share() -> None:
    run = parsed("imdb-bayes-wgn seed=1 share=0.25 train.epochs=3")
    assert run == Run("imdb-bayes-wgn", ("seed=1", "train.epochs=3"), 0.25)
    assert run.name == "imdb-bayes-wgn-seed1-train.epochs3"
    assert parsed("imdb-bayes-wgn").share == 1
    assert parsed("g2p-original teacher.run=runs/a").name == "g2p-original-teacher.runruns.a"  # one folder
    one, other = (
        parsed("g2p-original " + " ".join(f"teacher.run={'x' * n}" for n in (300, m))) for m in (1, 2)
    )
    assert one.name != other.name
    assert len(one.name) == 200  # file systems refuse longer ones


@pytest.mark.parametrize("wrong", ["", "imdb seed", "imdb share=0", "imdb share=1.5", "imdb share=half"])
def test_what_is_no_run_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"'{wrong}'"):
        parsed(wrong)


class Shop:
    """Starts short processes, of which some fail a few times, and writes down who ran beside whom."""

    def __init__(self, fails: dict[str, int] | None = None) -> None:
        self.fails, self.alive = fails or {}, dict[str, "subprocess.Popen[bytes]"]()
        self.beside: list[tuple[str, set[str]]] = []

    def start(self, run: Run) -> subprocess.Popen[bytes]:
        others = {name for name, process in self.alive.items() if process.poll() is None}
        self.beside.append((run.recipe, others))
        self.fails[run.recipe] = left = self.fails.get(run.recipe, 0) - 1
        code = f"import sys, time; time.sleep(0.2); sys.exit({int(left >= 0)})"
        self.alive[run.recipe] = process = subprocess.Popen([sys.executable, "-c", code])
        return process


def test_order_is_kept_and_shares_add_up_to_one_gpu() -> None:
    """c would fit beside a, but b, which is before it, does not."""
    shop = Shop()
    assert (
        train_all([Run("a", (), 0.6), Run("b"), Run("c", (), 0.5), Run("d", (), 0.5)], shop.start, nap=0.02)
        == []
    )
    order = [name for name, _ in shop.beside]
    assert order == ["a", "b", "c", "d"]
    assert shop.beside[1][1] == set()
    assert shop.beside[2][1] == set()
    assert shop.beside[3][1] == {"c"}


def test_a_failure_is_tried_once_more_after_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop({"shaky": 1, "broken": 5})
    assert train_all([Run("shaky"), Run("broken"), Run("sound")], shop.start, nap=0.02) == ["broken"]
    assert [name for name, _ in shop.beside] == ["shaky", "broken", "sound", "shaky", "broken"]
    assert "broken: failed with exit code 1" in capsys.readouterr().out


def test_after_its_time_it_stops_and_names_what_is_left() -> None:
    shop = Shop()
    assert train_all([Run("a"), Run("b")], shop.start, seconds=0.05, nap=0.01) == ["a", "b"]
    assert all(process.poll() is not None for process in shop.alive.values())
