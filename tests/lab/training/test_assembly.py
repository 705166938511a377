"""From a recipe and its data to batches and a sparsifier: options arrive where they belong."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_corpora import tiny

from gatewise.lab.data.corpus import load_data
from gatewise.lab.data.cuts import Windows
from gatewise.lab.data.language import LanguageData
from gatewise.lab.training.assembly import build_model, make_feeds, make_sparsifier
from gatewise.sparsify import GroupLasso, Variational


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
    changes = ["snr_threshold=0.2", "log_sigma=-2.0", "warm_up_epochs=1.5"]
    row = tiny("words", folder, *(f"sparsify.{change}" for change in changes))
    model = build_model(row, load_data(row, folder))
    sparsifier = make_sparsifier(row, model, n_train=10, updates_per_epoch=4)
    assert isinstance(sparsifier, Variational)
    assert sparsifier.warm_up == (0, 6)
    assert model.rnn.snr_threshold == 0.2
    assert (model.rnn.weight_hh_l0_log_sigma == -2).all()


def test_every_option_reaches_the_group_lasso(folder: Path) -> None:
    changes = ["method=group-lasso", "group=1e-3", "threshold=0.01", "l1=0.5"]
    row = tiny("words", folder, *(f"sparsify.{change}" for change in changes))
    sparsifier = make_sparsifier(row, build_model(row, load_data(row, folder)), 10, 4)
    assert isinstance(sparsifier, GroupLasso)
    assert (sparsifier.group, sparsifier.threshold, sparsifier.l1) == (1e-3, 0.01, 0.5)
