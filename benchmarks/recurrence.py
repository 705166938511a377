"""One training step on a GPU: the dense LSTM of cuDNN and ours, and the Bayesian one, noise per batch and sequence.

A step is forward, loss, backward and a fused Adam update, replayed as one CUDA graph. First every contender must
give, with its noise turned down, the loss and gradients of the plain torch equations on the CPU. Then they take
turns, so that a slow moment of the machine falls on all of them. Beside each time stand the kernels of a step and
the floor: the bytes and operations that no version can avoid, over the bandwidth and TF32 rate measured here.

    python benchmarks/recurrence.py --json recurrence.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import machine_line
from torch import Tensor, nn

import gatewise as gw
from gatewise.nn.recurrence import replayed

TARGETS = {"batch": 1.15, "sequence": 1.5}


@dataclass(frozen=True)
class Work:
    """A network of the paper, by its sizes. Word ids go in, or one-hot characters where `words` is 0."""

    name: str
    words: int
    width: int  # of the input of the first layer
    hidden: int
    layers: int
    batch: int
    steps: int
    answers: int
    every_step: bool  # a language model answers at every step, a classifier at the last
    hard: bool = False  # the paper's classifiers have hard-sigmoid gates, which cuDNN lacks


WORKS = (
    Work("word small", 10000, 200, 200, 2, 32, 35, 10000, True),
    Work("IMDb", 20003, 300, 128, 1, 128, 200, 1, False, hard=True),
    Work("AGNews", 20003, 300, 512, 1, 128, 100, 4, False, hard=True),
    Work("char", 0, 50, 1000, 1, 64, 99, 50, True),
    Work("word large", 10000, 1500, 1500, 2, 20, 35, 10000, True),
)


class Net(nn.Module):
    def __init__(self, work: Work, layer: str) -> None:
        super().__init__()
        self.every_step = work.every_step
        self.emb = nn.Embedding(work.words, work.width) if work.words else None
        sizes = (work.width, work.hidden, work.layers)
        self.rnn = nn.LSTM(*sizes) if layer == "torch" else gw.nn.LSTM(*sizes)
        if layer == "hard":
            self.rnn = gw.nn.LSTM(*sizes, gate_activation="hard_sigmoid")
        self.fc = nn.Linear(work.hidden, work.answers)

    def forward(self, x: Tensor) -> Tensor:  # (T, B) ids, or (T, B, width)
        x = x if self.emb is None else self.emb(x)
        h, _ = self.rnn(x)
        return self.fc(h if self.every_step else h[-1])


def batch_of(work: Work) -> tuple[Tensor, Tensor]:
    shape = (work.steps, work.batch)
    x = torch.randint(max(work.words, work.width), shape)
    y = torch.randint(max(work.answers, 2), shape if work.every_step else shape[1:])
    return (x if work.words else F.one_hot(x, work.width).float()), y


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1), y.float())
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def build(
    work: Work, noise: str | None, layer: str, log_sigma: float, device: str
) -> tuple[Net, gw.Variational | None]:
    torch.manual_seed(0)
    net = Net(work, layer).to(device)
    if noise is None:
        return net, None
    vocabulary = ["emb"] if work.words and not work.every_step else []
    return net, gw.Variational(
        net, "W+G+N", n_train=10**6, noise=noise, vocabulary=vocabulary, log_sigma=log_sigma
    )


@replayed()  # as it will be timed
def check_same_answer(work: Work, noise: str | None, layer: str) -> None:
    """Without noise, loss and gradients are those of the plain equations, to the precision of TF32."""
    x, y = batch_of(work)
    x, y = x[:12, :20], (y[:12, :20] if work.every_step else y[:20])
    plain, _ = build(work, None, layer, 0, "cpu")
    expected = loss_of(plain(x), y)
    expected.backward()
    net, _ = build(work, noise, layer, -20.0, "cuda")
    loss = loss_of(net(x.cuda()), y.cuda())
    loss.backward()
    torch.testing.assert_close(loss.cpu(), expected, rtol=2e-3, atol=2e-4)
    ours = dict(net.named_parameters())
    for name, parameter in plain.named_parameters():
        error = (ours[name].grad.cpu() - parameter.grad).norm() / parameter.grad.norm()
        assert error < 2e-2, (
            f"{work.name}, noise {noise}, layer {layer}: gradient of {name} is off by {error:.1e}"
        )


def captured(work: Work, noise: str | None, layer: str) -> tuple[torch.cuda.CUDAGraph, int, object]:
    """A graph of one training step, the number of its parameters, and what must live as long as the graph."""
    net, sparsifier = build(work, noise, layer, -3.0, "cuda")
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True, capturable=True)
    x, y = (part.cuda() for part in batch_of(work))

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        if sparsifier is not None:
            loss = loss + sparsifier.penalty()
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), replayed():
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), replayed():
        step()
    return graph, sum(p.numel() for p in net.parameters()), step


def timed(run: Callable[[], object]) -> float:  # milliseconds
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def interleave(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(timed(run))
    return times


def kernels_of(graph: torch.cuda.CUDAGraph) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def ceilings() -> tuple[float, float]:
    """Bytes per second of a copy, and TF32 operations per second of a large product."""
    a, b = torch.randn(2, 2**28, device="cuda").unbind(0)
    m, n = torch.randn(2, 8192, 8192, device="cuda").unbind(0)
    copies = [timed(lambda: a.copy_(b)) for _ in range(10)]
    products = [timed(lambda: m @ n) for _ in range(10)]
    return 2e3 * 4 * a.numel() / min(copies), 2e3 * 8192**3 / min(products)


def work_of(work: Work, noise: str | None, parameters: int) -> tuple[float, float]:
    """Bytes and operations of a step. An LSTM step reads and writes its gates once each way, its state once."""
    positions = work.steps * work.batch
    widths = [work.width] + [work.hidden] * (work.layers - 1)
    answered = positions if work.every_step else work.batch
    products = positions * sum(4 * work.hidden * (w + work.hidden) for w in widths)
    products += answered * work.hidden * work.answers
    numbers = 7 * parameters  # Adam reads four and writes three
    if noise is not None:
        numbers += 8 * parameters // 2  # m, log sigma and w; then m, log sigma and three gradients
    numbers += positions * sum(2 * 2 * 4 * work.hidden + 4 * work.hidden + 3 * w for w in widths)
    numbers += 4 * answered * work.answers
    return 4.0 * numbers, 3 * 2.0 * products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--only", help="part of the name of a network")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here, and this benchmark is about one")
    torch.set_float32_matmul_precision("high")
    bandwidth, rate = ceilings()
    line = machine_line("cuda") + ", TF32"
    print(line)
    print(f"copy {bandwidth / 1e12:.2f} TB/s, TF32 product {rate / 1e12:.0f} TFLOP/s")
    print(
        f"{'':34s} {'ms':>8s} {'20% .. 80%':>17s} {'ratio':>6s} {'target':>6s} {'kernels':>7s} {'floor':>6s}"
    )
    rows = []
    for work in WORKS:
        if args.only and args.only not in work.name:
            continue
        contenders: dict[str, tuple[str | None, str]] = {
            "dense": (None, "torch"), "dense, ours": (None, "gw"), "batch": ("batch", "torch"),
            "sequence": ("sequence", "torch"),
        }  # fmt: skip
        if work.hard:
            contenders["sequence, hard"] = ("sequence", "hard")
        for noise, layer in contenders.values():
            check_same_answer(work, noise, layer)
        graphs = {name: captured(work, *kind) for name, kind in contenders.items()}
        runs = {name: graph.replay for name, (graph, *_) in graphs.items()}
        interleave(runs, 10)  # warm-up, thrown away
        times = interleave(runs, args.repeats)
        base = statistics.median(times["dense"])
        for name, (noise, _) in contenders.items():
            graph, parameters, _ = graphs[name]
            moved, operations = work_of(work, noise, parameters)
            floor = 1e3 * max(moved / bandwidth, operations / rate)
            low, *_, high = statistics.quantiles(times[name], n=5)
            row = {
                "network": work.name, "contender": name, "ms": statistics.median(times[name]), "low": low,
                "high": high, "ratio": statistics.median(times[name]) / base, "target": TARGETS.get(noise or ""),
                "kernels": kernels_of(graph), "bytes": moved, "operations": operations, "floor_ms": floor,
            }  # fmt: skip
            rows.append(row)
            print(
                f"{work.name + ', ' + name:34s} {row['ms']:8.3f} {low:7.3f} .. {high:6.3f} {row['ratio']:6.2f} "
                f"{row['target'] or '':>6} {row['kernels']:7d} {floor:6.3f}",
                flush=True,
            )
        if args.json:  # network by network: a run that is cut off keeps what it has
            found = {"machine": line, "bandwidth": bandwidth, "rate": rate, "rows": rows}
            args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
