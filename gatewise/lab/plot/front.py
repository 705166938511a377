"""Quality against size or time over runs: each kind of network with the line of its best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from gatewise.lab.plot.style import INK, MARKERS, SERIES, blank, legend, plain

PALE = 0.22


@dataclass(frozen=True)
class Point:
    """One run as size and quality."""

    name: str
    size: float  # weights that are not zero, or bytes
    quality: float
    method: str = ""  # runs of one method share a colour and a marker


def pareto_front(points: Iterable[Point], higher_is_better: bool = False) -> list[Point]:
    """The runs that no other run beats in both size and quality, by size."""
    best: float | None = None
    front = []
    sign = -1.0 if higher_is_better else 1.0
    for point in sorted(points, key=lambda p: (p.size, sign * p.quality)):
        if best is None or sign * point.quality < best:
            best = sign * point.quality
            front.append(point)
    return front


def front(panels: Mapping[str, Sequence[Point]], quality: str, higher_is_better: bool, title: str) -> Figure:
    """One panel for each label of an x axis; runs that another of their kind beats in both are pale."""
    figure = blank(4.9 * len(panels) + 0.3, 4.3)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True).flatten()
    for axes, (label, points) in zip(grid, panels.items()):
        for k, kind in enumerate(dict.fromkeys(point.method for point in points)):
            own = [point for point in points if point.method == kind]
            marker = MARKERS[(k + k // len(SERIES)) % len(MARKERS)]
            draw_kind(axes, own, pareto_front(own, higher_is_better), SERIES[k % len(SERIES)], marker)
        plain(axes, "", label, quality if axes is grid[0] else "")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.xaxis.set_minor_formatter(NullFormatter())
    legend(grid[0])
    figure.suptitle(title, x=0.02, ha="left", size=12, weight="bold", color=INK)
    figure.tight_layout()
    return figure


def draw_kind(axes: Axes, points: Sequence[Point], best: Sequence[Point], colour: str, marker: str) -> None:
    style: dict[str, Any] = {
        "color": colour,
        "marker": marker,
        "s": 38,
        "edgecolor": "white",
        "linewidth": 0.7,
    }
    others = [point for point in points if point not in best]
    axes.scatter([p.size for p in others], [p.quality for p in others], alpha=PALE, zorder=2, **style)
    axes.scatter([p.size for p in best], [p.quality for p in best], zorder=4, label=points[0].method, **style)
    axes.plot(
        [p.size for p in best], [p.quality for p in best], color=colour, linewidth=1.2,
        drawstyle="steps-post", zorder=3,
    )  # fmt: skip
