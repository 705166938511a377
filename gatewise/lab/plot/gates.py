"""The gate structure: one column per neuron, one row per gate."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import nn

from gatewise.lab.analyse.gate_map import CONSTANT, GateMap, LayerMap, map_gates
from gatewise.lab.plot.style import COLOURS, INK, OTHER_COLOUR, RULE, blank

MEANING = {
    "LSTM": {"i": "input", "f": "forget", "g": "information flow", "o": "output"},
    "GRU": {"r": "reset", "u": "update", "n": "candidate"},
}
CELL = 0.27  # inches a gate is wide and high
LETTER = 0.073  # inches a letter of a heading takes
LEFT, RIGHT, TITLE, BOTTOM = 0.45, 0.25, 0.42, 0.34  # inches around the cells
HEAD, LINE = 0.32, 0.18  # inches for the figure's title, and for a line of the legend


@dataclass(frozen=True)
class Strip:
    """One row of cells: a part of a layer that fits the width of the figure."""

    layer: LayerMap  # these columns only
    title: str  # empty if the strip goes on where another one stopped


def gate_structure(
    model: nn.Module | GateMap,
    *,
    sample: int | None = None,
    columns: int = 32,
    title: str | None = None,
) -> Figure:
    """One column per kept neuron, one row per gate: live gates coloured, constant ones white with their number.

    Neurons of one pattern stand side by side, with its name under them.

    Args:
        sample: draw only so many neurons of each layer, chosen at random (the paper shows 15); None: all.
        columns: neurons before a new line begins.
    """
    if columns < 1:
        raise ValueError(f"columns={columns}: a line needs room for at least one neuron.")
    whole = map_gates(model) if isinstance(model, nn.Module) else model
    shown = {
        name: (layer if sample is None else layer.sample(sample)).by_pattern()
        for name, layer in whole.items()
    }
    strips = [
        strip
        for name, layer in shown.items()
        for strip in cut(layer, heading(whole[name], len(layer.neurons)), columns)
    ]
    cells = CELL * max(18, *(len(strip.layer.neurons) for strip in strips))
    width = LEFT + RIGHT + max(cells, LETTER * max(len(strip.title) for strip in strips))
    heights = [strip_height(strip) for strip in strips]
    keys = legend_entries(shown)
    legend_columns = len(keys) if width > 7.5 else 3
    head = 0.12 + (HEAD if title else 0.0)
    height = head + LINE * -(-len(keys) // legend_columns) + sum(heights)
    figure = blank(width, height)
    if title:
        figure.text(LEFT / width, 1 - 0.12 / height, title, va="top", size=12, color=INK, weight="bold")
    figure.legend(
        list(keys.values()), list(keys), loc="upper left", bbox_to_anchor=(LEFT / width, 1 - head / height),
        ncols=legend_columns, fontsize=8, labelcolor=INK, frameon=False, borderpad=0, borderaxespad=0,
        handlelength=1.1, handleheight=1.1, columnspacing=1.4,
    )  # fmt: skip
    below = sum(heights)
    for strip, height in zip(strips, heights):
        below -= height
        draw_strip(figure, strip, below)
    return figure


def cut(layer: LayerMap, title: str, columns: int) -> list[Strip]:
    n = len(layer.neurons)
    starts = range(0, n, columns) if n else (0,)
    return [Strip(layer.select(range(k, min(k + columns, n))), title if k == 0 else "") for k in starts]


def heading(whole: LayerMap, n_shown: int) -> str:
    kept, live = len(whole.neurons), int(whole.live.sum())
    drawn = f" ({n_shown} shown)" if n_shown < kept else ""
    after = ", after the cut" if whole.cut else ""
    return (
        f"{whole.name}: {kept} of {whole.width} neurons{drawn}, "
        f"{live} of {len(whole.gates) * whole.width} gates live{after}"
    )


def strip_height(strip: Strip) -> float:
    n_gates = len(strip.layer.gates) if len(strip.layer.neurons) else 0
    return (TITLE if strip.title else 0.08) + CELL * n_gates + BOTTOM


def draw_strip(figure: Figure, strip: Strip, below: float) -> None:
    """The cells of one strip, its title above and the patterns under it; `below` in inches from the bottom."""
    layer, (width, height) = strip.layer, figure.get_size_inches()
    n_gates, n = layer.live.shape
    if strip.title:
        y = (below + strip_height(strip) - TITLE + 0.1) / height
        figure.text(LEFT / width, y, strip.title, size=9.5, color=INK, va="bottom")
    if not n:
        return
    place = (LEFT / width, (below + BOTTOM) / height, CELL * n / width, CELL * n_gates / height)
    axes = figure.add_axes(place, label=layer.name)
    axes.set(xlim=(0, n), ylim=(n_gates, 0))
    axes.set_yticks([k + 0.5 for k in range(n_gates)], layer.gates, size=9.5, color=INK)
    axes.set_xticks([])
    axes.tick_params(length=0, pad=4)
    axes.spines[:].set_visible(False)
    draw_cells(axes, layer)
    name_patterns(axes, layer)


def draw_cells(axes: Axes, layer: LayerMap) -> None:
    varying = layer.varying
    for k, gate in enumerate(layer.gates):
        colour = COLOURS.get(gate, OTHER_COLOUR)
        for j in range(len(layer.neurons)):
            box: dict[str, Any] = {"edgecolor": RULE, "facecolor": "white", "linewidth": 0.5}
            if layer.live[k, j]:
                box = {"edgecolor": "white", "facecolor": colour, "linewidth": 0.8}
            elif varying[k, j]:
                box = {"edgecolor": colour, "facecolor": "white", "linewidth": 0.5, "hatch": "/////"}
            else:
                value = float(layer.constant[k, j])
                box["facecolor"] = tint(colour, value)
                text = number(value)
                axes.text(j + 0.5, k + 0.52, text, ha="center", va="center", size=6.2, color=INK)
            gid = f"{layer.name}.{gate}.{int(layer.neurons[j])}"
            axes.add_patch(Rectangle((j, k), 1, 1, gid=gid, clip_on=False, **box))


def tint(colour: str, value: float) -> tuple[float, float, float]:
    """The colour of a constant gate: its gate's, diluted with white; stronger for a larger value."""
    share = 0.06 + 0.3 * min(1.0, abs(value))
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def name_patterns(axes: Axes, layer: LayerMap) -> None:
    """A bracket under the neurons that share a pattern, with the pattern and how many there are."""
    n_gates, start = len(layer.gates), 0
    for pattern, group in groupby(layer.patterns):
        n = len(list(group))
        axes.plot(
            [start + 0.15, start + n - 0.15], [n_gates + 0.28] * 2, color=INK, linewidth=0.8, clip_on=False
        )
        label = "none" if pattern == CONSTANT else pattern
        text = f"{label} \N{MULTIPLICATION SIGN} {n}" if n >= 3 else label
        size = 7.5 if n >= 2 or len(label) < 3 else 5.8
        axes.text(
            start + n / 2, n_gates + 0.42, text, ha="center", va="top", size=size, color=INK, clip_on=False
        )
        start += n


def number(value: float) -> str:
    """Two digits in the room of four characters: .07, 1, -.98."""
    text = f"{value:.2f}"
    if text in ("1.00", "-1.00", "0.00", "-0.00"):
        return str(int(float(text)))
    return text.replace("0.", ".")


def legend_entries(shown: GateMap) -> dict[str, Patch]:
    cells = {layer.cell: layer.gates for layer in shown.values()}
    entries = {
        label(cell, gate): Patch(facecolor=COLOURS.get(gate, OTHER_COLOUR))
        for cell, gates in cells.items()
        for gate in gates
    }
    entries["pale: constant, with its value"] = Patch(facecolor="white", edgecolor=RULE)
    if any(layer.varying.any() for layer in shown.values()):
        entries["hatched: varies without a product"] = Patch(facecolor="white", edgecolor=INK, hatch="/////")
    return entries


def label(cell: str, gate: str) -> str:
    meaning = MEANING.get(cell, {}).get(gate)
    return f"{gate} live" if meaning is None else f"{gate} {meaning}"
