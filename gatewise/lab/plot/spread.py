"""Where the values lie that decide what is kept, and the threshold among them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from gatewise.lab.analyse.spread import Spread
from gatewise.lab.plot.style import INK, SERIES, blank, legend, plain

BINS = 60
NO_LINE = "no threshold: all but zero is kept"


def histogram(spread: Spread, title: str | None = None) -> Figure:
    """One panel per kind of value: how many lie where, the threshold as a line, and how many are exactly zero.

    Without a threshold there is no line, and the legend says so.
    """
    panels = {name: values for name, values in spread.values.items() if values.numel()}
    if not panels:
        raise ValueError("there is no value to draw: the model has neither group variables nor groups.")
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = blank(3.6 * columns + 0.3, 2.7 * rows + (0.5 if title else 0.1))
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    low, high = edges(panels, spread.threshold)
    decided = math.isfinite(spread.threshold)
    for axes, (name, values) in zip(grid, panels.items()):
        finite = values[values.isfinite()]
        kept = finite < spread.threshold if spread.kept_below else finite > spread.threshold
        labels = f"kept: {int(kept.sum()):,}", f"not kept: {len(values) - int(kept.sum()):,}"
        parts = [finite[kept].numpy(), finite[~kept].numpy()]
        colours = SERIES[0], "#BDBDBD"
        axes.hist(
            parts, BINS, range=(low, high), stacked=True, color=colours, label=labels, histtype="stepfilled"
        )
        if decided:
            axes.axvline(spread.threshold, color=SERIES[1], linewidth=1.4, linestyle="--")
        plain(axes, name, spread.label, "how many")
        told = None if decided else NO_LINE
        legend(axes, reverse=True, loc="best", handlelength=1.0, title=told, title_fontsize=8)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, x=0.02, ha="left", size=12, weight="bold", color=INK)
    figure.tight_layout()
    return figure


def edges(panels: Mapping[str, Tensor], threshold: float) -> tuple[float, float]:
    """One range for all panels, with the threshold inside."""
    ends = torch.cat([torch.tensor([threshold]), *panels.values()])
    ends = ends[ends.isfinite()]
    low, high = (ends.min().item(), ends.max().item()) if ends.numel() else (0.0, 0.0)
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin
