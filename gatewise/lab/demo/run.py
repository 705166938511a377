"""The tour of the library, stage by stage: train dense, train sparse, measure, compress, time, save, draw, explore.

Each stage is one function that takes what it needs and returns what it found; `run_demo` is the order of them.
"""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gatewise as gw
from gatewise.lab.data.cuts import Windows
from gatewise.lab.data.language import LanguageData
from gatewise.lab.demo.model import Plan, Sparsifier, WordModel, perplexity, train
from gatewise.lab.demo.speed import microseconds_per_word, torch_threads
from gatewise.lab.demo.text import python_reference
from gatewise.lab.demo.view import View
from gatewise.lab.files import write_json, write_whole
from gatewise.report import show

METHODS = ("lasso", "bayes")
TITLES = {"lasso": "group lasso", "bayes": "variational dropout"}
LAYERS = ("embedding", "rnn", "softmax")
LAG_STEPS = 90  # words of a sequence of which lag curves are taken, over two thirds of it


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers of a run. The defaults were chosen on the validation text."""

    method: str = "lasso"
    seed: int = 0
    vocabulary: int = 2000
    n_blocks: int | None = None  # of text; None: all
    width: int = 128  # of the embedding and of both layers
    dropout: float = 0.15  # variational dropout brings noise of its own and goes without
    batch: int = 20
    steps: int = 20
    threads: int = 1  # two gain little at this size; the same number gives the same sums on every machine
    dense: Plan = field(default_factory=lambda: Plan("SGD", epochs=12, rate=1.0, flat=7, decay=0.6))
    lasso: Plan = field(default_factory=lambda: Plan("SGD", epochs=24, rate=1.0, flat=14, decay=0.7))
    l1: float = 5e-5
    group: float = 3e-3
    threshold: float = 5e-4  # five times the paper's: there are fewer steps to shrink in, and larger ones
    bayes: Plan = field(default_factory=lambda: Plan("Adam", epochs=30, rate=4e-3, flat=15, decay=0.85))

    def in_short(self) -> Settings:
        """A narrow network, little text, a few epochs: every stage in seconds, and numbers that mean nothing."""
        return replace(
            self,
            vocabulary=500,
            n_blocks=40,
            width=32,
            dense=replace(self.dense, epochs=3),
            lasso=replace(self.lasso, epochs=8, flat=4),
            group=1e-3,
            bayes=replace(self.bayes, epochs=3, flat=3),
        )

    @property
    def sparse(self) -> Plan:
        return self.lasso if self.method == "lasso" else self.bayes

    @property
    def title(self) -> str:
        return f"What {TITLES[self.method]} left of the demo's language model"


@dataclass(frozen=True)
class Texts:
    """The three streams, cut into windows."""

    train: Windows
    valid: Windows
    test: Windows
    words: tuple[str, ...]
    note: str

    @property
    def n_words(self) -> int:
        return len(self.words)


def run_demo(settings: Settings, out: Path, view: View | None = None) -> dict[str, Any]:
    """Run the tour, write `result.json`, the pictures and the models under `out`, and return the result."""
    if settings.method not in METHODS:
        raise ValueError(f"method={settings.method!r} is not one of {', '.join(METHODS)}.")
    view = view or View(quiet=True)
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with reproducible(settings.seed, settings.threads):
        texts = read_texts(settings)
        view.say(
            f"{texts.train.n_targets:,} words to train on, {texts.n_words:,} different ones; {texts.note}"
        )
        dense, dense_history = train_dense(settings, texts, view)
        sparse, sparse_history = train_sparse(settings, texts, dense, view)
        small = gw.compress(sparse)
        report = gw.measure(sparse)
        result: dict[str, Any] = {
            "settings": asdict(settings),
            "perplexity": {
                name: {"valid": perplexity(model, texts.valid), "test": perplexity(model, texts.test)}
                for name, model in (("dense", dense), ("sparse", sparse), ("compressed", small))
            },
            "largest_difference": largest_difference(sparse, small, texts.valid),
            "microseconds_per_word": microseconds_per_word(dense, small, texts.valid.rows[:400, 0]),
            "dense": gw.measure(dense).to_dict(),
            "sparse": report.to_dict(),
            "history": {"dense": dense_history, "sparse": sparse_history},
            "files": save_models(dense, small, out),
            "pictures": draw(sparse, settings, out),
            "text": texts.note,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "gatewise": gw.__version__,
            },
        }
        result["page"] = write_page(small, settings, texts, result, out)
        result["seconds"] = round(time.perf_counter() - started, 1)
    write_json(out / "result.json", result)
    return result


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """One seed, one number of threads; the caller's own are given back."""
    with torch.random.fork_rng(devices=[]), torch_threads(threads):
        torch.manual_seed(seed)
        yield


def read_texts(settings: Settings) -> Texts:
    data: LanguageData = python_reference(settings.vocabulary, settings.n_blocks)
    training = Windows(data.train, settings.batch, settings.steps)
    # Few rows: every row begins with an empty state, and the held-out texts are short.
    valid, test = (Windows(ids, 4, settings.steps, "keep") for ids in (data.valid, data.test))
    return Texts(training, valid, test, data.vocabulary.symbols, data.note)


def train_dense(settings: Settings, texts: Texts, view: View) -> tuple[nn.Module, list[float]]:
    """An ordinary LSTM, taken at the epoch that is best on the validation text: it overfits soon after."""
    model = WordModel(texts.n_words, settings.width, settings.dropout)
    best, history = copy.deepcopy(model.state_dict()), []
    with view.training("dense", settings.dense.epochs * len(texts.train)) as tick:
        for _ in train(model, texts.train, settings.dense, tick=tick):
            history.append(perplexity(model, texts.valid))
            if history[-1] == min(history):
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return model, history


def train_sparse(
    settings: Settings, texts: Texts, dense: nn.Module, view: View
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """W+G+N. These are the lines a user adds to a training loop; `train` is the loop."""
    sparsifier: Sparsifier
    if settings.method == "lasso":
        model: nn.Module = WordModel(texts.n_words, settings.width, settings.dropout)
        sparsifier = gw.GroupLasso(
            model,
            levels="W+G+N",
            l1=settings.l1,
            group=settings.group,
            threshold=settings.threshold,
            l1_layers=LAYERS,
        )
    else:
        model = WordModel(texts.n_words, settings.width)
        model.load_state_dict(dense.state_dict())
        sparsifier = gw.Variational(model, levels="W+G+N", n_train=texts.train.n_targets, noise="batch")
    history = []
    with view.training(TITLES[settings.method], settings.sparse.epochs * len(texts.train)) as tick:
        for _ in train(model, texts.train, settings.sparse, sparsifier, tick):
            left = gw.measure(model)
            neurons, gates = sum(left.neurons.values()), sum(left.gates.values())
            history.append({"valid": perplexity(model, texts.valid), "neurons": neurons, "gates": gates})
    return model.eval(), history


@torch.no_grad()
def largest_difference(sparse: nn.Module, small: nn.Module, text: Windows) -> float:
    """max |logit of the masked network - logit of the compressed one| on the first windows; raises if it matters."""
    largest, states = 0.0, (None, None)
    for words, _ in list(text.windows())[:5]:
        (a, before), (b, after) = sparse(words, states[0]), small(words, states[1])
        states = before, after
        largest = max(largest, float((a - b).abs().max()))
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
    return largest


def save_models(dense: nn.Module, small: nn.Module, out: Path) -> dict[str, Any]:
    """Bytes on disk of the dense and of the compressed network; the latter is read back and compared."""
    files = {}
    for name, model in (("dense", dense), ("compressed", small)):
        path = gw.save(model, out / name).path
        files[name] = {"path": str(path), "bytes": path.stat().st_size}
    again = gw.load(out / "compressed").state_dict()
    for key, tensor in small.state_dict().items():
        if not torch.equal(tensor, again[key]):
            raise RuntimeError(f"{out / 'compressed'}: {key} is not what was saved.")
    return files


def draw(sparse: nn.Module, settings: Settings, out: Path) -> list[str]:
    """The gate structure as a picture: each kept neuron with its live gates and its constants."""
    from gatewise.lab.plot import gate_structure
    from gatewise.lab.plot import save as save_figure

    figure = gate_structure(sparse, title=settings.title)
    paths = [out / "gates.png", out / "gates.svg"]
    for path in paths:
        save_figure(figure, path)
    return [str(path) for path in paths]


def write_page(small: nn.Module, settings: Settings, texts: Texts, result: dict[str, Any], out: Path) -> str:
    """The explorer page: every kept neuron with its gates, words, readers and memory."""
    from gatewise.lab.analyse import lag_curves
    from gatewise.lab.analyse.page import Fact, PageRun, page
    from gatewise.lab.finished.explore import dashed

    ppl, counts, files = result["perplexity"], result["sparse"]["fixed_point"], result["files"]
    times = result["microseconds_per_word"]
    facts = [
        Fact("perplexity, test", f"{ppl['compressed']['test']:.2f}", f"dense: {ppl['dense']['test']:.2f}"),
        Fact("compression", show(counts["compression"])),
        Fact("weights left", f"{counts['nonzero']:,}", f"of {counts['weights']:,}"),
        Fact("neurons, after the cut", dashed(counts["neurons"]), f"of {settings.width} a layer"),
        Fact("live gates, after the cut", dashed(counts["gates"])),
        Fact("model on disk", f"{files['compressed']['bytes'] / 1000:,.0f} kB",
             f"dense: {files['dense']['bytes'] / 1000:,.0f} kB"),
        *(Fact(f"time of a word, {name}", f"{us:,.0f} us") for name, us in times.items() if us is not None),
    ]  # fmt: skip
    metrics = [
        {"epoch": epoch, "valid_ppl": line["valid"], "neurons": {"both layers": line["neurons"]},
         "gates": {"both layers": line["gates"]}}
        for epoch, line in enumerate(result["history"]["sparse"], start=1)
    ]  # fmt: skip
    rows = texts.valid.rows[: 4 * LAG_STEPS]
    lags = lag_curves(small, [(part,) for part in rows.split(LAG_STEPS)], lags=LAG_STEPS * 2 // 3)
    run = PageRun(settings.title, small, facts, metrics, lags, texts.words, texts.words, [texts.note])
    write_whole(out / "report.html", page([run]).encode())
    return str(out / "report.html")
