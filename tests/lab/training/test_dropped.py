"""Weights left out of an update: the gradients of the masked network, and nothing that stays behind."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny_corpora import tiny
from tiny_runs import cut_off, lines, numbers, options
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import gatewise as gw
from gatewise.lab.data.cuts import Windows
from gatewise.lab.models import WordLM
from gatewise.lab.schema import RecipeError, Train
from gatewise.lab.training.dropped import DroppedWeights, dropped_weights
from gatewise.lab.training.feeds import WindowFeed
from gatewise.lab.training.objectives import Objective
from gatewise.lab.training.step import TrainStep
from gatewise.lab.training.trainer import train

SETTINGS = Train(epochs=1, lr=0.5, drop_recurrent=0.4, drop_words=0.3)
NOISY = ["train.drop_recurrent=0.4", "train.drop_words=0.3"]
LASSO = ["method=group-lasso", "group=0.02", "l1=0.001", "optimizer=sgd", "lr=0.5"]


def step_of(model: WordLM, lasso: gw.GroupLasso | None, dropped: DroppedWeights) -> TrainStep:
    return TrainStep(
        model,
        lasso,
        Objective("words"),
        WindowFeed(Windows(torch.arange(60) % 9, 4, 5)),
        optimizer="sgd",
        clip=None,
        window_sum=False,
        device=torch.device("cpu"),
        dropped=dropped,
    )


@pytest.mark.parametrize("strength", [0.0, 0.02])
def test_an_update_is_that_of_the_masked_network(strength: float) -> None:
    """w - lr d(loss(w m / (1 - p)) + penalty(w))/dw, by autograd."""
    torch.manual_seed(0)
    model = WordLM(9, 4, 6)
    twin = copy.deepcopy(model)
    sparsifiers = [
        gw.GroupLasso(m, l1=0.01, group=strength, threshold=0) if strength else None for m in (model, twin)
    ]
    dropped = dropped_weights(model, SETTINGS)
    step = step_of(model, sparsifiers[0], dropped)
    step.begin([0.5] * step.feed.n_batches)
    step()
    factors = {id(matrix.weight): matrix.factor for matrix in dropped.matrices}
    by_name = {name: factors[id(p)] for name, p in model.named_parameters() if id(p) in factors}
    assert sorted(by_name) == ["emb.weight", "rnn.weight_hh_l0", "rnn.weight_hh_l1"]
    assert by_name["emb.weight"].shape == (9, 1)
    batch = step.feed.fetch(torch.tensor([0]))
    masked = {name: p * by_name.get(name, 1.0) for name, p in twin.named_parameters()}
    scores, _ = functional_call(twin, masked, (batch.inputs,))
    loss = cross_entropy(scores.flatten(0, 1), batch.targets.flatten())
    (loss + (0 if sparsifiers[1] is None else sparsifiers[1].penalty())).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        wanted = theirs if theirs.grad is None else theirs - 0.5 * theirs.grad
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


def test_without_a_rate_every_weight_is_back_to_the_bit() -> None:
    """What was left out is copied back, not multiplied back."""
    model = WordLM(9, 4, 6)
    before = copy.deepcopy(model.state_dict())
    step = step_of(model, None, dropped_weights(model, SETTINGS))
    step.begin([0.0] * step.feed.n_batches)
    for _ in range(step.feed.n_batches):
        step()
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_a_compact_layer_is_trained_so_too() -> None:
    model = WordLM(9, 4, 6)
    with torch.no_grad():
        for layer in (0, 1):
            model.rnn.get_parameter(f"weight_ih_l{layer}")[3] = 0
            model.rnn.get_parameter(f"weight_hh_l{layer}")[3] = 0  # a constant gate
    small = gw.compress(model)
    dropped = dropped_weights(small, SETTINGS)
    assert [tuple(m.weight.shape) for m in dropped.matrices] == [(23, 6), (23, 6), (9, 4)]


def test_a_run_goes_on_after_a_cut_and_in_its_refit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle and resumed, it ends with the same numbers: noise is part of the checkpoint."""
    row = tiny("words", folder, *LASSO, *NOISY, "epochs=4", "train.shrink_every=1", "refit.epochs=2")
    whole = train(row, options(tmp_path / "whole", folder))
    cut_off(row, options(tmp_path / "cut", folder, checkpoint_every=0), 9, monkeypatch)
    assert numbers(train(row, options(tmp_path / "cut", folder, resume=True))) == numbers(whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    still = tiny("words", folder, *LASSO, "epochs=4", "train.shrink_every=1", "refit.epochs=2")
    assert numbers(train(still, options(tmp_path / "still", folder))) != numbers(whole)


@pytest.mark.parametrize("key", ["train.drop_recurrent", "train.drop_words"])
def test_what_cannot_be_is_refused(key: str, folder: Path) -> None:
    with pytest.raises(RecipeError, match=f"{key} = 1.0 should be less than 1"):
        tiny("words", folder, *LASSO, f"{key}=1.0")


@pytest.mark.parametrize("key", ["train.drop_recurrent", "train.drop_words", "train.weight_decay"])
def test_a_variational_network_takes_none_of_them(key: str, folder: Path) -> None:
    """Its weights have noise, and a decay would pull their log sigmas, too."""
    with pytest.raises(RecipeError, match=f"{key} = 0.5 does nothing with sparsify.method = 'variational'"):
        tiny("words", folder, "method=variational", f"{key}=0.5")
