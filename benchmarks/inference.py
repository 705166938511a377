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
import ctypes
import json
import logging
import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.timing import ratio, same_answers, take_turns
from gatewise.runtime import bindings
from gatewise.runtime.packing import aligned

HERE = Path(__file__).parent
KERNELS = HERE.parent / "gatewise" / "runtime" / "kernels"
ENGINE, FOLDED, C, C_FOLDED = "engine", "engine, folded", "C", "C, folded"
DENSE, SHRUNK, INT8, UNFOLDED = "onnx dense", "onnx shrunk", "onnx int8 dense", "engine, gates not folded"


@dataclass(frozen=True)
class Row:
    """A W+G+N row of the paper: sizes before, and what is kept."""

    name: str
    words: int  # 0: vectors come in
    size: int  # of the first layer's input
    hidden: int
    neurons: tuple[int, ...]
    gates: tuple[int, ...]
    steps: int
    outputs: int
    kept_words: int = 0
    kept_inputs: int = 0  # 0: all
    hard: bool = False  # a classifier: hard-sigmoid gates, the last step's answer


ROWS = (
    Row("IMDb", 20003, 300, 128, (4,), (6,), 200, 1, kept_words=305, kept_inputs=1, hard=True),
    Row("AGNews", 20003, 300, 512, (14,), (39,), 100, 4, kept_words=2295, kept_inputs=46, hard=True),
    Row("char PTB", 0, 50, 1000, (404,), (1563,), 99, 50),
    Row("word small Bayes", 10000, 200, 200, (52, 108), (197, 349), 35, 10000),
    Row("word small pruned", 10000, 200, 200, (64, 115), (193, 442), 35, 10000),
    Row("word large", 10000, 1500, 1500, (252, 394), (881, 1418), 35, 10000),
)
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


class Net(nn.Module):
    """Embedding, one recurrent layer after the other, the last layer with its softmax; `part` says what of it."""

    def __init__(self, row: Row, size: int, widths: tuple[int, ...], part: str) -> None:
        super().__init__()
        self.hard, self.outputs = row.hard, row.outputs
        self.emb = nn.Embedding(row.words, size) if row.words and part != "recurrent" else None
        make = partial(gw.nn.LSTM, gate_activation="hard_sigmoid") if row.hard else nn.LSTM
        self.rnns = nn.ModuleList(make(i, o) for i, o in zip((size, *widths), widths))
        self.fc = nn.Linear(widths[-1], row.outputs) if part == "whole" else None

    def forward(self, x: Tensor, states: Any = None) -> Any:
        x = x if self.emb is None else self.emb(x)
        lasts = []
        for k, rnn in enumerate(self.rnns):
            x, last = rnn(x, None if states is None else states[k])
            lasts.append(last)
        if self.fc is None:
            return x, lasts
        y = self.fc(x[-1] if self.hard else x)
        y = torch.sigmoid(y) if self.outputs == 1 else torch.softmax(y, -1)
        return y, lasts


@dataclass
class Networks:
    """The dense network with zeros in the row's structure, and the shrunk one: the same function."""

    dense: Net
    shrunk: Net
    unfolded: (
        Net  # the shrunk one, its constant gates given weights too small to matter, so that nothing folds
    )
    neurons: Tensor  # kept in the last layer
    inputs: Tensor
    words: Tensor

    def read(self, answer: Any) -> Any:
        """The kept channels of the dense network's answer."""
        first = np.asarray(answer[0])
        return first if self.dense.fc is not None else first[..., self.neurons.numpy()]


def networks(row: Row, part: str, generator: torch.Generator) -> Networks:
    def some(n: int, k: int) -> Tensor:
        return torch.randperm(n, generator=generator)[:k].sort().values

    inputs = some(row.size, row.kept_inputs or row.size)
    words = some(row.words, row.kept_words or row.words)
    dense = Net(row, row.size, (row.hidden,) * len(row.neurons), part).eval()
    shrunk, unfolded = (Net(row, len(inputs), row.neurons, part).eval() for _ in range(2))
    with torch.no_grad():
        for p in dense.parameters():
            size = p.shape[1] if p.dim() == 2 else 1
            p.copy_(torch.randn(p.shape, generator=generator) / max(size, 1) ** 0.5)
        if dense.emb is not None:
            keep = torch.zeros(row.words, 1).index_fill_(0, words, 1)
            dense.emb.weight.mul_(keep)
            for net in (shrunk, unfolded):
                net.emb.weight.copy_(dense.emb.weight[:, inputs])
        below = inputs
        for k, (kept, live) in enumerate(zip(row.neurons, row.gates)):
            neurons = some(row.hidden, kept)
            rows = (torch.arange(4)[:, None] * row.hidden + neurons).flatten()
            alive = live_gates(kept, live, generator)
            cut(dense.rnns[k], rows[~alive], below, neurons)
            for net, least in ((shrunk, 0.0), (unfolded, 1e-20)):
                copy_rows(dense.rnns[k], net.rnns[k], rows, below, neurons, ~alive, least)
            below = neurons
        if dense.fc is not None:
            unread = torch.ones(row.hidden).index_fill_(0, below, 0).bool()
            dense.fc.weight[:, unread] = 0
            for net in (shrunk, unfolded):
                net.fc.weight.copy_(dense.fc.weight[:, below])
                net.fc.bias.copy_(dense.fc.bias)
    return Networks(dense, shrunk, unfolded, below, inputs, words)


def live_gates(neurons: int, live: int, generator: torch.Generator) -> Tensor:
    """Output gates first, as in the paper's models, the rest at random."""
    order = torch.cat(
        [torch.arange(3 * neurons, 4 * neurons), torch.randperm(3 * neurons, generator=generator)]
    )
    return torch.zeros(4 * neurons, dtype=torch.bool).index_fill_(0, order[:live], True)


def cut(rnn: nn.Module, constant: Tensor, inputs: Tensor, neurons: Tensor) -> None:
    for weight, read in ((rnn.weight_ih_l0, inputs), (rnn.weight_hh_l0, neurons)):
        keep = torch.zeros(weight.shape[1]).index_fill_(0, read, 1)
        weight.mul_(keep)
        weight[constant] = 0


def copy_rows(
    dense: nn.Module,
    small: nn.Module,
    rows: Tensor,
    inputs: Tensor,
    neurons: Tensor,
    constant: Tensor,
    least: float,
) -> None:
    small.weight_ih_l0.copy_(dense.weight_ih_l0[rows][:, inputs])
    small.weight_hh_l0.copy_(dense.weight_hh_l0[rows][:, neurons])
    for name in ("bias_ih_l0", "bias_hh_l0"):
        getattr(small, name).copy_(getattr(dense, name)[rows])
    for weight in (small.weight_ih_l0, small.weight_hh_l0):
        weight[constant] = least


# Contenders: each a call without arguments, and one that reads the answer of the first call.


def torch_call(net: Net, x: Tensor, carry: bool) -> Callable[[], Any]:
    state: list[Any] = [None]

    def call() -> Any:
        with torch.inference_mode():
            y, last = net(x, state[0])
        state[0] = last if carry else None
        return y, last

    return call


def onnx_session(path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnx_call(session: Any, x: np.ndarray, carry: bool) -> Callable[[], Any]:
    names = [y.name for y in session.get_outputs()]
    feed = {"x": x}
    for given in session.get_inputs()[1:]:
        feed[given.name] = np.zeros([1 if not isinstance(n, int) else n for n in given.shape], np.float32)
    back = {name[:-1] + "0": k for k, name in enumerate(names) if k}

    def call() -> Any:
        answer = session.run(names, feed)
        for name, k in back.items():
            feed[name] = answer[k]
        return answer

    return call if carry else lambda: session.run(names, feed)


def engine_call(engine: gw.Engine, x: np.ndarray, carry: bool) -> Callable[[], Any]:
    if not carry:
        return lambda: engine(x)
    engine.reset()
    step = engine.step
    first = x[0]
    return lambda: (step(first)[None],)


class CCall:
    """The compiled function of a network on arrays that are ready; repeat(n) makes n calls in C."""

    def __init__(self, engine: gw.Engine, x: np.ndarray, carry: bool, repeating: ctypes.CDLL) -> None:
        network, final, (steps, batch) = engine.stages[0].network, engine.stages[0].final, x.shape[:2]
        shape = (batch, network.width) if final else (steps, batch, network.width)
        native, struct = ctypes.CDLL(bindings.native().__file__), ctypes.byref(network._keep[0])
        needed = repeating.scratch_floats(native.gw_network_scratch, struct, steps, batch, engine.threads)
        self.y = aligned(np.zeros(shape), np.float32)
        data, state = np.ascontiguousarray(x), network.zero_state(batch)
        scratch = aligned(np.zeros(needed), np.float32)
        x_at, y_at, state_at, scratch_at = (
            ctypes.c_void_p(a.ctypes.data) for a in (data, self.y, state, scratch)
        )
        inputs = (None, x_at) if data.dtype == np.int64 else (x_at, None)
        self.keep = data, state, scratch, network, native
        self.function, self.arguments = repeating.repeat, (
            native.gw_network_run, struct, steps, batch, *inputs, state_at, 0 if carry else state.size, y_at,
            network.width, engine.threads, scratch_at,
        )  # fmt: skip

    def repeat(self, n: int) -> None:
        self.function(n, *self.arguments)

    def __call__(self) -> Any:
        self.repeat(1)
        return (self.y,)


@cache
def repeating() -> ctypes.CDLL | None:
    """repeat.c, compiled; None without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-std=c99", "-O2", "-shared", "-fPIC", f"-I{KERNELS}"]
        try:
            subprocess.run(["cc", *flags, str(HERE / "repeat.c"), "-o", f"{folder}/repeat.so"], check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        library = ctypes.CDLL(f"{folder}/repeat.so")
    library.scratch_floats.restype = ctypes.c_size_t
    return library


def c_call(engine: gw.Engine, x: np.ndarray, carry: bool) -> Callable[[], Any] | None:
    library = repeating()
    return None if library is None or len(engine.stages) > 1 else CCall(engine, x, carry, library)


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


def thick(net: Net) -> Net:
    """The dense network with no exact zero left, so that its export stays dense; the answer is the same."""
    with torch.no_grad():
        for p in net.parameters():
            p[p == 0] = 1e-20
    return net


def check_counts(compact: nn.Module, row: Row) -> None:
    layers = [layer for rnn in compact.rnns for layer in rnn.layers]
    counts = tuple(layer.kept for layer in layers), tuple(len(layer.slots) for layer in layers)
    assert counts == (row.neurons, row.gates), counts


def roofline() -> dict[str, float]:
    """Peak GFLOP/s and GB/s from each cache, measured by benchmarks/kernels.c; empty without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/kernels"
        flags = "-std=c99 -O3 -march=native -ffp-contract=fast".split()
        sources = [str(HERE / "kernels.c"), str(KERNELS / "gw.c"), str(KERNELS / "words.c")]
        try:
            subprocess.run(["cc", *flags, f"-I{KERNELS}", *sources, "-o", program], check=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        line = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    found = {name: float(number) for name, number in re.findall(r"(peak|L1|L2|L3|memory) (\d+)", line)}
    return found | cache_bytes()


def cache_bytes() -> dict[str, float]:
    """Sizes of the first core's own caches, as the system says them."""
    sizes = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and level in "12":
            sizes[f"L{level} bytes"] = 1024.0 * int(size.removesuffix("K"))
    return sizes


def machine_line(threads: int) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    load = os.getloadavg()[0]
    return (
        f"{cpu}, {os.cpu_count()} cores, load {load:.1f}, {threads} thread(s), torch {torch.__version__}, "
        f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, commit {commit.stdout.strip() or 'unknown'}"
    )


def measure(rows: list[str] | None, threads: int, seconds: float) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    print(machine_line(threads))
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
    everything: dict[str, Any] = {"machine": machine_line(max(args.threads)), "roofline": roof}
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
