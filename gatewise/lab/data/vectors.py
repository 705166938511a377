"""Pretrained word vectors for the rows of an embedding.

    row of word i = first_row + i
        its vector, if the file has the word as written;
        the vector of its lower-case form, if that is allowed and the file has it;
        a prediction from its vector in another file, if one is given and has it (`filling`);
        U(-0.05, 0.05) otherwise, as every row that belongs to no word

Read as streams, keeping only the words asked for:

    .npz            arrays words (N,), vectors (N, E), optionally norms (N,): vectors then have length 1 and are
                    multiplied by it; where a norm is not known (NaN), by the median of those that are
    .bin, .bin.gz   word2vec: "N E", then per word its bytes, a blank, E float32
    .txt, .txt.gz   GloVe: per line a word and E numbers; a first line "N E" is skipped
    .zip            one or several such .txt; of several, the one with `dim` in its name (glove.6B.300d.txt)
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gatewise.lab.data.filling import fill, source_of
from gatewise.lab.data.sources import BLOCK, DataError, Found, data_folder, find, obtain

Vector = npt.NDArray[np.float32]
Kind = Literal["word2vec", "glove"]

# In order of preference, with the lengths each file offers. Paper: word2vec for IMDb, GloVe 840B for AG News.
FILES: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "word2vec": (("word2vec.gz", (300,)), ("word2vec.bin", (300,)), ("word2vec.subset", (300,))),
    "glove": (
        ("glove.840B", (300,)),
        ("glove.840B.txt", (300,)),
        ("glove.6B", (50, 100, 200, 300)),
        ("glove.6B.subset", (100,)),
    ),
}


@dataclass(frozen=True)
class Coverage:
    """Which words got a pretrained vector; nothing, and false, where no vectors are used.

    The words are in the order of the vocabulary. `note` tells what is not as published.
    """

    source: str = ""  # name of the file
    n_words: int = 0
    lower_words: tuple[str, ...] = ()  # found by their lower-case form only
    predicted_words: tuple[str, ...] = ()  # from their vector in another file
    missing_words: tuple[str, ...] = ()
    note: str = ""

    @property
    def lower(self) -> int:
        return len(self.lower_words)

    @property
    def found(self) -> int:
        return self.n_words - len(self.missing_words)

    @property
    def exact(self) -> int:
        return self.found - self.lower - len(self.predicted_words)

    def __bool__(self) -> bool:
        return bool(self.source)

    def __str__(self) -> str:
        if not self:
            return ""
        share = self.found / max(self.n_words, 1)
        return (
            f"{self.found:,} of {self.n_words:,} words ({share:.1%}) start from {self.source}: "
            f"{self.exact:,} as written, {self.lower:,} by their lower-case form"
            + (f", {len(self.predicted_words):,} predicted" if self.predicted_words else "")
            + (f"; {self.note}" if self.note else "")
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "note": self.note,
            "words": self.n_words,
            "exact": self.exact,
            "lower": self.lower,
            "predicted": len(self.predicted_words),
            "missing": len(self.missing_words),
            "lower_words": list(self.lower_words),
            "predicted_words": list(self.predicted_words),
            "missing_words": list(self.missing_words),
        }


def pretrained_rows(
    path: str | Path,
    words: Sequence[str],
    dim: int,
    generator: torch.Generator,
    first_row: int = 3,
    lower_fallback: bool = True,
    fill_from: tuple[str | Path, int] | None = None,
) -> tuple[Tensor, Coverage]:  # (first_row + len(words), dim) float32
    """The starting embedding for a word list, and what was found. `lower_fallback=False` is the authors' rule.

    `fill_from`: a file of other vectors and their length, from which those of missing words are predicted.
    """
    wanted = set(words)
    if lower_fallback:
        wanted |= {word.lower() for word in words}
    vectors = read_vectors(path, wanted, dim)
    # All rows are drawn, found or not: the start of a missing word does not depend on which others are missing.
    rows = torch.rand(first_row + len(words), dim, generator=generator).mul_(0.1).sub_(0.05)
    own = {word: source_of(word, vectors, lower_fallback) for word in words}
    missing = [word for word in words if own[word] is None]
    filling = None
    if fill_from is not None and missing:
        filling = fill(missing, vectors, read_vectors(fill_from[0], wanted, fill_from[1]), lower_fallback)
        own |= filling.vectors
    for k, word in enumerate(words, start=first_row):
        if (vector := own[word]) is not None:
            rows[k] = torch.from_numpy(vector)
    return rows, Coverage(
        Path(path).name,
        len(words),
        tuple(word for word in words if word not in vectors and word.lower() in vectors and lower_fallback),
        tuple(word for word in missing if own[word] is not None),
        tuple(word for word in missing if own[word] is None),
        f"predicted from {Path(fill_from[0]).name}, {filling}" if fill_from and filling else "",
    )


def find_vectors(kind: Kind, dim: int, data_dir: str | Path | None = None) -> Found:
    """The best file of a kind with vectors of this length; if the user named no data folder, it is downloaded."""
    fitting = [key for key, dims in FILES[kind] if dim in dims]
    folder, may_download = data_folder(data_dir)
    present = [key for key in fitting if find(key, data_dir)]
    if present or (may_download and fitting):
        return obtain((present or fitting)[0], data_dir)
    others = [found.path.name for key, _ in FILES[kind] if (found := find(key, data_dir))]
    there = f" There is {', '.join(others)}, of another length." if others else ""
    raise DataError(
        f"no {kind} vectors of length {dim} in {folder}.{there} Put one of the public files there, use other vectors "
        "or another length, or start from random rows; a result must say so if the paper used these."
    )


def longest(kind: Kind, data_dir: str | Path | None = None) -> int:
    """How long the vectors of the best file of a kind are, that there is or that can be fetched."""
    return max(next((dims for key, dims in FILES[kind] if find(key, data_dir)), FILES[kind][0][1]))


def read_vectors(path: str | Path, wanted: set[str], dim: int) -> dict[str, Vector]:
    """The vectors of the wanted words, whatever the format; every one has length `dim`."""
    path = Path(path)
    try:
        if path.suffix == ".npz":
            return _from_npz(path, wanted, dim)
        with ExitStack() as stack:
            stream, name = _open(path, dim, stack)
            binary = name.endswith(".bin")
            entries = _word2vec(stream, path, wanted, dim) if binary else _text(stream, path, wanted, dim)
            vectors: dict[str, Vector] = {}
            for word, vector in entries:
                vectors.setdefault(word, vector)
                if len(vectors) == len(wanted):
                    break
            return vectors
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({error}). Fetch the file again.") from error


def _from_npz(path: Path, wanted: set[str], dim: int) -> dict[str, Vector]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            words, vectors = arrays["words"].tolist(), arrays["vectors"]
            norms = arrays["norms"] if "norms" in arrays.files else None
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{path}: needs arrays words (N,) and vectors (N, E), no pickles ({error})."
        ) from error
    _check_length(path, vectors.shape[-1], dim)
    if norms is not None:
        norms = np.where(np.isnan(norms), np.nanmedian(norms), norms)
    rows: dict[str, Vector] = {}
    for k, word in enumerate(words):
        if word in wanted:
            vector = vectors[k].astype(np.float32)
            rows[word] = vector if norms is None else vector * np.float32(norms[k])
    return rows


def _open(path: Path, dim: int, stack: ExitStack) -> tuple[IO[bytes], str]:
    """The stream inside the packing, and the name it would have unpacked."""
    if path.suffix == ".gz":
        return cast(IO[bytes], stack.enter_context(gzip.open(path))), path.stem
    if path.suffix != ".zip":
        return stack.enter_context(path.open("rb")), path.name
    archive = stack.enter_context(zipfile.ZipFile(path))
    names = [name for name in archive.namelist() if name.endswith(".txt")]
    fitting = [name for name in names if f".{dim}d." in name]
    if not names or (len(names) > 1 and not fitting):
        raise DataError(f"{path}: holds {', '.join(names) or 'no .txt'}; none is of length {dim}.")
    name = (fitting or names)[0]
    return stack.enter_context(archive.open(name)), name


def _word2vec(stream: IO[bytes], path: Path, wanted: set[str], dim: int) -> Iterator[tuple[str, Vector]]:
    header = stream.readline(100).split()
    if len(header) != 2 or not all(field.isdigit() for field in header):
        raise DataError(f"{path}: does not begin with a word2vec header `N E`.")
    count, length = int(header[0]), int(header[1])
    _check_length(path, length, dim)
    keys = {word.encode("utf-8") for word in wanted}
    buffer, start = b"", 0
    for k in range(count):
        # A block at a time: three million words read byte by byte would take minutes.
        while (blank := buffer.find(b" ", start)) < 0 or len(buffer) < blank + 1 + 4 * dim:
            block = stream.read(BLOCK)
            if not block:
                raise DataError(f"{path}: ends after {k:,} of {count:,} words. Fetch the file again.")
            buffer, start = buffer[start:] + block, 0
        word = buffer[start:blank].lstrip(b"\n")
        if word in keys:
            yield word.decode("utf-8"), np.frombuffer(buffer, "<f4", dim, blank + 1).astype(np.float32)
        start = blank + 1 + 4 * dim


def _text(stream: IO[bytes], path: Path, wanted: set[str], dim: int) -> Iterator[tuple[str, Vector]]:
    keys = {word.encode("utf-8") for word in wanted}
    for number, line in enumerate(stream):
        word, _, rest = line.rstrip().partition(b" ")
        if number == 0:
            if len(rest.split()) == 1 and word.isdigit():
                continue
            _check_length(path, len(rest.split()), dim)
        if word in keys:
            numbers = rest.split()
            # GloVe 840B has a few entries with blanks inside, such as `. . .`: not the word before the blank.
            if len(numbers) == dim:
                yield word.decode("utf-8"), np.array([float(x) for x in numbers], dtype=np.float32)


def _check_length(path: Path, length: int, dim: int) -> None:
    if length != dim:
        raise DataError(
            f"{path}: its vectors have {length} numbers, the embedding has {dim}. Take vectors of length {dim}, "
            f"or an embedding of {length}."
        )
