"""The three levels, drawn: which weights of a recurrent layer vanish together.

python reproduction/scheme.py docs/scheme.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from torch import Tensor

from gatewise.lab.plot.style import COLOURS, FAINT, INK, RULE, blank, save

GATES, NEURONS, INPUTS = "ifgo", 5, 5
CAPTIONS = {
    "W": ("Weights", "single zeros; every gate and\nneuron is still computed"),
    "W+N": ("Weights and neurons", "nobody reads neurons 2 and 4:\ntheir rows and columns go"),
    "W+G+N": ("Weights, gates and neurons", "a gate without weights is\nthe constant act(bias)"),
}
REMOVED = (1, 3)  # neurons, from 0
CONSTANT_GATES = {"i": (0, 4), "f": (0,), "g": (4,), "o": ()}


def example(levels: str, seed: int = 4) -> dict[str, Tensor]:
    """Which weights are left, gate by gate: (neurons, inputs + neurons) bool, as each level leaves them."""
    generator = torch.Generator().manual_seed(seed)
    left = {gate: torch.rand(NEURONS, INPUTS + NEURONS, generator=generator) > 0.4 for gate in GATES}
    for gate, keep in left.items():
        keep[:, 0] |= ~keep.any(1)  # no row is empty by chance
        if "N" in levels:
            keep[list(REMOVED)] = False
            keep[:, [INPUTS + j for j in REMOVED]] = False
        if "G" in levels:
            keep[list(CONSTANT_GATES[gate])] = False
    return left


def scheme() -> Figure:
    """Three panels: the matrices [Wx | Wh] of the four gates as W, W+N and W+G+N leave them."""
    figure = blank(11.4, 3.2)
    panels = figure.subplots(1, 3)
    for axes, (levels, (name, caption)) in zip(panels, CAPTIONS.items()):
        axes.set(xlim=(-1.5, 22.6), ylim=(15.4, -3.0), aspect="equal")
        axes.axis("off")
        axes.text(-0.6, -2.2, levels, size=13, weight="bold", color=INK, va="center")
        axes.text(5.2 if len(levels) > 3 else 3.2 if len(levels) > 1 else 1.5, -2.2, name, size=10, color=FAINT,
                  va="center")  # fmt: skip
        for k, (gate, keep) in enumerate(example(levels).items()):
            draw_gate(axes, gate, keep, levels, x=(k % 2) * 11.6, y=(k // 2) * 6.7)
        axes.text(10.6, 12.5, caption, ha="center", va="top", size=9, color=INK, linespacing=1.35)
    figure.subplots_adjust(left=0.01, right=0.995, top=0.99, bottom=0.02, wspace=0.05)
    return figure


def draw_gate(axes: Axes, gate: str, keep: Tensor, levels: str, x: float, y: float) -> None:
    """One matrix, Wx on the left of Wh; removed rows and columns hatched away, a constant gate as one cell."""
    axes.text(x - 0.35, y + NEURONS / 2, gate, ha="right", va="center", size=10, color=INK)
    for side, label in ((0, f"$W^x_{gate}$"), (INPUTS + 0.5, f"$W^h_{gate}$")):
        axes.text(x + side + 2.5, y - 0.25, label, ha="center", va="bottom", size=8, color=FAINT)
    for j in range(NEURONS):
        if "N" in levels and j in REMOVED:
            continue
        if "G" in levels and j in CONSTANT_GATES[gate]:
            box = FancyBboxPatch(
                (x + 0.1, y + j + 0.18), INPUTS + NEURONS + 0.3, 0.64, boxstyle="round,pad=0,rounding_size=0.3",
                facecolor="white", edgecolor=RULE, linewidth=0.8,
            )  # fmt: skip
            axes.add_patch(box)
            axes.text(x + 5.25, y + j + 0.53, "constant", ha="center", va="center", size=5.8, color=FAINT)
            continue
        for c in range(INPUTS + NEURONS):
            if "N" in levels and c - INPUTS in REMOVED:
                continue
            left = x + c + (0.5 if c >= INPUTS else 0.0)
            colour = COLOURS[gate] if keep[j, c] else "white"
            axes.add_patch(Rectangle((left, y + j), 1, 1, facecolor=colour, edgecolor=RULE, linewidth=0.4))
    for left in (x, x + INPUTS + 0.5):
        axes.add_patch(
            Rectangle((left, y), 5, NEURONS, fill=False, edgecolor=RULE, linewidth=0.6, linestyle=":")
        )


if __name__ == "__main__":
    save(scheme(), Path(sys.argv[1]))
