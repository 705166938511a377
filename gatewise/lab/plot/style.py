"""What all figures share: colours that everybody can tell apart, axes without decoration, files that repeat."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gatewise.export.written import write_atomic

# Okabe and Ito's colours: distinct in every common form of colour blindness. Gates with the same part share one:
# what enters (i, r), what is remembered (f, u), what is proposed (g, n), what is shown (o).
COLOURS = {"i": "#0072B2", "r": "#0072B2", "f": "#E69F00", "u": "#E69F00", "g": "#009E73", "n": "#009E73",
           "o": "#CC79A7"}  # fmt: skip
OTHER_COLOUR = "#56B4E9"
# Runs and patterns, in this order.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS, DASHES = "osD^vP", ("-", "--", "-.", ":")
INK, FAINT, RULE = "#222222", "#666666", "#B8B8B8"


def blank(width: float, height: float) -> Figure:
    """An empty white figure, in inches, on a canvas that needs no display whatever backend was chosen."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes, title: str, x: str, y: str) -> None:
    """Two axes, a pale grid behind the curves, text in ink."""
    axes.set_title(title, loc="left", size=10, color=INK, pad=8)
    axes.set_xlabel(x, size=9, color=INK)
    axes.set_ylabel(y, size=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    axes.tick_params(colors=INK, labelsize=8, color=RULE)
    axes.grid(True, color="#E8E8E8", linewidth=0.7)
    axes.set_axisbelow(True)


def legend(owner: Axes | Figure, background: str | None = None, **options: Any) -> None:
    """Without a frame; with a background where curves may pass behind it."""
    frame = {"frameon": False} if background is None else {"facecolor": background, "edgecolor": "none"}
    owner.legend(fontsize=8, labelcolor=INK, framealpha=0.85, **frame, **options)


def save(figure: Figure, path: str | Path, dpi: int = 160) -> None:
    """Write PNG, SVG or PDF, as the name ends. Text in an SVG stays text."""
    path, drawn = Path(path), BytesIO()
    from matplotlib import rc_context

    # A fixed salt and no date: the same figure is the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "gatewise"}):
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(drawn, dpi=dpi, metadata=metadata, format=path.suffix[1:])
    write_atomic(path, drawn.getvalue())
