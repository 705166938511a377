"""The CMU pronouncing dictionary: spellings of a-z and their phonemes.

a line    a word, blanks, phonemes; `word(2)` is another pronunciation of `word`; from # on it is a comment
words     those of a-z alone; with an apostrophe, a dot or a digit they are not read
split     n = the first two bytes of SHA-256(word) as a big-endian number, modulo 100:
          0-4 test, 5-9 validation, the rest training; all pronunciations of a word fall together
letters   0 padding, 1 unknown, 2 end, then a-z; a row is the letters of a word and the end, padded on the left
phonemes  0 padding, 1 unknown, 2 start, 3 end, then 70 with their stress; a row ends with the end
train     a row for each pronunciation, targets (N, L)
valid     a row for each word, targets (N, K, L): all its pronunciations, and padding where it has less than K
test      likewise
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gatewise.lab.data.batches import SPLITS, Examples
from gatewise.lab.data.sources import DataError, obtain

PAD, LETTER_END = 0, 2
START, END = 2, 3  # of phonemes
LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
# UW without a stress stood in older editions, and in the tables of networks that were trained on them.
PHONEMES = (
    *("<pad>", "<unk>", "<s>", "</s>"),
    *sorted([*CONSONANTS, "UW", *(vowel + stress for vowel in VOWELS for stress in "012")]),
)
UNSTRESSED = tuple(PHONEMES.index(name.rstrip("012") + "0" * (name[:2] in VOWELS)) for name in PHONEMES)
MAX_LETTERS, MAX_PHONEMES = 22, 20

Sounds = tuple[str, ...]
_ALTERNATIVE = re.compile(r"(.*?)(?:\(\d+\))?", re.DOTALL)
_SPELLING = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class WordData:
    """Three sets of words. `note` is what every result made from them must show."""

    train: Examples
    valid: Examples
    test: Examples
    max_len: int = MAX_LETTERS  # letters of a word
    note: str = ""

    def to(self, device: torch.device | str) -> WordData:
        train, valid, test = (part.to(device) for part in (self.train, self.valid, self.test))
        return replace(self, train=train, valid=valid, test=test)


def cmudict(data_dir: str | Path | None = None, max_len: int | None = None) -> WordData:
    """The dictionary in its three parts; words above `max_len` letters or 20 phonemes are left out, and noted."""
    found, limit = obtain("cmudict/cmudict.dict", data_dir), max_len or MAX_LETTERS
    words = read_dictionary(found.read(), found.path)
    fitting = {
        word: sounds
        for word, sounds in words.items()
        if len(word) <= limit and all(len(sound) <= MAX_PHONEMES for sound in sounds)
    }
    parts: dict[str, dict[str, list[Sounds]]] = {split: {} for split in SPLITS}
    for word, sounds in fitting.items():
        parts[split_of(word)][word] = sounds
    for split, part in parts.items():
        if not part:
            raise DataError(
                f"{found.path}: none of its {len(fitting):,} words of a-z falls into the {split} part. A dictionary "
                "of some hundred words fills all three."
            )
    left_out = len(words) - len(fitting)
    said = f"left out: {left_out:,} of {len(words):,} words, above {limit} letters or {MAX_PHONEMES} phonemes"
    notes = [found.deviation(), said if left_out else ""]
    return WordData(
        pairs(parts["train"], limit),
        questions(parts["valid"], limit),
        questions(parts["test"], limit),
        limit,
        "; ".join(note for note in notes if note),
    )


def split_of(word: str) -> str:
    n = int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "big") % 100
    return "test" if n < 5 else "valid" if n < 10 else "train"


def read_dictionary(content: bytes, path: Path) -> dict[str, list[Sounds]]:
    """Word -> its pronunciations, each once, for the words of a-z."""
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start:,} is not UTF-8. Fetch the file again.") from error
    found: dict[str, list[Sounds]] = {}
    for number, line in enumerate(lines, start=1):
        entry = _entry(line, f"{path}: line {number}")
        if entry is None:
            continue
        word, sound = entry
        if _SPELLING.fullmatch(word) and sound not in found.setdefault(word, []):
            found[word].append(sound)
    return found


def _entry(line: str, where: str) -> tuple[str, Sounds] | None:
    """The word of a line, without the number of an alternative, and its phonemes; None where there is a comment."""
    text = line.partition("#")[0].strip()
    if not text:
        return None
    head, *sound = text.split()
    match = _ALTERNATIVE.fullmatch(head)
    assert match is not None
    word = match.group(1)
    if not word:
        raise DataError(f"{where} has no word before its phonemes: {line[:40]!r}. Mend or remove it.")
    if not sound:
        raise DataError(f"{where} has a word and no phonemes: {line[:40]!r}. Mend or remove it.")
    for name in sound:
        if name not in _PHONEME_IDS:
            raise DataError(
                f"{where} has {name!r}, which is no phoneme of the dictionary (such as B, or AH0 with its stress). "
                "Mend or remove it."
            )
    return word, tuple(sound)


_PHONEME_IDS = {name: k for k, name in enumerate(PHONEMES) if k > END}
_LETTER_IDS = {name: k for k, name in enumerate(LETTERS) if k > LETTER_END}


def spelled(word: str, max_len: int) -> list[int]:
    """Ids of the letters of a word, and the end."""
    if not word:
        raise DataError("an empty word has no pronunciation. Give at least one letter of a-z.")
    strange = sorted(set(word) - _LETTER_IDS.keys())
    if strange:
        raise DataError(
            f"{word[:40]!r}: {', '.join(map(repr, strange))} is no letter of a-z. Write words in lower case, without "
            "accents, digits and marks."
        )
    if len(word) > max_len:
        raise DataError(
            f"{word[:40]!r}: has {len(word)} letters, the model reads at most {max_len}. Split it, or train with a "
            "larger data.max_len."
        )
    return [*(_LETTER_IDS[letter] for letter in word), LETTER_END]


def pronounced(ids: Sequence[int]) -> str:
    """`G EY1 T` for the phonemes before the first end."""
    before = list(ids)[: list(ids).index(END)] if END in ids else list(ids)
    return " ".join(PHONEMES[k] for k in before)


def pairs(words: Mapping[str, Sequence[Sounds]], max_len: int) -> Examples:
    """What a network learns from: every pronunciation of every word."""
    rows = [(word, sound) for word, sounds in words.items() for sound in sounds]
    inputs, lengths = _inputs([word for word, _ in rows], max_len)
    return Examples(inputs, lengths, torch.tensor([_target(sound) for _, sound in rows]))


def questions(words: Mapping[str, Sequence[Sounds]], max_len: int) -> Examples:
    """What a network is judged by: every word once, and all that is right."""
    most = max(map(len, words.values()))
    nothing = [PAD] * (MAX_PHONEMES + 1)
    targets = [[*map(_target, sounds), *[nothing] * (most - len(sounds))] for sounds in words.values()]
    return Examples(*_inputs(list(words), max_len), torch.tensor(targets))


def _inputs(words: Sequence[str], max_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [spelled(word, max_len) for word in words]
    padded = [[PAD] * (max_len + 1 - len(row)) + row for row in rows]
    return torch.tensor(padded), torch.tensor([len(row) for row in rows])


def _target(sound: Sounds) -> list[int]:
    return [*(_PHONEME_IDS[name] for name in sound), END, *[PAD] * (MAX_PHONEMES - len(sound))]
