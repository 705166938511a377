"""Every stored network, loaded on the CPU and judged again on the real data: is it the one its result tells of?

Validation and test quality must agree to a thousandth, the counts exactly: neurons, inputs, words, live gates by kind
and weights that are not zero, layer by layer. They are those at the fixed point, which is what a compact network has;
weights of constant gates are gone from it, so what counts them is left out. gates.json must list as many live gates
as the result counts. One line per network, and exit status 1 if any disagrees. A word model takes half a minute.
Networks that are release assets are skipped by name where they are not unpacked.

    python reproduction/check_results.py
    python reproduction/check_results.py ptb-word-small-bayes-wgn --json reproduction/check_results.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gate_patterns import live_gates
from stored import RESULTS, StoredRun, stored_rows, stored_runs

from gatewise.lab.files import GATES, MODEL
from gatewise.lab.finished.saved import SPLITS, evaluate_saved

THOUSANDTH = 1e-3  # relative: a GPU's sums turn the fifth digit of a perplexity, or an answer of a classifier


def comparable(layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in layer.items() if key != "nonzero_as_masked"}
        for name, layer in layers.items()
    }


def check(run: StoredRun, data_dir: Path | None) -> dict[str, Any]:
    """Qualities as stored and as found, and a sentence for everything that does not agree."""
    found, report = evaluate_saved(run.folder, data_dir=data_dir)
    stored = run.result["quality"]
    keys = [key for key in stored if key.partition("_")[0] in SPLITS]
    wrong = [
        f"{key} is {found[key]:.6g}, not {stored[key]:.6g}"
        for key in keys
        if not math.isclose(found[key], stored[key], rel_tol=THOUSANDTH)
    ]
    told, seen = (
        comparable(counts["layers"])
        for counts in (run.result["counts"]["fixed_point"], report.fixed_point.to_dict())
    )
    wrong += [
        f"{layer} {key}: {seen.get(layer, {}).get(key)}, not {value}"
        for layer, own in told.items()
        for key, value in own.items()
        if seen.get(layer, {}).get(key) != value
    ]
    if run.has(GATES):
        counted = {name: own["gates"] for name, own in run.result["counts"]["layers"].items() if own["gates"]}
        if {name: live_gates(layer) for name, layer in run.gates.items()} != counted:
            wrong.append(f"{GATES} has other live gates than the result")
    return {
        "run": run.name,
        "stored": {key: stored[key] for key in keys},
        "found": {key: found[key] for key in keys},
        "neurons": report.neurons,
        "live_gates": report.gates,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", help="rows to check; all of them by default")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--data-dir", type=Path, help="folder with the corpora; else GATEWISE_DATA")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = arguments.rows or stored_rows(arguments.results)
    kept = [run for row in rows for run in stored_runs(arguments.results, row, MODEL)]
    for run in kept:
        if not (run.folder / MODEL).is_file():
            print(f"{run.name:38} skipped: its network is a release asset, see networks.json", flush=True)
    runs = [run for run in kept if (run.folder / MODEL).is_file()]
    if not runs:
        parser.error(f"{arguments.results} has no network of {', '.join(rows) or 'any row'}")
    checked = []
    for run in runs:
        checked.append(one := check(run, arguments.data_dir))
        quality = "  ".join(
            f"{key} {one['found'][key]:.5g} ({value:.5g})" for key, value in one["stored"].items()
        )
        print(f"{run.name:38} {quality}  {'; '.join(one['wrong']) or 'agrees'}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"networks": checked}, indent=1) + "\n")
    sys.exit(any(one["wrong"] for one in checked))


if __name__ == "__main__":
    main()
