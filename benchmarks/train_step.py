"""A whole training step: dense torch, group lasso, variational dropout at every level with either noise.

Forward, penalty, backward, optimizer and sparsifier.step(), on the paper's model shapes with logistic gates. Group
lasso adds its gradient in place, by `backward()` as the trainer does, or as `loss + penalty()` through autograd. On
CUDA the step is one CUDA graph, so that launches cost nothing. Contenders take turns, so a slow moment of the machine
falls on all of them; each is compared with the dense step of the same optimizer. On a machine that others use too,
`--clock cpu --threads 1` counts the processor time of the step instead of the time on the wall.

    python benchmarks/train_step.py --shapes word-small --repeats 5
    python benchmarks/train_step.py --device cuda --json benchmarks/results/train_step_cuda.json
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machine import machine_line
from torch import Tensor, nn

import gatewise as gw

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
IN_PLACE = "in place"
TARGETS = {"cpu": {"lasso": 1.10, "batch": 2.0, "sequence": 2.0}, "cuda": {"lasso": 1.10, "batch": 1.30}}


class LanguageModel(nn.Module):
    """Embedding or one-hot input, stack, softmax over all words at every step."""

    def __init__(self, words: int, width: int, hidden: int, layers: int, embedded: bool = True) -> None:
        super().__init__()
        if embedded:
            self.emb = nn.Embedding(words, width)
        else:
            self.register_buffer("one_hot", torch.eye(words), persistent=False)
        self.rnn = nn.LSTM(width, hidden, layers)
        self.fc = nn.Linear(hidden, words)
        self.embedded = embedded

    def forward(self, ids: Tensor) -> Tensor:
        # F.one_hot looks at its argument on the host, which a CUDA graph cannot do.
        x = self.emb(ids) if self.embedded else self.one_hot[ids]
        return self.fc(self.rnn(x)[0])


class Classifier(nn.Module):
    def __init__(self, words: int, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.rnn(self.emb(ids))[0][-1])


@dataclass(frozen=True)
class Shape:
    """One row of the paper's experiments."""

    build: Callable[[], nn.Module]
    words: int
    batch: int
    steps: int
    sgd: bool  # pruning trains by SGD, the Bayesian rows by Adam
    classes: int | None = None  # None: a language model
    options: tuple[tuple[str, Any], ...] = ()  # of gw.Variational

    def data(self, device: str) -> tuple[Tensor, Tensor]:
        ids = torch.randint(self.words, (self.steps, self.batch), device=device)
        if self.classes is None:
            return ids, torch.randint(self.words, (self.steps, self.batch), device=device)
        return ids, torch.randint(self.classes, (self.batch,), device=device)


def word_small() -> nn.Module:
    return LanguageModel(10_000, 200, 200, 2)


SHAPES = {
    "word-small/sgd": Shape(word_small, 10_000, 20, 20, sgd=True),
    "word-small/adam": Shape(word_small, 10_000, 32, 35, sgd=False),
    "char/adam": Shape(
        lambda: LanguageModel(50, 50, 1000, 1, embedded=False), 50, 64, 99, sgd=False,
        options=(("linear_noise", "sequence"),),
    ),
    "imdb/adam": Shape(
        lambda: Classifier(20_003, 300, 128, 2), 20_003, 128, 200, sgd=False, classes=2,
        options=(("linear_noise", "local"), ("vocabulary", ("emb",))),
    ),
    "agnews/adam": Shape(
        lambda: Classifier(20_003, 300, 512, 4), 20_003, 128, 100, sgd=False, classes=4,
        options=(("linear_noise", "local"), ("vocabulary", ("emb",))),
    ),
    "word-large/sgd": Shape(lambda: LanguageModel(10_000, 1500, 1500, 2), 10_000, 20, 35, sgd=True),
}  # fmt: skip


def contenders(shape: Shape) -> dict[str, Callable[[nn.Module], Any]]:
    """Name -> how to make the sparsifier of a model; the first is the dense one."""
    named: dict[str, Callable[[nn.Module], Any]] = {"dense": lambda model: None}
    if shape.sgd:
        for levels, group in (("W", 0.0), ("W+N", 2e-3), ("W+G+N", 1.7e-3)):
            for way in IN_PLACE, "autograd":
                named[f"lasso {levels} {way}"] = lambda model, levels=levels, group=group: gw.GroupLasso(
                    model, levels, l1=1e-5, group=group
                )
        return named
    for noise in ("batch", "sequence"):
        for levels in ("W", "W+N", "W+G+N"):
            named[f"bayes {levels} {noise}"] = lambda model, levels=levels, noise=noise: gw.Variational(
                model, levels, n_train=929_589, noise=noise, **dict(shape.options)
            )
    return named


class Step:
    """One training step of one contender on fixed data."""

    def __init__(
        self,
        shape: Shape,
        dense: nn.Module,
        make: Callable[[nn.Module], Any],
        device: str,
        clock: str = "wall",
        in_place: bool = False,
    ) -> None:
        self.clock, self.in_place = clock, in_place
        self.model = copy.deepcopy(dense)
        self.sparsifier = make(self.model)
        self.shape, (self.x, self.y) = shape, shape.data(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        cuda = device == "cuda"
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, lr=0.1)
            if shape.sgd
            else torch.optim.Adam(parameters, lr=2e-3, fused=True, capturable=cuda)
        )

    def once(self) -> None:
        logits = self.model(self.x)
        loss = F.cross_entropy(logits.flatten(0, -2), self.y.flatten())
        if self.shape.sgd:
            loss = self.shape.steps * loss
        if self.sparsifier is not None and not self.in_place:
            loss = loss + self.sparsifier.penalty()
        loss.backward()
        if self.in_place:
            self.sparsifier.backward()
        self.optimizer.step()
        if self.sparsifier is not None:
            self.sparsifier.step()

    def capture(self) -> None:
        """Record the step as one CUDA graph, after a few runs on a side stream, as torch asks for."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.zero_grad(set_to_none=True)
                self.once()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.once()

    def seconds(self) -> float:
        if self.graph is not None:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3
        clock = CLOCKS[self.clock]
        begin = clock()
        self.optimizer.zero_grad(set_to_none=True)
        self.once()
        return clock() - begin


def check_same_answer(dense: nn.Module, step: Step) -> None:
    """Before training, and without noise, a sparsified model is the dense model."""
    twin, x = copy.deepcopy(step.model).eval(), step.x
    with torch.no_grad():
        for name, p in twin.named_parameters():
            if name.endswith("_log_sigma"):
                p.fill_(-30.0)  # too sure of itself for anything to fall below the threshold
        torch.testing.assert_close(twin(x), dense(x), rtol=1e-3, atol=1e-4)


def measure(name: str, device: str, repeats: int, clock: str, only: str) -> dict[str, dict[str, float]]:
    """{contender: median, spread, ratio to dense} in milliseconds."""
    torch.manual_seed(0)
    shape = SHAPES[name]
    dense = shape.build().to(device)
    steps = {
        label: Step(shape, dense, make, device, clock, in_place=label.endswith(IN_PLACE))
        for label, make in contenders(shape).items()
        if label.startswith(("dense", only))
    }
    set_tf32(False)
    for step in steps.values():
        check_same_answer(dense, step)
    set_tf32(True)
    for step in steps.values():
        if device == "cuda":
            step.capture()
        else:
            step.seconds()
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(repeats):
        for label, step in steps.items():
            times[label].append(1e3 * step.seconds())
    results = {}
    reference = statistics.median(times["dense"])
    for label, ms in times.items():
        low, *_, high = statistics.quantiles(ms, n=5) if len(ms) > 1 else (ms[0], ms[0])
        middle = statistics.median(ms)
        results[label] = {"ms": middle, "low": low, "high": high, "ratio": middle / reference}
    return results


def set_tf32(on: bool) -> None:
    """Answers are compared in float32, and timed as one trains on this hardware."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def target(label: str, device: str) -> float | None:
    kind = "lasso" if label.startswith("lasso") else label.rpartition(" ")[2]
    return TARGETS[device].get(kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shapes", nargs="+", help="word-small, char, imdb, agnews, word-large; all on CUDA")
    parser.add_argument("--only", default="", help="lasso or bayes: these alone, and dense")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="on the CPU: wall or processor time")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    wanted = args.shapes or (
        ["word-small"] if args.device == "cpu" else [n.partition("/")[0] for n in SHAPES]
    )
    kinds = {"lasso": ("sgd",), "bayes": ("adam",)}.get(args.only, ("sgd", "adam"))
    names = [name for name in SHAPES if name.partition("/")[0] in wanted and name.endswith(kinds)]
    unknown = set(wanted) - {name.partition("/")[0] for name in SHAPES}
    if unknown:
        parser.error(f"unknown shape {sorted(unknown)[0]!r}")
    line = machine_line(args.device)
    print(line)
    everything = {"machine": line, "repeats": args.repeats, "clock": args.clock, "unit": "ms", "shapes": {}}
    for name in names:
        print(f"\n{name}  (batch {SHAPES[name].batch}, {SHAPES[name].steps} steps)")
        results = measure(name, args.device, args.repeats, args.clock, args.only)
        everything["shapes"][name] = results
        for label, row in results.items():
            aim = target(label, args.device)
            said = "" if aim is None else f"   target {aim:.2f}"
            spread = f"[{row['low']:.2f} .. {row['high']:.2f}]"
            print(f"{label:22s} {row['ms']:9.2f} ms  {spread:22s} x {row['ratio']:.2f}{said}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
