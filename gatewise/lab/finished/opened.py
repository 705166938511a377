"""A finished run as it lies in its folder, and what is needed to look into it: validation sequences, names of ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.export import load
from gatewise.lab import recipe as recipes
from gatewise.lab import recorded
from gatewise.lab.analyse import LagMap, lag_curves
from gatewise.lab.data.batches import Examples
from gatewise.lab.data.classification import FIRST_WORD, TextData
from gatewise.lab.data.corpus import load_data
from gatewise.lab.data.encoding import SPECIAL, Corpus, Encoding, load_encoding
from gatewise.lab.data.language import LanguageData
from gatewise.lab.data.pronunciation import LETTERS, PHONEMES, WordData
from gatewise.lab.data.sources import DataError
from gatewise.lab.files import METRICS, RECIPE, RESULT, model_of, read_json
from gatewise.lab.schema import Recipe
from gatewise.lab.training.checkpoints import Metrics

BENCH = "bench.json"  # of the run: what `gatewise bench --json` printed
Build = Callable[[], nn.Module | None]  # a model of a class of the user's own, to load into
AT_ONCE = 16  # sequences of a call


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder, read; its model when it is asked for. One saved by hand has neither recipe nor result."""

    path: Path  # as it was named
    folder: Path
    title: str
    recipe: Recipe | None = None
    result: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    build: Build = lambda: None

    @property
    def file(self) -> Path:
        return model_of(self.path)

    @cached_property
    def model(self) -> nn.Module:
        return load(self.file, self.build()).eval()

    @property
    def encoding(self) -> Encoding | None:
        return load_encoding(self.file)

    @property
    def bench(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read_json(self.folder / BENCH, list, recorded.bench)
        return found


def open_run(path: str | Path, build: Build = lambda: None) -> FinishedRun:
    """A run's folder, or a model inside or outside of one."""
    folder = Path(path)
    if not (folder / RECIPE).is_file():
        folder = model_of(path).parent
        if not (folder / RECIPE).is_file():
            return FinishedRun(Path(path), folder, Path(path).resolve().stem, build=build)
    recipe = recipes.load(folder / RECIPE)
    result = read_json(folder / RESULT, dict, recorded.result)
    title = str(result.get("title") or recipe.title or Path(path).resolve().stem)
    return FinishedRun(
        Path(path), folder, title, recipe, result, list(Metrics(folder / METRICS).lines()), build
    )


def corpus_of(run: FinishedRun, data_dir: str | Path | None = None) -> tuple[Corpus | None, str]:
    """The data of a run, or None and the reason."""
    if run.recipe is None:
        return None, f"{run.folder} has no {RECIPE}, so its data are not known: no words, no lag curves"
    try:
        return load_data(run.recipe, data_dir, run.encoding), ""
    except DataError as error:
        return None, f"no words and no lag curves, because the data are missing: {error}"


def names_of(corpus: Corpus) -> tuple[list[str] | None, list[str] | None]:
    """What input ids mean, and what the last layer scores: one score stands for the second of two classes."""
    if isinstance(corpus, LanguageData):
        return list(corpus.vocabulary.symbols), list(corpus.vocabulary.symbols)
    if isinstance(corpus, TextData):
        classes = list(corpus.classes)
        return [*SPECIAL[:FIRST_WORD], *corpus.words], classes[1:] if len(classes) == 2 else classes
    return (list(LETTERS), list(PHONEMES)) if isinstance(corpus, WordData) else (None, None)


Arguments = tuple[Tensor, ...]  # of one call of the model


def validation_batches(corpus: Corpus, lags: int, n: int) -> list[Arguments]:
    """n sequences spread evenly over the validation data, several in a call.

    Of a stream: windows half as long again as the largest lag, so that the state is a usual one when the lags begin.
    Of texts and series: whole sequences, as many steps as they have.
    """
    valid = corpus.valid
    if isinstance(valid, Examples):
        rows = torch.linspace(0, len(valid) - 1, min(n, len(valid))).long()
        batches = [valid.batch(part) for part in rows.split(AT_ONCE)]
        return [(batch.inputs, batch.mask) for batch in batches]
    steps = min(lags + 1 + lags // 2, len(valid))
    count = max(1, min(n, len(valid) // steps))
    starts = torch.linspace(0, len(valid) - steps, count).long().tolist()
    windows = torch.stack([valid[start : start + steps] for start in starts], dim=1)
    return [(part,) for part in windows.split(AT_ONCE, dim=1)]


def lags_of(model: nn.Module, corpus: Corpus, lags: int, n: int) -> LagMap:
    """Lag curves of a task's model over n validation sequences."""
    return lag_curves(model, validation_batches(corpus, lags, n), lags=lags)
