"""Sparse variational dropout: what is drawn, how often, what evaluation sees, and what the KL sums up."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from contract import SparsifierContract
from networks import Classifier, LanguageModel, Net, answer, parameter
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import gatewise as gw
from gatewise.nn.recurrence import scan
from gatewise.sparsify.layers import VariationalEmbedding, VariationalLinear, VariationalRecurrent
from gatewise.sparsify.posterior import KL_FORMS, kl, log_alpha

close = torch.testing.assert_close
CELLS = ["LSTM", "GRU"]


class TestContract(SparsifierContract):
    def make(self, model: nn.Module, **options: Any) -> Any:
        return gw.Variational(model, **{"n_train": 10} | options)


class TestContractWithBatchNoise(SparsifierContract):
    def make(self, model: nn.Module, **options: Any) -> Any:
        return gw.Variational(model, **{"n_train": 10, "noise": "batch"} | options)


def noisy(model: nn.Module, **options: Any) -> Any:
    """A converted model with scales away from 1 and noise large enough to see."""
    sparsifier = gw.Variational(model, **{"n_train": 10, "log_sigma": -1.0} | options)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "scale" in name and "log_sigma" not in name:
                p.copy_(torch.randn_like(p))
    return sparsifier


def watched(layer: Any) -> list[Any]:
    """Every set of weights that a recurrent layer asks for, in order."""
    seen: list[Any] = []
    original = layer.weights

    def weights(*args: Any) -> Any:
        seen.append(original(*args))
        return seen[-1]

    layer.weights = weights
    return seen


def alone(weights: Any, b: int) -> Any:
    """The weights of sequence b, with its own scales."""
    own = {k: v[b] if k.endswith("scale") and v is not None else v for k, v in vars(weights).items()}
    return type(weights)(**own)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("levels", ["W+N", "W+G+N"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequence_noise_is_one_run_per_sequence(
    cell: str, levels: str, packed: bool, bidirectional: bool
) -> None:
    """With the drawn z, each sequence is what the equations give for it alone, in the caller's order."""
    rnn = (nn.LSTM if cell == "LSTM" else nn.GRU)(3, 4, bidirectional=bidirectional)
    model = Net(lambda m, x: m.rnn(m.emb(x) if isinstance(x, Tensor) else x), rnn=rnn, emb=nn.Embedding(7, 3),
                fc=nn.Linear(4, 2))  # fmt: skip
    noisy(model, levels=levels, readers={"rnn": [], "emb": ["rnn"]})
    seen = watched(model.rnn)
    lengths = [2, 5, 3]  # not sorted
    x = torch.randn(5, 3, 3)
    if packed:
        output, _ = model(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))
        assert isinstance(output, PackedSequence)
        output, _ = nn.utils.rnn.pad_packed_sequence(output)
    else:
        lengths = [5, 5, 5]
        output, _ = model.rnn(x)
    assert all(w.per_sequence for w in seen)
    for b, n in enumerate(lengths):
        for d, weights in enumerate(seen):
            zero = tuple(x.new_zeros(1, 4) for _ in range(model.rnn.cell.n_states))
            expected, _ = scan(model.rnn.cell, x[:n, b : b + 1], zero, alone(weights, b), reverse=d == 1)
            close(output[:n, b, d * 4 : d * 4 + 4], expected[:, 0])
    for weights in seen:
        for scale in (weights.gate_scale, weights.neuron_scale, weights.input_scale):
            assert scale is None or (scale[0] != scale[1]).all()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_batch_noise_equals_folding(cell: str, bidirectional: bool) -> None:
    """One z for the whole batch: the fused kernel with z in the matrices equals the cell with z in place."""
    model = LanguageModel(cell=cell, layers=1, bidirectional=bidirectional)
    noisy(model, noise="batch")
    seen = watched(model.rnn)
    x = torch.randint(7, (5, 3))
    rnn_input: list[Tensor] = []
    model.rnn.register_forward_pre_hook(lambda m, args: rnn_input.append(args[0]))
    rnn_output: list[Tensor] = []
    model.rnn.register_forward_hook(lambda m, args, output: rnn_output.append(output[0]))
    model(x)
    assert not any(w.per_sequence for w in seen)
    zero = tuple(torch.zeros(3, 4) for _ in range(model.rnn.cell.n_states))
    runs = [scan(model.rnn.cell, rnn_input[0], zero, w, reverse=d == 1)[0] for d, w in enumerate(seen)]
    close(rnn_output[0], torch.cat(runs, -1))


def test_weights_are_drawn_once_for_a_forward_pass() -> None:
    """Layers called twice in one pass use the same sample; the next pass draws anew."""
    model = Net(lambda m, x: (m.fc(m.rnn(x)[0]), m.fc(m.rnn(x)[0])), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    noisy(model)
    x = torch.randn(5, 3, 3)
    first, second = model(x)
    close(first, second)
    assert not torch.allclose(first, model(x)[0])


def test_group_variables_are_shared_over_time() -> None:
    """Repeating the input repeats nothing else: a feed-forward look at z_x shows one value per sequence."""
    model = LanguageModel(layers=1)
    noisy(model)
    seen = watched(model.rnn)
    model(torch.randint(7, (5, 3)))
    assert seen[0].input_scale.shape == (3, 3)
    assert seen[0].gate_scale.shape == (3, 4, 4)
    assert seen[0].neuron_scale.shape == (3, 4)


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
    numbers = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
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


# Words.


@pytest.mark.parametrize("batch_first", [False, True])
def test_word_variables_are_drawn_per_sequence_and_word(batch_first: bool) -> None:
    """The same word has one z in a sequence, another in the next, whatever the position."""
    model = Classifier(width=3, batch_first=batch_first)
    noisy(model, vocabulary=["emb"])
    with torch.no_grad():
        model.emb.weight.fill_(1.0)
        model.emb.weight_log_sigma.fill_(-20.0)
    words = torch.tensor([[1, 2, 1, 1], [1, 2, 2, 1]])  # (B, T)
    z = model.emb(words if batch_first else words.T)[..., 0]
    z = z if batch_first else z.T
    close(z[0, 0], z[0, 2])
    close(z[0, 0], z[0, 3])
    close(z[1, 1], z[1, 2])
    assert z[0, 0] != z[0, 1]
    assert z[0, 0] != z[1, 0]


def test_words_without_a_batch_are_one_sequence() -> None:
    model = Classifier(width=1)
    gw.Variational(model, n_train=1, vocabulary=["emb"], log_sigma=-1.0)
    with torch.no_grad():
        model.emb.weight.fill_(1.0)
        model.emb.weight_log_sigma.fill_(-20.0)
    z = model.emb(torch.tensor([1, 2, 1]))[:, 0]
    close(z[0], z[2])
    assert z[0] != z[1]


def test_word_variables_once_per_batch() -> None:
    model = Classifier()
    noisy(model, vocabulary=["emb"], noise="batch")
    with torch.no_grad():
        model.emb.weight.fill_(1.0)
        model.emb.weight_log_sigma.fill_(-20.0)
    z = model.emb(torch.tensor([[1, 1], [1, 2]]))[..., 0]
    close(z[0, 0], z[1, 0])
    close(z[0, 0], z[0, 1])


def test_word_variable_moments() -> None:
    """z ~ N(m, sigma^2) over sequences."""
    model = Classifier(words=3, width=1)
    gw.Variational(model, n_train=1, vocabulary=["emb"], log_sigma=-1.0)
    with torch.no_grad():
        model.emb.weight.fill_(1.0)
        model.emb.weight_log_sigma.fill_(-20.0)
        model.emb.word_scale.fill_(0.5)
    z = model.emb(torch.ones(1, 20_000, dtype=torch.long))
    assert z.mean().item() == pytest.approx(0.5, abs=0.01)
    assert z.std().item() == pytest.approx(math.exp(-1), abs=0.01)


def test_padding_stays_zero() -> None:
    """The padding row gets no noise: the dense layer keeps it at zero by giving it no gradient."""
    model = Net(
        lambda m, x: m.fc(m.rnn(m.emb(x))[0]),
        emb=nn.Embedding(5, 3, padding_idx=0),
        rnn=nn.GRU(3, 4),
        fc=nn.Linear(4, 2),
    )
    gw.Variational(model, n_train=1, vocabulary=["emb"])
    vectors = model.emb(torch.tensor([[0, 1], [2, 0]]))
    assert not vectors[0, 0].any()
    assert not vectors[1, 1].any()
    assert vectors[0, 1].all()


@pytest.mark.parametrize("noise", ["sequence", "batch"])
@pytest.mark.parametrize("vocabulary", [(), ("emb",)])
def test_padding_is_the_same_in_training_and_evaluation(noise: str, vocabulary: tuple[str, ...]) -> None:
    """A padding row may hold anything; dense layers hand it on as it is and give it no gradient."""
    dense = nn.Embedding.from_pretrained(torch.ones(5, 3), freeze=False, padding_idx=0)
    model = Net(lambda m, x: m.fc(m.rnn(m.emb(x))[0]), emb=dense, rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
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
    model = Net(
        lambda m, x: m.fc(m.rnn(m.emb(x))[0]),
        emb=nn.Embedding(5, 3, scale_grad_by_freq=True), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2),
    )  # fmt: skip
    gw.Variational(model, "W", n_train=1)
    model.emb(torch.tensor([[1, 1, 1, 2]])).sum().backward()
    close(model.emb.weight.grad[1:3], torch.ones(2, 3))


# Linear layers.


def test_local_reparametrisation_has_the_right_moments() -> None:
    """y ~ N(x m + b, x^2 sigma^2), one draw for every output."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    gw.Variational(model, "W", n_train=1, linear_noise="local", log_sigma=-1.0)
    x = torch.tensor([0.5, -1.0, 2.0, 0.0])
    y = model.fc(x.expand(100_000, 4))
    mean, variance = model.fc.weight @ x + model.fc.bias, x.square().sum() * math.exp(-2)
    close(y.mean(0), mean, rtol=0, atol=0.02)
    close(y.var(0), variance.expand(2), rtol=0.03, atol=0)
    assert torch.corrcoef(y.T)[0, 1].abs() < 0.02


@pytest.mark.parametrize("batch_first", [False, True])
def test_sequence_epsilon_is_shared_over_time(batch_first: bool) -> None:
    """The char model: epsilon of shape (batch, 1, units), with mean and variance of every step."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, 4, batch_first=batch_first), fc=nn.Linear(4, 2))
    gw.Variational(model, "W", n_train=1, linear_noise={"fc": "sequence"}, log_sigma=-1.0)
    x = torch.randn(6, 5, 4)  # (B, T, H)
    y = model.fc(x if batch_first else x.transpose(0, 1))
    y = y if batch_first else y.transpose(0, 1)
    sigma = (x.square().sum(-1, keepdim=True) * math.exp(-2) + 1e-8).sqrt()
    eps = (y - (x @ model.fc.weight.T + model.fc.bias)) / sigma
    close(eps, eps[:, :1].expand_as(eps), rtol=1e-3, atol=1e-4)
    assert (eps[0] != eps[1]).all()


def test_linear_noise_keeps_its_gradients() -> None:
    """Both the mean and log sigma of a locally reparametrised layer learn from the data."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    gw.Variational(model, "W", n_train=1, linear_noise="local")
    model(torch.randn(5, 2, 3)).square().sum().backward()
    assert model.fc.weight.grad.any()
    assert model.fc.weight_log_sigma.grad.any()


def test_a_zero_input_has_finite_gradients() -> None:
    """sqrt has an infinite slope at 0, where a removed neuron leaves the variance."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    gw.Variational(model, "W", n_train=1, linear_noise="local")
    x = torch.zeros(5, 4, requires_grad=True)
    model.fc(x).sum().backward()
    assert x.grad.isfinite().all()
    assert model.fc.weight_log_sigma.grad.isfinite().all()


def test_last_states_are_one_sequence_each() -> None:
    """Without a time axis there is nothing to share an epsilon over."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0][-1]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))
    gw.Variational(model, "W", n_train=1, linear_noise="sequence", log_sigma=-1.0)
    assert len(model.fc(torch.ones(6, 4))[:, 0].unique()) == 6


def test_linear_layers_that_are_not_named_draw_weights() -> None:
    model = Net(
        lambda m, x: m.fc(m.mid(m.rnn(x)[0])), rnn=nn.GRU(3, 4), mid=nn.Linear(4, 4), fc=nn.Linear(4, 2)
    )
    gw.Variational(model, "W", n_train=1, linear_noise={"fc": "local"})
    assert (model.mid.linear_noise, model.fc.linear_noise) == ("weights", "local")


# The KL.


def naive_kl(model: nn.Module, form: str = "authors") -> Tensor:
    """Every mean that has a log sigma, each parameter once."""
    total, seen = torch.zeros(()), set()
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            log_sigma = getattr(module, name + "_log_sigma", None)
            if log_sigma is not None and id(p) not in seen:
                seen.add(id(p))
                total = total + kl(log_alpha(p, log_sigma), KL_FORMS[form]).sum()
    return total


@pytest.mark.parametrize("form", ["authors", "molchanov"])
@pytest.mark.parametrize("build", [LanguageModel, lambda: LanguageModel(width=4, tied=True)])
def test_penalty_is_the_naive_kl(form: str, build: Any) -> None:
    """KL / n_train over weights and all group variables, with or without a forward pass before."""
    model = build()
    sparsifier = noisy(model, n_train=50, kl=form, vocabulary=["emb"])
    expected = naive_kl(model, form) / 50
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


def test_warm_up() -> None:
    """Off by default; otherwise the KL weight grows from 0 to 1 between two steps."""
    model = LanguageModel()
    sparsifier = noisy(model, warm_up=(2, 4))
    whole, weights = naive_kl(model) / 10, []
    for _ in range(6):
        weights.append((sparsifier.penalty() / whole).item())
        sparsifier.step()
    assert weights == pytest.approx([0, 0, 0, 0.5, 1, 1])


# Sharing.


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


def test_a_layer_under_two_names_is_replaced_everywhere() -> None:
    model = Net(lambda m, x: m.again(m.rnn(m.fc(x))[0]), rnn=nn.GRU(3, 4), fc=nn.Linear(4, 3))
    model.top = nn.Linear(4, 4)
    model.again = model.top
    gw.Variational(model, "W", n_train=1)
    assert isinstance(model.again, VariationalLinear)
    assert model.again is model.top


def test_hooks_stay() -> None:
    """What the user hung on a layer is still called, with keyword arguments where it asked for them."""
    model, calls = Classifier(), []
    model.rnn.register_forward_hook(lambda m, args, kwargs, output: calls.append(kwargs), with_kwargs=True)
    gw.Variational(model, "W", n_train=1)  # other levels ask for readers: a hook may change what it sees
    model(torch.randint(9, (5, 2)))
    assert calls == [{}]


# Checkpoints.


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


class PickledModel(LanguageModel):
    pass


# Scope and errors.


def test_layers_restricts() -> None:
    """Only the named layers are converted; the others stay as they are, without KL or noise."""
    model = LanguageModel()
    sparsifier = gw.Variational(model, n_train=1, layers=["rnn"])
    assert isinstance(model.rnn, VariationalRecurrent)
    assert type(model.fc) is nn.Linear
    assert type(model.emb) is nn.Embedding
    close(sparsifier.penalty(), naive_kl(model))


def test_all_kinds_are_converted() -> None:
    model = LanguageModel()
    gw.Variational(model, n_train=1)
    kinds = [type(model.emb), type(model.rnn), type(model.fc)]
    assert kinds == [VariationalEmbedding, VariationalRecurrent, VariationalLinear]
    with pytest.raises(ValueError, match="no dense twin"):
        model.rnn.to_dense()


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
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=rnn, fc=nn.Linear(4, 2))
    model.fc.eval()
    gw.Variational(model, n_train=1)
    assert (model.rnn.bias, model.rnn.batch_first, model.rnn.dropout) == (False, True, 0.4)
    assert (model.rnn.training, model.fc.training) == (True, False)


def test_training_of_one_part_only() -> None:
    """A layer in evaluation mode uses its means while the others draw."""
    model = LanguageModel()
    noisy(model)
    model.rnn.eval()
    x = torch.randn(5, 2, 3)
    close(model.rnn(x)[0], model.rnn(x)[0])
    assert not torch.allclose(model.fc(torch.ones(4)), model.fc(torch.ones(4)))


def batch_places() -> nn.Module:
    return Net(
        lambda m, x: m.fc(m.b(m.a(m.emb(x))[0].transpose(0, 1))[0]),
        emb=nn.Embedding(9, 3), a=nn.GRU(3, 4), b=nn.GRU(4, 4, batch_first=True), fc=nn.Linear(4, 2),
    )  # fmt: skip


def test_the_batch_dimension_must_be_known_where_it_matters() -> None:
    with pytest.raises(ValueError, match="batch_dim="):
        gw.Variational(batch_places(), n_train=1, vocabulary=["emb"])
    with pytest.raises(ValueError, match="batch_dim="):
        gw.Variational(batch_places(), n_train=1, linear_noise="sequence")
    model = batch_places()
    gw.Variational(model, n_train=1, vocabulary=["emb"], batch_dim=1)
    assert model.emb.batch_dim == 1
    gw.Variational(batch_places(), n_train=1, vocabulary=["emb"], noise="batch")


def test_unknown_readers_of_an_embedding_warn() -> None:
    """Without them no z_x is made, which costs components; the warning says how to state them."""
    model = Net(lambda m, x: m.fc(m.rnn(m.norm(m.emb(x)))[0]), emb=nn.Embedding(7, 3), norm=nn.LayerNorm(3),
                rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2))  # fmt: skip
    with pytest.warns(UserWarning, match=r"emb: its readers are not known .*LayerNorm"):
        gw.Variational(model, n_train=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 0}, "n_train=0"),
        ({"n_train": -5}, "n_train=-5"),
        ({"noise": "token"}, "noise='token' is not one of sequence, batch"),
        ({"kl": "exact"}, "kl='exact' is not one of authors, molchanov"),
        ({"linear_noise": "none"}, "linear_noise of 'fc'='none'"),
        ({"linear_noise": {"rnn": "local"}}, "'rnn' is not a Linear layer"),
        ({"vocabulary": ["rnn"]}, "'rnn' is not an embedding among the layers to convert; there are: emb"),
        ({"vocabulary": ["emb"], "layers": ["rnn"]}, "there are: none"),
        ({"snr_threshold": 0.0}, "snr_threshold=0"),
        ({"snr_threshold": -1.0}, "snr_threshold=-1.0"),
        ({"warm_up": (5, 5)}, r"warm_up=\(5, 5\)"),
        ({"warm_up": 3}, "warm_up=3 must be"),
        ({"warm_up": (1, 2, 3)}, r"warm_up=\(1, 2, 3\) must be"),
        ({"warm_up": ("0", "9")}, "warm_up=.* must be"),
        ({"log_sigma": math.nan}, "log_sigma=nan must be a finite number"),
        ({"batch_dim": -1}, "batch_dim=-1 must be a position"),
        ({"batch_dim": "1"}, "batch_dim='1' must be a position"),
        ({"vocabulary": "emb"}, "vocabulary='emb' must be a list"),
        (
            {"layers": ["emb", "fc"], "linear_noise": "sequence"},
            "No recurrent layer among those to convert tells where the batch is",
        ),
        ({"readers": {"rnn": ["nobody"]}}, "'nobody'"),
    ],
)
def test_errors_name_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.Variational(Classifier(), **{"n_train": 10} | options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.LSTM(3, 4), "single layer"),
        (
            lambda: Net(lambda m, x: m.rnn(m.emb(x))[0], emb=nn.Embedding(5, 3, max_norm=1.0), rnn=nn.GRU(3, 4)),
            "emb: an embedding with max_norm",
        ),
        (
            lambda: Net(lambda m, x: m.rnn(m.emb(x))[0], emb=nn.Embedding(5, 3, sparse=True), rnn=nn.GRU(3, 4)),
            "emb: .* sparse gradients",
        ),
        (
            lambda: Net(
                lambda m, x: nn.functional.linear(m.rnn(m.emb(x))[0], m.emb.weight),
                emb=nn.Embedding(5, 3), rnn=nn.GRU(3, 3),
            ),
            r"emb\.weight: forward\(\) uses this parameter past the layer",
        ),
        (
            lambda: Net(
                lambda m, x: m.att(*[m.rnn(x)[0]] * 3)[0], rnn=nn.GRU(4, 4), att=nn.MultiheadAttention(4, 2)
            ),
            r"att\.out_proj: it belongs to MultiheadAttention",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_named(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.Variational(model(), "W", n_train=1)


def test_converting_twice_is_refused() -> None:
    model = Classifier()
    gw.Variational(model, n_train=1)
    with pytest.raises(ValueError, match=r"variational already.*gatewise.load\(path, into=model\)"):
        gw.Variational(model, n_train=1)


class Checkpointed(nn.Module):
    """Layers that are computed again on the way back, if asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.mid, self.fc = nn.LSTM(3, 4, 2, dropout=0.5), nn.Linear(4, 4), nn.Linear(4, 2)
        self.again: tuple[str, ...] = ()
        self.reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.run("rnn", x)
        return self.fc(self.run("mid", out))

    def run(self, name: str, x: Tensor) -> Any:
        layer = self.get_submodule(name)
        return checkpoint(layer, x, use_reentrant=self.reentrant) if name in self.again else layer(x)


@pytest.mark.parametrize("noise", ["batch", "sequence"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("layers", [("mid",), ("rnn",), ("rnn", "mid")])
def test_gradient_checkpointing_sees_the_same_noise(
    layers: tuple[str, ...], reentrant: bool, noise: str
) -> None:
    gradients = []
    x = torch.randn(5, 2, 3, requires_grad=True)  # without it a reentrant checkpoint has no way back
    for again in ((), layers):
        torch.manual_seed(0)
        model = Checkpointed()
        sparsifier = noisy(model, noise=noise)
        model.again, model.reentrant = again, reentrant
        torch.manual_seed(1)
        (model(x).square().sum() + sparsifier.penalty()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    close(gradients[0], gradients[1])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at tensors, and hides it from users
def test_a_compiled_model_trains_alike() -> None:
    """As dynamo splits it; inductor draws other random numbers."""
    x, gradients = torch.randn(5, 2, 3), []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Checkpointed()
        sparsifier = noisy(model)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        torch.manual_seed(1)
        (run(x).square().sum() + sparsifier.penalty()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    close(gradients[0], gradients[1])


def test_sampling_works_in_inference_mode() -> None:
    model = Classifier()
    noisy(model)
    words = torch.zeros(4, 2, dtype=torch.long)
    with torch.inference_mode():
        assert not torch.equal(answer(model(words)), answer(model(words)))


def test_a_frozen_layer_stays_as_it_is() -> None:
    """Pretrained vectors: a log sigma beside them would train, and prune them."""
    model = Classifier()
    model.emb.weight.requires_grad_(False)
    gw.Variational(model, n_train=1)
    assert type(model.emb) is nn.Embedding
    assert "input_scale" in dict(model.rnn.named_parameters())  # which components are read is still learnt
    for layers in (["emb", "rnn"], None):
        model = Classifier()
        frozen = model.emb.weight if layers else model.rnn.weight_hh_l0
        frozen.requires_grad_(False)
        with pytest.raises(ValueError, match=r"(emb.weight|rnn.weight_hh_l0) is frozen"):
            gw.Variational(model, n_train=1, layers=layers)
    with pytest.raises(ValueError, match="nothing to sparsify"):
        gw.Variational(Classifier().requires_grad_(False), n_train=1)


def test_half_precision_is_for_evaluation() -> None:
    """float16 has no square of 0.005, and no sum of a hundred thousand KL terms."""
    model = Classifier()
    sparsifier = noisy(model, log_sigma=-6.0)  # sigma 0.0025: a mean of 0.005 is kept
    with torch.no_grad():
        model.fc.weight.fill_(0.005)
    model.half()
    assert model.fc.masked("weight").all()
    with pytest.raises(TypeError, match=r"float16.*torch.autocast"):
        sparsifier.penalty()
    with pytest.raises(TypeError, match="float16"):
        model(torch.zeros(4, 2, dtype=torch.long))


def test_a_batch_that_an_input_does_not_have() -> None:
    words = torch.zeros(4, 2, dtype=torch.long)
    for options in ({"linear_noise": "sequence"}, {"vocabulary": ["emb"]}):
        model = LanguageModel()
        gw.Variational(model, n_train=1, batch_dim=2, **options)
        with pytest.raises(ValueError, match=r"batch_dim=2, but an input has the axes \(4, 2\).*0 to 1"):
            model(words)


def test_outside_of_forward_a_layer_draws_anew() -> None:
    """What forward() drew is kept for the way back, and for nothing else."""
    model = Checkpointed()
    noisy(model)
    model(torch.randn(5, 2, 3))
    x = torch.randn(6, 4)
    assert not torch.equal(model.mid(x), model.mid(x))


def test_after_an_error_in_forward_a_layer_draws_anew() -> None:
    model = LanguageModel()
    noisy(model)
    with pytest.raises(IndexError):
        model(torch.tensor([[99]]))
    x = torch.ones(6, 4)
    assert not torch.equal(model.fc(x), model.fc(x))


@pytest.mark.parametrize("first", ["loss", "penalty"])
def test_loss_and_penalty_may_go_back_one_by_one(first: str) -> None:
    x, gradients = torch.randn(5, 2, 3), []
    for together in (True, False):
        torch.manual_seed(0)
        model = Checkpointed()
        sparsifier = noisy(model)
        torch.manual_seed(1)
        parts = {"loss": model(x).square().sum(), "penalty": sparsifier.penalty()}
        if together:
            sum(parts.values()).backward()
        else:
            parts.pop(first).backward()
            parts.popitem()[1].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    close(gradients[0], gradients[1])


def test_a_parameter_changed_before_the_way_back_is_an_error() -> None:
    model = Checkpointed()
    sparsifier = noisy(model)
    loss = model(torch.randn(5, 2, 3)).sum() + sparsifier.penalty()
    with torch.no_grad():
        model.mid.weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"changed in place between|modified by an inplace operation"):
        loss.backward()


def test_layers_of_a_stack_may_share_their_matrices() -> None:
    """One posterior and one KL for both, and the same function after the cut."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.LSTM(3, 3, 2), fc=nn.Linear(3, 2))
    model.rnn.weight_ih_l1, model.rnn.weight_hh_l1 = model.rnn.weight_ih_l0, model.rnn.weight_hh_l0
    sparsifier = noisy(model, levels="W")
    assert model.rnn.weight_hh_l1_log_sigma is model.rnn.weight_hh_l0_log_sigma
    x = torch.randn(5, 2, 3)
    (model(x).sum() + sparsifier.penalty()).backward()
    means = [model.rnn.weight_ih_l0, model.rnn.weight_hh_l0, model.fc.weight]
    sigmas = [model.rnn.weight_ih_l0_log_sigma, model.rnn.weight_hh_l0_log_sigma, model.fc.weight_log_sigma]
    form = KL_FORMS["authors"]
    expected = sum(kl(log_alpha(m, s), form).sum() for m, s in zip(means, sigmas)) / 10
    close(sparsifier.penalty(), expected)
    close(gw.compress(model.eval())(x), model(x))


def test_a_warm_up_goes_on_where_it_was() -> None:
    model = Checkpointed()
    before = noisy(model, warm_up=(0, 10))
    for _ in range(4):
        before.step()
    other = Checkpointed()
    after = noisy(other, warm_up=(0, 10))
    other.load_state_dict(model.state_dict())
    after.load_state_dict(before.state_dict())
    close(after.penalty(), before.penalty())
    assert before.penalty() != 0


@pytest.mark.parametrize("noise", ["batch", "sequence"])
def test_an_empty_batch(noise: str) -> None:
    model = Checkpointed()
    noisy(model, noise=noise)
    assert model(torch.zeros(5, 0, 3)).shape == (5, 0, 2)
