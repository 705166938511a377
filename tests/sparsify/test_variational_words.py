"""Variables of words: drawn for each sequence and word, never for padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from networks import Classifier, tagger
from noisy import close, noisy
from torch import nn

import gatewise as gw


def vectors_are_z(model: Any, **options: Any) -> None:
    """Every component of a word's vector is the variable of the word."""
    noisy(model, vocabulary=["emb"], **options)
    with torch.no_grad():
        model.emb.weight.fill_(1.0)
        model.emb.weight_log_sigma.fill_(-20.0)


@pytest.mark.parametrize("batch_first", [False, True])
def test_word_variables_are_drawn_per_sequence_and_word(batch_first: bool) -> None:
    """The same word has one z in a sequence, another in the next, whatever the position."""
    model = Classifier(width=3, batch_first=batch_first)
    vectors_are_z(model)
    words = torch.tensor([[1, 2, 1, 1], [1, 2, 2, 1]])  # (B, T)
    z = model.emb(words if batch_first else words.T)[..., 0]
    z = z if batch_first else z.T
    close(z[0, 0], z[0, 2])
    close(z[0, 0], z[0, 3])
    close(z[1, 1], z[1, 2])
    assert z[0, 0] != z[0, 1]
    assert z[0, 0] != z[1, 0]


@pytest.mark.parametrize("batch_first", [False, True])
def test_vectors_lie_time_first(batch_first: bool) -> None:
    """However the batch is laid out: a recurrence would copy the other order, and so would the way back."""
    model = Classifier(width=3, batch_first=batch_first)
    vectors_are_z(model)
    vectors = model.emb(torch.ones((2, 5) if batch_first else (5, 2), dtype=torch.long))
    assert (vectors.transpose(0, 1) if batch_first else vectors).is_contiguous()


def test_words_without_a_batch_are_one_sequence() -> None:
    model = Classifier(width=1)
    vectors_are_z(model)
    z = model.emb(torch.tensor([1, 2, 1]))[:, 0]
    close(z[0], z[2])
    assert z[0] != z[1]


def test_word_variables_once_per_batch() -> None:
    model = Classifier()
    vectors_are_z(model, noise="batch")
    z = model.emb(torch.tensor([[1, 1], [1, 2]]))[..., 0]
    close(z[0, 0], z[1, 0])
    close(z[0, 0], z[0, 1])


def test_word_variable_moments() -> None:
    """z ~ N(m, sigma^2) over sequences."""
    model = Classifier(words=3, width=1)
    vectors_are_z(model)
    with torch.no_grad():
        model.emb.word_scale.fill_(0.5)
    z = model.emb(torch.ones(1, 20_000, dtype=torch.long))
    assert z.mean().item() == pytest.approx(0.5, abs=0.01)
    assert z.std().item() == pytest.approx(math.exp(-1), abs=0.01)


@pytest.mark.parametrize("noise", ["sequence", "batch"])
@pytest.mark.parametrize("vocabulary", [(), ("emb",)])
def test_padding_is_the_same_in_training_and_evaluation(noise: str, vocabulary: tuple[str, ...]) -> None:
    """A padding row may hold anything; dense layers hand it on as it is and give it no gradient."""
    dense = nn.Embedding.from_pretrained(torch.ones(5, 3), freeze=False, padding_idx=0)
    model = tagger(nn.GRU(3, 4), emb=dense)
    gw.Variational(model, n_train=1, vocabulary=vocabulary, noise=noise)
    words = torch.tensor([[0, 1], [2, 0]])
    with torch.no_grad():
        model.emb.weight_log_sigma[0, 2] = 5.0  # below the threshold, which evaluation sets to zero
    trained = model.emb(words)
    assert trained[0, 0].tolist() == trained[1, 1].tolist() == [1, 1, 0]
    assert (trained[0, 1] != 1).all()
    trained.sum().backward()
    own = dict(model.emb.named_parameters()).values()
    assert all(not p.grad[0].any() and p.grad[1:3].all() for p in own)
    close(model.eval().emb(words)[0, 0], trained[0, 0])


def test_gradients_scaled_by_frequency_stay_so() -> None:
    """An option of the dense embedding that its variational form must not lose."""
    model = tagger(nn.GRU(3, 4), emb=nn.Embedding(5, 3, scale_grad_by_freq=True))
    gw.Variational(model, "W", n_train=1)
    model.emb(torch.tensor([[1, 1, 1, 2]])).sum().backward()
    close(model.emb.weight.grad[1:3], torch.ones(2, 3))
