"""Runs that were never trained: what result.json and gates.json would say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stored import StoredRun

GATES = "ifgo"


def layer(*patterns: str, constant: float = 0.5) -> dict[str, Any]:
    """A layer with one kept neuron for each pattern; every gate that is not live is the same number."""
    live = [[gate in pattern for pattern in patterns] for gate in GATES]
    return {
        "cell": "LSTM",
        "gates": list(GATES),
        "width": len(patterns),
        "neurons": list(range(len(patterns))),
        "live": live,
        "constant": [[None if on else constant for on in row] for row in live],
        "patterns": list(patterns),
    }


def made(*layers: dict[str, Any], row: str = "row", seed: int = 0, **counts: Any) -> StoredRun:
    """A run with the gate maps of its layers; `counts` are those of its result."""
    run = StoredRun(row, Path(f"{row}-{seed}"))
    # Where cached properties keep what they have read.
    vars(run)["gates"] = {f"rnn.l{k}": one for k, one in enumerate(layers)}
    vars(run)["result"] = {"seed": seed, "counts": counts, "quality": {"test_ppl": 100.0}}
    return run
