"""Gradient norm against lag, a thin line per neuron and a thick one per pattern of live gates."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatewise.lab.analyse.gate_map import CONSTANT
from gatewise.lab.analyse.lag import LagMap, LayerLags
from gatewise.lab.plot.style import DASHES, FAINT, SERIES, blank, legend, plain

DECADES = 6  # below the largest norm; what is smaller lies under the axis
VEIL = "#E8E8E8"  # over what few sequences say
NAMED = 5  # patterns with a colour of their own in one panel; the rest is grey


def lag_figure(lags: LagMap, title: str | None = None) -> Figure:
    """One panel per layer, side by side; neurons without a live gate have no gradient and no line.

    Lags that fewer than a tenth of the sequences reach, or fewer than two, are drawn faintly.
    """
    n = len(lags)
    figure = blank(4.6 * n + 0.4, 3.6 + (0.4 if title else 0.0))
    panels = figure.subplots(1, n, squeeze=False)[0]
    for axes, layer in zip(panels, lags.values()):
        draw_layer(axes, layer)
    if title:
        figure.suptitle(title, x=0.02, ha="left", size=12, weight="bold", color="#222222")
    figure.tight_layout()
    return figure


def draw_layer(axes: Axes, layer: LayerLags) -> None:
    medians = {pattern: curve for pattern, curve in layer.by_pattern().items() if pattern != CONSTANT}
    style = {p: (SERIES[k % len(SERIES)], DASHES[k // len(SERIES)]) for k, p in enumerate([*medians][:NAMED])}
    for k, pattern in enumerate(layer.patterns):
        if pattern != CONSTANT:
            colour, _ = style.get(pattern, (FAINT, "-"))
            curve = layer.norms[:, k].clamp_min(1e-30)
            axes.plot(curve.tolist(), color=colour, linewidth=0.5, alpha=0.3, gid=f"{layer.name}.{k}")
    for pattern, (colour, dash) in style.items():
        n = layer.patterns.count(pattern)
        label = f"{pattern} \N{MULTIPLICATION SIGN} {n}"
        curve = medians[pattern].clamp_min(1e-30)
        axes.plot(curve.tolist(), color=colour, linestyle=dash, linewidth=2.2, label=label)
    others = sum(layer.patterns.count(p) for p in medians if p not in style)
    if others:
        axes.plot([], [], color=FAINT, linewidth=1, label=f"{others} others")
    if layer.shared < len(layer.norms):
        axes.axvspan(
            layer.shared - 0.5, len(layer.norms), facecolor=VEIL, alpha=0.7, zorder=3, linewidth=0,
            label=f"fewer than {layer.enough} of {int(layer.sequences[0])} sequences",
        )  # fmt: skip
    plain(axes, heading(layer), "lag", "gradient norm, mean over sequences")
    top = layer.norms.nan_to_num().max().item() if layer.norms.numel() else 0.0
    if top > 0:
        axes.set_yscale("log")
        ceiling = 10 ** math.ceil(math.log10(top))
        axes.set_ylim(ceiling / 10**DECADES, ceiling)
        legend(axes, title="live gates: median", title_fontsize=8, loc="upper right", background="white")
    axes.set_xlim(0, max(len(layer.norms) - 1, 1))


def heading(layer: LayerLags) -> str:
    kinds = layer.kinds
    listed = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(sorted(kinds)))
    return f"{layer.name}: {listed or 'no neurons'}"
