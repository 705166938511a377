"""Microseconds of a step from counts: the fit finds the numbers it was made of, and is made once per machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import Classifier

import gatewise as gw
from gatewise.lab.sweep import cost
from gatewise.lab.sweep.cost import SPARSE, StepCost, amounts, fit

KNOWN = StepCost("this", call=0.8, layer=0.3, neuron=0.02, product=4e-5, sparse=3.0)


def test_the_fit_finds_the_numbers_behind_exact_times() -> None:
    draw = np.random.default_rng(0)
    parts = [
        (int(layers), int(neurons), {s: float(min(dense, s * kept)) for s in SPARSE})
        for layers, neurons, dense, kept in zip(
            draw.integers(1, 4, 12),
            draw.integers(4, 500, 12),
            draw.integers(1e4, 1e6, 12),
            draw.integers(1e3, 1e6, 12),
        )
    ]
    times = [
        KNOWN.call + KNOWN.layer * l + KNOWN.neuron * n + KNOWN.product * p[KNOWN.sparse] for l, n, p in parts
    ]
    assert fit(parts, times) == pytest.approx([0.8, 0.3, 0.02, 4e-5, 3.0], rel=1e-6)


def test_no_number_is_negative() -> None:
    """A larger network may have measured faster; none of it costs less than nothing."""
    parts = [(1, 10, dict.fromkeys(SPARSE, 100.0)), (1, 20, dict.fromkeys(SPARSE, 400.0))]
    assert (fit(parts, [2.0, 1.0]) >= 0).all()


def test_amounts_are_those_of_the_cut_network() -> None:
    """Against the formula by hand, for a network of which nothing is zero; characters pick their column."""
    report = gw.measure(Classifier(hidden=3)).fixed_point.to_dict()["layers"]
    rnn = next(layer for layer in report.values() if layer["gates"])
    fc = next(layer for layer in report.values() if layer["kind"] == "Linear")
    own, out = 4 * 3 * (rnn["inputs"] + 3), fc["weights"]
    assert amounts(report, 3, 8.0) == (1, 3, own + out)
    assert amounts(report, 3, 8.0, picks=True) == (1, 3, pytest.approx(4 * 3 * 3 + out))
    fewer = {**report, "rnn": {**rnn, "nonzero": 2}} if "rnn" in report else report
    assert amounts(fewer, 3, 1.5)[2] <= own + out


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of another machine, or a broken one, does not count."""
    calls: list[int] = []

    def measured() -> list[float]:
        calls.append(1)
        return [1.0, 2.0, 3.0, 4.0, 1.5]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cost, "measured", measured)
    first = cost.calibrated()
    assert cost.calibrated() == first
    assert len(calls) == 1
    for content in (
        json.dumps(asdict(first) | {"machine": "other"}),
        "{",
        json.dumps({"machine": first.machine}),
    ):
        cost.cache_file().write_text(content)
        assert cost.calibrated() == first
    assert len(calls) == 4


def test_measuring_gives_a_cost_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real engine, in a moment: its numbers are positive somewhere, and more costs more."""
    pytest.importorskip("gatewise.runtime.engine")
    monkeypatch.setattr(cost, "SECONDS", 0.05)
    monkeypatch.setattr(cost, "NETWORKS", ((1, 8, 1.0), (2, 8, 1.0), (1, 64, 0.5), (2, 64, 1.0)))
    found = StepCost("this", *cost.measured())
    layers: dict[str, Any] = gw.measure(Classifier(hidden=3)).fixed_point.to_dict()["layers"]
    larger: dict[str, Any] = gw.measure(Classifier(hidden=30)).fixed_point.to_dict()["layers"]
    assert 0 < found.microseconds(layers, 3) <= found.microseconds(larger, 30)
