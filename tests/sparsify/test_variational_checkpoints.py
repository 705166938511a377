"""state_dict and pickle of converted models: dense ones load, those of other levels do not."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from networks import CELLS, LanguageModel, answer
from noisy import close, noisy

import gatewise as gw


@pytest.mark.parametrize("cell", CELLS)
def test_a_dense_checkpoint_loads(cell: str) -> None:
    """It holds means only; log sigmas and group variables keep their start values."""
    dense, model = LanguageModel(cell=cell), LanguageModel(cell=cell)
    gw.Variational(model, n_train=1, vocabulary=["emb"])
    model.load_state_dict(dense.state_dict())
    model.eval()
    for _, p in model.named_parameters():
        assert p.isfinite().all()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("log_sigma"):
                p.fill_(-20.0)
    x = torch.randint(7, (5, 3))
    close(answer(model(x)), answer(dense(x)))


def test_checkpoints_go_round() -> None:
    """Everything that training changed is in the state_dict, in plain tensors."""
    model, other = LanguageModel(), LanguageModel()
    for m in (model, other):
        noisy(m, vocabulary=["emb"])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randint(7, (5, 3))
    close(answer(model.eval()(x)), answer(other.eval()(x)), rtol=0, atol=0)
    torch.manual_seed(1)
    model.train()
    first = answer(model(x))
    torch.manual_seed(1)
    close(answer(other.train()(x)), first, rtol=0, atol=0)


@pytest.mark.parametrize(("have", "want", "message"), [
    ("W", "W+N", "neuron_scale_l0"), ("W+N", "W+G+N", "gate_scale_l1"), ("W+G+N", "W", "Unexpected key.*gate_scale"),
    ("W+G+N", None, "Unexpected key.*log_sigma"),
])  # fmt: skip
def test_mismatched_checkpoints_raise(have: str, want: str | None, message: str) -> None:
    """A checkpoint of another level is not a dense one: what is missing or too much is named."""
    saved, model = LanguageModel(), LanguageModel()
    gw.Variational(saved, have, n_train=1)
    if want is not None:
        gw.Variational(model, want, n_train=1)
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        model.load_state_dict(saved.state_dict())


def test_a_checkpoint_of_another_shape_raises() -> None:
    model = LanguageModel()
    gw.Variational(model, n_train=1)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(LanguageModel(hidden=5).state_dict())


class PickledModel(LanguageModel):
    pass


def test_pickle_in_the_middle_of_training() -> None:
    """The model with its hooks and the sparsifier survive, and go on drawing and counting."""
    model = PickledModel()
    sparsifier = gw.Variational(model, n_train=10)
    (answer(model(torch.randint(7, (5, 3)))).sum() + sparsifier.penalty()).backward()
    model(torch.randint(7, (5, 3)))
    twin, again = pickle.loads(pickle.dumps((model, sparsifier)))
    assert again.model is twin
    close(again.penalty(), sparsifier.penalty())
    x = torch.randint(7, (5, 3))
    assert not torch.allclose(answer(twin(x)), answer(twin(x)))
    close(answer(twin.eval()(x)), answer(model.eval()(x)))
