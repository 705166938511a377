"""Layers as users have them: pruned, parametrised, frozen, hooked, shared, compiled, or not ours to cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuts import X, same, unread
from networks import Net, tagger
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import gatewise as gw
from gatewise.compact import CompactLinear


@torch.no_grad()
def test_pruned_by_torch() -> None:
    """Masks that act in hooks count as zeros; hooks and masks are gone afterwards, and the argument keeps them."""
    model = tagger(nn.LSTM(3, 4)).eval()
    prune.ln_structured(model.fc, "weight", amount=2, n=1, dim=1)
    prune.random_unstructured(model.fc, "bias", amount=1)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        prune.l1_unstructured(model.rnn, name, amount=0.8)
    small = gw.compress(model)
    same(small, model, X)
    assert not any("_mask" in name or "_orig" in name for name in small.state_dict())
    assert prune.is_pruned(model)
    assert all(p.requires_grad for p in small.parameters())
    for name in ("weight_orig", "bias_orig"):
        model.fc.get_parameter(name).add_(
            1
        )  # an optimizer's step: what is masked is renewed in the next call
    same(gw.compress(model), model, X)


class Halved(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 2


class Doubled(nn.LSTM):
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        out, state = super().forward(input, hx)
        return 2 * out, state


@torch.no_grad()
def test_layers_with_a_forward_of_their_own_stay() -> None:
    """A subclass may compute anything: it is left as it is, and what it reads is kept."""
    model = tagger(nn.LSTM(3, 4), Halved(4, 2)).eval()
    model.fc.weight[:, 0] = model.rnn.weight_hh_l0[:, 0] = 0
    with pytest.warns(UserWarning, match="keeps 1 neuron that"):
        small = gw.compress(model)
    same(small, model, X)
    assert type(small.fc) is Halved
    model = tagger(Doubled(3, 4)).eval()
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(Doubled has a forward\(\) of its own\)"):
        small = gw.compress(model)
    same(small, model, X)


class Called(nn.Linear):
    def __call__(self, input: Tensor) -> Tensor:
        return super().__call__(input) / 2


class Looked(nn.Embedding):
    def _call_impl(self, *args: Any) -> Any:
        return 3 * super()._call_impl(*args)


class Clipped(nn.LSTM):
    def __call__(self, input: Tensor, hx: Any = None) -> Any:
        out, state = super().__call__(input, hx)
        return out.clamp(-0.01, 0.01), state


class Halving(nn.Module):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) / 2


class Mixed(nn.Linear, Halving):
    """Linear comes first, yet the call is that of the mixin."""


@torch.no_grad()
@pytest.mark.parametrize("fc", [Called, Mixed])
def test_layers_with_a_call_of_their_own_stay(fc: type[nn.Linear]) -> None:
    """What comes before or after forward() is part of the answer, whichever step of the call does it."""
    model = tagger(nn.LSTM(3, 4), fc(4, 2), Looked(5, 3)).eval()
    model.fc.weight[:, 0] = model.rnn.weight_hh_l0[:, 0] = 0
    ids = torch.tensor([[0, 1], [4, 2]])
    with pytest.warns(UserWarning, match="keeps 1 neuron that"):
        small = gw.compress(model)
    same(small, model, ids)
    assert (type(small.fc), type(small.emb)) == (fc, Looked)
    sparse = copy.deepcopy(model)
    gw.Variational(sparse, n_train=10, layers=["rnn"])
    with pytest.raises(ValueError, match="'fc' is of type"):
        gw.Variational(copy.deepcopy(model), n_train=10, layers=["rnn", "fc"])


@torch.no_grad()
def test_a_recurrent_layer_with_a_call_of_its_own_stays_and_is_named() -> None:
    model = tagger(Clipped(3, 4)).eval()
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(Clipped has a __call__\(\) of its own\)"):
        same(gw.compress(model), model, X)
    with pytest.raises(ValueError, match=r"no LSTM or GRU .* rnn: Clipped has a __call__\(\) of its own\.$"):
        gw.GroupLasso(model, "W")


@torch.no_grad()
def test_recurrent_layers_without_gates_stay_and_are_named() -> None:
    model = tagger(nn.RNN(3, 4)).eval()
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(RNN has no gates\)"):
        same(gw.compress(model), model, X)


@pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning", "ignore:.*quantize:UserWarning")
def test_quantized_recurrent_layers_stay_and_are_named() -> None:
    """What torch.ao.quantization made holds no float weights to cut: quantizing comes last."""
    model = tagger(nn.GRU(3, 4)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.GRU, nn.Linear})
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(it is quantized, which comes after"):
        same(gw.compress(quantized), quantized, X)
    assert gw.measure(quantized).uncounted == {"rnn": "rnn (GRU), quantized", "fc": "fc (Linear), quantized"}
    with pytest.raises(ValueError, match=r"no LSTM or GRU .* rnn: it is quantized, "):
        gw.Variational(quantized, n_train=10)


class Own(nn.TransformerEncoderLayer):
    """Inherits a forward() that takes the weights of its inner layers past them."""


@torch.no_grad()
def test_torchs_attention_keeps_its_inner_layers() -> None:
    """nn.MultiheadAttention uses the weight of its inner Linear without calling it."""
    model = Net(
        lambda n, x: n.fc(n.attention(n.rnn(x)[0], n.rnn(x)[0], n.rnn(x)[0])[0]),
        rnn=nn.LSTM(3, 4), attention=nn.MultiheadAttention(4, 1), fc=nn.Linear(4, 2),
    ).eval()  # fmt: skip
    model.attention.out_proj.weight[:, 0] = 0
    same(gw.compress(model), model, X)
    model = Net(lambda n, x: n.own(n.rnn(x)[0]), rnn=nn.LSTM(3, 4), own=Own(4, 1, 6, batch_first=True)).eval()
    model.own.linear1.weight[:, 0] = model.own.linear2.weight[:, 1] = 0
    same(gw.compress(model), model, X)


@torch.no_grad()
def test_computed_weights_that_are_not_finite_are_refused() -> None:
    """weight_norm of a row of zeros is 0 / 0: parameters are finite, the weight is not, and NaN looks live."""
    for layer, weight in (("rnn", "weight_hh_l0"), ("fc", "weight")):
        model = tagger(nn.LSTM(3, 4)).eval()
        parametrizations.weight_norm(model.get_submodule(layer), weight)
        model.get_parameter(f"{layer}.parametrizations.{weight}.original1")[0] = 0
        for refused in (gw.compress, gw.measure, lambda m: gw.GroupLasso(m, "W")):
            with pytest.raises(ValueError, match=f"{layer}.{weight}: 4 of .* made by its parametrisation"):
                refused(model)


@torch.no_grad()
def test_computed_weights() -> None:
    """Two layers with weight norm are not one layer because their weights had the same address for a moment."""
    norm = parametrizations.weight_norm
    model = Net(
        lambda n, x: n.b(n.a(n.rnn(x)[0])),
        rnn=nn.LSTM(3, 4),
        a=norm(nn.Linear(4, 4)),
        b=norm(nn.Linear(4, 4)),
    )
    same(gw.compress(model.eval()), model, X)


@pytest.mark.parametrize("look", [gw.measure, gw.compress])
@pytest.mark.parametrize("training", [True, False])
def test_looking_at_a_parametrised_weight_changes_nothing(
    look: Callable[[nn.Module], object], training: bool
) -> None:
    """In training, spectral_norm takes one more step of its iteration whenever its weight is asked for."""
    model = tagger(nn.LSTM(3, 4)).eval()
    parametrizations.spectral_norm(model.fc)
    model.train(training)
    before = copy.deepcopy(model.state_dict())
    look(model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(module.training is training for module in model.modules())


@torch.no_grad()
def test_embedding_options() -> None:
    """max_norm shortens the same rows, by their whole length; the padding row keeps getting no gradient."""
    emb = nn.Embedding(6, 3, padding_idx=2, max_norm=0.5)
    emb.weight.normal_()
    model = tagger(nn.LSTM(3, 2), emb=emb).eval()
    model.rnn.weight_ih_l0[:, 1] = 0
    ids = torch.randint(0, 6, (7, 2))
    small = gw.compress(model)
    same(small, model, ids)
    with torch.enable_grad():
        small(ids * 0 + 2).sum().backward()
    assert not small.emb.weight.grad.any()


@torch.no_grad()
def test_max_norm_may_be_of_another_norm() -> None:
    emb = nn.Embedding(9, 3, max_norm=1.0, norm_type=1.0)
    model = tagger(nn.GRU(3, 4), emb=emb).eval()
    emb.weight.mul_(5)
    small = gw.compress(model)  # before the rows are shortened in place
    same(small, model, torch.arange(9)[:, None])


@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"sparse": True}])
@pytest.mark.parametrize("padding", [None, 1, 2])
def test_rows_get_the_gradient_of_the_dense_embedding(options: dict[str, bool], padding: int | None) -> None:
    """Scaled by counts, or sparse: words without a row, and padding, have no part in it."""
    emb = nn.Embedding(6, 3, padding_idx=padding, **options)
    model = tagger(nn.LSTM(3, 2), emb=emb)
    kept = [1, 3, 4, 5]
    with torch.no_grad():
        emb.weight.fill_(0.5)[[0, 2]] = 0
    gradients = []
    for net in (model, gw.compress(model)):
        net(torch.tensor([[0], [2], [1], [2], [3], [3], [3], [4]])).square().sum().backward()
        gradients.append(net.emb.weight.grad)
    dense, compact = (gradient.to_dense() for gradient in gradients)
    torch.testing.assert_close(compact, dense[kept])
    if emb.sparse:
        words, rows = (gradient.coalesce().indices()[0].tolist() for gradient in gradients)
        assert rows == [kept.index(word) for word in words if word in kept]


def test_frozen_parameters_stay_frozen() -> None:
    """One by one; the compact bias is the sum of two, and is trained if either is."""
    model = tagger(nn.LSTM(3, 4)).eval()
    for name in ("weight_hh_l0", "bias_ih_l0"):
        getattr(model.rnn, name).requires_grad_(False)
    layer = gw.compress(model).rnn.layers[0]
    assert (layer.weight_ih.requires_grad, layer.weight_hh.requires_grad) == (True, False)
    assert layer.bias.requires_grad
    model.rnn.bias_hh_l0.requires_grad_(False)
    model.fc.bias.requires_grad_(False)
    small = gw.compress(model)
    assert not small.rnn.layers[0].bias.requires_grad
    assert (small.fc.weight.requires_grad, small.fc.bias.requires_grad) == (True, False)
    parametrizations.weight_norm(model.fc).requires_grad_(False)
    assert not gw.compress(model).fc.weight.requires_grad


def test_frozen_layers_stay_frozen() -> None:
    model = tagger(nn.LSTM(3, 4)).eval()
    model.rnn.requires_grad_(False)
    small = gw.compress(model)
    assert not any(p.requires_grad for p in small.rnn.parameters())
    assert all(p.requires_grad for p in small.fc.parameters())


def test_hooks_of_the_user_survive_and_those_of_the_sparsifier_go() -> None:
    seen: list[str] = []
    model = tagger(nn.LSTM(3, 4)).eval()
    gw.Variational(model, n_train=3)
    model.rnn.register_forward_hook(lambda *_: seen.append("rnn"))
    small = gw.compress(model)
    small(X)
    assert seen == ["rnn"]
    assert not small._forward_pre_hooks


def test_hooks_of_every_kind_survive() -> None:
    """Before and after, forward and backward, with arguments by name."""
    seen: list[str] = []
    model = tagger(nn.LSTM(3, 4)).eval()
    model.fc.register_forward_pre_hook(lambda *given: seen.append(f"pre {len(given)}"), with_kwargs=True)
    model.fc.register_forward_hook(lambda *given: seen.append(f"post {len(given)}"), with_kwargs=True)
    model.fc.register_full_backward_pre_hook(lambda *_: seen.append("back"))
    model.fc.register_full_backward_hook(lambda *_: seen.append("done"))
    gw.compress(model)(X).sum().backward()
    assert seen == ["pre 3", "post 4", "back", "done"]


def test_a_layer_of_two_names_is_cut_once() -> None:
    model = Net(lambda n, x: n.again(n.fc(n.rnn(x)[0])), rnn=nn.LSTM(3, 4), fc=nn.Linear(4, 4))
    model.again = model.fc
    small = gw.compress(model.eval())
    same(small, model, X)
    assert type(small.fc) is CompactLinear
    assert small.again is small.fc


def test_a_compiled_model_is_cut() -> None:
    model = unread(tagger(nn.LSTM(3, 4)).eval())
    small = gw.compress(torch.compile(model, backend="eager"))
    assert small._orig_mod.rnn.layers[0].kept == 3
    same(small, model, torch.randn(5, 2, 3))


@torch.no_grad()
def test_print_says_what_was_kept() -> None:
    """print(model) is where everybody looks first."""
    model = nn.Sequential(nn.Embedding(9, 3), nn.GRU(3, 4))
    model[0].weight[:2] = 0  # two words without a vector
    model[0].weight[:, 1] = 0  # a component that no word has
    for matrix in (model[1].weight_ih_l0, model[1].weight_hh_l0):
        matrix[:3] = 0  # three of the gates r
    small = gw.compress(model)
    assert "9, 3, kept=7 words x 2" in repr(small[0])
    assert "CompactLayer(2 of 3 inputs, 4 of 4 neurons, 9 of 12 gates)" in repr(small[1])
    linear = gw.compress(unread(tagger(nn.LSTM(3, 4)))).fc
    assert repr(linear) == "CompactLinear(in_features=4, out_features=2, bias=True, kept=3 -> 2)"
