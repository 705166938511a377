"""The encoding: a model reads new data with the numbers that it was trained with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_corpora import table, tiny

import gatewise as gw
from gatewise.export import attached
from gatewise.lab.data.classification import TextRules, csv_texts
from gatewise.lab.data.corpus import load_data
from gatewise.lab.data.encoding import ENCODING, Encoding, content_of, encoding_of, load_encoding
from gatewise.lab.data.sources import DataError
from gatewise.lab.files import RunError
from gatewise.lab.finished.saved import evaluate_saved
from gatewise.lab.schema import parse
from gatewise.lab.training.trainer import Options, train

TASKS = ("word-ptb", "char-ptb", "words", "imdb", "agnews", "g2p", "csv", "npz", "series")


def tensors(corpus: Any) -> list[torch.Tensor]:
    parts = [corpus.train, corpus.valid, corpus.test]
    return [part.inputs if hasattr(part, "inputs") else part for part in parts]


def with_encoding(folder: Path, content: bytes) -> None:
    gw.save(torch.nn.Linear(1, 1), folder, attached={ENCODING: content})


@pytest.mark.parametrize("task", TASKS)
def test_what_is_read_back_reads_the_same_data_alike(task: str, folder: Path, tmp_path: Path) -> None:
    row = tiny(task, folder)
    corpus = load_data(row, folder)
    with_encoding(tmp_path, content_of(encoding_of(corpus)))
    kept = load_encoding(tmp_path)
    assert kept == encoding_of(corpus)
    again = load_data(row, folder, kept)
    assert all(torch.equal(a, b) for a, b in zip(tensors(corpus), tensors(again)))
    assert encoding_of(again) == kept


def test_rare_words_and_the_end_read_as_unknown() -> None:
    """List a b c </s> with vocab_size 5, as in the test of classification.encode; z leaves no trace."""
    kept = Encoding("texts", ("<pad>", "<start>", "<unk>", "a", "b"), ("c", "</s>"), 6, classes=("no", "yes"))
    assert kept.encode("a z b").tolist() == [1, 3, 4, 2]
    assert kept.encode("c a a a a a a").tolist() == [1, 2, 3, 3, 3, 3]
    with pytest.raises(DataError, match="none of the 3 words"):
        kept.encode("z z")


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text(table([["text", "label"], *map(list, rows)]))
    return path


def test_words_beyond_the_vocabulary_are_rare(tmp_path: Path) -> None:
    """vocab_size counts the three special ids: of 5, two words have one of their own, in training and afterwards."""
    path = write(tmp_path / "a.csv", [("a b c d", kind) for kind in "xy"] * 9)
    corpus = csv_texts(path, rules=TextRules(vocab_size=5))
    kept = encoding_of(corpus)
    assert (kept.symbols[3:], kept.rare) == (("a", "b"), ("c", "d", "</s>"))
    assert corpus.train.inputs[0].tolist() == kept.encode("a b c d").tolist() == [1, 3, 4, 2, 2, 2]


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that tells good words from bad ones, and data whose word and class orders are others."""
    home = tmp_path_factory.mktemp("mails")
    mine = [
        (f"{a} {a} {b}", label)
        for label, words in (("bad", ("awful", "poor")), ("good", ("fine", "nice")))
        for a in words
        for b in words
    ]
    write(home / "a.csv", mine * 12)
    # Other words are the frequent ones here: counted anew, every id would be another.
    theirs = [("nice fine zebra zebra", "good"), ("nice nice nice", "good"), ("poor poor", "bad")]
    write(home / "b.csv", theirs * 20)
    more = ["sparsify.method=none", f"data.path={home / 'a.csv'}", "train.epochs=30", "train.lr=0.05"]
    train(tiny("csv", home, *more), Options(home / "run", None, "cpu", quiet=True))
    return home


def test_other_data_are_read_with_the_words_of_training(mails: Path) -> None:
    own, _ = evaluate_saved(mails / "run")
    assert own["test_accuracy"] == 100
    for change in ("data.path", "data.test_path"):
        other, _ = evaluate_saved(mails / "run", changes=[f"{change}={mails / 'b.csv'}"])
        assert other["test_accuracy"] == 100
    one_class = write(mails / "one.csv", [("nice", "good")] * 20)  # the second of the model's, not the first
    other, _ = evaluate_saved(mails / "run", changes=[f"data.path={one_class}"])
    assert other["test_accuracy"] == 100


def test_validation_is_never_on_what_was_trained_on(mails: Path) -> None:
    """With a test file the rest is all the rows, so validation would be cut where training was."""
    for change, left_out in (
        (f"data.test_path={mails / 'b.csv'}", True),
        (f"data.path={mails / 'b.csv'}", False),
    ):
        found, _ = evaluate_saved(mails / "run", changes=[change])
        assert ("valid_accuracy" not in found) == ("no validation quality" in found["note"]) == left_out
        assert found["test_accuracy"] == 100
    with pytest.raises(
        ValueError, match=r"data\.valid_fraction = 0\.5, but .*a\.csv was cut by the default for"
    ):
        evaluate_saved(mails / "run", changes=["data.valid_fraction=0.5"])


def test_a_new_text_for_the_engine(mails: Path) -> None:
    """What the documentation shows: ids without padding, and a class by its name."""
    kept, engine = load_encoding(mails / "run"), gw.Engine(gw.load(mails / "run"))
    assert kept is not None
    for text, label in (("fine nice", "good"), ("poor, and awful", "bad")):
        scores, _ = engine(kept.encode(text)[None])
        assert kept.decode(scores[0]) == label


def test_a_class_that_the_model_does_not_know_is_named(mails: Path) -> None:
    new = write(mails / "c.csv", [("fine", "good"), ("so so", "middling")] * 9)
    with pytest.raises(
        DataError, match="class 'middling' is not among the 2 classes of the model: bad, good"
    ):
        evaluate_saved(mails / "run", changes=[f"data.test_path={new}"])


def test_the_rules_of_training_cannot_be_changed(mails: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.lower = True, but the model was trained with False"):
        evaluate_saved(mails / "run", changes=["data.lower=true"])
    with pytest.raises(ValueError, match=r"reads texts, not characters"):
        evaluate_saved(mails / "run", "ptb-char-original")


def test_lower_case_is_a_rule_of_training(tmp_path: Path) -> None:
    """Words are counted, training texts and new ones read alike."""
    path = write(tmp_path / "a.csv", [("Fine DAY", "a"), ("fine night", "b")] * 9)
    corpus = load_data(tiny("csv", tmp_path, f"data.path={path}", "data.lower=true"))
    assert set(corpus.listed) == {"fine", "day", "night", "</s>"}
    assert set(corpus.train.lengths.tolist()) == {4}
    kept = encoding_of(corpus)
    assert kept.lower
    assert kept.encode("FINE day").tolist() == kept.encode("fine DAY").tolist()
    assert len(kept.encode("FINE day")) == 4


def test_a_recipe_without_a_length_takes_that_of_the_model(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [("fine day today", "a"), ("fine night today", "b")] * 9)
    kept = encoding_of(csv_texts(path, rules=TextRules(max_len=3)))
    data = {"task": "csv", "path": str(path), "batch": 8}
    row = parse({"data": data, "model": {"hidden": 4}, "train": {"epochs": 1, "lr": 1.0}})
    assert load_data(row, encoding=kept).test.inputs.shape[1] == 3


def test_a_corpus_of_other_classes_is_refused(folder: Path) -> None:
    row = tiny("imdb", folder)
    other = replace(encoding_of(load_data(row, folder)), classes=("bad", "good"))
    with pytest.raises(DataError, match=r"imdb: has the classes .*'positive'\); the model knows .*'good'\)"):
        load_data(row, folder, other)


def test_a_model_without_an_encoding_counts_its_words_again(folder: Path, tmp_path: Path) -> None:
    train(tiny("csv", folder), Options(tmp_path, None, "cpu", quiet=True))
    before, _ = evaluate_saved(tmp_path)
    assert attached(tmp_path).keys() == {ENCODING}
    gw.save(gw.load(tmp_path), tmp_path)
    assert attached(tmp_path) == {}
    assert evaluate_saved(tmp_path)[0] == before


@pytest.mark.parametrize("change", [
    {"symbols": 7}, {"symbols": [1, 2]}, {"max_len": "9"}, {"kind": "music"}, {"mean": [None]}, {"new": 1},
    {"lower": "yes"},
])  # fmt: skip
def test_an_encoding_of_other_types_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    fields = Encoding("texts", ("<pad>", "<start>", "<unk>", "a"), max_len=9).to_dict()
    with_encoding(tmp_path, json.dumps(fields | change).encode())
    with pytest.raises(RunError, match=r"its encoding\.json is not the encoding of a model"):
        load_encoding(tmp_path)


def test_words_outside_the_vocabulary_are_unknown_and_characters_an_error(folder: Path) -> None:
    words = encoding_of(load_data(tiny("words", folder), folder))
    ids = words.encode("the zebra\n")
    assert [words.symbols[k] for k in ids] == ["the", "<unk>", "<eos>"]
    characters = encoding_of(load_data(tiny("char-ptb", folder), folder))
    with pytest.raises(DataError, match="the first is 'z'"):
        characters.encode("zoo")
    assert characters.decode(np.eye(len(characters.symbols))[3]) == characters.symbols[3]


def test_numbers_are_scaled_as_in_training(folder: Path, tmp_path: Path) -> None:
    """Tomorrow's sensor may have another mean; the model was trained with the old one."""
    row = tiny("series", folder)
    corpus = load_data(row, folder)
    kept = encoding_of(corpus)
    series = np.sin(np.arange(120) / 5)
    expected = (series[:, None] - corpus.mean.numpy()) / corpus.scale.numpy()
    np.testing.assert_array_equal(kept.encode(series), expected.astype(np.float32))
    np.testing.assert_allclose(kept.decode(kept.encode(series)[7]), series[7:8], rtol=1e-5)
    np.savez(tmp_path / "shifted.npz", series=series + 5)
    other = load_data(tiny("series", folder, f"data.path={tmp_path / 'shifted.npz'}"), folder, kept)
    first = corpus.train.inputs + 5 / corpus.scale.float()
    torch.testing.assert_close(other.train.inputs, first, rtol=1e-4, atol=1e-4)
    assert "mse is of scaled numbers" in corpus.note
    np.savez(tmp_path / "wide.npz", series=np.zeros((120, 3)))
    with pytest.raises(DataError, match="has 3 numbers a step; the model was trained with 1"):
        load_data(tiny("series", folder, f"data.path={tmp_path / 'wide.npz'}"), folder, kept)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (4, 2), ()])
def test_numbers_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    """Broadcasting would make three inputs of one."""
    kept = Encoding("numbers", mean=(1.0, 2.0, 3.0), scale=(1.0, 1.0, 2.0))
    with pytest.raises(DataError, match=r"it reads 3 inputs a step, so they must be \(T, 3\)"):
        kept.encode(np.ones(shape))
    np.testing.assert_array_equal(kept.encode(np.ones((1, 3))), [[0, -1, -1]])


def test_large_numbers_keep_their_differences() -> None:
    """A date in seconds has more digits than float32; what is left without the mean has few."""
    seconds = 1.7e9 + np.arange(5.0)
    kept = Encoding("numbers", mean=(1.7e9 + 2,), scale=(1.0,), next_step=True)
    np.testing.assert_array_equal(kept.encode(seconds)[:, 0], [-2, -1, 0, 1, 2])
    np.testing.assert_array_equal(kept.decode(kept.encode(seconds)[4]), seconds[4:])


@pytest.mark.parametrize("shape", [(2, 1), (1, 1), ()])
def test_only_the_output_of_one_step_is_decoded(shape: tuple[int, ...]) -> None:
    """Of a batch the first alone would be told."""
    kept = Encoding("numbers", classes=("no", "yes"), mean=(0.0,), scale=(1.0,))
    with pytest.raises(
        DataError, match=r"is not that of one step of one sequence, \(O,\)\. Decode one after"
    ):
        kept.decode(np.ones(shape))
    assert kept.decode(np.ones(1)) == "yes"


def test_lines_end_as_in_training() -> None:
    kept = Encoding("characters", ("\n", "e", "h", "t"))
    assert kept.encode("the\r\n").tolist() == kept.encode("the\n").tolist() == [3, 2, 1, 0]


def test_parts_of_numbers_have_files_of_their_own(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Scaled and numbered as the training part is; `~` is the home as everywhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    corpus = load_data(tiny("npz", folder), folder)
    x, y = np.random.RandomState(2).randn(7, 6, 2), np.array([1, 2, 0, 1, 2, 0, 1])
    np.savez(tmp_path / "more.npz", x=x, y=y)
    for split in ("valid", "test"):
        row = tiny("npz", folder, f"data.{split}_path=~/more.npz")
        part = getattr(load_data(row, folder, encoding_of(corpus)), split)
        assert part.targets.tolist() == y.tolist()
        np.testing.assert_array_equal(part.inputs[3], encoding_of(corpus).encode(x[3]))
        with pytest.raises(DataError, match=r"none\.npz: cannot be read"):
            load_data(tiny("npz", folder, f"data.{split}_path=none.npz"), folder)


def test_files_of_texts_may_lie_at_home(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "b.txt").write_bytes((folder / "own.txt").read_bytes())
    (tmp_path / "b.csv").write_bytes((folder / "own.csv").read_bytes())
    files = ("data.valid_path=~/b.txt", "data.test_path=~/b.txt")
    found = load_data(tiny("words", folder, *files), folder)
    assert torch.equal(found.valid, found.test)
    assert len(load_data(tiny("csv", folder, "data.test_path=~/b.csv"), folder).test) == 24


def test_classes_of_numbers_go_by_name(folder: Path, tmp_path: Path) -> None:
    kept = encoding_of(load_data(tiny("npz", folder), folder))
    assert kept.classes == ("0", "1", "2")
    x = np.zeros((20, 6, 2))
    np.savez(tmp_path / "two.npz", x=x, y=np.full(20, 2))
    other = load_data(tiny("npz", folder, f"data.path={tmp_path / 'two.npz'}"), folder, kept)
    assert set(other.test.targets.tolist()) == {2}
    np.savez(tmp_path / "two.npz", x=x, y=np.full(20, 7))
    with pytest.raises(DataError, match="y has class 7, which the model does not know"):
        load_data(tiny("npz", folder, f"data.path={tmp_path / 'two.npz'}"), folder, kept)


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    """Whoever reads it in C or JavaScript finds symbols in the order of their ids."""
    path = write(tmp_path / "a.csv", [("hello world", "a"), ("hello moon", "b")] * 9)
    found = json.loads(content_of(encoding_of(csv_texts(path, rules=TextRules(max_len=9)))))
    symbols = ["<pad>", "<start>", "<unk>", "hello", "moon", "world", "</s>"]
    assert found | {"symbols": sorted(found["symbols"])} == {
        "kind": "texts",
        "symbols": sorted(symbols),
        "max_len": 9,
        "classes": ["a", "b"],
    }
    assert found["symbols"][:4] == symbols[:4]
    with_encoding(tmp_path, b'{"kind": "texts", "colour": 3}')
    with pytest.raises(RunError, match=r"its encoding\.json is not the encoding of a model"):
        load_encoding(tmp_path)
