"""Patterns of live gates: how often each occurs in a layer, and how alike two layers are. For claims.py.

A layer is what LayerMap.to_dict() writes, as gates.json has it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stored import StoredRun

from gatewise.lab.analyse.gate_map import CONSTANT

FULL, ONLY_OUTPUT = "ifgo", "o"
Layer = Mapping[str, Any]


def live_gates(layer: Layer) -> dict[str, int]:
    """Live gates by kind."""
    return {gate: sum(row) for gate, row in zip(layer["gates"], layer["live"])}


def rates(layer: Layer) -> dict[str, float]:
    """How often each kind of gate is live among the kept neurons."""
    return {gate: n / len(layer["neurons"]) for gate, n in live_gates(layer).items()}


def shares(layer: Layer) -> dict[str, float]:
    """Patterns of live gates, as parts of the kept neurons."""
    return {pattern: n / len(layer["neurons"]) for pattern, n in Counter(layer["patterns"]).items()}


def independent(layer: Layer) -> dict[str, float]:
    """The shares if every kind of gate were live at its rate, whatever the neuron's other gates are."""
    rate = rates(layer)
    found = {}
    for live in itertools.product((False, True), repeat=len(rate)):
        pattern = "".join(gate for gate, on in zip(rate, live) if on) or CONSTANT
        found[pattern] = math.prod(p if on else 1 - p for p, on in zip(rate.values(), live))
    return found


def overlap(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Sum over patterns of the smaller share; 1 if the shares are equal, 0 if no pattern is common."""
    return sum(min(share, b[pattern]) for pattern, share in a.items() if pattern in b)  # in the order of a


def by_chance(a: Layer, b: Layer) -> float:
    """The overlap if one of the two, either in turn, had the same rates and no patterns of its own."""
    return (overlap(shares(a), independent(b)) + overlap(independent(a), shares(b))) / 2


@dataclass(frozen=True)
class OutputOnly:
    """o-only neurons of the last layer."""

    neurons: int
    kept: int
    by_chance: float  # so many neurons, if gates were live independently

    @classmethod
    def of(cls, run: StoredRun) -> OutputOnly:
        layer = run.last_layer
        kept = len(layer["neurons"])
        return cls(layer["patterns"].count(ONLY_OUTPUT), kept, kept * independent(layer)[ONLY_OUTPUT])


def compared(a: list[StoredRun], b: list[StoredRun]) -> dict[str, dict[str, float]]:
    """Layer by layer, mean overlaps of pairs of runs: one of each method, and two seeds of the same."""
    found = {}
    for name in a[0].gates:
        one, other = ([run.gates[name] for run in runs] for runs in (a, b))
        pairs = list(itertools.product(one, other))
        seeds = [pair for own in (one, other) for pair in itertools.combinations(own, 2)]
        found[name] = {
            "overlap": statistics.mean(overlap(shares(x), shares(y)) for x, y in pairs),
            "by_chance": statistics.mean(by_chance(x, y) for x, y in pairs),
            "two_seeds": statistics.mean([overlap(shares(x), shares(y)) for x, y in seeds] or [1.0]),
        }
    return found
