"""From a recipe to its data and its sparsifier: files, vectors, batches, options that arrive where they belong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tiny_corpora import tiny

from gatewise.sparsify import GroupLasso, Variational
from gatewise.sparsify.posterior import KL_FORMS
from gatewise.tasks.language import LanguageData, Windows
from gatewise.tasks.setup import build_model, load_data, make_feeds, make_sparsifier, pretrained
from gatewise.tasks.sources import DataError


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("words", "path"),
        ("words", "valid_path"),
        ("words", "test_path"),
        ("csv", "path"),
        ("csv", "test_path"),
        ("npz", "path"),
        ("npz", "valid_path"),
    ],
)
def test_a_missing_file_of_a_moved_run_says_where_it_was_looked_for(
    task: str, key: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_data(tiny(task, folder, f"data.{key}=t.txt"))
    assert str(caught.value) == (
        f"t.txt: cannot be read (No such file or directory). data.{key} is relative to the current folder, "
        f"{tmp_path}. In train and evaluate, --set data.{key}=... names another place."
    )


def test_a_whole_path_is_relative_to_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_data(tiny("words", folder, f"data.path={tmp_path / 't.txt'}"))
    assert str(caught.value) == (
        f"{tmp_path / 't.txt'}: cannot be read (No such file or directory). In train and evaluate, "
        "--set data.path=... names another place."
    )


def test_vectors_that_differ_from_the_published_ones_are_told(folder: Path) -> None:
    row = tiny("imdb", folder)
    corpus = load_data(row, folder)
    rows, coverage = pretrained(row, corpus, folder)
    assert rows is not None
    assert re.fullmatch(
        r"5 of \d+ words \(.*\) start from word2vec_googlenews_300d_subset\.npz: 5 as written, 0 by their lower-case "
        r"form; word2vec_googlenews_300d_subset\.npz is not the published file \(sha256:\w+, expected sha256:24bea.*",
        str(coverage),
    )
    assert coverage.to_dict()["note"] == coverage.note
    assert set(coverage.missing_words) == set(corpus.words) - {"the", "cat", "dog", "sat", "ran"}


def test_a_recipe_without_vectors_tells_nothing_about_them(folder: Path) -> None:
    row = tiny("agnews", folder)
    rows, coverage = pretrained(row, load_data(row, folder), folder)
    assert rows is None
    assert not coverage


def test_a_batch_of_characters_has_no_more_rows_than_there_are_chunks(folder: Path) -> None:
    row = tiny("char-ptb", folder, "data.batch=10000000")
    feeds = make_feeds(row, load_data(row, folder), torch.device("cpu"))
    assert feeds.train.n_batches == 1
    assert feeds.train.batch_size * 11 == feeds.n_train  # 11 targets in a chunk of 12


def test_training_drops_a_remainder_and_the_test_keeps_it(folder: Path) -> None:
    """The divisor of the KL counts the targets that are trained on; the test predicts every symbol but the first."""
    row = tiny("words", folder, "data.remainder=drop", "data.test_batch=1")
    corpus = load_data(row, folder)
    assert isinstance(corpus, LanguageData)
    feeds = make_feeds(row, corpus, torch.device("cpu"))
    assert feeds.n_train == Windows(corpus.train, 3, 6, "drop").n_targets
    tested = [feeds.test.fetch(torch.tensor([k])).weight.sum() for k in range(feeds.test.n_batches)]
    assert sum(tested) == len(corpus.test) - 1


def test_every_option_reaches_the_variational_sparsifier(folder: Path) -> None:
    """A warm-up of 1.5 epochs of 4 updates is one of 6 updates."""
    changes = ["kl=molchanov", "snr_threshold=0.2", "log_sigma=-2.0", "warm_up_epochs=1.5"]
    row = tiny("words", folder, *(f"sparsify.{change}" for change in changes))
    model = build_model(row, load_data(row, folder))
    sparsifier = make_sparsifier(row, model, n_train=10, updates_per_epoch=4)
    assert isinstance(sparsifier, Variational)
    assert sparsifier.warm_up == (0, 6)
    assert sparsifier.form == KL_FORMS["molchanov"]
    assert model.rnn.snr_threshold == 0.2
    assert (model.rnn.weight_hh_l0_log_sigma == -2).all()


def test_every_option_reaches_the_group_lasso(folder: Path) -> None:
    changes = ["method=group-lasso", "group=1e-3", "threshold=0.01", "l1=0.5"]
    row = tiny("words", folder, *(f"sparsify.{change}" for change in changes))
    sparsifier = make_sparsifier(row, build_model(row, load_data(row, folder)), 10, 4)
    assert isinstance(sparsifier, GroupLasso)
    assert (sparsifier.group, sparsifier.threshold, sparsifier.l1) == (1e-3, 0.01, 0.5)
