"""A finished run as it lies in its folder, and what is needed to look into it: validation sequences, names of ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.export import load
from gatewise.lab import recipe as recipes
from gatewise.lab import recorded
from gatewise.lab.analyse import LagMap, lag_curves, map_gates
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
AT_ONCE = 2e7  # numbers that one step of a gradient may hold: K neurons of K neurons' gates, per sequence


@dataclass(frozen=True)
class Record:
    """What a run's folder says, its model apart. A model that was saved by hand has neither recipe nor result."""

    folder: Path
    title: str
    recipe: Recipe | None = None
    result: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FinishedRun(Record):
    """A run's folder, read, with its model."""

    model: nn.Module
    bench: list[dict[str, Any]] = field(default_factory=list)
    model_bytes: int = 0
    encoding: Encoding | None = None


def open_record(path: str | Path) -> Record:
    """What there is to compare of a run: its model is not asked for."""
    folder = Path(path)
    if not (folder / RECIPE).is_file():
        folder = model_of(path).parent
    recipe = recipes.load(folder / RECIPE) if (folder / RECIPE).is_file() else None
    result = read_json(folder / RESULT, dict, recorded.result) if recipe is not None else {}
    return Record(
        folder,
        str(result.get("title") or (recipe.title if recipe else "") or Path(path).resolve().stem),
        recipe,
        result,
        list(Metrics(folder / METRICS).lines()) if recipe is not None else [],
    )


def open_run(path: str | Path, build: Build = lambda: None) -> FinishedRun:
    """A run's folder, or a model inside or outside of one."""
    model = model_of(path)
    record = open_record(path)
    return FinishedRun(
        **vars(record),
        model=load(model, build()).eval(),
        bench=read_json(record.folder / BENCH, list, recorded.bench),
        model_bytes=model.stat().st_size,
        encoding=load_encoding(model),
    )


def corpus_of(run: FinishedRun, data_dir: str | Path | None = None) -> tuple[Corpus | None, str]:
    """The data of a run, or None and the reason."""
    if run.recipe is None:
        return None, f"{run.folder} has no {RECIPE}, so its data are not known: no words, no lag curves"
    try:
        return load_data(run.recipe, data_dir, run.encoding), ""
    except DataError as error:
        return None, f"no words and no lag curves, because the data are missing: {error}"


def symbols_of(corpus: Corpus) -> list[str] | None:
    """What input ids mean."""
    if isinstance(corpus, LanguageData):
        return list(corpus.vocabulary.symbols)
    if isinstance(corpus, TextData):
        return [*SPECIAL[:FIRST_WORD], *corpus.words]
    return list(LETTERS) if isinstance(corpus, WordData) else None


def outputs_of(corpus: Corpus) -> list[str] | None:
    """What the last layer scores: one score stands for the second of two classes."""
    if isinstance(corpus, LanguageData):
        return list(corpus.vocabulary.symbols)
    if isinstance(corpus, TextData):
        return [corpus.classes[1]] if len(corpus.classes) == 2 else list(corpus.classes)
    return list(PHONEMES) if isinstance(corpus, WordData) else None


Arguments = tuple[Tensor, ...]  # of one call of the model


def validation_sequences(corpus: Corpus, lags: int, n: int) -> list[Arguments]:
    """n sequences spread evenly over the validation data, one call each.

    Of a stream: windows half as long again as the largest lag, so that the state is a usual one when the lags begin.
    Of texts and series: whole sequences, as many steps as they have.
    """
    valid = corpus.valid
    if isinstance(valid, Examples):
        rows = torch.linspace(0, len(valid) - 1, min(n, len(valid))).long()
        batch = valid.batch(rows)
        return [(batch.inputs[k : k + 1], batch.mask[k : k + 1]) for k in range(len(rows))]
    steps = min(lags + 1 + lags // 2, len(valid))
    count = max(1, min(n, len(valid) // steps))
    starts = torch.linspace(0, len(valid) - steps, count).long().tolist()
    return [(valid[start : start + steps, None],) for start in starts]


def joined(sequences: list[Arguments], at_once: int) -> list[Arguments]:
    """Calls with several sequences in each: (T, 1) side by side, (1, T) below one another."""
    found = []
    for start in range(0, len(sequences), at_once):
        part = sequences[start : start + at_once]
        axis = 1 if len(part[0]) == 1 else 0
        found.append(tuple(torch.cat(tensors, dim=axis) for tensors in zip(*part)))
    return found


def lags_of(model: nn.Module, corpus: Corpus, lags: int, n: int) -> LagMap:
    """Lag curves of a task's model over n validation sequences, in batches that fit the memory."""
    widest = max((len(layer.neurons) for layer in map_gates(model).layers.values()), default=1)
    at_once = max(1, min(16, int(AT_ONCE / (4 * max(widest, 1) ** 2))))
    return lag_curves(model, joined(validation_sequences(corpus, lags, n), at_once), lags=lags)
