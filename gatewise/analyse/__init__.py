"""Looks at a trained network: which gates live, what the others are. `figures` alone imports matplotlib."""

from gatewise.analyse.gate_map import GateMap, LayerMap, map_gates

__all__ = ["GateMap", "LayerMap", "map_gates"]
