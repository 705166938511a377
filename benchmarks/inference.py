"""Inference on the CPU: dense, shrunk and folded networks in torch, in other runtimes and in our engine.

Random weights in exactly the structures of the paper's W+G+N rows. "Shrunk" is what neuron removal alone gives: the
same neurons, constant gates kept as zero rows. The recurrent part reads vectors; with the embedding it reads words,
and our engine may fold it into the first layer; the whole model adds the last layer and its softmax. First every
contender must give the same answer (int8: nearly); a rival that does not is left out and named, as one that is not
installed. Then they take turns in warm blocks of 20 calls, fewer where one call is slow. A ratio is the median over
rounds of one contender's block over ours beside it.

Steps carry their state from call to call; sequences begin at zero. Every call has a fresh input, or, as a row of its
own, the same again, which spares some runtimes a copy. "C" is the same compiled function called in a loop in C, as a
C program would; so is the C of rivals. Classifiers have hard-sigmoid gates, as the authors' have; torch has no fused
kernel for those, and most rivals have none at all: --logistic gives them the usual gates. One thread is timed by the
processor time of all threads, since others may share the machine.
GATEWISE_ISA=avx2 keeps our kernels to AVX2; avx2_alone.py keeps all contenders to it.

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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from contenders import C_FOLDED, DENSE, ENGINE, FOLDED, SHRUNK, SITUATIONS, Bench, C, Calls
from machine import machine_line, roofline
from matplotlib.ticker import FuncFormatter, NullFormatter
from rivals import RIVALS
from structures import ROWS, Row, check_counts

from gatewise.lab.plot.style import FAINT, INK, MARKERS, SERIES, blank, legend, plain, save
from gatewise.lab.timing import ratio, take_turns

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


# How many times faster than the best rival on the shrunk network the recurrent part is to be: C against C, engine
# against what else is called from Python.
FLOORS = {"step": 1.5, "sequence": 1.3}


def best_rival(times: dict[str, list[float]]) -> tuple[str, float] | None:
    """On the shrunk network, and how many times faster ours is."""
    against = {
        name: ratio(found, times[C if name.startswith("emx") and C in times else ENGINE])
        for name, found in times.items()
        if name.endswith("shrunk")
    }
    return min(against.items(), key=lambda item: item[1], default=None)


def measure(args: argparse.Namespace, threads: int) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    print(machine_line("cpu", onnxruntime, onnx))
    for row in (row for row in ROWS if not args.rows or row.name in args.rows):
        row = replace(row, hard=row.hard and not args.logistic)
        for part in args.parts:
            if part == "embedding" and not row.words:
                continue
            generator = torch.Generator().manual_seed(0)
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(row, part, threads, Path(folder), generator)
                check_counts(bench.compact, row)
                for situation in args.situations:
                    contenders, left_out = bench.contenders(situation, generator, args.rivals)
                    yield one(bench, situation, contenders, left_out, args.seconds)


def one(
    bench: Bench, situation: str, contenders: Calls, left_out: dict[str, str], seconds: float
) -> dict[str, Any]:
    int8 = bench.compare(contenders, left_out)
    clock = time.process_time if bench.threads == 1 else time.perf_counter
    times = take_turns(contenders, seconds, clock)
    row = bench.row
    print(f"\n{row.name}, {bench.part}, {situation}   (int8 off by {int8:.1e})")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        low, *_, high = statistics.quantiles(found, n=5)
        versus = ratio(found, times[ENGINE])
        text = f"{medians[name] * 1e6:11.1f} us  [{low * 1e6:.1f} .. {high * 1e6:.1f}]  {versus:8.2f}x engine"
        print(f"  {name:26s} {text}", flush=True)
    for name, why in left_out.items():
        print(f"  {name:26s} left out: {why}")
    best = best_rival(times)
    ours = [name for name in times if name in (ENGINE, FOLDED, C, C_FOLDED)]
    ratios = {fast: {slow: round(ratio(times[slow], times[fast]), 3) for slow in times} for fast in ours}
    products, read = bench.work()
    return {
        "row": row.name,
        "part": bench.part,
        "situation": situation,
        "threads": bench.threads,
        "us": {name: round(1e6 * t, 2) for name, t in medians.items()},
        "times_faster": ratios,
        "best_rival": None if best is None else {"name": best[0], "times_faster": round(best[1], 3)},
        "left_out": left_out,
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
    for r in results:
        floor, best = FLOORS.get(r["situation"]), r["best_rival"]
        if floor and best and r["part"] == "recurrent" and r["threads"] == 1:
            got = best["times_faster"]
            fast = C if best["name"].startswith("emx") else ENGINE
            found.append(
                {"row": r["row"], "part": "recurrent", "situation": r["situation"], "fast": fast,
                 "slow": f"{best['name']}, the best rival", "target": floor, "ratio": got, "met": got >= floor}
            )  # fmt: skip
    return found


def print_roofline(results: list[dict[str, Any]], roof: dict[str, float]) -> None:
    print(
        "\nThe recurrent part in C, one thread, against the machine: "
        + ", ".join(f"{k} {v:g}" for k, v in roof.items())
    )
    for r in results:
        if r["part"] == "recurrent" and r["threads"] == 1:
            of_row = next(row.steps for row in ROWS if row.name == r["row"])
            steps = 1 if r["situation"].startswith("step") else of_row
            items = steps * (20 if r["situation"] == "batch 20" else 1)
            seconds = r["us"][C] * 1e-6
            rate = 2e-9 * r["products_per_step"] * items / seconds
            text = f"{rate:7.1f} GFLOP/s"
            if roof:
                text += f" {100 * rate / roof['peak']:3.0f} % of peak"
            if items == 1:
                read = r["weight_bytes_per_step"]
                text += f", weights {read / 1e3:.0f} kB at {1e-9 * read / seconds:.1f} GB/s"
            elif roof and r["situation"] == "sequence":
                floor = sequence_floor_us(next(row for row in ROWS if row.name == r["row"]), roof)
                text += f", {r['us'][C] / floor:.2f} times the bound of {floor:.1f} us"
            print(f"  {r['row']:18s} {r['situation']:9s} {text}")


def sequence_floor_us(row: Row, roof: dict[str, float]) -> float:
    """No sequence is faster: input products of all steps at the peak rate, and recurrent ones step by step, their
    weights read anew. What a step waits for the one before, some 50 ns, is not in it."""
    below = (row.kept_inputs or row.size, *row.neurons)
    inputs = sum(live * width for live, width in zip(row.gates, below))
    recurrent = sum(live * kept for live, kept in zip(row.gates, row.neurons))
    step = floor_us({"products": recurrent, "bytes": 4 * recurrent}, roof)
    return row.steps * (2e-3 * inputs / roof["peak"] + step)


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
                contenders, _ = bench.contenders("step", generator, ["onnx"])
            names = {C: "C", ENGINE: "engine", SHRUNK: "ONNX Runtime shrunk"}
            times = take_turns({name: contenders[name] for name in names}, seconds, time.process_time)
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
    titles = {"gates": "gates go, all 400 neurons stay", "neurons": "neurons go with their four gates"}
    labels = {
        "ONNX Runtime shrunk": "ONNX Runtime shrunk",
        "engine": "our engine through Python",
        "C": "our C alone",
    }
    figure = blank(10, 4.2)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (way, title) in zip(panels, titles.items()):
        own = [p for p in points if p["way"] == way]
        gates = [p["gates"] for p in own]
        for (name, label), colour, marker in zip(labels.items(), (FAINT, *SERIES), MARKERS):
            panel.plot(gates, [p["us"][name] for p in own], color=colour, marker=marker, ms=4, label=label)
        if roof:
            live = [p for p in own if p["gates"]]
            floors = [floor_us(p, roof) for p in live]
            panel.plot(
                [p["gates"] for p in live], floors, color=INK, lw=1, ls="--", label="roofline of this machine"
            )
        panel.set_yscale("log")
        plain(panel, title, "live gates of 1,600", "microseconds a step" if panel is panels[0] else "")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
    legend(panels[1], "white", loc="lower right")
    figure.suptitle(
        "A 2 x 200 LSTM from dense to empty, batch 1, one thread", x=0.02, ha="left", size=12, color=INK
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", help="names of rows; all by default")
    parser.add_argument("--parts", nargs="*", default=["recurrent", "embedding", "whole"])
    parser.add_argument("--situations", nargs="*", default=list(SITUATIONS))
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), help="which of them; all by default")
    parser.add_argument("--logistic", action="store_true", help="classifiers with sigmoid gates")
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
        for result in measure(args, threads):
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
