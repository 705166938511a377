"""Sparse variational dropout: what a conversion makes of a model, and what evaluation sees."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from contract import SparsifierContract
from networks import CELLS, Classifier, LanguageModel, Net, answer, parameter, tagger
from noisy import close, naive_kl, noisy
from torch import Tensor, nn

import gatewise as gw
from gatewise.sparsify.layers import VariationalEmbedding, VariationalLinear, VariationalRecurrent


class TestContract(SparsifierContract):
    def make(self, model: nn.Module, **options: Any) -> Any:
        return gw.Variational(model, **{"n_train": 10} | options)


class TestContractWithBatchNoise(SparsifierContract):
    def make(self, model: nn.Module, **options: Any) -> Any:
        return gw.Variational(model, **{"n_train": 10, "noise": "batch"} | options)


def test_levels_decide_which_variables_exist() -> None:
    """W: none; W+N: z_h, and z_x where an embedding feeds the layer; W+G+N: z of every gate as well."""

    def scales(levels: str, model: nn.Module) -> set[str]:
        gw.Variational(model, levels, n_train=1)
        return {
            n.partition(".")[2] for n, _ in model.named_parameters() if "scale" in n and "log_sigma" not in n
        }

    assert scales("W", LanguageModel()) == set()
    assert scales("W+N", LanguageModel()) == {"input_scale", "neuron_scale_l0", "neuron_scale_l1"}
    assert scales("W+G+N", LanguageModel()) == {
        "input_scale", "neuron_scale_l0", "neuron_scale_l1", "gate_scale_l0", "gate_scale_l1"
    }  # fmt: skip
    numbers = tagger(nn.GRU(3, 4))
    assert scales("W+N", numbers) == {"neuron_scale_l0"}


def test_start_values() -> None:
    """log sigma -3 everywhere, means of group variables exactly 1, means of weights as they were."""
    model = LanguageModel()
    before = copy.deepcopy(model.state_dict())
    gw.Variational(model, n_train=1, vocabulary=["emb"])
    for name, p in model.named_parameters():
        if name.endswith("_log_sigma"):
            assert (p == -3).all()
        elif "scale" in name:
            assert (p == 1).all()
        else:
            close(p.data, before[name], rtol=0, atol=0)
    assert not any("bias" in name and "log_sigma" in name for name, _ in model.named_parameters())


def test_defaults_are_those_of_the_paper() -> None:
    model = Classifier()
    gw.Variational(model, n_train=1)
    assert (model.rnn.snr_threshold, model.rnn.noise, model.fc.linear_noise) == (0.05, "sequence", "weights")


def test_all_kinds_are_converted() -> None:
    model = LanguageModel()
    gw.Variational(model, n_train=1)
    assert isinstance(model.emb, VariationalEmbedding)
    assert isinstance(model.rnn, VariationalRecurrent)
    assert isinstance(model.fc, VariationalLinear)
    with pytest.raises(ValueError, match="no dense twin"):
        model.rnn.to_dense()


def test_layers_restricts() -> None:
    """Only the named layers are converted; the others stay as they are, without KL or noise."""
    model = LanguageModel()
    sparsifier = gw.Variational(model, n_train=1, layers=["rnn"])
    assert isinstance(model.rnn, VariationalRecurrent)
    assert type(model.fc) is nn.Linear
    assert type(model.emb) is nn.Embedding
    close(sparsifier.penalty(), naive_kl(model))


def test_a_frozen_layer_stays_as_it_is() -> None:
    """Pretrained vectors: a log sigma beside them would train, and prune them."""
    model = Classifier()
    model.emb.weight.requires_grad_(False)
    gw.Variational(model, n_train=1)
    assert type(model.emb) is nn.Embedding
    assert "input_scale" in dict(model.rnn.named_parameters())  # which components are read is still learnt
    model = Classifier()
    model.emb.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"emb\.weight is frozen"):
        gw.Variational(model, n_train=1, layers=["emb", "rnn"])
    model.rnn.weight_hh_l0.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"^rnn: left out, because weight_hh_l0 is frozen"):
        gw.Variational(model, n_train=1)
    assert type(model.rnn) is nn.LSTM
    with pytest.raises(ValueError, match="nothing to sparsify"):
        gw.Variational(Classifier().requires_grad_(False), n_train=1)


def test_hard_gates_are_kept() -> None:
    model = Net(
        lambda m, x: m.fc(m.rnn(x)[0]),
        rnn=gw.nn.LSTM(3, 4, gate_activation="hard_sigmoid"),
        fc=nn.Linear(4, 2),
    )
    gw.Variational(model, n_train=1)
    assert model.rnn.gate_activation == "hard_sigmoid"
    assert model(torch.randn(5, 2, 3)).isfinite().all()


def test_options_and_modes_are_kept() -> None:
    rnn = nn.LSTM(3, 4, 2, bias=False, batch_first=True, dropout=0.4)
    model = tagger(rnn)
    model.fc.eval()
    gw.Variational(model, n_train=1)
    assert (model.rnn.bias, model.rnn.batch_first, model.rnn.dropout) == (False, True, 0.4)
    assert (model.rnn.training, model.fc.training) == (True, False)


def test_hooks_stay() -> None:
    """What the user hung on a layer is still called, with keyword arguments where it asked for them."""
    model, calls = Classifier(), []
    model.rnn.register_forward_hook(lambda m, args, kwargs, output: calls.append(kwargs), with_kwargs=True)
    gw.Variational(model, "W", n_train=1)  # other levels ask for readers: a hook may change what it sees
    model(torch.randint(9, (5, 2)))
    assert calls == [{}]


def test_a_layer_under_two_names_is_replaced_everywhere() -> None:
    model = Net(lambda m, x: m.again(m.rnn(m.fc(x))[0]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 3))
    model.top = nn.Linear(4, 4)
    model.again = model.top
    gw.Variational(model, "W", n_train=1)
    assert isinstance(model.again, VariationalLinear)
    assert model.again is model.top


def test_a_tied_matrix_has_one_posterior_and_one_sample() -> None:
    """The embedding and the softmax draw the same weights, count once in the KL, and threshold alike."""
    model = LanguageModel(width=4, tied=True)
    noisy(model, levels="W")
    assert model.fc.weight is model.emb.weight
    assert model.fc.weight_log_sigma is model.emb.weight_log_sigma
    drawn: list[Tensor] = []
    for layer in (model.emb, model.fc):
        layer.register_forward_hook(lambda m, args, output: drawn.append(m.samples["weight"]))
    model(torch.randint(7, (5, 3)))
    assert drawn[0] is drawn[1]
    names = [name for name, _ in model.named_parameters()]
    assert sum("weight" in name and "rnn" not in name for name in names) == 2  # the mean and its log sigma


def test_layers_of_a_stack_may_share_their_matrices() -> None:
    """One posterior and one KL for both, and the same function after the cut."""
    model = tagger(nn.LSTM(3, 3, 2))
    model.rnn.weight_ih_l1, model.rnn.weight_hh_l1 = model.rnn.weight_ih_l0, model.rnn.weight_hh_l0
    sparsifier = noisy(model, levels="W")
    assert model.rnn.weight_hh_l1_log_sigma is model.rnn.weight_hh_l0_log_sigma
    x = torch.randn(5, 2, 3)
    (model(x).sum() + sparsifier.penalty()).backward()
    close(sparsifier.penalty(), naive_kl(model) / 10)
    close(gw.compress(model.eval())(x), model(x))


@pytest.mark.parametrize("cell", CELLS)
def test_evaluation_uses_thresholded_means(cell: str) -> None:
    """Means, with everything below the SNR threshold at zero; the dense network with these weights agrees."""
    model = LanguageModel(cell=cell)
    dense = copy.deepcopy(model)
    gw.Variational(model, "W", n_train=1, snr_threshold=0.05)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("_log_sigma"):
                p.uniform_(-4, 2)
        for name, p in dense.named_parameters():
            if p.dim() == 2:
                sigma = parameter(model, name + "_log_sigma").exp()
                p[p.square() / sigma.square() < 0.05] = 0
    model.eval()
    x = torch.randint(7, (5, 3))
    close(answer(model(x)), answer(dense(x)))
    close(answer(model(x)), answer(model(x)), rtol=0, atol=0)


def test_removed_group_variables_silence_in_evaluation() -> None:
    """z below the threshold counts as zero: the neuron says nothing, even if a state is handed in."""
    model = LanguageModel(layers=1)
    gw.Variational(model, n_train=1)
    with torch.no_grad():
        model.rnn.neuron_scale_l0[1] = 1e-4
    model.eval()
    out, (h, _) = model.rnn(torch.randn(5, 2, 3), (torch.ones(1, 2, 4), torch.ones(1, 2, 4)))
    assert not out[..., 1].any()
    assert not h[..., 1].any()
    assert out[..., 0].all()


def test_training_of_one_part_only() -> None:
    """A layer in evaluation mode uses its means while the others draw."""
    model = LanguageModel()
    noisy(model)
    model.rnn.eval()
    x = torch.randn(5, 2, 3)
    close(model.rnn(x)[0], model.rnn(x)[0])
    assert not torch.allclose(model.fc(torch.ones(4)), model.fc(torch.ones(4)))
