"""Sparsity and quality along training."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from gatewise.lab.analyse.history import COUNTED, Metrics, curve, named, quality_key
from gatewise.lab.plot.style import DASHES, INK, MARKERS, SERIES, blank, legend, plain


def training(runs: Mapping[str, Metrics], title: str | None = None) -> Figure:
    """Quality, compression, neurons and live gates by epoch; every run has a colour and a dash of its own."""
    names = math.ceil(len(runs) / 2) if len(runs) > 1 else 0  # lines of the legend, two names each
    height = 5.6 + (0.3 if title else 0.0) + 0.2 * names
    figure = blank(9.0, height)
    panels = figure.subplots(2, 2).flat
    qualities = dict.fromkeys(key for key in map(quality_key, runs.values()) if key)
    shown = [
        (" / ".join(map(named, qualities)) or "quality", None),
        ("compression", "compression"),
        *((label, key) for key, label in COUNTED.items()),
    ]
    for axes, (label, key) in zip(panels, shown):
        for k, (name, metrics) in enumerate(runs.items()):
            epochs, values = curve(metrics, key or quality_key(metrics) or "")
            style = {"color": SERIES[k % len(SERIES)], "linestyle": DASHES[k % len(DASHES)]}
            marker = MARKERS[k % len(MARKERS)] if len(epochs) < 2 else None
            axes.plot(epochs, values, linewidth=1.8, marker=marker, label=name, **style)
        plain(axes, label, "epoch", "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if not axes.lines or not any(len(line.get_xdata()) for line in axes.lines):
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", size=9, color=INK)
        elif key is None and "ppl" in label + "".join(qualities):
            perplexity_scale(axes)
    if names:
        legend(figure, handles=figure.axes[0].lines, loc="lower center", ncols=2)
    if title:
        figure.suptitle(title, x=0.02, ha="left", size=12, weight="bold", color=INK)
    figure.tight_layout(rect=(0, (0.2 * names + 0.1 * bool(names)) / height, 1, 1))
    return figure


def perplexity_scale(axes: Axes) -> None:
    """Logarithmic, with plain numbers: the first epochs would flatten everything after them."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
