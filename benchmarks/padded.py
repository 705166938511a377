"""What does padding cost a training step on a CPU? A masked batch as packed sequences, and step by step; one thread.

    bound       a batch without padding that has as many real steps
    packed      the padded batch with its mask, as layers run it on a CPU
    all steps   the same by a scan over all steps, padding too

Forward and backward of the layer alone. Lengths are drawn evenly between a tenth of the longest and the longest. Both
ways give the same answer before the clock starts, and contenders take turns.

    python benchmarks/padded.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from compact_forward import check_same_answer, interleave
from machine import machine_line
from torch import Tensor

import gatewise as gw
from gatewise.lab.training.options import prepare
from gatewise.nn import recurrent


class Row(NamedTuple):
    name: str
    cell: type[recurrent.Recurrent]
    options: dict[str, Any]
    batch: int
    steps: int


BOTH_WAYS = {"input_size": 16, "hidden_size": 48, "num_layers": 2, "bidirectional": True}
ONE_WAY = {"input_size": 64, "hidden_size": 128}
ROWS = (
    Row("GRU 48, two layers, both ways", gw.nn.GRU, BOTH_WAYS, 256, 22),
    Row("LSTM 48, two layers, both ways", gw.nn.LSTM, BOTH_WAYS, 256, 22),
    Row("GRU 128", gw.nn.GRU, ONE_WAY, 64, 100),
    Row("LSTM 128", gw.nn.LSTM, ONE_WAY, 64, 100),
    Row("LSTM 128, hard sigmoid", gw.nn.LSTM, ONE_WAY | {"gate_activation": "hard_sigmoid"}, 64, 100),
)


def contenders(row: Row) -> dict[str, Callable[[], Tensor]]:
    torch.manual_seed(0)
    layer = row.cell(**row.options)
    lengths = torch.randint(row.steps // 10, row.steps + 1, (row.batch,))
    mask = torch.arange(row.steps)[:, None] >= row.steps - lengths  # padded in front
    x = torch.randn(row.steps, row.batch, layer.input_size)
    real = x[: round(float(lengths.float().mean()))]

    def step(x: Tensor, **mask: Tensor) -> Tensor:
        layer.zero_grad()
        output, _ = layer(x, **mask)
        assert isinstance(output, Tensor)
        output.square().mean().backward()
        return output.detach()

    def all_steps() -> Tensor:
        with mock.patch.object(recurrent, "stretches_of", return_value=None):
            return step(x, mask=mask)

    return {"packed": lambda: step(x, mask=mask), "all steps": all_steps, "bound": lambda: step(real)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    prepare(torch.device("cpu"))  # as the trainer does
    machine, rows = machine_line(), []
    print(machine, "\n\n| layer | bound, ms | packed, of the bound | all steps, of the bound |")
    print("| --- | --- | --- | --- |")
    for row in ROWS:
        calls = contenders(row)
        check_same_answer({name: calls[name] for name in ("packed", "all steps")})
        interleave(calls, 2)  # warm-up, thrown away
        times = interleave(calls, args.repeats)
        bound = times["bound"]
        found = {name: [t / b for t, b in zip(own, bound)] for name, own in times.items() if own is not bound}
        said = [f"{statistics.median(own):.2f} ({min(own):.2f} to {max(own):.2f})" for own in found.values()]
        print(f"| {row.name} | {statistics.median(bound) / 1e6:.1f} | {' | '.join(said)} |", flush=True)
        rows.append({"layer": row.name, "nanoseconds": times})
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
