"""Texts with classes, prepared as the authors prepared IMDb and AG News.

    tokens      re.findall(r"\\w+", text): case kept, mark-up and HTML entities not removed
    word list   words found in more than one training text, most frequent first, at most 100,000, then </s>
    ids         0 padding, 1 start, 2 unknown; word i of the list is i + 3, and 2 if that is vocab_size or more
    a text      start, its listed words (others leave no trace), </s>; the first max_len of these; padded on the left
    splits      train and test shuffled by NumPy's generator from seed 113; valid is the last part of train

With 20,000 words the list is longer than the vocabulary, so </s> itself always reads as unknown. A text without
a single listed word is left out. Row i + 3 of the embedding belongs to word i; it has vocab_size + 3 rows, of which
the last three are never read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from gatewise.lab.data.batches import Examples
from gatewise.lab.data.sources import DataError, find, obtain
from gatewise.lab.data.texts import Column, Texts, ag_news_rows, imdb_reviews, read_csv, subset_note

PAD, START, UNKNOWN, FIRST_WORD = 0, 1, 2, 3
END = "</s>"
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
tokens_of = re.compile(r"\w+").findall

WordList = Literal["authors", "train"]


@dataclass(frozen=True)
class TextRules:
    """How texts become rows; the defaults are those of IMDb."""

    max_len: int = 200
    vocab_size: int = 20_000  # ids at or above it are unknown
    valid_fraction: float = 0.15
    lower: bool = False
    seed: int = 113

    def __post_init__(self) -> None:
        if self.max_len < 1 or self.vocab_size <= FIRST_WORD or not 0 < self.valid_fraction < 1:
            raise DataError(
                f"max_len {self.max_len}, vocab_size {self.vocab_size}, valid_fraction {self.valid_fraction}: they "
                f"must be at least 1, above {FIRST_WORD} and between 0 and 1."
            )


AG_NEWS_RULES = TextRules(max_len=100, valid_fraction=0.05)


@dataclass(frozen=True)
class TextData:
    """Three sets of rows and what their ids and classes mean. `note` is what every result made from it must show."""

    train: Examples
    valid: Examples
    test: Examples
    listed: tuple[str, ...]  # the whole word list; word i has id i + 3, or is unknown
    classes: tuple[str, ...]
    skipped: dict[str, int]  # texts of train and test without a single listed word, left out
    rules: TextRules = TextRules()
    note: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The words that have an embedding row."""
        return self.listed[: self.rules.vocab_size]

    @property
    def embedding_rows(self) -> int:
        return len(self.words) + FIRST_WORD

    def trimmed(self) -> TextData:
        """Without the columns that are padding in every row: a set is as wide as its longest text."""
        train, valid, test = (
            replace(part, inputs=part.inputs[:, -int(part.lengths.max()) :])
            for part in (self.train, self.valid, self.test)
        )
        return replace(self, train=train, valid=valid, test=test)

    def to(self, device: torch.device | str) -> TextData:
        train, valid, test = (part.to(device) for part in (self.train, self.valid, self.test))
        return replace(self, train=train, valid=valid, test=test)


def word_list(texts: Iterable[str], lower: bool = False, at_most: int = 100_000) -> list[str]:
    """Words of more than one text by (-count, word), then </s>.

    The authors' order among equally frequent words is that of a folder listing on their disk; ours is alphabetical.
    """
    counts: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    for text in texts:
        tokens = tokens_of(text.lower() if lower else text)
        counts.update(tokens)
        spread.update(set(tokens))
    shared = [word for word in counts if spread[word] > 1]
    shared.sort(key=lambda word: (-counts[word], word))
    return [*shared[:at_most], END]


def ids_of(words: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Word -> id."""
    return {word: k if k < vocab_size else UNKNOWN for k, word in enumerate(words, start=FIRST_WORD)}


def text_row(text: str, ids: Mapping[str, int], rules: TextRules) -> list[int]:
    """start, listed words, </s>; the first max_len of these. Empty for a text without a single listed word."""
    known = [ids[token] for token in tokens_of(text.lower() if rules.lower else text) if token in ids]
    return [START, *known, ids[END]][: rules.max_len] if known else []


def encode(data: Texts, words: Sequence[str], rules: TextRules) -> tuple[Examples, int]:
    """Rows (N, max_len) of ids, left-padded, and how many texts had to be left out."""
    table = ids_of(words, rules.vocab_size)
    ids = np.full((len(data.texts), rules.max_len), PAD, dtype=np.int64)
    lengths: list[int] = []
    labels: list[int] = []
    for text, label in zip(data.texts, data.labels):
        row = text_row(text, table, rules)
        if not row:
            continue
        ids[len(lengths), -len(row) :] = row
        lengths.append(len(row))
        labels.append(label)
    rows = torch.from_numpy(ids[: len(lengths)])
    return Examples(rows, torch.tensor(lengths), torch.tensor(labels)), len(data.texts) - len(lengths)


def prepare(
    train: Texts,
    test: Texts,
    rules: TextRules,
    classes: tuple[str, ...],
    words: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> TextData:
    """Encode, shuffle both sets from the seed, split valid off train. Without `words` they are counted in train."""
    words = list(words) if words is not None else word_list(train.texts, rules.lower)
    train_rows, train_skipped = encode(train, words, rules)
    test_rows, test_skipped = encode(test, words, rules)
    for name, texts, rows in (("train", train, train_rows), ("test", test, test_rows)):
        if len(rows) < 2:
            raise DataError(
                f"{len(rows)} of the {len(texts.texts)} {name} texts have a word of the list of {len(words) - 1:,}; "
                "at least 2 must. A word is listed if more than one training text has it."
            )
    # One generator for both, train first: the stream of numbers goes on, as in the authors' loader.
    shuffle = np.random.RandomState(rules.seed)
    train_rows = train_rows.select(torch.from_numpy(shuffle.permutation(len(train_rows))))
    test_rows = test_rows.select(torch.from_numpy(shuffle.permutation(len(test_rows))))
    cut = int((1 - rules.valid_fraction) * len(train_rows))
    if cut < 1:
        raise DataError(
            f"valid_fraction {rules.valid_fraction} of {len(train_rows)} texts leaves none for training. "
            "Take a smaller one."
        )
    index = torch.arange(len(train_rows))
    left_out = skipped_note(train_skipped, train, test_skipped, test)
    return TextData(
        train_rows.select(index[:cut]),
        train_rows.select(index[cut:]),
        test_rows,
        tuple(words),
        classes,
        {"train": train_skipped, "test": test_skipped},
        rules,
        "; ".join(note for note in (*notes, train.note, test.note, left_out) if note),
    )


def skipped_note(train_skipped: int, train: Texts, test_skipped: int, test: Texts) -> str:
    if not train_skipped and not test_skipped:
        return ""
    return (
        f"left out: {train_skipped:,} of {len(train.texts):,} texts for training and validation, {test_skipped:,} of "
        f"{len(test.texts):,} for the test; none of their words is in the list"
    )


def imdb(
    data_dir: str | Path | None = None,
    rules: TextRules | None = None,
    vocabulary: WordList | Sequence[str] = "authors",
) -> TextData:
    """Movie reviews: 21,250 / 3,750 / 25,000 rows of 200, two classes.

    Before the shuffle positive reviews come first, then negative ones, each by number. The authors had them in the
    order of a folder listing, which is not recorded, so the rows of valid are not theirs one by one.
    """
    # First: that another word list would do is no help to who has no reviews.
    train, test = imdb_reviews(data_dir)
    words, note = chosen_words("imdb", vocabulary, data_dir)
    return prepare(train, test, rules or TextRules(), ("negative", "positive"), words, [note])


def ag_news(
    data_dir: str | Path | None = None,
    rules: TextRules | None = None,
    vocabulary: WordList | Sequence[str] = "authors",
    lose_first_row: bool = True,
) -> TextData:
    """News titles and leads: 113,999 / 6,000 / 7,599 rows of 100, four classes.

    The authors read the CSV files as if they had a header, so the first row of each is lost; `lose_first_row=False`
    keeps it. Where there is no official train.csv but a train_subset.csv.xz, that is taken, all its rows, and `note`
    says so.
    """
    files = ("ag_news_csv/train.csv", "ag_news_csv/train_subset.csv.xz")
    official, part = (find(file, data_dir) for file in files)
    subset = official is None and part is not None
    train = ag_news_rows(obtain(files[subset], data_dir), lose_first_row and not subset)
    test = ag_news_rows(obtain("ag_news_csv/test.csv", data_dir), lose_first_row)
    words, list_note = chosen_words("agnews", vocabulary, data_dir)
    notes = [subset_note(len(train.texts)) if subset else "", list_note]
    return prepare(train, test, rules or AG_NEWS_RULES, AG_NEWS_CLASSES, words, notes)


def csv_texts(
    path: str | Path,
    text: Column | Sequence[Column] = "text",
    label: Column = "label",
    test: str | Path | None = None,
    rules: TextRules | None = None,
    words: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> TextData:
    """Your own CSV of texts and classes (UTF-8; .gz and .xz are unpacked).

    Columns by name need a header line; columns by position (from 0) mean that there is none. Several text columns are
    joined by a blank. Without a `test` file, a tenth of the rows, drawn from the seed, is the test set. `words` and
    `classes` are those of a trained model; without them they are those of the file.
    """
    rules = rules or TextRules()
    columns = [text] if isinstance(text, str | int) else list(text)
    texts, labels = read_csv(path, columns, label)
    known = tuple(classes or sorted(set(labels)))
    if len(known) < 2:
        raise DataError(f"{path}: column {label!r} holds {len(known)} class; a classifier needs at least 2.")
    whose = "the model" if classes else str(path)
    train = Texts(texts, class_numbers(labels, known, path, whose))
    if test is None:
        order = np.random.RandomState(rules.seed).permutation(len(texts))
        cut = int(0.9 * len(texts))
        train, tested = train.take(order[:cut]), train.take(order[cut:])
    else:
        test_texts, test_labels = read_csv(test, columns, label)
        tested = Texts(test_texts, class_numbers(test_labels, known, test, whose))
    data = prepare(train, tested, rules, known, words).trimmed()
    if not classes:
        check_all_seen(data, path)
    return data


def check_all_seen(data: TextData, path: str | Path) -> None:
    """A class that no training text has would never be learned."""
    seen = set(data.train.targets.tolist())
    unseen = [name for k, name in enumerate(data.classes) if k not in seen]
    if unseen:
        raise DataError(
            f"{path}: the {len(data.train):,} texts left for training have {len(seen)} of the {len(data.classes)} "
            f"classes; training must see them all, class {unseen[0]!r} too. Give more texts of it, or none."
        )


def class_numbers(labels: Sequence[str], classes: Sequence[str], path: str | Path, whose: str) -> list[int]:
    """Classes by name."""
    number = {name: k for k, name in enumerate(classes)}
    new = sorted(set(labels) - set(classes))
    if new:
        raise DataError(
            f"{path}: class {new[0]!r} is not among the {len(classes)} classes of {whose}: {', '.join(classes[:10])}."
        )
    return [number[name] for name in labels]


def chosen_words(
    task: Literal["imdb", "agnews"], vocabulary: WordList | Sequence[str], data_dir: str | Path | None
) -> tuple[Sequence[str] | None, str]:
    """The authors' list and its note, the list that is given, or None: to be counted in the training texts."""
    if vocabulary == "authors":
        return authors_words(task, data_dir)
    return (None if vocabulary == "train" else vocabulary), ""


def authors_words(
    task: Literal["imdb", "agnews"], data_dir: str | Path | None = None
) -> tuple[list[str], str]:
    """The authors' word list, most frequent first and </s> last, and a note if it is not the published one."""
    try:
        found = obtain(f"vocab/{task}_words.txt", data_dir)
    except DataError as error:
        raise DataError(
            f"{error} Or count the words in the training texts: --set data.vocabulary=train."
        ) from error
    words = found.read().decode("utf-8").split()
    return (words if words[-1:] == [END] else [*words, END]), found.deviation()
