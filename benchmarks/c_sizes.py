"""What the C exports of the paper's Bayes W+G+N networks take: flash, RAM of one instance, error of int8.

Whole models in the structures of the rows of structures.py, with its random weights, which are dense in the kept
blocks; so a trained network takes less. The error is that of int8 weights relative to the largest golden answer.

    python benchmarks/c_sizes.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from structures import ROWS, networks

import gatewise as gw

TITLES = {
    "IMDb": "IMDb",
    "AGNews": "AG News",
    "char PTB": "character PTB",
    "word small Bayes": "word PTB small",
}


def flash(made: gw.export.CSource) -> str:
    return f"{made.flash_bytes:,} B" + (" in a file" if made.weight_file_bytes else "")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("| model | dense | float32: flash | RAM | int8: flash | RAM | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in (row for row in ROWS if row.name in TITLES):
        dense = networks(row, "whole", torch.Generator().manual_seed(0)).dense
        size = sum(p.numel() for p in dense.parameters()) * 4 / 1e6
        neurons, gates = ("-".join(f"{n:,}" for n in counts) for counts in (row.neurons, row.gates))
        cells = [f"{TITLES[row.name]}, {neurons} neurons, {gates} gates", f"{size:.1f} MB"]
        with tempfile.TemporaryDirectory() as folder:
            for weights in ("float32", "int8"):
                made = gw.export.to_c(dense, Path(folder) / weights, weights=weights)
                cells += [flash(made), f"{made.ram_bytes:,} B"]
        print("| " + " | ".join([*cells, f"{made.max_rel_error:.1e}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
