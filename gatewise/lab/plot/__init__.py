"""Pictures of any model, one call each. The only package that imports matplotlib; nothing here needs a display.

    from gatewise.lab import plot
    plot.save(plot.gate_structure(model), "gates.png")

gates      which gates live, and what the others are
lags       gradient norm against lag
front      quality against size or time over the runs of a sweep, or any
progress   sparsity and quality along training
spread     log alpha or group norms, and the threshold
"""

from gatewise.lab.analyse import lag_curves, map_gates
from gatewise.lab.plot.front import Point, front, pareto_front
from gatewise.lab.plot.gates import gate_structure, number
from gatewise.lab.plot.lags import lag_figure
from gatewise.lab.plot.progress import training
from gatewise.lab.plot.spread import histogram
from gatewise.lab.plot.style import COLOURS, save

__all__ = [
    "COLOURS",
    "Point",
    "front",
    "gate_structure",
    "histogram",
    "lag_curves",
    "lag_figure",
    "map_gates",
    "number",
    "pareto_front",
    "save",
    "training",
]
