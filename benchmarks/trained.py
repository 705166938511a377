"""Inference with the networks we trained: whole model, words in, log-probabilities or classes out, on the CPU.

    ratio = time of the dense original in ONNX Runtime / time of the trained network in our engine

Every model in results/ is timed as `gatewise bench` times it: contenders agree on the answer, then take turns in warm
blocks of 20 calls. "compact" is the trained network, constant gates folded, exported to ONNX Runtime: what one
gets from gatewise without our engine.

    python benchmarks/trained.py --json benchmarks/results/trained.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import gatewise as gw
from gatewise.lab import provenance
from gatewise.lab.files import MODEL
from gatewise.lab.timing import Timing, race

ENGINE, DENSE, COMPACT = "gatewise engine", "ONNX Runtime dense", "ONNX Runtime compact"


def summary(name: str, timings: list[Timing]) -> dict[str, Any]:
    """Microseconds of every contender and what the engine gains, by situation."""
    found: dict[str, dict[str, float]] = {}
    for timing in timings:
        found.setdefault(timing.situation, {})[timing.name] = timing.seconds * 1e6
    return {
        "row": name,
        "situations": [
            {
                "situation": situation,
                "microseconds": times,
                "over_onnx_dense": times[DENSE] / times[ENGINE],
                "over_onnx_compact": times[COMPACT] / times[ENGINE],
            }
            for situation, times in found.items()
        ],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| row | situation | engine | over ONNX Runtime dense | over ONNX Runtime on the compact network |"
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in rows:
        for s in row["situations"]:
            engine, dense, compact = s["microseconds"][ENGINE], s["over_onnx_dense"], s["over_onnx_compact"]
            took = f"{two_digits(engine)} us" if engine < 1000 else f"{engine / 1000:.1f} ms"
            ratios = f"{two_digits(dense)}x | {two_digits(compact)}x"
            lines.append(f"| `{row['row']}` | {s['situation']} | {took} | {ratios} |")
    return "\n".join(lines)


def two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each situation, at least")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for model in sorted(arguments.results.glob(f"*/{MODEL}")):
        steps = 100 if "agnews" in model.parent.name else 200 if "imdb" in model.parent.name else 35
        timings = race(gw.load(model), steps=steps, threads=arguments.threads, seconds=arguments.seconds)
        rows.append(summary(model.parent.name, timings))
    print(markdown(rows))
    if arguments.json:
        content = {
            "hardware": provenance.hardware(torch.device("cpu")) | {"threads": arguments.threads},
            "versions": provenance.versions(),
            "commit": provenance.commit(),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
