"""Word vectors as `data.vectors` reads them: an .npz of the words of a recipe, from one of the public files.

    .bin, .bin.gz   word2vec: "N E", then per word its bytes, a blank, E float32
    .txt, .txt.gz   GloVe: per line a word and E numbers; a first line "N E" is skipped
    .zip            one or several such .txt; of several, the one with --dim in its name (glove.6B.300d.txt)

    python reproduction/word_vectors.py GoogleNews-vectors-negative300.bin.gz imdb-original \\
        --out DATA/embeddings/word2vec_googlenews_300d_subset.npz

With --fill-from the vectors of words that the file lacks are predicted from those of another file, by ridge least
squares:

    y = mean_y + (x - mean_x) W        W = (X'X + ridge s I)^-1 X'Y, of centred X and Y, s the mean of diag(X'X)

It is fitted on the words that both files have. The ridge is the one whose predictions of held-out words come closest:
five parts, each predicted from the other four. `The` and `the` are in the same part, since they may have the same x.
"""

from __future__ import annotations

import argparse
import gzip
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from gatewise.lab import recipe as recipes
from gatewise.lab.data.classification import TextData
from gatewise.lab.data.corpus import load_data
from gatewise.lab.data.sources import DataError
from gatewise.lab.data.vectors import read_vectors as read_npz

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float32]

BLOCK = 1 << 20
RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
PARTS = 5


def read_vectors(path: Path, wanted: set[str], dim: int) -> dict[str, Vector]:
    """The vectors of the wanted words, whatever the format; the first of several counts."""
    if path.suffix == ".npz":
        return read_npz(path, wanted, dim)
    vectors: dict[str, Vector] = {}
    with ExitStack() as stack:
        stream, name = opened(path, dim, stack)
        read = word2vec if name.endswith(".bin") else glove
        for word, vector in read(stream, path, wanted, dim):
            vectors.setdefault(word, vector)
            if len(vectors) == len(wanted):
                break
    return vectors


def opened(path: Path, dim: int, stack: ExitStack) -> tuple[IO[bytes], str]:
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


def word2vec(stream: IO[bytes], path: Path, wanted: set[str], dim: int) -> Iterator[tuple[str, Vector]]:
    count, length = (int(field) for field in stream.readline(100).split())
    check_length(path, length, dim)
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


def glove(stream: IO[bytes], path: Path, wanted: set[str], dim: int) -> Iterator[tuple[str, Vector]]:
    keys = {word.encode("utf-8") for word in wanted}
    for number, line in enumerate(stream):
        word, _, rest = line.rstrip().partition(b" ")
        if number == 0:
            if len(rest.split()) == 1 and word.isdigit():
                continue
            check_length(path, len(rest.split()), dim)
        if word in keys:
            numbers = rest.split()
            # GloVe 840B has a few entries with blanks inside, such as `. . .`: not the word before the blank.
            if len(numbers) == dim:
                yield word.decode("utf-8"), np.array([float(x) for x in numbers], dtype=np.float32)


def check_length(path: Path, length: int, dim: int) -> None:
    if length != dim:
        raise DataError(f"{path}: its vectors have {length} numbers, not {dim}. Name the right --dim.")


@dataclass(frozen=True)
class Filling:
    vectors: Mapping[str, Vector]  # of the words that were asked for, where the other file has them
    ridge: float
    cosine: float  # mean over held-out words
    n_fitted: int


def fill(lacking: Sequence[str], known: Mapping[str, Vector], other: Mapping[str, Vector]) -> Filling:
    """Predict the vectors of `lacking` words like those of `known` ones, from `other` vectors."""
    sources = {word: other.get(word, other.get(word.lower())) for word in (*known, *lacking)}
    fitted = [word for word in known if sources[word] is not None]
    parts = parts_of(fitted)
    if len(np.unique(parts)) < 2:
        raise DataError(
            f"{len(fitted)} of {len(known)} words with a vector are in the other file, too: too few to predict "
            "vectors from. Take files that share more words."
        )
    x, y = stacked([sources[word] for word in fitted]), stacked([known[word] for word in fitted])
    cosines = {ridge: held_out_cosine(x, y, parts, ridge) for ridge in RIDGES}
    ridge = max(cosines, key=lambda ridge: cosines[ridge])
    found = {word: source for word in lacking if (source := sources[word]) is not None}
    rows = predicted(x, y, stacked(list(found.values())), ridge).astype(np.float32) if found else ()
    return Filling(dict(zip(found, rows)), ridge, cosines[ridge], len(fitted))


def stacked(vectors: Sequence[Vector | None]) -> Matrix:
    return np.stack([vector for vector in vectors if vector is not None]).astype(np.float64)


def parts_of(words: Sequence[str]) -> npt.NDArray[np.int64]:
    """0 to 4, as a permutation from a fixed seed deals them out to lower-case forms."""
    forms = sorted({word.lower() for word in words})
    dealt = dict(zip(forms, np.random.RandomState(0).permutation(len(forms)) % PARTS))
    return np.array([dealt[word.lower()] for word in words], dtype=np.int64)


def predicted(x: Matrix, y: Matrix, new: Matrix, ridge: float) -> Matrix:
    mean_x, mean_y = x.mean(0), y.mean(0)
    centred = x - mean_x
    squares = centred.T @ centred
    size = np.trace(squares) / len(squares) or 1.0  # all x alike: then y is its mean
    ridged = squares + ridge * size * np.eye(len(squares))
    weights = np.linalg.solve(ridged, centred.T @ (y - mean_y))
    found: Matrix = mean_y + (new - mean_x) @ weights
    return found


def held_out_cosine(x: Matrix, y: Matrix, parts: npt.NDArray[np.int64], ridge: float) -> float:
    """Mean cosine of predictions and true vectors, each predicted from the parts that it is not in."""
    guessed = np.empty_like(y)
    for part in np.unique(parts):
        out = parts == part
        guessed[out] = predicted(x[~out], y[~out], x[out], ridge)
    lengths = np.linalg.norm(guessed, axis=1) * np.linalg.norm(y, axis=1)
    return float(((guessed * y).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("recipe", help="whose words are wanted, as written and in lower case")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--fill-from", type=Path, help="other vectors, for words that the file lacks")
    parser.add_argument("--fill-dim", type=int, default=300)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    corpus = load_data(recipes.load(arguments.recipe), arguments.data_dir)
    assert isinstance(corpus, TextData)
    wanted = {form for word in corpus.words for form in (word, word.lower())}
    vectors = read_vectors(arguments.file, wanted, arguments.dim)
    print(f"{len(vectors):,} of {len(wanted):,} forms of words are in {arguments.file.name}")
    if arguments.fill_from is not None:
        lacking = [word for word in corpus.words if not {word, word.lower()} & vectors.keys()]
        other = read_vectors(arguments.fill_from, wanted, arguments.fill_dim)
        filled = fill(lacking, vectors, other)
        print(
            f"{len(filled.vectors):,} predicted, fitted on {filled.n_fitted:,} words, "
            f"ridge {filled.ridge:g}, mean cosine of held-out words {filled.cosine:.3f}"
        )
        vectors |= filled.vectors
    np.savez_compressed(arguments.out, words=list(vectors), vectors=np.stack(list(vectors.values())))


if __name__ == "__main__":
    main()
