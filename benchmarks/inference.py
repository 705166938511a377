"""Inference on the CPU: dense, shrunk and folded networks in torch, ONNX Runtime and our engine.

Random weights in exactly the structures of the paper's W+G+N rows. "Shrunk" is what neuron removal alone gives: the
same neurons, constant gates kept as zero rows. The recurrent part reads vectors; with the embedding it reads words,
and our engine may fold it into the first layer; the whole model adds the last layer and its softmax. First every
contender must give the same answer (int8: nearly), then they take turns in warm blocks of 20 calls, fewer where one
call is slow. A ratio is the median over rounds of one contender's block over ours beside it.

Steps carry their state from call to call; sequences begin at zero. "C" is the same compiled function called in a loop
in C, as a C program would. Classifiers have hard-sigmoid gates, as the authors' have; torch has no fused kernel for
those. One thread is timed by its processor time, since others may share the machine.

    python benchmarks/inference.py --json benchmarks/results/inference.json --plot docs/step_time.png
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from contenders import c_call, engine_call, onnx_call, onnx_session, torch_call
from machine import machine_line, roofline
from onnxruntime.quantization import QuantType, quantize_dynamic
from structures import ROWS, Row, check_counts, networks, thick
from torch import nn

import gatewise as gw
from gatewise.export.timing import ratio, same_answers, take_turns

ENGINE, FOLDED, C, C_FOLDED = "engine", "engine, folded", "C", "C, folded"
DENSE, SHRUNK, INT8, UNFOLDED = "onnx dense", "onnx shrunk", "onnx int8 dense", "engine, gates not folded"


# row, part, situation, faster, slower, at least this many times; one thread.
TARGETS = (
    ("word large", "recurrent", "step", ENGINE, DENSE, 25),
    ("word large", "embedding", "step", FOLDED, DENSE, 80),
    ("word small Bayes", "recurrent", "step", ENGINE, DENSE, 12),
    ("word small Bayes", "recurrent", "step", C, DENSE, 30),
    ("word small pruned", "recurrent", "step", ENGINE, DENSE, 12),
    ("word small pruned", "recurrent", "step", C, DENSE, 30),
    ("IMDb", "recurrent", "step", ENGINE, DENSE, 5),
    ("word large", "recurrent", "step", ENGINE, SHRUNK, 1.2),
    ("word large", "recurrent", "sequence", ENGINE, SHRUNK, 1.1),
    ("word large", "embedding", "step", FOLDED, SHRUNK, 1.5),
    ("word large", "embedding", "sequence", FOLDED, SHRUNK, 1.5),
    ("char PTB", "recurrent", "step", ENGINE, SHRUNK, 1.2),
    ("char PTB", "recurrent", "sequence", ENGINE, SHRUNK, 1.0),
    ("IMDb", "recurrent", "sequence", ENGINE, SHRUNK, 3),
    ("AGNews", "recurrent", "sequence", ENGINE, SHRUNK, 3),
    *((row.name, "recurrent", "batch 20", ENGINE, SHRUNK, 0.9) for row in ROWS),
)


SITUATIONS = {"step": (True, 1), "sequence": (False, 1), "batch 20": (False, 20)}


class Bench:
    """One row, part and number of threads: all contenders built, in all situations."""

    def __init__(self, row: Row, part: str, threads: int, folder: Path, generator: torch.Generator) -> None:
        self.row, self.part, self.threads, self.folder = row, part, threads, folder
        self.nets = networks(row, part, generator)
        self.compact = compact = gw.compress(self.nets.dense if part == "whole" else self.nets.shrunk)
        self.engines = {ENGINE: gw.Engine(compact, threads=threads, fold_embedding=False)}
        self.engines[UNFOLDED] = gw.Engine(self.nets.unfolded, threads=threads, fold_embedding=False)
        if self.nets.dense.emb is not None:
            self.engines[FOLDED] = gw.Engine(compact, threads=threads, fold_embedding=True)
        self.onnx: dict[tuple[str, bool], Any] = {}
        for name, net in ((DENSE, thick(self.nets.dense)), (SHRUNK, self.nets.shrunk)):
            for states in (True, False):
                path = gw.export.to_onnx(net, folder / f"{name} {states}.onnx", states=states)
                self.onnx[name, states] = onnx_session(path, threads)
                if name == DENSE:
                    small = folder / f"int8 {states}.onnx"
                    quantize_dynamic(path, small, weight_type=QuantType.QInt8)
                    self.onnx[INT8, states] = onnx_session(small, threads)

    def contenders(self, situation: str, generator: torch.Generator) -> dict[str, Callable[[], Any]]:
        carry, batch = SITUATIONS[situation]
        steps = 1 if carry else self.row.steps
        nets = self.nets
        if nets.dense.emb is not None:
            x = narrow = nets.words[torch.randint(0, len(nets.words), (steps, batch), generator=generator)]
        elif self.row.words:
            x = torch.randn(steps, batch, self.row.size, generator=generator)
            narrow = x[..., nets.inputs].contiguous()
        else:
            letters = torch.randint(0, self.row.size, (steps, batch), generator=generator)
            x = narrow = nn.functional.one_hot(letters, self.row.size).float()
        wide, thin = x.numpy(), narrow.numpy()
        found: dict[str, Callable[[], Any] | None] = {
            "torch dense": torch_call(nets.dense, x, carry),
            "torch shrunk": torch_call(nets.shrunk, narrow, carry),
            DENSE: onnx_call(self.onnx[DENSE, carry], wide, carry),
            SHRUNK: onnx_call(self.onnx[SHRUNK, carry], thin, carry),
            INT8: onnx_call(self.onnx[INT8, carry], wide, carry),
        }
        for name, engine in self.engines.items():
            found[name] = engine_call(engine, thin, carry)
            if name != UNFOLDED:
                found[C if name == ENGINE else C_FOLDED] = c_call(engine, thin, carry)
        return {name: call for name, call in found.items() if call is not None}

    def answers(self, contenders: dict[str, Callable[[], Any]]) -> tuple[dict[str, Callable[[], Any]], float]:
        """Answers to compare: kept channels of the dense ones; and how far int8 is off."""
        kept: dict[str, Callable[[], Any]] = {}
        for name, call in contenders.items():
            answer = call()
            value = self.nets.read(answer) if "dense" in name else np.asarray(answer[0])
            kept[name] = partial(np.reshape, value.copy(), -1)
        int8 = kept.pop(INT8)
        return kept, float(np.abs(int8() - kept[DENSE]()).max())

    def work(self) -> tuple[float, float]:
        """Multiplications and bytes of weights of a step's recurrent part, as the engine does it."""
        products, read = 0, 0
        below = self.row.kept_inputs or self.row.size
        for kept, live in zip(self.row.neurons, self.row.gates):
            products += live * (below + kept)
            read += 4 * live * (below + kept + 1)
            below = kept
        return products, read


def measure(rows: list[str] | None, threads: int, seconds: float) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    print(machine_line("cpu", onnxruntime, onnx))
    for row in (row for row in ROWS if not rows or row.name in rows):
        for part in ("recurrent", "embedding", "whole"):
            if part == "embedding" and not row.words:
                continue
            generator = torch.Generator().manual_seed(0)
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(row, part, threads, Path(folder), generator)
                check_counts(bench.compact, row)
                for situation in SITUATIONS:
                    yield one(bench, situation, threads, seconds, generator)


def one(
    bench: Bench, situation: str, threads: int, seconds: float, generator: torch.Generator
) -> dict[str, Any]:
    contenders = bench.contenders(situation, generator)
    answers, int8 = bench.answers(contenders)
    same_answers(answers)
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = take_turns(contenders, seconds, clock)
    row = bench.row
    print(f"\n{row.name}, {bench.part}, {situation}   (int8 off by {int8:.1e})")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        low, *_, high = statistics.quantiles(found, n=5)
        versus = ratio(found, times[ENGINE])
        text = f"{medians[name] * 1e6:11.1f} us  [{low * 1e6:.1f} .. {high * 1e6:.1f}]  {versus:8.2f}x engine"
        print(f"  {name:26s} {text}", flush=True)
    ours = [name for name in times if name in (ENGINE, FOLDED, C, C_FOLDED)]
    ratios = {fast: {slow: round(ratio(times[slow], times[fast]), 3) for slow in times} for fast in ours}
    products, read = bench.work()
    return {
        "row": row.name,
        "part": bench.part,
        "situation": situation,
        "threads": threads,
        "us": {name: round(1e6 * t, 2) for name, t in medians.items()},
        "times_faster": ratios,
        "int8_error": int8,
        "products_per_step": products,
        "weight_bytes_per_step": read,
    }


def verdicts(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row, part, situation, fast, slow, target in TARGETS:
        for r in results:
            if (r["row"], r["part"], r["situation"], r["threads"]) == (row, part, situation, 1):
                got = r["times_faster"][fast][slow]
                found.append(
                    {"row": row, "part": part, "situation": situation, "fast": fast, "slow": slow,
                     "target": target, "ratio": got, "met": got >= target}
                )  # fmt: skip
    return found


def print_roofline(results: list[dict[str, Any]], roof: dict[str, float]) -> None:
    print(
        "\nThe recurrent part in C, one thread, against the machine: "
        + ", ".join(f"{k} {v:g}" for k, v in roof.items())
    )
    for r in results:
        if r["part"] == "recurrent" and r["threads"] == 1:
            steps = 1 if r["situation"] == "step" else next(row.steps for row in ROWS if row.name == r["row"])
            items = steps * (20 if r["situation"] == "batch 20" else 1)
            seconds = r["us"][C] * 1e-6
            rate = 2e-9 * r["products_per_step"] * items / seconds
            text = f"{rate:7.1f} GFLOP/s"
            if roof:
                text += f" {100 * rate / roof['peak']:3.0f} % of peak"
            if items == 1:
                read = r["weight_bytes_per_step"]
                text += f", weights {read / 1e3:.0f} kB at {1e-9 * read / seconds:.1f} GB/s"
            print(f"  {r['row']:18s} {r['situation']:9s} {text}")


# Time of a step against live gates.


def sweep(seconds: float) -> list[dict[str, Any]]:
    """A 2 x 200 network from dense to empty: gates alone, and gates with their neurons."""
    torch.set_num_threads(1)
    points = []
    for way in ("gates", "neurons"):
        for share in (1.0, 0.85, 0.7, 0.55, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0):
            kept = 200 if way == "gates" else max(1, round(200 * share))
            live = round(800 * share)
            row = Row("sweep", 0, 200, 200, (kept, kept), (live, live), 1, 1)
            generator = torch.Generator().manual_seed(0)
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(row, "recurrent", 1, Path(folder), generator)
                contenders = bench.contenders("step", generator)
            names = {C: "C", ENGINE: "engine", SHRUNK: "ONNX Runtime shrunk"}
            times = take_turns({name: contenders[name] for name in names}, seconds, time.thread_time)
            products, read = bench.work()
            us = {said: 1e6 * statistics.median(times[name]) for name, said in names.items()}
            points.append({"way": way, "gates": 2 * live, "us": us, "products": products, "bytes": read})
    return points


def floor_us(point: dict[str, Any], roof: dict[str, float]) -> float:
    """No step is faster: its products at the peak rate; its weights, each from the nearest cache with room for it."""
    products = 2e-3 * point["products"] / roof["peak"]
    left, reading = point["bytes"], 0.0
    for level in ("L1", "L2", "L3"):
        here = min(left, roof.get(f"{level} bytes", left))
        reading += 1e-3 * here / roof[level]
        left -= here
    return max(products, reading)


def draw(points: list[dict[str, Any]], roof: dict[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    titles = {"gates": "gates go, all 400 neurons stay", "neurons": "neurons go with their four gates"}
    colours = {"ONNX Runtime shrunk": "#999999", "engine": "#4477aa", "C": "#cc6677"}
    labels = {"engine": "our engine through Python", "C": "our C alone"}
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for panel, (way, title) in zip(panels, titles.items()):
        own = [p for p in points if p["way"] == way]
        gates = [p["gates"] for p in own]
        for name, colour in colours.items():
            panel.plot(
                gates, [p["us"][name] for p in own], "o-", ms=4, color=colour, label=labels.get(name, name)
            )
        if roof:
            live = [p for p in own if p["gates"]]
            floors = [floor_us(p, roof) for p in live]
            panel.plot([p["gates"] for p in live], floors, "k--", lw=1, label="roofline of this machine")
        panel.set(title=title, xlabel="live gates of 1600", yscale="log")
        panel.grid(alpha=0.3, which="both", lw=0.4)
    panels[0].set_ylabel("microseconds a step, batch 1, one thread")
    panels[1].legend(loc="lower right", fontsize=9)
    figure.suptitle("A 2 x 200 LSTM from dense to empty", fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", help="names of rows; all by default")
    parser.add_argument("--threads", nargs="*", type=int, default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each table, at least")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer's advice
    roof = roofline()
    results: list[dict[str, Any]] = []
    torch.set_num_threads(max(args.threads))
    everything: dict[str, Any] = {"machine": machine_line("cpu", onnxruntime, onnx), "roofline": roof}
    for threads in args.threads:
        for result in measure(args.rows, threads, args.seconds):
            results.append(result)
            everything |= {"targets": verdicts(results), "results": results}
            store(everything, args.json)  # what is measured is kept, whatever comes
    print_roofline(results, roof)
    print("\nTargets, one thread:")
    for v in verdicts(results):
        what = f"{v['row']}, {v['part']}, {v['situation']}: {v['fast']} over {v['slow']}"
        print(f"  {what:72s} {v['ratio']:8.2f}x  target {v['target']:g}x  {'met' if v['met'] else 'MISSED'}")
    if args.plot:
        points = sweep(args.seconds / 2)
        store(everything | {"sweep": points}, args.json)
        draw(points, roof, args.plot)


def store(everything: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
