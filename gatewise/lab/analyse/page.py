"""The explorer page: one HTML file with its data inside, which needs no network and no server.

What it shows comes from data, words of a vocabulary among them, so nothing of it is ever treated as HTML: it travels
as JSON without `<`, `>` and `&`, the script writes it as text, and the page allows no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.lab.analyse.gate_map import LayerMap, map_gates
from gatewise.lab.analyse.history import COUNTED, Metrics, curve, named, quality_key
from gatewise.lab.analyse.lag import LagMap, LayerLags, kind_of
from gatewise.lab.analyse.links import Link, NeuronLinks, find_links

DECADES = 6.0  # of gradient norm that a curve shows
ZERO = 255  # the byte of a norm that is zero, missing or below those decades
SCRIPTS = {"page": ("helpers.js", "picture.js", "page.js"), "front": ("helpers.js", "front.js")}
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Fact:
    """A number of the summary: `valid perplexity`, `111.20`, `paper: 110.04`."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class PageRun:
    """What a page shows of one run; everything but title and model may be missing."""

    title: str
    model: nn.Module
    facts: Sequence[Fact] = ()
    metrics: Metrics = ()
    lags: LagMap | None = None
    symbols: Sequence[str] | None = None  # what input ids mean
    outputs: Sequence[str] | None = None  # what the last layer scores
    notes: Sequence[str] = ()  # what the reader must know: data that are not as published
    missing: str = ""  # what the page cannot show, in a few words
    readers: Mapping[str, Sequence[str]] = field(default_factory=dict)


def page(runs: Sequence[PageRun]) -> str:
    """The file's content, for one run or for two side by side."""
    if not 1 <= len(runs) <= 2:
        raise ValueError(f"a page shows one run or two side by side, not {len(runs)}.")
    return render({"runs": [run_data(run) for run in runs]})


def render(data: Mapping[str, Any], name: str = "page") -> str:
    """The template of that name with style, script and data in their places; style and helpers are those of all."""
    folder = files("gatewise.lab.analyse") / "template"
    html, css, *scripts = (
        (folder / file).read_text("utf-8") for file in (f"{name}.html", "page.css", *SCRIPTS[name])
    )
    js = "".join(scripts)
    sums = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (js, css)]
    parts = {"SCRIPT-SUM": sums[0], "STYLE-SUM": sums[1], "STYLE": css, "SCRIPT": js, "DATA": as_json(data)}
    for place, part in parts.items():
        html = html.replace(f"@@{place}@@", part, 1)
    return html


def as_json(data: Any) -> str:
    """JSON that can stand inside a script element: no character in it can end or open anything."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def run_data(run: PageRun) -> dict[str, Any]:
    gates, names = map_gates(run.model, run.readers), Names()
    links = find_links(run.model, gates, symbols=run.symbols, outputs=run.outputs, readers=run.readers)
    layers = [
        layer_data(layer, links[name], None if run.lags is None else run.lags.get(name), names)
        for name, layer in gates.items()
    ]
    return {
        "title": run.title,
        "facts": [vars(fact) for fact in run.facts],
        "notes": list(run.notes),
        "missing": run.missing,
        "layers": layers,
        "names": names.listed,
        "history": history(run.metrics),
    }


class Names:
    """Each name once; links carry its number."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.listed)
            self.listed.append(name)
        return self.numbers[name]

    def flat(self, links: Sequence[Link]) -> list[float]:
        """name, value, name, value, ...; the most positive first"""
        return [part for name, value in links for part in (self(name), short(value))]


def layer_data(
    layer: LayerMap, links: Sequence[NeuronLinks], lags: LayerLags | None, names: Names
) -> dict[str, Any]:
    """One layer; lists by neuron, in the order of the layer."""
    patterns = layer.patterns
    varying = layer.varying
    constant = [
        [None if math.isnan(value) else short(value) for value in row] for row in layer.constant.T.tolist()
    ]
    data: dict[str, Any] = {
        "name": layer.name,
        "cell": layer.cell,
        "gates": list(layer.gates),
        "width": layer.width,
        "cut": layer.cut,
        "neurons": layer.neurons.tolist(),
        "patterns": patterns,
        "kinds": [kind_of(layer.cell, pattern) for pattern in patterns],
        "live": ["".join("lvc"[state] for state in column) for column in states(layer.live, varying)],
        "constant": constant,
        "bias": [[short(value) for value in link.bias] for link in links],
        "inputs": [[names.flat(link.inputs.get(gate, ())) for gate in layer.gates] for link in links],
        "recurrent": [[names.flat(link.recurrent.get(gate, ())) for gate in layer.gates] for link in links],
        "readers": [
            [[names(r.reader), r.weights, *names.flat(r.strongest)] for r in link.readers] for link in links
        ],
        "lag": None,
    }
    if lags is not None and lags.norms.numel():
        data["lag"] = lag_data(lags)
        data["reach"] = [round(value, 1) for value in lags.reach.tolist()]
    return data


def states(live: Tensor, varying: Tensor) -> list[list[int]]:
    """By neuron and gate: 0 live, 1 varying without a product, 2 constant."""
    numbers = torch.where(live, 0, torch.where(varying, 1, 2))
    found: list[list[int]] = numbers.T.tolist()
    return found


def lag_data(lags: LayerLags) -> dict[str, Any]:
    """Curves as one byte a lag: log10 of the norm from `top` downwards in 254 steps over six decades."""
    norms = lags.norms.nan_to_num().T  # (K, L + 1)
    largest = norms.max().item()
    top = math.log10(largest) if largest > 0 else 0.0
    depth = (top - norms.clamp_min(1e-30).log10()) / DECADES
    coded = (depth * (ZERO - 1)).round().clamp(0, ZERO)  # all beyond the last decade is ZERO
    content = coded.to(torch.uint8).contiguous().numpy().tobytes()
    return {
        "top": round(top, 4),
        "decades": DECADES,
        "lags": norms.shape[1] - 1,
        "sequences": int(lags.sequences[0]),
        "enough": lags.enough,
        "shared": lags.shared,
        "bytes": base64.b64encode(content).decode(),
    }


def history(metrics: Metrics) -> list[dict[str, Any]]:
    """Curves by epoch: quality, compression, and neurons and live gates layer by layer."""
    found = []
    quality = quality_key(metrics)
    if quality:
        found.append(chart(named(quality), {"": curve(metrics, quality)}))
    found.append(chart("compression", {"": curve(metrics, "compression")}))
    for key, title in COUNTED.items():
        layers = dict.fromkeys(name for line in metrics for name in line.get(key) or {})
        found.append(chart(title, {name: curve(metrics, key, name) for name in layers}))
    return [one for one in found if one["series"]]


def chart(title: str, series: Mapping[str, tuple[list[int], list[float]]]) -> dict[str, Any]:
    return {
        "title": title,
        "series": [
            {"name": name, "x": x, "y": [short(value, 5) for value in y]}
            for name, (x, y) in series.items()
            if x
        ],
    }


def short(value: float, digits: int = 3) -> float:
    """As many digits as a reader can use; whole numbers stay whole."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) else rounded
