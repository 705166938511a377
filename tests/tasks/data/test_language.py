"""Streams, windows with carried state, and chunks, worked out by hand on a few symbols."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.tasks import epoch_generator
from gatewise.tasks.data import sources
from gatewise.tasks.data.language import (
    Chunks,
    Vocabulary,
    Windows,
    char_ptb,
    from_texts,
    spell,
    text_file,
    word_ptb,
    word_vocabulary,
    words_of,
)
from gatewise.tasks.data.sources import DataError

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


def test_characters_come_from_either_kind_of_file(tmp_path: Path) -> None:
    """The character files are the word files spelled out, a blank after every character."""
    (tmp_path / "words").mkdir()
    (tmp_path / "spelled").mkdir()
    from_words = char_ptb(write_ptb(tmp_path / "words"))
    for split, text in WORDS.items():
        written = "".join(character + " " for character in spell(text))
        (tmp_path / "spelled" / f"ptb.char.{split}.txt").write_text(written)
    from_characters = char_ptb(tmp_path / "spelled")
    assert "".join(from_words.vocabulary.decode(from_words.train.tolist())) == "b_a_b\nb_c_<unk>\n"
    assert from_words.vocabulary == from_characters.vocabulary
    assert torch.equal(from_words.train, from_characters.train)
    assert torch.equal(from_words.test, from_characters.test)


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


def test_windows_drop_the_remainder_as_wen_does() -> None:
    """17 symbols, 2 rows of 8, windows of 3: 7 // 3 = 2 windows; symbol 16 and one target a row are lost."""
    windows = Windows(torch.arange(17), batch_size=2, steps=3)
    (x0, y0), (x1, y1) = windows.windows()
    assert x0.tolist() == [[0, 8], [1, 9], [2, 10]]
    assert y0.tolist() == [[1, 9], [2, 10], [3, 11]]
    assert x1.tolist() == [[3, 11], [4, 12], [5, 13]]  # goes on where x0 ended: the state is carried
    assert y1.tolist() == [[4, 12], [5, 13], [6, 14]]
    assert windows.n_targets == 12


def test_windows_keep_a_shorter_last_one_as_the_authors_do() -> None:
    windows = Windows(torch.arange(17), batch_size=2, steps=3, remainder="keep")
    assert len(windows) == 3
    *_, (x, y) = windows.windows()
    assert x.tolist() == [[6, 14]]
    assert y.tolist() == [[7, 15]]
    assert windows.n_targets == 14  # B * (L - 1), the divisor of the KL


def test_a_kept_window_of_fixed_shape_is_filled_at_weight_zero() -> None:
    windows = Windows(torch.arange(17), batch_size=2, steps=3, remainder="keep")
    x, y, weight = windows.stacked()
    assert x.shape == y.shape == (3, 3, 2)
    assert weight.tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert x[2, 0].tolist() == [6, 14]
    assert y[2, 0].tolist() == [7, 15]


def test_windows_of_a_stream_are_views_of_one_tensor() -> None:
    windows = Windows(torch.arange(1000), batch_size=4, steps=7)
    x, y, _ = windows.stacked()
    first, _ = next(windows.windows())
    assert x.data_ptr() == first.data_ptr() == windows.rows.data_ptr()
    assert y.data_ptr() == windows.rows[1].data_ptr()


def test_testing_word_by_word_predicts_every_symbol_but_the_first() -> None:
    """Batch 1 over the whole stream; the length of a window does not matter."""
    for steps in (1, 4, 100):
        pairs = list(Windows(torch.arange(10), 1, steps, "keep").windows())
        assert torch.cat([x for x, _ in pairs]).flatten().tolist() == list(range(9))
        assert torch.cat([y for _, y in pairs]).flatten().tolist() == list(range(1, 10))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 200), batch=st.integers(1, 7), steps=st.integers(1, 40))
def test_both_forms_of_windows_agree(n: int, batch: int, steps: int) -> None:
    """Stacked windows hold what the iterator yields."""
    if n // batch < 2:
        return
    windows = Windows(torch.arange(n), batch, steps, "keep")
    x, y, weight = windows.stacked()
    assert int(weight.sum()) * batch == windows.n_targets == batch * (n // batch - 1)
    for k, (xk, yk) in enumerate(windows.windows()):
        real = len(xk)
        assert torch.equal(x[k, :real], xk)
        assert torch.equal(y[k, :real], yk)
        assert torch.equal(yk, xk + 1)
        assert weight[k].tolist() == [1.0] * real + [0.0] * (steps - real)


def test_windows_that_do_not_fit_say_so() -> None:
    with pytest.raises(DataError, match="10 symbols in 4 rows leave 1 target a row"):
        Windows(torch.arange(10), 4, 5)
    with pytest.raises(DataError, match="remainder is 'cut'"):
        Windows(torch.arange(10), 2, 2, "cut")  # type: ignore[arg-type]
    for batch, steps in ((0, 2), (2, 0)):
        with pytest.raises(DataError, match=f"batch_size is {batch} and steps is {steps}; both must be"):
            Windows(torch.arange(10), batch, steps)


def test_chunks_in_order_from_zero_for_evaluation() -> None:
    """25 symbols in chunks of 4: 25 // 4 - 1 = 5 chunks, 3 targets each; batches of 2, the last one filled up."""
    chunks = Chunks(torch.arange(25), length=4, batch_size=2)
    assert (chunks.n_chunks, len(chunks), chunks.n_targets, chunks.max_offset) == (5, 3, 15, 5)
    plan = chunks.epoch()
    assert plan.index.tolist() == [[0, 4], [8, 12], [16, 0]]
    assert plan.weight.tolist() == [[1, 1], [1, 1], [1, 0]]
    x, y = chunks.batch(plan.index[0])
    assert x.tolist() == [[0, 4], [1, 5], [2, 6]]
    assert y.tolist() == [[1, 5], [2, 6], [3, 7]]
    x, y = chunks.batch(plan.index[2])
    assert x[:, 0].tolist() == [16, 17, 18]
    assert y[:, 0].tolist() == [17, 18, 19]


def test_a_batch_has_no_more_rows_than_there_are_chunks() -> None:
    """As with texts: a batch of ten million rows, all but 5 of weight 0, would never be computed."""
    chunks = Chunks(torch.arange(25), length=4, batch_size=10_000_000)
    assert (chunks.batch_size, len(chunks), chunks.n_targets) == (5, 1, 15)
    assert chunks.epoch().index.tolist() == [[0, 4, 8, 12, 16]]
    assert chunks.epoch(epoch_generator(0, 1)).weight.tolist() == [[1, 1, 1, 1, 1]]


def test_damaged_character_files_of_the_cache_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GATEWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nowhere = replace(sources.PUBLISHED["ptb.char.train"], url=(tmp_path / "none").as_uri())
    monkeypatch.setitem(sources.PUBLISHED, "ptb.char.train", nowhere)
    (tmp_path / "gatewise").mkdir()
    (tmp_path / "gatewise" / "ptb.char.train.txt").write_text("a b ")
    with pytest.raises(DataError, match=r"ptb\.char\.train\.txt in the download cache has the sum"):
        char_ptb()


def test_chunks_of_an_epoch_share_one_offset_and_each_comes_once() -> None:
    chunks = Chunks(torch.arange(25), length=4, batch_size=2)
    offsets = set()
    for epoch in range(60):
        plan = chunks.epoch(epoch_generator(0, epoch))
        first = plan.index[plan.weight == 1]
        offset = int(first.min())
        offsets.add(offset)
        assert sorted(first.tolist()) == [offset + 4 * k for k in range(5)]
        assert int(chunks.batch(first)[1].max()) < 25
    assert offsets == set(range(5))  # [0, N - chunks * L), the last excluded as in the authors' code


def test_an_epoch_depends_on_seed_and_number_only() -> None:
    """A run resumed at epoch 7 sees the chunks that an unbroken one saw there."""
    chunks = Chunks(torch.arange(1000), length=10, batch_size=8)
    unbroken = [chunks.epoch(epoch_generator(3, epoch)) for epoch in range(9)]
    resumed = chunks.epoch(epoch_generator(3, 7))
    assert torch.equal(unbroken[7].index, resumed.index)
    assert not torch.equal(unbroken[6].index, resumed.index)
    assert not torch.equal(chunks.epoch(epoch_generator(4, 7)).index, resumed.index)


def test_a_stream_too_short_for_chunks_says_so() -> None:
    with pytest.raises(DataError, match="19 symbols are too few for chunks of 10"):
        Chunks(torch.arange(19), length=10)
    with pytest.raises(DataError, match="length is 1; a chunk needs at least one input and one target"):
        Chunks(torch.arange(19), length=1)
