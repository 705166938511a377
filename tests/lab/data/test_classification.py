"""IMDb, AG News and CSV files: the authors' preparation, worked out by hand on tiny texts."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gatewise.lab.data.classification import (
    TextData,
    TextRules,
    ag_news,
    csv_texts,
    encode,
    imdb,
    prepare,
    word_list,
)
from gatewise.lab.data.corpus import describe
from gatewise.lab.data.sources import DataError
from gatewise.lab.data.texts import Texts, imdb_reviews, subset_note

SEED_113_OF_10 = [9, 3, 6, 1, 0, 7, 4, 8, 2, 5]  # np.random.seed(113), then np.random.shuffle(np.arange(10))
SEED_113_THEN_4 = [1, 3, 0, 2]  # and the shuffle of np.arange(4) after it


def test_words_must_be_in_two_texts_and_keep_their_case() -> None:
    """`film` is in two texts (4 times), `The` and `br` in two (2 times each); `rare rare` is twice in one text."""
    texts = ["The film, film.<br />film", "The film<br />!", "rare rare the"]
    assert word_list(texts) == ["film", "The", "br", "</s>"]
    assert word_list(texts, lower=True) == ["film", "the", "br", "</s>"]
    assert word_list(texts, at_most=1) == ["film", "</s>"]


def test_a_text_becomes_start_words_end_padded_on_the_left() -> None:
    """List a b c </s>: ids a 3, b 4, c 5, </s> 6; with vocab_size 5, c and </s> are unknown; z leaves no trace."""
    rules = TextRules(max_len=6, vocab_size=5)
    rows, skipped = encode(Texts(["a z b", "c a"], [1, 0]), ["a", "b", "c", "</s>"], rules)
    assert rows.inputs.tolist() == [[0, 0, 1, 3, 4, 2], [0, 0, 1, 2, 3, 2]]
    assert rows.lengths.tolist() == [4, 4]
    assert rows.mask().int().tolist() == [[0, 0, 1, 1, 1, 1]] * 2
    assert rows.targets.tolist() == [1, 0]
    assert skipped == 0


def test_a_long_text_keeps_its_first_tokens_start_included() -> None:
    rules = TextRules(max_len=3)
    rows, _ = encode(Texts(["a b a a a"], [0]), ["a", "b", "</s>"], rules)
    assert rows.inputs.tolist() == [[1, 3, 4]]
    assert rows.lengths.tolist() == [3]


def test_a_text_without_a_listed_word_is_left_out_and_counted() -> None:
    rows, skipped = encode(Texts(["z", "a", "..."], [1, 0, 1]), ["a", "</s>"], TextRules(max_len=4))
    assert rows.inputs.tolist() == [[0, 1, 3, 4]]
    assert rows.targets.tolist() == [0]
    assert skipped == 2


def test_both_sets_are_shuffled_from_seed_113_and_valid_is_the_end_of_train() -> None:
    """One generator, train first, as in the authors' loader; 15 % of 10 rows: int(0.85 * 10) = 8 stay."""
    words = [f"w{k}" for k in range(10)]
    train = Texts([f"{word}" for word in words], [k % 2 for k in range(10)])
    test = Texts(words[:4], [0, 0, 1, 1])
    data = prepare(train, test, TextRules(max_len=3), ("a", "b"), [*words, "</s>"])
    order = (torch.cat([data.train.inputs, data.valid.inputs])[:, 1] - 3).tolist()
    assert order == SEED_113_OF_10
    assert (data.test.inputs[:, 1] - 3).tolist() == SEED_113_THEN_4
    assert (len(data.train), len(data.valid)) == (8, 2)
    assert data.train.targets.tolist() == [k % 2 for k in order[:8]]


def write_csv(path: Path, rows: list[list[str]], quote: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL, lineterminator="\n").writerows(
        rows
    )
    content = text.getvalue().encode()
    if path.suffix == ".xz":
        content = lzma.compress(content)
    elif path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


REVIEWS = {
    ("train", "neg", 0): "Bad film",
    ("train", "neg", 10): "bad plot",
    ("train", "neg", 2): "a film",
    ("train", "pos", 1): "Good film",
    ("train", "pos", 11): "a good plot",
    ("test", "pos", 0): "good",
    ("test", "neg", 3): "bad",
}


def test_imdb_is_the_same_from_csv_folder_and_archive(tmp_path: Path) -> None:
    """Three layouts, one order: positive before negative, each by number and not by the spelling of the number."""
    for split in ("train", "test"):
        rows = [["id", "rating", "label", "text"]]
        rows += [[str(k), "7", str(int(s == "pos")), t] for (p, s, k), t in REVIEWS.items() if p == split]
        write_csv(tmp_path / "table" / "imdb" / f"{split}.csv.xz", rows, quote=False)
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "aclImdb_v1.tar.gz", "w:gz") as archive:
        for (split, sentiment, number), text in REVIEWS.items():
            path = tmp_path / "folder" / "aclImdb" / split / sentiment / f"{number}_7.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            archive.add(path, f"aclImdb/{split}/{sentiment}/{number}_7.txt")
        unlabelled = tmp_path / "unlabelled.txt"
        unlabelled.write_text("no class")
        archive.add(unlabelled, "aclImdb/train/unsup/0_0.txt")
    for layout in ("table", "folder", "packed"):
        train, test = imdb_reviews(tmp_path / layout)
        assert list(train.texts) == ["Good film", "a good plot", "Bad film", "a film", "bad plot"]
        assert list(train.labels) == [1, 1, 0, 0, 0]
        assert list(test.texts) == ["good", "bad"]


def test_imdb_takes_the_authors_list_or_counts_its_own(tmp_path: Path) -> None:
    for (split, sentiment, number), text in REVIEWS.items():
        path = tmp_path / "aclImdb" / split / sentiment / f"{number}_7.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + " film")
    with pytest.raises(DataError, match=r"imdb_words\.txt is not in .* --set data\.vocabulary=train\."):
        imdb(tmp_path)
    assert imdb(tmp_path, vocabulary="train").words == ("film", "a", "plot", "</s>")
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "imdb_words.txt").write_text("film\ngood\n</s>")
    data = imdb(tmp_path)
    assert data.words == ("film", "good", "</s>")
    assert data.embedding_rows == 6
    assert "imdb_words.txt is not the published file" in data.note


@pytest.mark.parametrize("corpus", [imdb, ag_news])
@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_another_word_list_is_no_advice_where_the_texts_are_missing(
    tmp_path: Path, corpus: Callable[[Path], TextData], folder: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"no such folder|(aclImdb_v1\.tar\.gz|train\.csv) is not in"
    ) as caught:
        corpus(tmp_path / folder)
    assert "vocabulary" not in str(caught.value)


def ag_news_folder(folder: Path, *trains: str) -> Path:
    for name in ("test.csv", *trains):
        origin = name.split(".")[0]
        rows = [[str(k % 4 + 1), f"{origin} title", f"news #39;{k}"] for k in range(8)]
        write_csv(folder / "ag_news_csv" / name, rows)
    return folder


def test_ag_news_loses_the_first_row_as_the_authors_did(tmp_path: Path) -> None:
    """Classes 1 to 4 become 0 to 3; title and description are joined, entities stay as they are (`39`)."""
    folder = ag_news_folder(tmp_path, "train.csv")
    data = ag_news(folder, vocabulary="train")
    assert len(data.train) + len(data.valid) == len(data.test) == 7
    assert data.words == ("39", "news", "title", "train", "</s>")
    targets = torch.cat([data.train.targets, data.valid.targets])
    assert targets.bincount().tolist() == [1, 2, 2, 2]
    whole = ag_news(folder, vocabulary="train", lose_first_row=False)
    assert len(whole.train) + len(whole.valid) == len(whole.test) == 8
    assert data.train.inputs.shape[1] == 100


def test_the_official_training_file_is_preferred_over_the_subset(tmp_path: Path) -> None:
    folder = ag_news_folder(tmp_path, "train.csv", "train_subset.csv.xz")
    data = ag_news(folder, vocabulary="train")
    assert "train" in data.words
    assert "train_subset" not in data.words
    assert "trained on" not in data.note
    for file in ("train.csv", "test.csv"):  # these few rows are neither
        assert f"{file} is not the published file" in data.note


def test_the_subset_is_taken_whole_and_every_result_must_say_so(tmp_path: Path) -> None:
    data = ag_news(ag_news_folder(tmp_path, "train_subset.csv.xz"), vocabulary="train")
    assert len(data.train) + len(data.valid) == 8
    assert data.note.startswith("trained on 0 % of the training rows (8 of 120,000)")
    assert subset_note(69_659) == "trained on 58 % of the training rows (69,659 of 120,000)"


def test_a_row_that_is_not_ag_news_is_named(tmp_path: Path) -> None:
    folder = ag_news_folder(tmp_path, "train.csv")
    write_csv(folder / "ag_news_csv" / "train.csv", [["1", "a", "b"], ["1", "a", "b"], ["5", "a", "b"]])
    with pytest.raises(DataError, match=r"train\.csv: row 3 is not `class 1 to 4"):
        ag_news(folder, vocabulary="train")


def own_rows(n: int) -> list[list[str]]:
    return [[str(k), "spam" if k % 3 == 0 else "ham", f"Hello number {k % 2}"] for k in range(n)]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.xz"])
def test_your_own_csv_by_name_and_by_position(tmp_path: Path, suffix: str) -> None:
    """The same rows with a header and columns by name, and without one and columns by position."""
    named = write_csv(tmp_path / f"named{suffix}", [["id", "kind", "message"], *own_rows(40)])
    bare = write_csv(tmp_path / f"bare{suffix}", own_rows(40))
    rules = TextRules(max_len=6, valid_fraction=0.25)
    first = csv_texts(named, text="message", label="kind", rules=rules)
    second = csv_texts(bare, text=2, label=1, rules=rules)
    assert first.classes == ("ham", "spam")
    assert (len(first.train), len(first.valid), len(first.test)) == (27, 9, 4)
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(first.test.targets, second.test.targets)
    assert set(first.words) == {"Hello", "number", "0", "1", "</s>"}
    assert first.embedding_rows == 8
    assert first.train.inputs.max() == 7  # with a short list, </s> has an id of its own


def test_your_own_test_file_and_joined_columns(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", own_rows(10))
    test = write_csv(tmp_path / "test.csv", own_rows(4))
    data = csv_texts(train, text=[1, 2], label=1, test=test)
    assert len(data.test) == 4
    assert "ham" in data.words
    write_csv(tmp_path / "test.csv", [["0", "eggs", "Hello"]])
    with pytest.raises(DataError, match=r"class 'eggs' is not among the 2 classes"):
        csv_texts(train, text=2, label=1, test=test)


def test_a_csv_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    with pytest.raises(DataError, match=r"bad\.csv: cannot be read"):
        csv_texts(path)
    write_csv(path, [["a", "b"], ["x", "y"]])
    with pytest.raises(
        DataError, match=r"no column 'text'; the header names 'a', 'b'.*every column by its position"
    ):
        csv_texts(path)
    with pytest.raises(DataError, match=r"line 1 has 2 columns; columns \[0, 5\]"):
        csv_texts(path, text=0, label=5)
    path.write_text("text;label\nx;1\ny;2\n")
    with pytest.raises(DataError, match=r"the header names 'text;label'\. .*with commas between its columns"):
        csv_texts(path)
    write_csv(path, [["text", "label"], ["x", "1"], ["y", " "]])
    with pytest.raises(DataError, match=r"line 3 has no class"):
        csv_texts(path)
    write_csv(path, [["text", "label"], ["x", "1"], ["y", "1"]])
    with pytest.raises(DataError, match=r"column 'label' holds 1 class"):
        csv_texts(path)
    write_csv(path, [["text", "label"]])
    with pytest.raises(DataError, match=r"there are no rows"):
        csv_texts(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.csv: is empty"):
        csv_texts(path)
    path.write_bytes("text,label\nx,1\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"line 1 holds a NUL byte.*Convert the file to UTF-8"):
        csv_texts(path)
    path.write_text('text,label\n"two\nlines",a\n\nhello, world,b\n')
    with pytest.raises(DataError, match=r"line 5 has 3 columns, the first line 2\. Put a text with commas"):
        csv_texts(path)
    path.write_bytes(b"text,label\n\xff,1\n")
    with pytest.raises(DataError, match=r"byte 11 is not UTF-8"):
        csv_texts(path)
    write_csv(path, [["text", "label"], *[[f"word{k}", str(k % 2)] for k in range(10)]])
    with pytest.raises(DataError, match=r"0 of the 9 train texts have a word of the list of 0"):
        csv_texts(path)
    (tmp_path / "bad.csv.xz").write_bytes(b"not xz")
    with pytest.raises(DataError, match=r"bad\.csv\.xz: cannot be unpacked"):
        csv_texts(tmp_path / "bad.csv.xz")


def test_blanks_around_the_names_of_columns_do_not_matter(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [["text", " label "], *[["hello", str(k % 2)] for k in range(20)]])
    assert csv_texts(path).classes == ("0", "1")


def test_a_class_that_training_never_sees_is_refused(tmp_path: Path) -> None:
    """As of numbers; a trained model knows its classes, so that the same rows may be evaluated."""
    rows = [["hello", str(k % 2)] for k in range(20)]
    order = np.random.RandomState(113).permutation(20)
    rows[order[-1]][1] = "rare"  # in the test part
    path = write_csv(tmp_path / "a.csv", [["text", "label"], *rows])
    with pytest.raises(
        DataError, match=r"have 2 of the 3 classes; training must see them all, class 'rare' too"
    ):
        csv_texts(path)
    assert csv_texts(path, classes=("0", "1", "rare")).test.targets.max() == 2


def test_a_text_may_be_long(tmp_path: Path) -> None:
    """Longer than the 131,072 characters that csv allows by default; the limit of others is left as it was."""
    limit = csv.field_size_limit()
    rows = [["word " * 40_000, str(k % 2)] for k in range(20)]
    data = csv_texts(write_csv(tmp_path / "a.csv", [["text", "label"], *rows]))
    assert data.train.lengths.tolist() == [200] * len(data.train)
    assert csv.field_size_limit() == limit


def test_texts_that_are_left_out_are_told(tmp_path: Path) -> None:
    """Accuracy is over the texts that are left, and whoever reads it must know."""
    rows = [["hello", "a"], ["hello", "b"]] * 40 + [[f"once{k}", "b"] for k in range(20)]
    data = csv_texts(write_csv(tmp_path / "a.csv", [["text", "label"], *rows]))
    left_out = sum(data.skipped.values())
    assert left_out == 20
    assert data.note.startswith(f"left out: {data.skipped['train']} of 90 texts for training")
    assert "texts (20 left out), " in describe(data)


def test_rows_are_as_wide_as_the_longest_text(tmp_path: Path) -> None:
    """Padding is computed, too; what a row holds does not change."""
    path = write_csv(tmp_path / "own.csv", [["id", "label", "text"], *own_rows(40)])
    data = csv_texts(path)
    assert {part.inputs.shape[1] for part in (data.train, data.valid, data.test)} == {5}
    assert bool((data.train.lengths == 5).all())
    assert data.rules.max_len == 200


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match=r"valid_fraction 1\.5"):
        TextRules(valid_fraction=1.5)


def test_a_validation_part_that_leaves_no_text_for_training_is_refused() -> None:
    texts = Texts(["a", "a"], [0, 1])
    with pytest.raises(DataError, match=r"valid_fraction 0\.9 of 2 texts leaves none for training"):
        prepare(texts, texts, TextRules(valid_fraction=0.9), ("no", "yes"), ["a", "</s>"])
