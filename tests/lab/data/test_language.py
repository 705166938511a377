"""Words and characters as streams, worked out by hand on a few symbols."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gatewise.lab.data.language import (
    Vocabulary,
    char_ptb,
    from_texts,
    text_file,
    word_ptb,
    word_vocabulary,
    words_of,
)
from gatewise.lab.data.sources import DataError

WORDS = {"train": " b a b \n b c <unk> \n", "valid": " a \n", "test": " c b \n"}


def write_ptb(folder: Path) -> Path:
    for split, text in WORDS.items():
        (folder / f"ptb.{split}.txt").write_text(text)
    return folder


def test_a_line_feed_becomes_one_eos() -> None:
    assert words_of(" the cat \n sat\n\nx") == ["the", "cat", "<eos>", "sat", "<eos>", "<eos>", "x"]


def test_a_byte_order_mark_is_no_symbol(tmp_path: Path) -> None:
    """What editors on Windows put at the start of a file, and their ends of lines."""
    text = "ab\n" * 40
    for name, content in (
        ("plain", text.encode()),
        ("marked", text.replace("\n", "\r\n").encode("utf-8-sig")),
    ):
        (tmp_path / name).write_bytes(content)
    plain, marked = (text_file(tmp_path / name, "char") for name in ("plain", "marked"))
    assert plain.vocabulary.symbols == marked.vocabulary.symbols == ("\n", "a", "b")
    assert torch.equal(plain.train, marked.train)


def test_words_are_ranked_by_count_then_alphabet(tmp_path: Path) -> None:
    """b: 3 times, <eos>: 2, then <unk> < a < c by code point with one each."""
    data = word_ptb(write_ptb(tmp_path))
    assert data.vocabulary.symbols == ("b", "<eos>", "<unk>", "a", "c")
    assert data.train.tolist() == [0, 3, 0, 1, 0, 4, 2, 1]
    assert data.valid.tolist() == [3, 1]
    assert "ptb.train.txt is not the published file" in data.note


def test_characters_are_the_words_spelled_out(tmp_path: Path) -> None:
    data = char_ptb(write_ptb(tmp_path))
    assert "".join(data.vocabulary.decode(data.train.tolist())) == "b_a_b\nb_c_<unk>\n"


def test_a_limited_vocabulary_sends_rare_words_to_unk() -> None:
    assert word_vocabulary("a a a b b c".split(), size=3).symbols == ("a", "b", "<unk>")
    assert word_vocabulary("a a <unk> <unk> <unk> b".split(), size=2).symbols == ("<unk>", "a")
    assert word_vocabulary(["a"], size=10).symbols == ("a", "<unk>")
    with pytest.raises(DataError, match="too small"):
        word_vocabulary(["a"], size=1)


def test_a_symbol_outside_the_vocabulary_is_named_where_there_is_no_unk() -> None:
    with pytest.raises(DataError, match=r"1 of 2 symbols .* the first is 'z'"):
        Vocabulary(("a",)).encode(["a", "z"])
    assert Vocabulary(("a", "<unk>")).encode(["a", "z"]).tolist() == [0, 1]


def test_your_own_text_is_cut_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("".join(f"line {k}\r\n" for k in range(20)).encode())
    data = text_file(path, "word", fraction=0.1, vocabulary_size=5)
    assert (len(data.train), len(data.valid), len(data.test)) == (16 * 3, 2 * 3, 2 * 3)
    assert data.vocabulary.symbols == ("<eos>", "line", "0", "1", "<unk>")
    assert data.vocabulary.decode(data.valid.tolist()) == ["line", "<unk>", "<eos>"] * 2
    characters = text_file(path, "char", valid=path, test=path)
    assert len(characters.train) == len(characters.valid) == 20 * 6 + 20 * 1 + 10
    assert "\r" not in characters.vocabulary.symbols


def test_a_text_is_cut_and_counted_as_usual_unless_told_otherwise(tmp_path: Path) -> None:
    """10,000 words, <eos> and <unk> among them; 5 % of the lines for each of validation and test."""
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"word{k}\n" for k in range(12_000)))
    data = text_file(path, "word")
    assert (len(data.train), len(data.valid), len(data.test)) == (10_800 * 2, 600 * 2, 600 * 2)
    assert len(data.vocabulary) == 10_000


@pytest.mark.parametrize("fraction", [-0.1, 0.0, 0.5])
def test_a_fraction_that_leaves_nothing_is_refused(tmp_path: Path, fraction: float) -> None:
    (tmp_path / "mine.txt").write_text("a b\n" * 100)
    with pytest.raises(DataError, match=rf"fraction is {fraction}; .* must be between 0 and 0\.5"):
        text_file(tmp_path / "mine.txt", "word", fraction=fraction)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"one line\n", "too few to cut off"), (b"\xff\xfe" * 40, "byte 0 is not UTF-8")],
)
def test_a_text_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        text_file(tmp_path / "bad.txt", "word")
    with pytest.raises(DataError, match=r"none\.txt: cannot be read"):
        text_file(tmp_path / "none.txt", "word")
    with pytest.raises(DataError, match=r"the valid text has 0 symbols"):
        from_texts("a b", "", "a b", "word")
