"""Figures, one call each. The only package that imports matplotlib; nothing here needs a display.

scheme     the three levels, drawn
gates      which gates live, and what the others are
lags       gradient norm against lag
front      quality against bytes and time over a sweep
progress   sparsity and quality along training; size against quality over runs
spread     log alpha or group norms, and the threshold
"""

from gatewise.analyse.figures.front import front
from gatewise.analyse.figures.gates import gate_structure, number
from gatewise.analyse.figures.lags import lag_figure
from gatewise.analyse.figures.progress import Point, pareto, pareto_front, training
from gatewise.analyse.figures.scheme import scheme
from gatewise.analyse.figures.spread import histogram
from gatewise.analyse.figures.style import COLOURS, save

__all__ = [
    "COLOURS",
    "Point",
    "front",
    "gate_structure",
    "histogram",
    "lag_figure",
    "number",
    "pareto",
    "pareto_front",
    "save",
    "scheme",
    "training",
]
