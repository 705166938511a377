"""Pruned networks against dense ones: test perplexity against live gates.

Four curves: dense networks; gates and neurons pruned by lambda and refitted; pruned to a budget of gates; dense
networks with our penalty, which cuts nothing, or with weight decay. The first two are the table in
docs/reproduction.md, "Against smaller dense networks", first seeds; the others are the chosen trials of
reproduction/choice_word_budgets.json and choice_word_controls.json, means over seeds.

    python reproduction/dense_rivals.py --plot docs/dense_rivals.png
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from gatewise.lab.plot import save
from gatewise.lab.plot.style import FAINT, SERIES, blank, legend, plain

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reproduction.md"
BUDGETS, CONTROLS = (HERE / f"choice_word_{name}.json" for name in ("budgets", "controls"))


class Network(NamedTuple):
    neurons: float  # as a mean over seeds, it may be no whole number
    gates: float
    perplexity: float


def of_page(page: str) -> tuple[list[Network], list[Network]]:
    """The first seed of each size, refitted and dense, from lines of the table that have both."""
    table = page[page.index("| D, G, R |") :].split("\n\n")[0].replace(",", "").replace("*", "")
    refitted, dense = [], []
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[5]:
            tests = [float(re.split(r" - ", cells[k])[1]) for k in (4, 8)]
            refitted.append(Network(int(cells[2]), int(cells[3]), tests[0]))
            dense.append(Network(sum(map(int, cells[5].split("-"))), int(cells[6]), tests[1]))
    return refitted, dense


def of_trials(stored: str) -> list[Network]:
    """What was chosen of each size, the smallest first: it has the most seeds, then the best validation."""
    sizes = defaultdict[int, defaultdict[str, list[Any]]](lambda: defaultdict(list))
    for trial in json.loads(stored)["trials"]:
        sizes[sum(trial["live_gates"])][trial["trial"].partition(" seed=")[0]].append(trial)
    chosen = []
    for gates, ways in sorted(sizes.items()):
        runs = max(ways.values(), key=lambda runs: (len(runs), -runs[0]["valid_ppl"]))
        neurons, tests = [sum(run["neurons"]) for run in runs], [run["test_ppl"] for run in runs]
        chosen.append(Network(fmean(neurons), gates, fmean(tests)))
    return chosen


def draw(
    budgets: list[Network], controls: list[Network], refitted: list[Network], dense: list[Network]
) -> Figure:
    """Four curves over live gates, with their neurons beside the points."""
    figure = blank(7.2, 3.9)
    axes = figure.subplots()
    curves = (
        (dense, "s-", SERIES[1], "smaller dense network", (6, 3), "left"),
        (controls, "D-", SERIES[3], "the same, with our penalty or weight decay", (-5, -4), "right"),
        (refitted, "^-", SERIES[2], "pruned by lambda, then refitted", (5, 2), "left"),
        (budgets, "o-", SERIES[0], "pruned to a budget of gates", (-6, -5), "right"),
    )
    for networks, mark, color, label, shift, side in curves:
        gates, perplexity = [n.gates for n in networks], [n.perplexity for n in networks]
        axes.plot(gates, perplexity, mark, color=color, ms=5, label=label)
        for n in networks:
            axes.annotate(
                f"{n.neurons:.0f}", (n.gates, n.perplexity), shift, textcoords="offset points", ha=side,
                va="bottom" if shift[1] > 0 else "top", size=7.5, color=FAINT,
            )  # fmt: skip
    title = "Word PTB, 2 x 200 LSTM, 40 epochs: lower and further left is better"
    plain(axes, title, "live gates (small numbers: neurons)", "test perplexity")
    axes.set_xlim(200, 1480)
    axes.set_ylim(84, 122)
    legend(axes)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plot", type=Path, required=True)
    budgets, controls = (of_trials(path.read_text(encoding="utf-8")) for path in (BUDGETS, CONTROLS))
    page = of_page(PAGE.read_text(encoding="utf-8"))
    save(draw(budgets, controls, *page), parser.parse_args().plot)


if __name__ == "__main__":
    main()
