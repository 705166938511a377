"""Microseconds of a step of a compact network, from its counts.

    us = call + layer * L + neuron * N + product * P
    L recurrent layers, N neurons kept, P products: of a matrix, all of its kept rows and columns, or `sparse`
    times its non-zeros where that is less; characters pick a column, which is no product

The numbers are fitted once per machine to steps of the engine, one sequence on one thread. It is a formula, not a
clock: trials run side by side, and what they measured would depend on their neighbours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gatewise
from gatewise.export.saved.schema import SchemaError, number, record, text
from gatewise.lab.files import RunError, write_json
from gatewise.lab.models import WordLM
from gatewise.lab.provenance import hardware
from gatewise.lab.timing import take_turns

SPARSE = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # what a product of a sparse matrix may cost, in those of a dense one
SECONDS = 1.5  # of measuring, all networks together
# Layers, hidden units and the part of the weights that is not zero.
NETWORKS = (
    (1, 8, 1.0), (2, 8, 1.0), (1, 32, 1.0), (2, 32, 0.2), (1, 64, 0.5), (2, 96, 0.1), (1, 128, 1.0), (2, 128, 0.05),
    (1, 192, 0.4), (2, 256, 1.0),
)  # fmt: skip
VOCABULARY = 500


@dataclass(frozen=True)
class StepCost:
    machine: str
    call: float
    layer: float
    neuron: float
    product: float
    sparse: float

    def microseconds(self, layers: Mapping[str, Any], hidden: int, picks: bool = False) -> float:
        """Of a network with these counts (`layers` of a Report's fixed point) and so many neurons before the cut;
        `picks` where the first layer has characters for inputs."""
        parts = np.array([1.0, *amounts(layers, hidden, self.sparse, picks)])
        return float(parts @ [self.call, self.layer, self.neuron, self.product])


def amounts(
    layers: Mapping[str, Any], hidden: int, sparse: float, picks: bool = False
) -> tuple[int, int, float]:
    """L, N and P of the formula."""
    recurrent = [layer for layer in layers.values() if layer["gates"] is not None]
    neurons = sum(layer["neurons"] for layer in recurrent)
    products = 0.0
    for layer in layers.values():
        if layer["kind"] == "Embedding":
            continue
        part = 1.0  # of its columns that take part in products
        if layer["gates"] is not None:
            rows, columns = sum(layer["gates"].values()), layer["inputs"] + layer["neurons"]
            if picks and layer is recurrent[0]:
                part = layer["neurons"] / max(columns, 1)
        else:
            rows, columns = layer["weights"] // hidden, layer["inputs"]
        products += part * min(rows * columns, sparse * layer["nonzero"])
    return len(recurrent), neurons, products


def fit(
    parts: Sequence[tuple[int, int, Mapping[float, float]]], microseconds: Sequence[float]
) -> NDArray[np.float64]:
    """call, layer, neuron, product, sparse: the least squares of relative errors; none of them is negative."""
    times, best = np.array(microseconds), (np.inf, np.zeros(5))
    for sparse in SPARSE:
        table = np.array([[1.0, layers, neurons, products[sparse]] for layers, neurons, products in parts])
        scaled = table / times[:, None]
        used = list(range(scaled.shape[1]))
        found = np.zeros(scaled.shape[1])
        while used:
            solved = np.linalg.lstsq(scaled[:, used], np.ones(len(times)), rcond=None)[0]
            if (solved >= 0).all():
                found[used] = solved
                break
            used.pop(int(solved.argmin()))
        error = float(np.square(scaled @ found - 1).sum())
        if error < best[0]:
            best = error, np.array([*found, sparse])
    return best[1]


def calibrated() -> StepCost:
    """From the file of an earlier call on this machine, or measured now."""
    machine = f"{hardware(torch.device('cpu'))['cpu']}, gatewise {gatewise.__version__}"
    path = cache_file()
    known = _known(path)
    if known is not None and known.machine == machine:
        return known
    cost = StepCost(machine, *measured())
    with suppress(RunError):  # measured again next time
        write_json(path, asdict(cost))
    return cost


def from_dict(content: Any) -> StepCost:
    fields = {name: number(0) for name in ("call", "layer", "neuron", "product", "sparse")}
    return StepCost(**record(machine=text, **fields)("it", content))


def cache_file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "gatewise" / "step-cost.json"


def _known(path: Path) -> StepCost | None:
    try:
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SchemaError):
        return None


def measured() -> list[float]:
    """Steps of networks with random zeros, the fastest block of each."""
    from gatewise.runtime.engine import Engine

    generator = torch.Generator().manual_seed(0)
    steps, parts = {}, []
    for n_layers, hidden, kept in NETWORKS:
        model = WordLM(VOCABULARY, hidden, hidden, n_layers).eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
                if "weight" in name:
                    p.mul_(torch.rand(p.shape, generator=generator) < kept)
        layers = gatewise.measure(model).fixed_point.to_dict()["layers"]
        counts = {sparse: amounts(layers, hidden, sparse) for sparse in SPARSE}
        parts.append((*counts[SPARSE[0]][:2], {sparse: found[2] for sparse, found in counts.items()}))
        engine, word = Engine(gatewise.compress(model)), np.zeros(1, np.int64)
        steps[f"{n_layers} {hidden} {kept}"] = lambda engine=engine, word=word: engine.step(word)
    times = take_turns(steps, SECONDS)
    found: list[float] = fit(parts, [1e6 * min(blocks) for blocks in times.values()]).tolist()
    return found
