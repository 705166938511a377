"""From a recipe to what a run needs: data, batches, model, sparsifier, objective."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatewise.sparsify import GroupLasso, Variational
from gatewise.tasks.batches import SPLITS, Examples, epoch_generator
from gatewise.tasks.classification import FIRST_WORD, TextData, TextRules, ag_news, csv_texts, imdb
from gatewise.tasks.encoding import KINDS, Corpus, Encoding, encoding_of
from gatewise.tasks.feeds import ChunkFeed, ExampleFeed, Feed, WindowFeed, evaluation_windows
from gatewise.tasks.initial import initialise
from gatewise.tasks.language import (
    Chunks,
    LanguageData,
    Level,
    Vocabulary,
    Windows,
    char_ptb,
    text_file,
    word_ptb,
)
from gatewise.tasks.models import CharLM, SeriesModel, TaskModel, TextClassifier, WordLM
from gatewise.tasks.objectives import Objective
from gatewise.tasks.provenance import digest_of
from gatewise.tasks.recipe import PAPER_DATA, Recipe, RecipeError, parse, suggestion
from gatewise.tasks.series import SeriesData, npz_series
from gatewise.tasks.sources import DataError
from gatewise.tasks.vectors import Coverage, find_vectors, pretrained_rows

EVALUATION_SYMBOLS = {"cpu": 2048, "cuda": 8192}  # read at once in evaluation; no result depends on it
EVALUATION_ROWS = {"cpu": 256, "cuda": 2048}


@dataclass(frozen=True)
class Feeds:
    train: Feed
    valid: Feed
    test: Feed
    n_train: int  # training objects: texts, or target symbols of an epoch; the KL is divided by it


def load_data(recipe: Recipe, data_dir: str | Path | None = None, encoding: Encoding | None = None) -> Corpus:
    """The corpus a recipe names; with the encoding of a trained model, in the numbers that this model knows."""
    data = recipe.data
    if encoding is not None:
        _check_encoding(recipe, encoding)
    if data.task in ("word-ptb", "char-ptb", "words", "characters"):
        return _language(recipe, data_dir, Vocabulary(encoding.symbols) if encoding else None)
    if data.task == "npz":
        scaling = encoding.scaling if encoding else None
        classes = [int(name) for name in encoding.classes] if encoding else []
        fraction, (path, valid, test) = data.valid_fraction or 0.15, _own_files(recipe)
        return npz_series(
            path, fraction, steps=data.steps, scaling=scaling, classes=classes, valid=valid, test=test
        )
    return _texts(recipe, data_dir, encoding)


def _check_encoding(recipe: Recipe, encoding: Encoding) -> None:
    data, kind = recipe.data, KINDS.get(recipe.data.task, "texts")
    if kind != encoding.kind:
        raise RecipeError(
            f"data.task = {data.task!r} does not fit the data of the model: it reads {encoding.kind}, not {kind}. "
            "Name a recipe of its kind: --task."
        )
    for key in ("max_len", "lower") if kind == "texts" else ():
        asked, kept = getattr(data, key), getattr(encoding, key)
        if asked not in (None, kept):
            raise RecipeError(f"data.{key} = {asked}, but the model was trained with {kept}. Set that.")


def _language(recipe: Recipe, data_dir: str | Path | None, vocabulary: Vocabulary | None) -> LanguageData:
    data = recipe.data
    if data.task == "word-ptb":
        return word_ptb(data_dir, vocabulary)
    if data.task == "char-ptb":
        return char_ptb(data_dir, vocabulary)
    given: dict[str, Any] = {"vocabulary_size": data.vocabulary_size, "fraction": data.valid_fraction}
    given = {key: value for key, value in given.items() if value is not None}
    level: Level = "word" if data.task == "words" else "char"
    path, valid, test = _own_files(recipe)
    return text_file(path, level, valid, test, vocabulary=vocabulary, **given)


def _texts(recipe: Recipe, data_dir: str | Path | None, encoding: Encoding | None) -> TextData:
    data = recipe.data
    given: dict[str, Any] = {
        "max_len": data.max_len,
        "vocab_size": data.vocabulary_size,
        "valid_fraction": data.valid_fraction,
    }
    usual = TextRules(max_len=100, valid_fraction=0.05) if data.task == "agnews" else TextRules()
    rules = replace(usual, lower=data.lower, **{k: v for k, v in given.items() if v is not None})
    words = classes = None
    if encoding is not None:
        rules = replace(rules, max_len=encoding.max_len, vocab_size=len(encoding.symbols))
        words, classes = encoding.words, encoding.classes
    if data.task == "csv":
        path, _, test = _own_files(recipe)
        return csv_texts(path, data.text_column, data.label_column, test, rules, words, classes)
    found = (imdb if data.task == "imdb" else ag_news)(data_dir, rules, words or data.vocabulary)
    if classes not in (None, found.classes):
        raise DataError(f"{data.task}: has the classes {found.classes}; the model knows {classes}.")
    return found


def _own_files(recipe: Recipe) -> tuple[Path, Path | None, Path | None]:
    """data.path, data.valid_path and data.test_path."""
    data = recipe.data
    assert data.path is not None  # checked with the recipe
    valid = _own_file("valid_path", data.valid_path) if data.valid_path else None
    test = _own_file("test_path", data.test_path) if data.test_path else None
    return _own_file("path", data.path), valid, test


def _own_file(key: str, named: str) -> Path:
    """The file that data.`key` names. A run may be looked at from another folder than it was trained in."""
    path = Path(named).expanduser()
    try:
        path.stat()
    except OSError as error:
        relative = (
            "" if path.is_absolute() else f"data.{key} is relative to the current folder, {Path.cwd()}. "
        )
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). {relative}In train and evaluate, --set data.{key}=... names "
            "another place."
        ) from error
    return path


def describe(corpus: Corpus) -> str:
    """One line: what it is, and how much of it."""
    sizes = " / ".join(f"{len(getattr(corpus, split)):,}" for split in SPLITS)
    if isinstance(corpus, LanguageData):
        unit = "tokens" if corpus.level == "word" else "characters"
        return f"{sizes} {unit}, {len(corpus.vocabulary):,} symbols"
    if isinstance(corpus, TextData):
        left_out = sum(corpus.skipped.values())
        sizes += f" texts ({left_out:,} left out)" if left_out else " texts"
        return f"{sizes}, {corpus.embedding_rows:,} rows of words, {len(corpus.classes)} classes"
    return f"{sizes} sequences of {corpus.n_inputs} numbers, {corpus.kind}"


def digest(corpus: Corpus) -> str:
    """SHA-256 of what a run reads: the numbers of the three splits, and what they mean."""
    if isinstance(corpus, SeriesData):
        return corpus.digest
    arrays = {"encoding": np.frombuffer(json.dumps(encoding_of(corpus).to_dict()).encode(), np.uint8)}
    for split in SPLITS:
        part = getattr(corpus, split)
        tensors = vars(part) if isinstance(part, Examples) else {"ids": part}
        arrays |= {f"{split} {name}": tensor.numpy() for name, tensor in tensors.items()}
    return digest_of(arrays)


def corpora(tasks: Sequence[str] | None, data_dir: str | Path | None) -> Iterator[tuple[str, bool]]:
    """One line per corpus: its sizes and notes, or why it cannot be used; and whether it can."""
    for task in tasks or PAPER_DATA:
        if task not in PAPER_DATA:
            raise RecipeError(
                f"no corpus {task!r}{suggestion(task, PAPER_DATA)} There are {', '.join(PAPER_DATA)}."
            )
        data = {"task": task, "batch": 1}
        smallest = parse({"data": data, "model": {"hidden": 1}, "train": {"epochs": 1, "lr": 1}})
        try:
            corpus = load_data(smallest, data_dir)
        except DataError as error:
            yield f"{task}: {error}", False
        else:
            yield f"{task}: {describe(corpus)}" + (f"; note: {corpus.note}" if corpus.note else ""), True


def objective_of(recipe: Recipe, corpus: Corpus) -> Objective:
    if isinstance(corpus, LanguageData):
        return Objective("words" if corpus.level == "word" else "characters")
    if isinstance(corpus, TextData) or corpus.kind == "classification":
        return Objective("classes", recipe.train.clip_probabilities)
    return Objective("numbers")


def make_feeds(recipe: Recipe, corpus: Corpus, device: torch.device) -> Feeds:
    """Batches of the three splits on the device."""
    data, corpus = recipe.data, corpus.to(device)
    symbols, rows = EVALUATION_SYMBOLS[device.type], EVALUATION_ROWS[device.type]
    if not isinstance(corpus, LanguageData):
        valid, test = (ExampleFeed(part, rows) for part in (corpus.valid, corpus.test))
        train = ExampleFeed(corpus.train, data.batch)
        return Feeds(train, valid, test, len(corpus.train))
    if data.chunk is not None:
        at_once = max(1, symbols // data.chunk)
        with naming("train"):
            chunks = Chunks(corpus.train, data.chunk, data.batch)
        with naming("valid"):
            valid_chunks = Chunks(corpus.valid, data.chunk, at_once)
        with naming("test"):
            test_chunks = Chunks(corpus.test, data.chunk, at_once)
        return Feeds(ChunkFeed(chunks), ChunkFeed(valid_chunks), ChunkFeed(test_chunks), chunks.n_targets)
    with naming("train"):
        windows = Windows(corpus.train, data.batch, data.steps, data.remainder)
    with naming("valid"):
        valid_feed = evaluation_windows(corpus.valid, data.batch, data.steps, data.remainder, symbols)
    with naming("test"):
        test_feed = evaluation_windows(
            corpus.test, data.test_batch or data.batch, data.steps, "keep", symbols
        )
    return Feeds(WindowFeed(windows), valid_feed, test_feed, windows.n_targets)


@contextmanager
def naming(split: str) -> Iterator[None]:
    """Which of the three texts an error is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"the {split} text is too short: {error}") from error


def build_model(recipe: Recipe, corpus: Corpus) -> TaskModel:
    """The network of the recipe with input and output sizes of the data, starting values drawn."""
    m = recipe.model
    stack: dict[str, Any] = {"hidden": m.hidden, "layers": m.layers, "cell": m.cell}
    model: TaskModel
    if isinstance(corpus, LanguageData):
        if m.gates != "sigmoid":
            raise RecipeError("model.gates: the language models have sigmoid gates.")
        if corpus.level == "word":
            model = WordLM(len(corpus.vocabulary), m.embedding, dropout=m.dropout, **stack)
        else:
            model = CharLM(len(corpus.vocabulary), **stack)
    elif isinstance(corpus, TextData):
        outputs = 1 if len(corpus.classes) == 2 else len(corpus.classes)
        model = TextClassifier(
            corpus.embedding_rows,
            outputs,
            m.embedding,
            dropout=m.dropout,
            gate_activation=m.gates,
            **stack,
        )
    else:
        binary = corpus.kind == "classification" and corpus.n_outputs == 2
        model = SeriesModel(
            corpus.n_inputs,
            1 if binary else corpus.n_outputs,
            corpus.every_step,
            dropout=m.dropout,
            gate_activation=m.gates,
            **stack,
        )
    initialise(model, m.init, m.init_range, m.forget_bias)
    return model


def pretrained(recipe: Recipe, corpus: Corpus, data_dir: str | Path | None) -> tuple[Tensor | None, Coverage]:
    """Starting rows of the embedding, and which words have one; nothing where the recipe asks for none."""
    kind = recipe.data.vectors
    if kind == "none" or not isinstance(corpus, TextData):
        return None, Coverage()
    found = find_vectors(kind, recipe.model.embedding, data_dir)
    rows, coverage = pretrained_rows(
        found.path,
        corpus.words,
        recipe.model.embedding,
        epoch_generator(recipe.train.seed, 0),
        FIRST_WORD,
        recipe.data.lower_fallback,
    )
    return rows, replace(coverage, note=found.deviation())


def make_sparsifier(
    recipe: Recipe, model: nn.Module, n_train: int, updates_per_epoch: int
) -> GroupLasso | Variational | None:
    """The sparsifier of the recipe; it may convert the model, so the optimiser comes after it."""
    s = recipe.sparsify
    if s.method == "none":
        return None
    if s.method == "group-lasso":
        scope = None if s.l1_on_output else ["rnn"]
        return GroupLasso(model, s.levels, l1=s.l1, group=s.group, threshold=s.threshold, l1_layers=scope)
    has_embedding = isinstance(getattr(model, "emb", None), nn.Embedding)
    warm_up = (0, max(1, round(s.warm_up_epochs * updates_per_epoch))) if s.warm_up_epochs else None
    return Variational(
        model,
        s.levels,
        n_train=n_train,
        vocabulary=["emb"] if s.word_variables and has_embedding else (),
        noise=s.noise,
        linear_noise=s.output_noise,
        kl=s.kl,
        warm_up=warm_up,
        snr_threshold=s.snr_threshold,
        log_sigma=s.log_sigma,
    )
