"""encoding.json: what the numbers mean that go into a trained model, and those that come out of it.

    words, characters  symbol k has id k; words are split at white space, a line feed is <eos>
    texts              symbol k has id k; a text is <start>, its listed words, </s>: the first max_len of these.
                       `rare` words read as <unk>, others leave no trace; so </s> does, where it is not a symbol
    spellings          symbol k has id k; a word is its letters and </s>. The answer is a row of ids of classes, the
                       phonemes, up to the first </s>
    numbers            inputs are (x - mean) / scale; with next_step, outputs are y * scale + mean

    classes            output k scores class k; a single output is above 0 for the second of two classes

`gatewise train` attaches it to the model, so that it goes where the model goes; `gatewise export`
writes it as a file.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, TypeAdapter, ValidationError, with_config

from gatewise.export import attached
from gatewise.lab.data.classification import FIRST_WORD, TextData, TextRules, ids_of, text_row
from gatewise.lab.data.language import LanguageData, Vocabulary, unix_lines, words_of
from gatewise.lab.data.pronunciation import LETTERS, PHONEMES, WordData, pronounced, spelled
from gatewise.lab.data.series import SeriesData
from gatewise.lab.data.sources import DataError
from gatewise.lab.files import RunError, model_of, plain, write_whole
from gatewise.wording import counted

ENCODING = "encoding.json"
SPECIAL = ("<pad>", "<start>", "<unk>")  # rows of the embedding before the first word
# Of data.task; all others are texts.
KINDS = {
    "word-ptb": "words",
    "words": "words",
    "char-ptb": "characters",
    "characters": "characters",
    "npz": "numbers",
    "g2p": "spellings",
}
Array = npt.NDArray[Any]
Corpus = LanguageData | TextData | SeriesData | WordData
Kind = Literal["words", "characters", "texts", "numbers", "spellings"]


@with_config(extra="forbid", strict=True, allow_inf_nan=False)
@dataclass(frozen=True)
class Encoding:
    """`encode` makes the input of one sequence, `decode` says what the output for it means."""

    kind: Kind
    symbols: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()
    max_len: NonNegativeInt = 0
    lower: bool = False
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()  # (I,)
    scale: tuple[float, ...] = ()  # (I,)
    next_step: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The word list that texts were read with."""
        return self.symbols[FIRST_WORD:] + self.rare

    @property
    def scaling(self) -> tuple[Array, Array]:
        return np.array(self.mean, np.float64), np.array(self.scale, np.float64)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return ids_of(self.words, len(self.symbols))

    def encode(self, value: str | Array) -> Array:
        """A text: its ids (T,) int64. Numbers (T, I), or (T,) where I is 1: scaled, (T, I) float32."""
        if self.kind == "numbers":
            return self._scaled(np.asarray(value, np.float64))
        assert isinstance(value, str)
        if self.kind == "words":
            return Vocabulary(self.symbols).encode(words_of(value)).numpy()
        if self.kind == "characters":
            return Vocabulary(self.symbols).encode(unix_lines(value)).numpy()
        if self.kind == "spellings":
            return np.array(spelled(value, self.max_len), np.int64)
        row = text_row(value, self._ids, TextRules(max_len=self.max_len, lower=self.lower))
        if not row:
            raise DataError(f"{value[:40]!r}: has none of the {len(self.words) - 1:,} words the model knows.")
        return np.array(row, np.int64)

    def _scaled(self, numbers: Array) -> Array:
        """(x - mean) / scale in float64: float32 would round a large x before its mean is taken away."""
        mean, scale = self.scaling
        steps = numbers[:, None] if numbers.ndim == len(mean) == 1 else numbers
        if steps.ndim < 2 or steps.shape[-1] != len(mean):
            raise DataError(
                f"numbers of shape {numbers.shape} do not fit the model: it reads {counted(len(mean), 'input')} a "
                f"step, so they must be (T, {len(mean)}). A single step is (1, {len(mean)})."
            )
        scaled: Array = ((steps - mean) / scale).astype(np.float32)
        return scaled

    def decode(self, output: Array) -> str | Array:
        """Of the output (O,) of one step: the class, the likeliest next symbol, or numbers in their own units.

        Of a word: its phonemes, with blanks between them.
        """
        output = np.asarray(output)
        if output.ndim != 1:
            raise DataError(
                f"an output of shape {output.shape} is not that of one step of one sequence, (O,). Decode one after "
                "the other: [decode(scores) for scores in batch]."
            )
        if self.kind == "spellings":
            return pronounced(output.tolist())
        names = self.classes if self.kind in ("texts", "numbers") else self.symbols
        if names:
            return names[int(output[0] > 0) if len(output) == 1 else int(output.argmax())]
        mean, scale = self.scaling
        return output * scale + mean if self.next_step else output

    def to_dict(self) -> dict[str, Any]:
        """What belongs to its kind."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value not in ((), 0)}


ENCODED = TypeAdapter(Encoding)


def encoding_of(corpus: Corpus) -> Encoding:
    """The encoding that a corpus was read with."""
    if isinstance(corpus, LanguageData):
        kind: Literal["words", "characters"] = "words" if corpus.level == "word" else "characters"
        return Encoding(kind, corpus.vocabulary.symbols)
    if isinstance(corpus, TextData):
        own = corpus.rules.vocab_size - FIRST_WORD  # words with an id of their own
        symbols, rare = (*SPECIAL, *corpus.listed[:own]), corpus.listed[own:]
        return Encoding("texts", symbols, rare, corpus.rules.max_len, corpus.rules.lower, corpus.classes)
    if isinstance(corpus, WordData):
        return Encoding("spellings", LETTERS, max_len=corpus.max_len, classes=PHONEMES)
    return Encoding(
        "numbers",
        classes=tuple(map(str, corpus.classes)),
        mean=tuple(corpus.mean.tolist()),
        scale=tuple(corpus.scale.tolist()),
        next_step=corpus.next_step,
    )


def content_of(encoding: Encoding) -> bytes:
    """What is attached to a model as ENCODING."""
    return (json.dumps(plain(encoding.to_dict())) + "\n").encode()


def copy_encoding(model: Path, target: Path) -> list[Path]:
    """A model's encoding as a file; where the model has none, no other model's stays there."""
    content = attached(model).get(ENCODING)
    if target.exists() and not is_encoding(target):
        raise RunError(f"{target}: was not written by gatewise, and would be replaced. Move it away.")
    if content is None:
        target.unlink(missing_ok=True)
        return []
    write_whole(target, content)
    return [target]


def is_encoding(path: Path) -> bool:
    try:
        ENCODED.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return False
    return True


def load_encoding(path: str | Path) -> Encoding | None:
    """The encoding of a run or a model; None where there is none."""
    model = model_of(path)
    content = attached(model).get(ENCODING)
    if content is None:
        return None
    try:
        return ENCODED.validate_json(content)
    except ValidationError as error:
        wrong = error.errors()[0]
        said = f"{'.'.join(map(str, wrong['loc'][:1]))}: {wrong['msg']}"
        raise RunError(f"{model}: its {ENCODING} is not the encoding of a model ({said}).") from error
