"""Text as one long stream of symbols.

words       every line feed becomes <eos>; ids by falling frequency in the training text, ties by the word
characters  every symbol of the file, the line feed among them; ids by code point
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gatewise.lab.data.batches import SPLITS
from gatewise.lab.data.sources import DataError, obtain
from gatewise.wording import counted

END, UNKNOWN = "<eos>", "<unk>"
Level = Literal["word", "char"]


@dataclass(frozen=True)
class Vocabulary:
    """Symbols in the order of their ids."""

    symbols: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {symbol: k for k, symbol in enumerate(self.symbols)}

    def encode(self, tokens: Sequence[str]) -> Tensor:
        """Ids (N,) int64; a symbol outside the vocabulary becomes <unk>, or is an error where there is no <unk>."""
        ids, unknown = self.ids, self.ids.get(UNKNOWN, -1)
        stream = np.fromiter((ids.get(token, unknown) for token in tokens), np.int64, len(tokens))
        outside = np.flatnonzero(stream < 0)
        if len(outside):
            raise DataError(
                f"{len(outside):,} of {len(tokens):,} symbols are not in the vocabulary of {len(self):,}, the first "
                f"is {tokens[outside[0]]!r}. Take the vocabulary from a text that has them, or one with {UNKNOWN}."
            )
        return torch.from_numpy(stream)

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self.symbols[k] for k in ids]


@dataclass(frozen=True)
class LanguageData:
    """Three streams of ids and what the ids mean. `note` is what every result made from it must show."""

    train: Tensor  # (N,) int64
    valid: Tensor
    test: Tensor
    vocabulary: Vocabulary
    level: Level
    note: str = ""

    def to(self, device: torch.device | str) -> LanguageData:
        train, valid, test = (stream.to(device) for stream in (self.train, self.valid, self.test))
        return replace(self, train=train, valid=valid, test=test)


def words_of(text: str) -> list[str]:
    """Split at white space, one <eos> for each line feed."""
    return text.replace("\n", f" {END} ").split()


def unix_lines(text: str) -> str:
    """Files from other systems end their lines with CR LF; left in, CR would be one more symbol."""
    return text.replace("\r\n", "\n")


def word_vocabulary(tokens: Iterable[str], size: int | None = None) -> Vocabulary:
    """Words by (-count, word). With a size, there is always an <unk>, and the rarest words give way to it."""
    counts = Counter(tokens)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if size is None:
        return Vocabulary(tuple(ranked))
    if size < 2:
        raise DataError(f"a vocabulary of {size} words is too small; one word and {UNKNOWN} are the least.")
    kept = {UNKNOWN, *[word for word in ranked if word != UNKNOWN][: size - 1]}
    # <unk> keeps its rank if the text has it, and comes last if not.
    ranked = [word for word in ranked if word in kept]
    return Vocabulary(tuple(ranked if UNKNOWN in counts else [*ranked, UNKNOWN]))


def from_texts(
    train: str,
    valid: str,
    test: str,
    level: Level,
    vocabulary_size: int | None = None,
    note: str = "",
    vocabulary: Vocabulary | None = None,
) -> LanguageData:
    """Three texts to three streams.

    Words are counted in the training text only. Characters are those of all three texts, as the authors take them.
    A `vocabulary` that is given, that of a trained model, is taken as it is.
    """
    if level == "char":
        vocabulary = vocabulary or Vocabulary(tuple(sorted({*train, *valid, *test})))
        streams = [vocabulary.encode(text) for text in (train, valid, test)]
    elif level == "word":
        tokens = [words_of(text) for text in (train, valid, test)]
        vocabulary = vocabulary or word_vocabulary(tokens[0], vocabulary_size)
        streams = [vocabulary.encode(words) for words in tokens]
    else:
        raise DataError(f"level is {level!r}; it must be 'word' or 'char'.")
    for split, stream in zip(SPLITS, streams):
        if len(stream) < 2:
            raise DataError(
                f"the {split} text has {counted(len(stream), 'symbol')}; a language model needs at least 2."
            )
    return LanguageData(streams[0], streams[1], streams[2], vocabulary, level, note)


def word_ptb(data_dir: str | Path | None = None, vocabulary: Vocabulary | None = None) -> LanguageData:
    """Penn Treebank, Mikolov's words: 929,589 / 73,760 / 82,430 tokens, 10,000 words."""
    (train, valid, test), note = ptb_texts(data_dir)
    return from_texts(train, valid, test, "word", None, note, vocabulary)


def ptb_texts(data_dir: str | Path | None) -> tuple[list[str], str]:
    """Those of the three splits, and what is not as published."""
    files = [obtain(f"ptb/ptb.{split}.txt", data_dir) for split in SPLITS]
    texts = [_decode(found.read(), found.path) for found in files]
    return texts, "; ".join(filter(None, (found.deviation() for found in files)))


def char_ptb(data_dir: str | Path | None = None, vocabulary: Vocabulary | None = None) -> LanguageData:
    """Penn Treebank, characters: 5,017,482 / 393,042 / 442,423, 50 symbols, the blank written `_`."""
    texts, note = ptb_texts(data_dir)
    train, valid, test = map(spell, texts)
    return from_texts(train, valid, test, "char", None, note, vocabulary)


def spell(words: str) -> str:
    """A word file as the character stream that Mikolov's character files hold, which say nothing more."""
    return "".join(line.strip().replace(" ", "_") + "\n" for line in words.splitlines())


def text_file(
    path: str | Path,
    level: Level,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    vocabulary_size: int | None = 10_000,
    fraction: float = 0.05,
    vocabulary: Vocabulary | None = None,
) -> LanguageData:
    """Your own text. Without a file for `valid` or `test`, each is the given fraction of the lines, cut from the end.

    `vocabulary_size` counts words, <eos> and <unk> among them; it does not concern characters. A `vocabulary` is that
    of a trained model.
    """
    if not 0 < fraction < 0.5:
        raise DataError(
            f"fraction is {fraction}; the parts cut off for valid and test must be between 0 and 0.5."
        )
    lines = _read(path).splitlines(keepends=True)
    n_lines = len(lines)
    parts: dict[str, str] = {}
    for split, given in (("test", test), ("valid", valid)):
        if given is not None:
            parts[split] = _read(given)
            continue
        n_cut = int(fraction * n_lines)
        if n_cut == 0:
            raise DataError(
                f"{path}: {n_lines} lines are too few to cut off {fraction:.0%} for {split}. "
                f"Give a file of its own for {split}, or a larger fraction."
            )
        lines, cut = lines[:-n_cut], lines[-n_cut:]
        parts[split] = "".join(cut)
    train = "".join(lines)
    return from_texts(train, parts["valid"], parts["test"], level, vocabulary_size, vocabulary=vocabulary)


def _read(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    return unix_lines(_decode(content, Path(path)))


def _decode(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")  # editors on Windows put a mark at the start, which is no symbol
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start:,} is not UTF-8. Convert the file to UTF-8 first."
        ) from error
