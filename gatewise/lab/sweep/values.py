"""What a trial is judged by, from the result of its run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gatewise.lab.files import Diverged
from gatewise.lab.sweep.cost import StepCost, from_dict
from gatewise.lab.sweep.plan import Under
from gatewise.lab.training.progress import shown_quality

PICKED = ("char-ptb", "characters")  # tasks whose inputs pick a column of the first matrix


@dataclass(frozen=True)
class Measures:
    quality: str  # ppl, bpc, accuracy, mse
    higher_is_better: bool
    objectives: tuple[str, ...]
    under: Under | None = None
    cost: StepCost | None = None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], cost: Mapping[str, Any] | None) -> Measures:
        under = content["under"]
        return cls(
            content["quality"],
            content["higher_is_better"],
            tuple(content["objectives"]),
            None if under is None else Under(**under),
            None if cost is None else from_dict(cost),
        )

    def direction(self, objective: str) -> str:
        return "maximize" if objective == "quality" and self.higher_is_better else "minimize"

    def title(self, objective: str) -> str:
        return {"quality": f"valid_{self.quality}", "bytes": "bytes", "time": "microseconds"}[objective]

    def of(self, result: Mapping[str, Any]) -> dict[str, float]:
        """All that is known of a run: quality, bytes, and its time where there is a cost model."""
        quality = result["quality"][f"valid_{self.quality}"]
        if quality is None or not math.isfinite(quality):
            raise Diverged(f"valid_{self.quality} is not finite: the network has learned nothing.")
        counts, recipe = result["counts"], result["recipe"]
        found = {"quality": float(quality), "bytes": float(counts["bytes_int8"])}
        if self.cost is not None:
            layers, picks = counts["fixed_point"]["layers"], recipe["data.task"] in PICKED
            found["time"] = self.cost.microseconds(layers, recipe["model.hidden"], picks)
        return found

    def fits(self, found: Mapping[str, Any]) -> bool:
        return self.under is None or found[self.under.objective] <= self.under.most


def better(a: float, b: float, higher_is_better: bool) -> bool:
    return a > b if higher_is_better else a < b


def shown(found: Mapping[str, float], measures: Measures) -> str:
    """`valid_ppl 110.03, 45,120 bytes, 3.1 us`"""
    parts = [f"valid_{measures.quality} {shown_quality(found['quality'])}", f"{found['bytes']:,.0f} bytes"]
    return ", ".join([*parts, *([f"{found['time']:.1f} us"] if "time" in found else [])])


def said(values: Mapping[str, Any]) -> str:
    """`sparsify.group 0.0017, model.dropout 0.2`"""
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    )
