"""The penalty is KL / n_train of the parameters as they are, and grows in a warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import LanguageModel
from noisy import Checkpointed, close, gradients, naive_kl, noisy

import gatewise as gw


@pytest.mark.parametrize("build", [LanguageModel, lambda: LanguageModel(width=4, tied=True)])
def test_penalty_is_the_naive_kl(build: Any) -> None:
    """KL / n_train over weights and all group variables, with or without a forward pass before."""
    model = build()
    sparsifier = noisy(model, n_train=50, vocabulary=["emb"])
    expected = naive_kl(model) / 50
    close(sparsifier.penalty(), expected)
    model(torch.randint(7, (5, 3)))
    close(sparsifier.penalty(), expected)


def test_penalty_follows_the_parameters() -> None:
    """A penalty asked for after an update is the one of the new parameters."""
    model = LanguageModel()
    sparsifier = noisy(model)
    model(torch.randint(7, (5, 3)))
    with torch.no_grad():
        model.fc.weight_log_sigma -= 1
    close(sparsifier.penalty(), naive_kl(model) / 10)


def test_gradient_of_the_penalty() -> None:
    model = LanguageModel(layers=1)
    sparsifier = noisy(model)
    expected = torch.autograd.grad(naive_kl(model) / 10, [model.fc.weight, model.rnn.gate_scale_l0_log_sigma])
    model(torch.randint(7, (5, 3)))
    sparsifier.penalty().backward()
    close([model.fc.weight.grad, model.rnn.gate_scale_l0_log_sigma.grad], list(expected))


def test_a_penalty_below_zero_is_a_constant_left_out() -> None:
    """Where all is noise the authors' KL is -0.67 a weight, and does not pull."""
    model = LanguageModel()
    sparsifier = noisy(model, n_train=1)
    sigmas = [p for name, p in model.named_parameters() if name.endswith("log_sigma")]
    with torch.no_grad():
        for p in sigmas:
            p.fill_(9.0)
    penalty = sparsifier.penalty()
    penalty.backward()
    assert max(float(p.grad.abs().max()) for p in sigmas) < 1e-3
    assert penalty.item() / sum(p.numel() for p in sigmas) == pytest.approx(-0.67, abs=1e-3)


@pytest.mark.parametrize("first", ["loss", "penalty"])
def test_loss_and_penalty_may_go_back_one_by_one(first: str) -> None:
    x = torch.randn(5, 2, 3)

    def together(model: Any, sparsifier: Any) -> None:
        (model(x).square().sum() + sparsifier.penalty()).backward()

    def one_by_one(model: Any, sparsifier: Any) -> None:
        parts = {"loss": model(x).square().sum(), "penalty": sparsifier.penalty()}
        parts.pop(first).backward()
        parts.popitem()[1].backward()

    close(gradients(one_by_one), gradients(together))


def test_a_parameter_changed_before_the_way_back_is_an_error() -> None:
    model = Checkpointed()
    sparsifier = noisy(model)
    loss = model(torch.randn(5, 2, 3)).sum() + sparsifier.penalty()
    with torch.no_grad():
        model.mid.weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"changed in place between|modified by an inplace operation"):
        loss.backward()


def test_warm_up() -> None:
    """Off by default; otherwise the KL weight grows from 0 to 1 between two steps."""
    model = LanguageModel()
    sparsifier = noisy(model, warm_up=(2, 4))
    whole, weights = naive_kl(model) / 10, []
    for _ in range(6):
        weights.append((sparsifier.penalty() / whole).item())
        sparsifier.step()
    assert weights == pytest.approx([0, 0, 0, 0.5, 1, 1])


def warmed(updates: int) -> tuple[Checkpointed, gw.Variational]:
    model = Checkpointed()
    sparsifier = noisy(model, warm_up=(0, 10))
    for _ in range(updates):
        sparsifier.step()
    return model, sparsifier


def test_a_warm_up_goes_on_where_it_was() -> None:
    """The count is part of the model's state_dict, as people save it: the sparsifier has no state of its own."""
    (model, before), (other, after) = warmed(4), warmed(0)
    assert model.state_dict()[before.counter] == 4
    other.load_state_dict(model.state_dict())
    close(after.penalty(), before.penalty())
    assert before.penalty() != 0
    assert not hasattr(before, "state_dict")


def test_casting_a_model_does_not_change_the_count() -> None:
    """bfloat16 has no 257."""
    model, sparsifier = warmed(257)
    model.bfloat16()
    assert sparsifier.steps == 257


def test_a_dense_file_leaves_the_count() -> None:
    """It holds means only; one of a posterior without the count is not what this model is."""
    (model, before), (other, after) = warmed(4), warmed(3)
    other.load_state_dict(Checkpointed().state_dict())
    assert after.steps == 3
    old = {name: tensor for name, tensor in model.state_dict().items() if name != before.counter}
    with pytest.raises(RuntimeError, match=r"Missing key.*update_count"):
        other.load_state_dict(old)


def test_the_count_is_saved_and_loaded(tmp_path: Path) -> None:
    """By gw.save, too."""
    (model, _), (other, after) = warmed(4), warmed(0)
    gw.save(model, tmp_path)
    gw.load(tmp_path, into=other)
    assert after.steps == 4
    assert "update_count" not in "".join(gw.compress(other.eval()).state_dict())
