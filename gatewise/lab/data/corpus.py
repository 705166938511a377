"""From a recipe to its data: the corpus, what there is to say of it, and the vectors its words start from."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gatewise.lab.data.batches import SPLITS, Examples, epoch_generator
from gatewise.lab.data.classification import (
    AG_NEWS_RULES,
    FIRST_WORD,
    TextData,
    TextRules,
    ag_news,
    csv_texts,
    imdb,
)
from gatewise.lab.data.encoding import KINDS, Corpus, Encoding, encoding_of
from gatewise.lab.data.language import LanguageData, Level, Vocabulary, char_ptb, text_file, word_ptb
from gatewise.lab.data.pronunciation import LETTERS, PHONEMES, WordData, cmudict
from gatewise.lab.data.series import SeriesData, npz_series
from gatewise.lab.data.sources import DataError
from gatewise.lab.data.vectors import Coverage, find_vectors, pretrained_rows
from gatewise.lab.provenance import digest_of
from gatewise.lab.schema import (
    PAPER_DATA,
    Own,
    OwnLanguage,
    OwnSeries,
    OwnTexts,
    Penn,
    Recipe,
    RecipeError,
    Reviews,
    Spellings,
    Texts,
    parse,
    suggestion,
)


def load_data(recipe: Recipe, data_dir: str | Path | None = None, encoding: Encoding | None = None) -> Corpus:
    """The corpus a recipe names; with the encoding of a trained model, in the numbers that this model knows."""
    data = recipe.data
    if encoding is not None:
        _check_encoding(recipe, encoding)
    if isinstance(data, Penn | OwnLanguage):
        return _language(data, data_dir, Vocabulary(encoding.symbols) if encoding else None)
    if isinstance(data, Spellings):
        return cmudict(data_dir, encoding.max_len if encoding else data.max_len)
    if isinstance(data, OwnSeries):
        scaling = encoding.scaling if encoding else None
        classes = [int(name) for name in encoding.classes] if encoding else []
        fraction, (path, valid, test) = data.valid_fraction or 0.15, _own_files(data)
        return npz_series(
            path, fraction, steps=data.steps, scaling=scaling, classes=classes, valid=valid, test=test
        )
    return _texts(data, data_dir, encoding)


def _check_encoding(recipe: Recipe, encoding: Encoding) -> None:
    data, kind = recipe.data, KINDS.get(recipe.data.task, "texts")
    if kind != encoding.kind:
        raise RecipeError(
            f"data.task = {data.task!r} does not fit the data of the model: it reads {encoding.kind}, not {kind}. "
            "Name a recipe of its kind: --task."
        )
    for key in {"texts": ("max_len", "lower"), "spellings": ("max_len",)}.get(kind, ()):
        asked, kept = getattr(data, key), getattr(encoding, key)
        if asked not in (None, kept):
            raise RecipeError(f"data.{key} = {asked}, but the model was trained with {kept}. Set that.")


def _language(
    data: Penn | OwnLanguage, data_dir: str | Path | None, vocabulary: Vocabulary | None
) -> LanguageData:
    if isinstance(data, Penn):
        return (word_ptb if data.task == "word-ptb" else char_ptb)(data_dir, vocabulary)
    given: dict[str, Any] = {"vocabulary_size": data.vocabulary_size, "fraction": data.valid_fraction}
    given = {key: value for key, value in given.items() if value is not None}
    level: Level = "word" if data.task == "words" else "char"
    path, valid, test = _own_files(data)
    return text_file(path, level, valid, test, vocabulary=vocabulary, **given)


def _texts(data: Reviews | OwnTexts, data_dir: str | Path | None, encoding: Encoding | None) -> TextData:
    given: dict[str, Any] = {
        "max_len": data.max_len,
        "vocab_size": data.vocabulary_size,
        "valid_fraction": data.valid_fraction,
    }
    usual = AG_NEWS_RULES if data.task == "agnews" else TextRules()
    rules = replace(usual, lower=data.lower, **{k: v for k, v in given.items() if v is not None})
    words = classes = None
    if encoding is not None:
        rules = replace(rules, max_len=encoding.max_len, vocab_size=len(encoding.symbols))
        words, classes = encoding.words, encoding.classes
    if isinstance(data, OwnTexts):
        path, _, test = _own_files(data)
        return csv_texts(path, data.text_column, data.label_column, test, rules, words, classes)
    found = (imdb if data.task == "imdb" else ag_news)(data_dir, rules, words or data.vocabulary)
    if classes not in (None, found.classes):
        raise DataError(f"{data.task}: has the classes {found.classes}; the model knows {classes}.")
    return found


def _own_files(data: Own) -> tuple[Path, Path | None, Path | None]:
    """data.path, data.valid_path and data.test_path."""
    named = {key: getattr(data, key, None) for key in ("valid_path", "test_path")}
    valid, test = (_own_file(key, path) if path else None for key, path in named.items())
    return _own_file("path", data.path), valid, test


def _own_file(key: str, named: str) -> Path:
    """The file that data.`key` names. A run may be looked at from another folder than it was trained in."""
    path = Path(named).expanduser()
    try:
        kind = path.stat().st_mode
    except OSError as error:
        relative = (
            "" if path.is_absolute() else f"data.{key} is relative to the current folder, {Path.cwd()}. "
        )
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). {relative}In train and evaluate, --set data.{key}=... names "
            "another place."
        ) from error
    if not stat.S_ISREG(kind):
        raise DataError(
            f"{path}: data.{key} must be a regular file; a folder, a pipe or a device is not read."
        )
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
    if isinstance(corpus, WordData):
        return f"{sizes} pronunciations and words, {len(LETTERS)} letters, {len(PHONEMES)} phonemes"
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


def pretrained(recipe: Recipe, corpus: Corpus, data_dir: str | Path | None) -> tuple[Tensor | None, Coverage]:
    """Starting rows of the embedding, and which words have one; nothing where the recipe asks for none."""
    data = recipe.data
    if not isinstance(data, Texts) or data.vectors == "none" or recipe.start.run is not None:
        return None, Coverage()
    assert isinstance(corpus, TextData)
    path, note = find_vectors(data.vectors, data_dir)
    draw, width = epoch_generator(recipe.train.seed, 0), recipe.model.embedding
    return pretrained_rows(path, corpus.words, width, draw, FIRST_WORD, data.lower_fallback, note)
