"""The pronouncing dictionary: lines, parts and rows, worked out by hand; what is broken is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gatewise.lab.data.corpus import describe
from gatewise.lab.data.encoding import encoding_of
from gatewise.lab.data.pronunciation import (
    END,
    LETTERS,
    PAD,
    PHONEMES,
    START,
    UNSTRESSED,
    WordData,
    cmudict,
    pairs,
    pronounced,
    questions,
    read_dictionary,
    split_of,
)
from gatewise.lab.data.sources import DataError

LINES = """
a AH0
a(2) EY1
# a line of its own
gate G EY1 T # from the north
gate(3) G EY1 T
'bout B AW1 T
b2b B IY1 T UW0 B IY1
"""


def read(text: str) -> dict[str, list[tuple[str, ...]]]:
    return read_dictionary(text.encode(), Path("own.dict"))


def test_alternatives_belong_to_their_word_and_comments_to_nobody() -> None:
    """A second line with the same phonemes is no second pronunciation; other words than of a-z are not read."""
    assert read(LINES) == {"a": [("AH0",), ("EY1",)], "gate": [("G", "EY1", "T")]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gate", "line 2 has a word and no phonemes: 'gate'"),
        ("(2) G", "line 2 has no word before its phonemes"),
        ("gate G EY T", "line 2 has 'EY', which is no phoneme"),
    ],
)
def test_a_broken_line_is_named(line: str, said: str) -> None:
    with pytest.raises(DataError, match=r"own\.dict") as raised:
        read(f"a AH0\n{line}\n")
    assert said in str(raised.value)


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(DataError, match="byte 2 is not UTF-8"):
        read_dictionary(b"a \xff", Path("own.dict"))


@pytest.mark.parametrize("word", ["gate", "wise", "aardvark", "zoo", "of", "neuron"])
def test_the_part_of_a_word_follows_from_its_sum(word: str) -> None:
    """Anyone gets the same parts: the first four hexadecimal digits of SHA-256 as a number, modulo 100."""
    n = int(hashlib.sha256(word.encode()).hexdigest()[:4], 16) % 100
    assert split_of(word) == ("test" if n < 5 else "valid" if n < 10 else "train")


def test_rows_of_letters_and_phonemes() -> None:
    """Letters end at the last position, phonemes begin at the first; both have an end."""
    words = read(LINES)
    learned, asked = pairs(words, 5), questions(words, 5)
    a, e, g, t = (LETTERS.index(letter) for letter in "aegt")
    assert learned.inputs.tolist() == [[0, 0, 0, 0, a, 2]] * 2 + [[0, g, a, t, e, 2]]
    assert learned.lengths.tolist() == [2, 2, 5]
    ah, ey, sound = (
        PHONEMES.index("AH0"),
        PHONEMES.index("EY1"),
        [PHONEMES.index(p) for p in ("G", "EY1", "T")],
    )
    assert learned.targets[:, :4].tolist() == [[ah, END, 0, 0], [ey, END, 0, 0], [*sound, END]]
    assert asked.targets[:, :, :4].tolist() == [
        [[ah, END, 0, 0], [ey, END, 0, 0]],
        [[*sound, END], [PAD] * 4],
    ]


def test_tables() -> None:
    """29 letters and 74 phonemes, as in g2p_en; without stress 39 of them and the four special ones are left."""
    assert (len(LETTERS), len(PHONEMES), PHONEMES[START], PHONEMES[END]) == (29, 74, "<s>", "</s>")
    assert len(set(UNSTRESSED)) == 43
    assert {PHONEMES[UNSTRESSED[PHONEMES.index(name)]] for name in ("UW", "UW0", "UW2")} == {"UW0"}


def test_what_does_not_fit_is_left_out_and_noted(folder: Path) -> None:
    whole, short = cmudict(folder), cmudict(folder, max_len=3)
    assert "left out" not in whole.note
    assert "above 3 letters" in short.note
    assert len(short.train) < len(whole.train)
    assert isinstance(short, WordData)
    assert "29 letters, 74 phonemes" in describe(short)


def test_a_dictionary_of_a_few_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cmudict.dict").write_text("gate G EY1 T\n")
    with pytest.raises(DataError, match="none of its 1 words of a-z falls into the valid part"):
        cmudict(tmp_path)


def test_words_in_and_phonemes_out(folder: Path) -> None:
    """What a model gives after the first end is not part of the word."""
    encoding = encoding_of(cmudict(folder, max_len=4))
    a, b = (LETTERS.index(letter) for letter in "ab")
    assert encoding.encode("ab").tolist() == [a, b, 2]
    ids = [PHONEMES.index("AE1"), PHONEMES.index("B"), END, PHONEMES.index("T")]
    assert encoding.decode(ids) == pronounced(ids) == "AE1 B"
    assert pronounced(ids[:2]) == "AE1 B"
    for word, said in (("", "empty word"), ("Zoë", "'Z', 'ë' is no letter"), ("gates", "has 5 letters")):
        with pytest.raises(DataError, match=said):
            encoding.encode(word)
