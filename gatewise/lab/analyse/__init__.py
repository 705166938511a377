"""Looks at a trained network: which gates live, what the others are, how long neurons remember."""

from gatewise.lab.analyse.gate_map import GateMap, LayerMap, map_gates
from gatewise.lab.analyse.lag import LagMap, LayerLags, lag_curves

__all__ = ["GateMap", "LagMap", "LayerLags", "LayerMap", "lag_curves", "map_gates"]
