"""Does the cost of a compact network grow with what is kept? Compact torch against the masked network, one thread.

A language model of two LSTM layers loses the same share of neurons in each layer, from none to almost all. Both forms
give the same answer before the clock starts; only the call is timed, and contenders take turns, so that a slow moment
of the machine falls on all of them.

    python benchmarks/compact_forward.py [--json FILE] [--figure docs/compact_forward.png]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine_line
from torch import Tensor, nn

import gatewise as gw
from gatewise.lab.plot.style import FAINT, MARKERS, SERIES, blank, legend, plain, save

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)


class LanguageModel(nn.Module):
    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(words, hidden)
        self.rnn = nn.LSTM(hidden, hidden, 2)
        self.fc = nn.Linear(hidden, 100)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.fc(self.rnn(self.emb(ids))[0])
        return out


@torch.no_grad()
def masked_network(fraction: float, hidden: int) -> LanguageModel:
    """A share of the neurons of every layer, and of the embedding's components, is read by nobody."""
    torch.manual_seed(0)
    model = LanguageModel(1000, hidden).eval()
    dead = torch.randperm(hidden)[round(fraction * hidden) :]
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and name != "emb.weight":
            parameter[:, dead] = 0
    return model


def check_same_answer(contenders: dict[str, Callable[[], Tensor]]) -> None:
    first, *others = [call() for call in contenders.values()]
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5)


def interleave(contenders: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, list[int]]:
    """Nanoseconds of every call, contenders in turn."""
    times: dict[str, list[int]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            start = time.perf_counter_ns()
            call()
            times[name].append(time.perf_counter_ns() - start)
    return times


def plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    figure = blank(7.2, 3.7)
    axes = figure.subplots()
    for name, colour, marker in zip(("masked torch.nn", "compact torch"), (FAINT, SERIES[0]), MARKERS):
        own = [row[name] for row in rows]
        kept = [100 * row["kept"] for row in rows]
        axes.plot(kept, [t["median_ms"] for t in own], color=colour, marker=marker, ms=4, label=name)
        axes.fill_between(
            kept, [t["low_ms"] for t in own], [t["high_ms"] for t in own], color=colour, alpha=0.2, lw=0
        )
    plain(axes, title, "neurons kept (%)", "forward pass (ms)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    legend(axes, loc="lower right")
    figure.tight_layout()
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--figure", type=Path, help="draw them to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    machine = machine_line()
    print(machine)
    ids = torch.randint(0, 1000, (args.steps, args.batch))
    contenders: dict[str, Callable[[], Tensor]] = {}
    sizes: dict[float, tuple[int, int]] = {}
    for fraction in FRACTIONS:
        model = masked_network(fraction, args.hidden)
        small = gw.compress(model)
        pair = {f"masked torch.nn {fraction}": model, f"compact torch {fraction}": small}
        calls = {name: (lambda net=net: net(ids)) for name, net in pair.items()}
        sizes[fraction] = tuple(sum(p.numel() for p in net.parameters()) for net in pair.values())  # type: ignore[assignment]
        with torch.no_grad():
            check_same_answer(calls)
        contenders |= calls
    with torch.no_grad():
        interleave(contenders, 3)  # warm-up, thrown away
        times = interleave(contenders, args.repeats)
    rows: list[dict[str, Any]] = []
    for fraction in FRACTIONS:
        row: dict[str, Any] = {"kept": fraction, "numbers": sizes[fraction]}
        for name in ("masked torch.nn", "compact torch"):
            ns = times[f"{name} {fraction}"]
            low, *_, high = statistics.quantiles(ns, n=5)
            row[name] = {"median_ms": statistics.median(ns) / 1e6, "low_ms": low / 1e6, "high_ms": high / 1e6}
        rows.append(row)
        said = "   ".join(
            f"{name} {row[name]['median_ms']:7.2f} ms [{row[name]['low_ms']:.2f} .. {row[name]['high_ms']:.2f}]"
            for name in ("masked torch.nn", "compact torch")
        )
        print(f"kept {fraction:5.0%}   {said}   {sizes[fraction][1]:,} of {sizes[fraction][0]:,} numbers")
    if args.json:
        settings = {"hidden": args.hidden, "batch": args.batch, "steps": args.steps, "repeats": args.repeats}
        args.json.write_text(
            json.dumps({"machine": machine, "settings": settings, "rows": rows}, indent=1) + "\n"
        )
    if args.figure:
        plot(rows, f"2 x {args.hidden} LSTM, batch {args.batch}, {args.steps} steps, one thread", args.figure)


if __name__ == "__main__":
    main()
