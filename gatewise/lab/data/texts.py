"""Texts with classes as they lie in files: the IMDb and AG News layouts in the wild, and any CSV.

IMDb     train.csv.xz and test.csv.xz with columns id, label, text; or the folder aclImdb/; or aclImdb_v1.tar.gz
AG News  class 1 to 4, title, description, no header; a text is title + " " + description
CSV      columns by name (there is a header) or by position from 0 (there is none)
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gatewise.lab.data.sources import DataError, Found, data_folder, find, obtain
from gatewise.wording import counted

AG_NEWS_ROWS = 120_000  # of the official train.csv

Column = str | int
Review = tuple[int, int, str]  # label, number, text


@dataclass(frozen=True)
class Texts:
    """Raw texts and their class numbers, in one fixed order. `note` tells what is not as published."""

    texts: Sequence[str]
    labels: Sequence[int]
    note: str = ""

    def take(self, order: npt.NDArray[np.int64]) -> Texts:
        return Texts([self.texts[k] for k in order], [self.labels[k] for k in order], self.note)


def imdb_reviews(data_dir: str | Path | None = None) -> tuple[Texts, Texts]:
    """Train and test reviews: positive ones (class 1), then negative ones (0), each by the number in its name."""
    train, test = (find(f"imdb/{split}.csv.xz", data_dir) for split in ("train", "test"))
    if train is not None and test is not None:
        return _review_table(train), _review_table(test)
    folder, _ = data_folder(data_dir)
    for unpacked in (folder / "aclImdb", folder / "imdb" / "aclImdb"):
        if unpacked.is_dir():
            files = ((path.as_posix(), path.read_bytes()) for path in unpacked.glob("*/*/*.txt"))
            return _reviews_by_split(files, str(unpacked), "")
    archive = obtain("imdb/aclImdb_v1.tar.gz", data_dir)
    return _reviews_by_split(_members(archive.path), str(archive.path), archive.deviation())


def ag_news_rows(found: Found, lose_first_row: bool) -> Texts:
    """News texts with classes 0 to 3; `lose_first_row` reads the file as if it had a header."""
    rows = _csv_rows(_unpack(found.read(), found.name), found.path)[int(lose_first_row) :]
    for number, row in enumerate(rows, start=1 + int(lose_first_row)):
        if len(row) < 2 or row[0] not in ("1", "2", "3", "4"):
            raise DataError(
                f"{found.path}: row {number} is not `class 1 to 4, title, description`: {row[:2]}."
            )
    texts = [" ".join(row[1:]) for row in rows]
    return Texts(texts, [int(row[0]) - 1 for row in rows], found.deviation())


def subset_note(n_rows: int) -> str:
    """What a result must say that was trained on a part of AG News."""
    share = round(100 * n_rows / AG_NEWS_ROWS)
    return f"trained on {share} % of the training rows ({n_rows:,} of {AG_NEWS_ROWS:,})"


def read_csv(path: str | Path, text: Sequence[Column], label: Column) -> tuple[list[str], list[str]]:
    """The texts (several columns joined by a blank) and the classes of a CSV file; .gz and .xz are unpacked."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    rows = _csv_lines(_unpack(content, path.name), path)
    if not rows:
        raise DataError(f"{path}: is empty.")
    width = len(rows[0][1])
    wanted = [*text, label]
    named = any(isinstance(column, str) for column in wanted)
    header = [name.strip() for name in rows.pop(0)[1]] if named else []
    for column in wanted:
        if isinstance(column, str) and column not in header:
            way_out = "Name one of these, or, for a file without a header, give every column by its position from 0."
            if len(header) == 1:  # spreadsheets of many countries write semicolons
                way_out = "That is a single column: save the file with commas between its columns."
            raise DataError(
                f"{path}: no column {column!r}; the header names {', '.join(map(repr, header))}. {way_out}"
            )
    places = [header.index(column) if isinstance(column, str) else column for column in wanted]
    texts, labels = [], []
    for line, row in rows:
        if min(places) < 0 or max(places) >= len(row):
            raise DataError(
                f"{path}: line {line} has {counted(len(row), 'column')}; columns {places} were asked for, "
                "counted from 0."
            )
        # A comma outside of quotes moves all that follows by a column: part of a text would be taken as the class.
        if len(row) > width:
            raise DataError(
                f"{path}: line {line} has {counted(len(row), 'column')}, the first line {width}. Put a text with "
                'commas between double quotes (").'
            )
        texts.append(" ".join(row[place] for place in places[:-1]))
        labels.append(row[places[-1]].strip())
        if not labels[-1]:
            raise DataError(f"{path}: line {line} has no class: column {label!r} is empty.")
    if not texts:
        raise DataError(f"{path}: there are no rows.")
    return texts, labels


def _review_table(found: Found) -> Texts:
    header, *rows = _csv_rows(_unpack(found.read(), found.name), found.path) or [[]]
    missing = {"id", "label", "text"} - set(header)
    if missing:
        raise DataError(f"{found.path}: no column {sorted(missing)[0]!r}; it needs id, label and text.")
    number, label, text = (header.index(name) for name in ("id", "label", "text"))
    reviews = [(int(row[label]), int(row[number]), row[text]) for row in rows]
    return _in_order(reviews, str(found.path), found.deviation())


_REVIEW = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_\d+\.txt")


def _reviews_by_split(files: Iterator[tuple[str, bytes]], origin: str, note: str) -> tuple[Texts, Texts]:
    """Sort files named .../train/pos/<number>_<rating>.txt into train and test; other files are not reviews."""
    reviews: dict[str, list[Review]] = {"train": [], "test": []}
    for name, content in files:
        match = _REVIEW.fullmatch(name)
        if match:
            split, sentiment, number = match.groups()
            reviews[split].append((int(sentiment == "pos"), int(number), content.decode("utf-8")))
    return _in_order(reviews["train"], origin, note), _in_order(reviews["test"], origin, "")


def _in_order(reviews: list[Review], origin: str, note: str) -> Texts:
    if not reviews:
        raise DataError(f"{origin}: there are no reviews for one of train and test. Fetch it again.")
    reviews.sort(key=lambda review: (-review[0], review[1]))
    return Texts([text for _, _, text in reviews], [label for label, _, _ in reviews], note)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The reviews of the archive, read once as a stream: it holds 100,000 small files."""
    try:
        with tarfile.open(path, "r|*") as archive:
            for entry in archive:
                if _REVIEW.fullmatch(entry.name) and (stream := archive.extractfile(entry)):
                    yield entry.name, stream.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Fetch the archive again.") from error


def _unpack(content: bytes, name: str) -> bytes:
    try:
        if name.endswith(".xz"):
            return lzma.decompress(content)
        return gzip.decompress(content) if name.endswith(".gz") else content
    except (lzma.LZMAError, OSError, EOFError) as error:
        raise DataError(f"{name}: cannot be unpacked ({error}). Fetch the file again.") from error


def _csv_rows(content: bytes, path: Path) -> list[list[str]]:
    return [row for _, row in _csv_lines(content, path)]


def _csv_lines(content: bytes, path: Path) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line on which it begins."""
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise DataError(
            f"{path}: line {line} holds a NUL byte, so it is not text in UTF-8. Convert the file to UTF-8 first."
        )
    try:
        # newline="": line feeds inside quoted fields belong to the text.
        stream = io.StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start:,} is not UTF-8. Convert the file to UTF-8 first."
        ) from error
    before = csv.field_size_limit(min(len(content) + 1, 2**31 - 1))  # a text may be longer than csv's 131,072
    try:
        rows, begins, reader = [], 1, csv.reader(stream)
        for row in reader:
            if row:
                rows.append((begins, row))
            begins = reader.line_num + 1
        return rows
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error}).") from error
    finally:
        csv.field_size_limit(before)
