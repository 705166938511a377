"""Pruned and refitted networks against dense ones of as many neurons: test perplexity against live gates.

The numbers are those of the table in docs/reproduction.md, "Against smaller dense networks", first seeds.

    python reproduction/dense_rivals.py --plot docs/dense_rivals.png
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from gatewise.analyse.figures import save
from gatewise.analyse.figures.style import FAINT, SERIES, blank, legend, plain

PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"


class Rival(NamedTuple):
    """A pruned network and the dense one of as many neurons."""

    neurons: int
    gates: int
    perplexity: float
    dense_gates: int
    dense_perplexity: float


def rivals(page: str) -> list[Rival]:
    """Lines of the table that have a dense network: the first seed of each size."""
    table = page[page.index("| D, G, R |") :].split("\n\n")[0].replace(",", "").replace("*", "")
    found = []
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[5]:
            tests = [float(re.split(r" - ", cells[k])[1]) for k in (4, 8)]
            found.append(Rival(int(cells[2]), int(cells[3]), tests[0], int(cells[6]), tests[1]))
    return found


def draw(points: Sequence[Rival]) -> Figure:
    """Two curves over live gates; a thin line joins networks of as many neurons."""
    figure = blank(7.2, 3.7)
    axes = figure.subplots()
    for p in points:
        axes.plot([p.gates, p.dense_gates], [p.perplexity, p.dense_perplexity], color=FAINT, lw=0.8, ls=":")
        axes.annotate(
            f"{p.neurons} neurons", (p.gates, p.perplexity), (-6, -5), textcoords="offset points", ha="right",
            va="top", size=7.5, color=FAINT,
        )  # fmt: skip
    axes.plot(
        [p.dense_gates for p in points], [p.dense_perplexity for p in points], "s-", color=SERIES[1], ms=5,
        label="smaller dense network, as many neurons",
    )  # fmt: skip
    axes.plot(
        [p.gates for p in points], [p.perplexity for p in points], "o-", color=SERIES[0], ms=5,
        label="gates and neurons pruned, then refitted",
    )  # fmt: skip
    plain(axes, "Word PTB, 2 x 200 LSTM: lower and further left is better", "live gates", "test perplexity")
    axes.set_xlim(100, 1450)
    axes.set_ylim(85, 121)
    legend(axes)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plot", type=Path, required=True)
    save(draw(rivals(PAGE.read_text(encoding="utf-8"))), parser.parse_args().plot)


if __name__ == "__main__":
    main()
