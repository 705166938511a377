"""Text as one long stream of symbols, and the two ways of cutting it into batches.

    words       every line feed becomes <eos>; ids by falling frequency in the training text, ties by the word
    characters  every symbol of the file, the line feed among them; ids by code point
    Windows     B contiguous rows read side by side, T steps at a time, the state carried from window to window
    Chunks      independent pieces of L symbols from a random offset, shuffled, each starting from a zero state

Both hold whole tensors that live where the stream lives, so batches are views or lookups made on the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gatewise.tasks.data.batches import SPLITS, EpochPlan, plan_epoch
from gatewise.tasks.data.sources import DataError, find, obtain
from gatewise.wording import counted

END, UNKNOWN = "<eos>", "<unk>"
Level = Literal["word", "char"]
Remainder = Literal["drop", "keep"]


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
    texts, notes = [], []
    for split in SPLITS:
        found = obtain(f"ptb.{split}", data_dir)
        content = found.read()
        texts.append(_decode(content, found.path))
        notes.append(found.deviation(content))
    return from_texts(texts[0], texts[1], texts[2], "word", None, _join(notes), vocabulary)


def char_ptb(data_dir: str | Path | None = None, vocabulary: Vocabulary | None = None) -> LanguageData:
    """Penn Treebank, characters: 5,017,482 / 393,042 / 442,423, 50 symbols, the blank written `_`.

    The published character files say nothing that the word files do not, so where only those are, they are used:

        character file[::2] = every line of the word file, stripped, blanks as `_`, and its line feed
    """
    texts, notes = [], []
    for split in SPLITS:
        spelled = find(f"ptb.char.{split}", data_dir) is not None
        found = obtain(f"ptb.char.{split}" if spelled else f"ptb.{split}", data_dir)
        content = found.read()
        text = _decode(content, found.path)
        texts.append(text[::2] if spelled else spell(text))
        notes.append(found.deviation(content))
    return from_texts(texts[0], texts[1], texts[2], "char", None, _join(notes), vocabulary)


def spell(words: str) -> str:
    """A word file as the character stream that Mikolov's character files hold."""
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


class Windows:
    """A stream as B contiguous rows of L = N // B symbols, read T steps at a time; the state goes on from window
    to window and is zero at the start of an epoch.

        inputs[k]  = rows[k*T : k*T + T]          (T, B)
        targets[k] = rows[k*T + 1 : k*T + T + 1]

    The L - 1 targets of a row rarely divide by T. "drop" leaves the rest out: (L - 1) // T windows, as in Wen's code
    and the pruning runs. "keep" adds one shorter window, as in the authors' Bayesian code.

    The pruning runs are tested word by word over the whole stream: batch_size=1, "keep" (any T gives the same sum).
    """

    def __init__(self, ids: Tensor, batch_size: int, steps: int, remainder: Remainder = "drop") -> None:
        if remainder not in ("drop", "keep"):
            raise DataError(f"remainder is {remainder!r}; it must be 'drop' or 'keep'.")
        if batch_size < 1 or steps < 1:
            raise DataError(f"batch_size is {batch_size} and steps is {steps}; both must be at least 1.")
        length = len(ids) // batch_size
        n_full, rest = divmod(max(length - 1, 0), steps)
        self.n_windows = n_full + (remainder == "keep" and rest > 0)
        if self.n_windows == 0:
            raise DataError(
                f"{counted(len(ids), 'symbol')} in {counted(batch_size, 'row')} leave "
                f"{counted(max(length - 1, 0), 'target')} a row, too few for a window of {steps}. Decrease "
                "batch_size or steps, or keep the remainder; in a recipe data.batch (data.test_batch), data.steps "
                "and data.remainder. Or give a longer text."
            )
        self.batch_size, self.steps = batch_size, steps
        self.n_steps = length - 1 if remainder == "keep" else n_full * steps  # targets in a row
        self.n_targets = batch_size * self.n_steps
        # (L, B): a window is then one contiguous block of memory, and inputs and targets are views of the same rows.
        self.rows = ids[: batch_size * length].view(batch_size, length).t().contiguous()

    def __len__(self) -> int:
        return self.n_windows

    def windows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Views (inputs, targets), each (T, B); a kept last one has fewer steps."""
        for k in range(self.n_windows):
            first, last = k * self.steps, min((k + 1) * self.steps, self.n_steps)
            yield self.rows[first:last], self.rows[first + 1 : last + 1]

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """All windows at one shape, for a CUDA graph: inputs and targets (n, T, B), weight (n, T) float32.

        A kept last window is filled up with symbol 0 at weight 0; its state is not used any more, as the epoch ends.
        Otherwise these are views, no copy.
        """
        n, steps, total = self.n_windows, self.steps, self.n_windows * self.steps
        rows = self.rows[: self.n_steps + 1]
        if total > self.n_steps:
            rows = torch.cat([rows, rows.new_zeros(total - self.n_steps, self.batch_size)])
        weight = (torch.arange(total, device=rows.device) < self.n_steps).float().view(n, steps)
        shape = (n, steps, self.batch_size)
        return rows[:total].view(shape), rows[1 : total + 1].view(shape), weight


class Chunks:
    """A stream cut into independent chunks of L symbols, each read from a zero state.

        number of chunks = N // L - 1                      one chunk of slack, so that the cut can move
        training    first = offset + L * k, k shuffled     offset drawn from [0, N - chunks * L) once per epoch
        evaluation  first = L * k in order                 the slack is left out here too, as with the authors

    A chunk has L - 1 inputs and L - 1 targets: the step from one chunk to the next is never predicted.
    """

    def __init__(self, ids: Tensor, length: int = 100, batch_size: int = 64) -> None:
        if length < 2:
            raise DataError(f"length is {length}; a chunk needs at least one input and one target, so 2.")
        self.n_chunks = len(ids) // length - 1
        if self.n_chunks < 1:
            raise DataError(
                f"{len(ids):,} symbols are too few for chunks of {length}: two chunks' worth is the least, "
                f"{2 * length:,}. Take a shorter length, in a recipe data.chunk, or a longer text."
            )
        # No more rows than chunks: fillers of weight 0 cost as much as real rows.
        self.ids, self.length, self.batch_size = ids, length, min(batch_size, self.n_chunks)
        self.max_offset = len(ids) - self.n_chunks * length
        self.n_batches = -(-self.n_chunks // self.batch_size)
        self.n_targets = self.n_chunks * (length - 1)
        self._ahead = torch.arange(length, device=ids.device)[:, None]

    def __len__(self) -> int:
        return self.n_batches

    def epoch(self, generator: torch.Generator | None = None) -> EpochPlan:
        """First symbols of the chunks: shuffled from a random offset, or in order from 0 without a generator."""
        if generator is None:
            first = torch.arange(self.n_chunks) * self.length
        else:
            offset = torch.randint(self.max_offset, (), generator=generator)
            first = torch.randperm(self.n_chunks, generator=generator) * self.length + offset
        return plan_epoch(first.to(self.ids.device), self.batch_size)

    def batch(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (L - 1, B), of the chunks that begin at `first` (B,); device operations only."""
        chunk = self.ids[first + self._ahead]  # (L, B)
        return chunk[:-1], chunk[1:]


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


def _join(notes: Iterable[str]) -> str:
    return "; ".join(note for note in notes if note)
