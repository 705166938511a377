"""The finished runs in a folder of results, seed by seed: what claims.py, curves.py and check_results.py read.

results/ROW/            seed 0: result.json, metrics.jsonl, recipe.toml; gates.json and model.safetensors where they
                        were kept; networks.json lists networks that are release assets
results/ROW/seeds/K/    the same recipe from another seed
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gatewise.lab.files import GATES, METRICS, NETWORKS, RESULT
from gatewise.lab.finished.reproduce import seed_folders
from gatewise.lab.training.checkpoints import Metrics

RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True)
class StoredRun:
    """One seed of one row."""

    row: str
    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / RESULT).read_text(encoding="utf-8"))

    @cached_property
    def gates(self) -> dict[str, Any]:
        """The gate map of every recurrent layer, as LayerMap.to_dict() writes it."""
        return json.loads((self.folder / GATES).read_text(encoding="utf-8"))

    @property
    def last_layer(self) -> dict[str, Any]:
        return list(self.gates.values())[-1]

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return list(Metrics(self.folder / METRICS).lines())

    @property
    def seed(self) -> int:
        return self.result["seed"]

    @property
    def name(self) -> str:
        return f"{self.row}, seed {self.seed}"

    def has(self, what: str) -> bool:
        """Whether a file of the run was kept, in a release asset at least: GATES, MODEL."""
        return (self.folder / what).exists() or self.folder / what in assets()


@cache
def assets() -> set[Path]:
    """The networks that are kept apart, as they would lie here."""
    listed = json.loads((RESULTS / NETWORKS).read_text(encoding="utf-8"))
    return {RESULTS / network["file"] for network in listed["networks"]}


def stored_runs(results: Path, row: str, what: str = RESULT) -> list[StoredRun]:
    """The seeds of a row that have `what`; none where the row has not been run."""
    runs = (StoredRun(row, folder) for folder in seed_folders(results / row))
    return [run for run in runs if run.has(RESULT) and run.has(what)]


def stored_rows(results: Path) -> list[str]:
    return [folder.name for folder in sorted(results.iterdir()) if stored_runs(results, folder.name)]
