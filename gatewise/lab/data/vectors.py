"""Pretrained word vectors for the rows of an embedding.

    row of word i = first_row + i
        its vector, if the file has the word as written;
        the vector of its lower-case form, if that is allowed and the file has it;
        U(-0.05, 0.05) otherwise, as every row that belongs to no word

The file is an .npz without pickles: words (N,), vectors (N, E), optionally norms (N,): vectors then have length 1 and
are multiplied by it; where a norm is not known (NaN), by the median of those that are. `reproduction/word_vectors.py`
makes one from the public files.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gatewise.lab.data.sources import DataError, Found, obtain

Vector = npt.NDArray[np.float32]

# Paper: word2vec for IMDb, GloVe 840B for AG News.
FILES = {
    "word2vec": "embeddings/word2vec_googlenews_300d_subset.npz",
    "glove": "embeddings/glove_6B_100d_subset.npz",
}


@dataclass(frozen=True)
class Coverage:
    """How many words got a pretrained vector; nothing, and false, where no vectors are used.

    `note` tells what is not as published.
    """

    source: str = ""  # name of the file
    n_words: int = 0
    exact: int = 0
    lower: int = 0  # found by their lower-case form only
    note: str = ""

    @property
    def found(self) -> int:
        return self.exact + self.lower

    def __bool__(self) -> bool:
        return bool(self.source)

    def __str__(self) -> str:
        if not self:
            return ""
        share = self.found / max(self.n_words, 1)
        return (
            f"{self.found:,} of {self.n_words:,} words ({share:.1%}) start from {self.source}: "
            f"{self.exact:,} as written, {self.lower:,} by their lower-case form"
            + (f"; {self.note}" if self.note else "")
        )


def find_vectors(named: str, data_dir: str | Path | None = None) -> tuple[Path, str]:
    """The file of a kind, or one of your own, and what is not as published."""
    if named not in FILES:
        return Path(named).expanduser(), ""
    try:
        found: Found = obtain(FILES[named], data_dir)
    except DataError as error:
        raise DataError(
            f"{error} `python reproduction/word_vectors.py` makes one from the public file; data.vectors may name an "
            ".npz of your own, or 'none'. A result must say so if the paper used these."
        ) from error
    return found.path, found.deviation()


def pretrained_rows(
    path: str | Path,
    words: Sequence[str],
    dim: int,
    generator: torch.Generator,
    first_row: int = 3,
    lower_fallback: bool = True,
    note: str = "",
) -> tuple[Tensor, Coverage]:  # (first_row + len(words), dim) float32
    """The starting embedding for a word list, and what was found. `lower_fallback=False` is the authors' rule."""
    forms = {word: (word, word.lower()) if lower_fallback else (word,) for word in words}
    vectors = read_vectors(Path(path), {form for known in forms.values() for form in known}, dim)
    # All rows are drawn, found or not: the start of a missing word does not depend on which others are missing.
    rows = torch.rand(first_row + len(words), dim, generator=generator).mul_(0.1).sub_(0.05)
    used = {word: next((form for form in forms[word] if form in vectors), None) for word in words}
    for k, word in enumerate(words, start=first_row):
        if (form := used[word]) is not None:
            rows[k] = torch.from_numpy(vectors[form])
    exact = sum(used[word] == word for word in words)
    lower = sum(used[word] is not None for word in words) - exact
    return rows, Coverage(Path(path).name, len(words), exact, lower, note)


def read_vectors(path: Path, wanted: set[str], dim: int) -> dict[str, Vector]:
    """The vectors of the wanted words; every one has length `dim`."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            words, vectors = arrays["words"].tolist(), arrays["vectors"]
            norms = arrays["norms"] if "norms" in arrays.files else np.ones(len(words), np.float32)
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({error}). Fetch the file again.") from error
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"{path}: needs arrays words (N,) and vectors (N, E), no pickles ({error})."
        ) from error
    length = vectors.shape[-1]
    if length != dim:
        raise DataError(
            f"{path}: its vectors have {length} numbers, the embedding has {dim}. Take vectors of length {dim}, "
            f"or an embedding of {length}."
        )
    norms = np.where(np.isnan(norms), np.nanmedian(norms), norms)
    return {
        word: vectors[k].astype(np.float32) * np.float32(norms[k])
        for k, word in enumerate(words)
        if word in wanted
    }
