"""Cases of compress() worth a name: what goes, what must stay, and what is said about it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import gatewise as gw
from gatewise.compact import CompactCell, CompactEmbedding, CompactLinear, CompactRecurrent, compacted
from gatewise.nn.lookup import cell_of

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Net(nn.Module):
    """Layers by name, and forward() as a function of them."""

    def __init__(self, rule: Callable[[Any, Any], Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.rule = rule

    def forward(self, x: Any) -> Any:
        return self.rule(self, x)


def tagger(cell: str = "LSTM", size: int = 3, hidden: int = 4, outputs: int = 2, **options: Any) -> Net:
    rnn = getattr(nn, cell)(size, hidden, **options)
    return Net(lambda net, x: net.fc(net.rnn(x)[0]), rnn=rnn, fc=nn.Linear(hidden, outputs)).eval()


def same(small: nn.Module, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x), **CLOSE)


def numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))


# Sizes, counted by hand.


@torch.no_grad()
def test_what_goes_counted_by_hand() -> None:
    """Four neurons of an LSTM: one unread, one all constant, one with only its output gate, one whole."""
    model = tagger()
    rnn, fc = model.rnn, model.fc
    fc.weight[:, 0] = 0
    rnn.weight_hh_l0[:, 0] = 0  # neuron 0: nobody reads it
    for gate in range(4):
        # Neuron 1: all gates constant, yet read.
        rnn.weight_ih_l0[gate * 4 + 1] = rnn.weight_hh_l0[gate * 4 + 1] = 0
    for gate in range(3):
        rnn.weight_ih_l0[gate * 4 + 2] = rnn.weight_hh_l0[gate * 4 + 2] = 0  # neuron 2: only o is live
    rnn.weight_ih_l0[:, 1] = 0  # input 1: nobody reads it
    small = gw.compress(model)
    same(small, model, X)
    (layer,) = small.rnn.layers
    assert layer.neurons.tolist() == [1, 2, 3]
    assert layer.weight_ih.shape == (4 + 1, 2)
    assert layer.weight_hh.shape == (4 + 1, 3)
    # Rows of live gates; one number for every gate of a kept neuron.
    assert numbers(layer) == 5 * 2 + 5 * 3 + 4 * 3
    assert small.fc.weight.shape == (2, 3)


@torch.no_grad()
def test_a_gru_candidate_without_a_row_keeps_two_numbers() -> None:
    """n = tanh(b_in + r b_hn) varies with r: no dot product, but both halves of the bias."""
    model = tagger("GRU")
    model.rnn.weight_ih_l0[8:] = model.rnn.weight_hh_l0[8:] = 0
    small = gw.compress(model)
    same(small, model, X)
    (layer,) = small.rnn.layers
    assert numbers(layer) == 8 * 3 + 8 * 4 + 4 * 4  # r and u live; biases of r, u, n and the gated half of n


@torch.no_grad()
def test_removal_goes_to_its_fixed_point() -> None:
    """A neuron read only by a removed neuron goes; so do the inputs, components and words behind it."""
    model = Net(
        lambda net, x: net.fc(net.rnn(net.emb(x))[0]),
        emb=nn.Embedding(6, 3),
        rnn=nn.LSTM(3, 3, 2),
        fc=nn.Linear(3, 2),
    ).eval()
    w_hh, w_up = model.rnn.weight_hh_l0, model.rnn.weight_ih_l1
    model.fc.weight[:, 2] = model.rnn.weight_hh_l1[:, 2] = 0  # layer 1, neuron 2 is unread,
    w_up[:, 0] = 0
    w_up[2::3, 0] = 1  # and is the only one that reads layer 0, neuron 0,
    w_hh[:, :2] = 0
    w_hh[0::3, 1] = 1  # which alone reads neuron 1,
    w_up[:, 1] = 0
    model.rnn.weight_ih_l0[2::3, 1] = 0  # so that component 1 is read by removed neurons only
    model.emb.weight[4, 0] = model.emb.weight[4, 2] = 0  # and word 4 is nothing without it
    ids = torch.arange(6)[:, None]
    small = gw.compress(model)
    same(small, model, ids)
    assert [layer.neurons.tolist() for layer in small.rnn.layers] == [[2], [0, 1]]
    assert small.emb.components.tolist() == [0, 2]
    assert small.emb.rows.tolist() == [0, 1, 2, 3, -1, 4]
    assert small.emb.weight.shape == (5, 2)


@torch.no_grad()
def test_a_linear_layer_before_the_recurrent_one_loses_rows() -> None:
    model = Net(
        lambda n, x: n.fc(n.rnn(n.first(x).relu())[0]),
        first=nn.Linear(3, 5),
        rnn=nn.GRU(5, 4),
        fc=nn.Linear(4, 1),
    )
    model.rnn.weight_ih_l0[:, [1, 3]] = 0
    small = gw.compress(model.eval())
    same(small, model, X)
    assert small.first.weight.shape == (3, 3)
    assert small.first.outputs.tolist() == [0, 2, 4]


# What becomes of nothing.


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@torch.no_grad()
def test_a_layer_with_no_neuron_left(cell: str) -> None:
    """Every reader is zero: what is left is the bias of the answer, and words of any length give it."""
    model = tagger(cell, num_layers=2, bidirectional=False)
    model.fc.weight.zero_()
    small = gw.compress(model)
    same(small, model, X)
    assert numbers(small) == 2
    out, state = small.rnn(X)
    assert out.shape == (5, 2, 4)
    assert not out.any()
    assert all(part.shape == (2, 2, 4) and not part.any() for part in (state if cell == "LSTM" else [state]))


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@torch.no_grad()
def test_a_network_that_became_constant(cell: str) -> None:
    """No live gate anywhere, yet the neurons are read: a sequence that does not depend on the input."""
    model = tagger(cell, num_layers=2)
    for name, parameter in model.rnn.named_parameters():
        if name.startswith("weight"):
            parameter.zero_()
    small = gw.compress(model)
    same(small, model, X)
    same(small, model, -X)
    top = small.rnn.layers[1]
    assert top.kept == 4
    assert top.weight_ih.numel() == top.weight_hh.numel() == 0
    assert small.rnn.layers[0].kept == 0


@torch.no_grad()
def test_only_output_gates_live() -> None:
    """The paper's second layer: half of its neurons keep nothing but the output gate."""
    model = tagger()
    model.rnn.weight_ih_l0[:12] = model.rnn.weight_hh_l0[:12] = 0
    small = gw.compress(model)
    same(small, model, X)
    assert small.rnn.layers[0].weight_ih.shape == (4, 3)


@torch.no_grad()
def test_an_embedding_without_words() -> None:
    model = Net(
        lambda n, x: n.fc(n.rnn(n.emb(x))[0]), emb=nn.Embedding(5, 3), rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)
    )
    model.emb.weight.zero_()
    ids = torch.randint(0, 5, (4, 2))
    small = gw.compress(model.eval())
    same(small, model, ids)
    assert small.emb.weight.numel() == 0
    with pytest.raises((IndexError, RuntimeError)):
        small.emb(torch.tensor([5]))
    with pytest.raises((IndexError, RuntimeError)):
        small.emb(torch.tensor([-1]))


# Readers.


def with_norm() -> Net:
    model = Net(
        lambda n, x: n.fc(n.norm(n.rnn(x)[0])), rnn=nn.LSTM(3, 4), norm=nn.LayerNorm(4), fc=nn.Linear(4, 2)
    )
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, :2] = 0
        model.fc.weight[:, :2] = 0
    return model.eval()


def test_layer_norm_keeps_neurons_and_says_so() -> None:
    """The mean of all neurons is part of every answer: unread columns prove nothing. One warning, with the cost."""
    model = with_norm()
    said = r"rnn\.l0 keeps 2 neurons .*LayerNorm 'norm' may mix.*State their readers.*readers=\{\"rnn\": "
    with pytest.warns(UserWarning, match=said) as caught:
        small = gw.compress(model)
    assert len(caught) == 1
    same(small, model, X)
    (layer,) = small.rnn.layers
    assert layer.kept == 4
    assert layer.weight_hh.shape == (16, 2)  # the columns that no gate reads go all the same


def test_stated_readers_override() -> None:
    """Where the user knows better than the tracer, neurons go, and nothing is said."""
    model = Net(opaque, rnn=nn.LSTM(3, 4), fc=nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, :2] = 0
        model.fc.weight[:, :2] = 0
    with pytest.warns(UserWarning, match=r"rnn\.l0 keeps 2 neurons .*could not be traced"):
        kept = gw.compress(model)
    small = gw.compress(model, readers={"rnn": ["fc"]})
    same(kept, model, X)
    same(small, model, X)
    assert kept.rnn.layers[0].kept == 4
    assert small.rnn.layers[0].kept == 2
    with pytest.raises(ValueError, match="not a layer with units"):
        gw.compress(model, readers={"lstm": ["fc"]})


def opaque(net: Any, x: Tensor) -> Any:
    out = net.rnn(x)[0]
    return net.fc(out if float(out.detach().sum()) > -1e9 else out * 2)


def test_neurons_that_are_always_zero_go_even_without_readers() -> None:
    model = with_norm()
    gw.Variational(model, n_train=2, noise="batch")
    with torch.no_grad():
        model.rnn.neuron_scale_l0[3] = 0
        model.rnn.gate_scale_l0[0, 2] = 0
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        small = gw.compress(model)
    same(small, model, X)
    assert small.rnn.layers[0].neurons.tolist() == [0, 1, 2]


def test_a_silent_neuron_whose_cell_state_is_handed_on_stays() -> None:
    """z_h = 0 makes h zero, not c: an encoder's last c starts the decoder. A GRU has no such memory."""
    for cell, kept in ((nn.LSTM, 4), (nn.GRU, 3)):
        model = Net(
            lambda n, x: n.fc(n.decoder(x, n.encoder(x)[1])[0]),
            encoder=cell(3, 4), decoder=cell(3, 4), fc=nn.Linear(4, 2),
        ).eval()  # fmt: skip
        gw.Variational(model, n_train=2, noise="batch")
        with torch.no_grad():
            model.encoder.neuron_scale_l0[1] = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            small = gw.compress(model)
        same(small, model, X)
        assert small.encoder.layers[0].kept == kept
        assert len(caught) == kept - 3  # what stays is said


def test_no_warning_where_nothing_was_lost() -> None:
    """An unproven reader that costs nothing is not worth a word (warnings are errors here)."""
    gw.compress(Net(lambda n, x: n.norm(n.rnn(x)[0]), rnn=nn.LSTM(3, 4), norm=nn.LayerNorm(4)))
    gw.compress(nn.GRU(3, 4))


def test_a_layer_that_also_reads_the_input_keeps_its_columns() -> None:
    """fc reads a removed neuron and, in another call, the input itself: its columns are all needed."""
    model = Net(lambda n, x: n.fc(n.rnn(x)[0]) + n.fc(x), rnn=nn.LSTM(3, 3), fc=nn.Linear(3, 2)).eval()
    gw.Variational(model, n_train=2, noise="batch")
    with torch.no_grad():
        model.rnn.neuron_scale_l0[1] = 0
    same(gw.compress(model), model, X)


class Stateful(nn.Module):
    """Keeps its state, a history and a count between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.LSTM(3, 4), nn.Linear(4, 2)
        self.hidden: Any = None
        self.history: list[Tensor] = []
        self.calls = 0
        with torch.no_grad():
            self.rnn.weight_hh_l0[:, 1] = self.fc.weight[:, 1] = 0

    def forward(self, x: Tensor) -> Tensor:
        out, self.hidden = self.rnn(x, self.hidden)
        self.history.append(out)
        self.calls += 1
        answer: Tensor = self.fc(out)
        return answer


def test_a_model_that_keeps_its_state() -> None:
    """Looking leaves no trace in it; who reads the stored state is not known, so neurons stay, unless stated."""
    model = Stateful().eval()
    gw.measure(model)
    assert (model.hidden, model.history, model.calls) == (None, [], 0)
    model(X)  # a state with a history of gradients, which torch would not copy
    with pytest.warns(UserWarning, match="keeps 1 neurons .*forward\\(\\) stores it in h"):
        small = gw.compress(model)
    smaller = gw.compress(model, readers={"rnn": ["fc"]})
    assert (len(model.history), model.calls) == (1, 1)
    assert smaller.rnn.layers[0].kept == 3
    for x in (X, -X):
        expected = model(x)
        torch.testing.assert_close(small(x), expected, **CLOSE)
        torch.testing.assert_close(smaller(x), expected, **CLOSE)


@torch.no_grad()
def test_a_tied_component_goes_only_if_both_agree() -> None:
    """Component 0 is dead for both, 1 only for the embedding's reader, 2 only for the softmax."""

    def make(tied: bool) -> Net:
        net = Net(
            lambda n, x: n.fc(n.rnn(n.emb(x))[0]),
            emb=nn.Embedding(6, 4),
            rnn=nn.LSTM(4, 4),
            fc=nn.Linear(4, 6),
        )
        if tied:
            net.fc.weight = net.emb.weight
        net.rnn.weight_ih_l0[:, :2] = 0
        net.rnn.weight_hh_l0[:, 0] = net.rnn.weight_hh_l0[:, 2] = 0
        net.emb.weight[:, 0] = net.emb.weight[5] = 0
        return net.eval()

    ids = torch.randint(0, 6, (5, 2))
    model = make(True)
    small = gw.compress(model)
    same(small, model, ids)
    assert small.fc.weight is small.emb.weight
    assert small.emb.components.tolist() == [1, 2, 3]
    assert small.fc.weight.shape == (6, 3)  # word 5 is zero, and yet has a score: its bias
    apart = make(False)
    loose = gw.compress(apart)
    same(loose, apart, ids)
    assert loose.emb.components.tolist() == [2, 3]


# Other people's layers.


@torch.no_grad()
def test_pruned_by_torch() -> None:
    """Masks that act in hooks count as zeros; hooks and masks are gone afterwards, and the argument keeps them."""
    model = tagger()
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
    model = Net(lambda n, x: n.fc(n.rnn(x)[0]), rnn=nn.LSTM(3, 4), fc=Halved(4, 2)).eval()
    model.fc.weight[:, 0] = model.rnn.weight_hh_l0[:, 0] = 0
    with pytest.warns(UserWarning, match="keeps 1 neurons"):
        small = gw.compress(model)
    same(small, model, X)
    assert type(small.fc) is Halved
    model = Net(lambda n, x: n.fc(n.rnn(x)[0]), rnn=Doubled(3, 4), fc=nn.Linear(4, 2)).eval()
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(Doubled has a forward\(\) of its own\)"):
        small = gw.compress(model)
    same(small, model, X)


@torch.no_grad()
def test_recurrent_layers_without_gates_stay_and_are_named() -> None:
    model = Net(lambda n, x: n.fc(n.rnn(x)[0]), rnn=nn.RNN(3, 4), fc=nn.Linear(4, 2)).eval()
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(RNN has no gates\)"):
        same(gw.compress(model), model, X)


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


@torch.no_grad()
def test_embedding_options() -> None:
    """max_norm shortens the same rows, by their whole length; the padding row keeps getting no gradient."""
    emb = nn.Embedding(6, 3, padding_idx=2, max_norm=0.5)
    emb.weight.normal_()
    model = Net(lambda n, x: n.fc(n.rnn(n.emb(x))[0]), emb=emb, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2)).eval()
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
    model = Net(lambda n, x: n.fc(n.rnn(n.emb(x))[0]), emb=emb, rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2)).eval()
    emb.weight.mul_(5)
    small = gw.compress(model)  # before the rows are shortened in place
    same(small, model, torch.arange(9)[:, None])


@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"sparse": True}])
@pytest.mark.parametrize("padding", [None, 1, 2])
def test_rows_get_the_gradient_of_the_dense_embedding(options: dict[str, bool], padding: int | None) -> None:
    """Scaled by counts, or sparse: words without a row, and padding, have no part in it."""
    emb = nn.Embedding(6, 3, padding_idx=padding, **options)
    model = Net(lambda n, x: n.fc(n.rnn(n.emb(x))[0]), emb=emb, rnn=nn.LSTM(3, 2), fc=nn.Linear(2, 2))
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
    model = tagger()
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


@pytest.mark.parametrize("look", [gw.measure, gw.compress])
@pytest.mark.parametrize("training", [True, False])
def test_looking_at_a_parametrised_weight_changes_nothing(
    look: Callable[[nn.Module], object], training: bool
) -> None:
    """In training, spectral_norm takes one more step of its iteration whenever its weight is asked for."""
    model = tagger()
    parametrizations.spectral_norm(model.fc)
    model.train(training)
    before = copy.deepcopy(model.state_dict())
    look(model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(module.training is training for module in model.modules())


def unread(model: Net) -> Net:
    """The first neuron goes nowhere."""
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, 0] = 0
        model.fc.weight[:, 0] = 0
    return model


def test_asking_where_a_matrix_is_costs_nothing() -> None:
    def forward(net: Any, x: Any) -> Any:
        return net.fc(net.rnn(x.to(net.fc.weight.device))[0])

    model = unread(Net(forward, rnn=nn.LSTM(3, 4), fc=nn.Linear(4, 2)).eval())
    small = gw.compress(model)
    assert small.rnn.layers[0].kept == 3
    same(small, model, torch.randn(5, 2, 3))


@pytest.mark.parametrize("use", [lambda w: w.sum(), lambda w: torch.ones(1, device=w.device)])
def test_a_layer_whose_parameter_forward_uses_stays_and_is_named(use: Callable[[Any], Any]) -> None:
    """A compact recurrent layer has no parameter of that name, not even to be asked where it is."""

    def forward(net: Any, x: Any) -> Any:
        return net.fc(net.rnn(x)[0]) + use(net.rnn.weight_hh_l0)

    model = unread(Net(forward, rnn=nn.LSTM(3, 4), fc=nn.Linear(4, 2)).eval())
    with pytest.warns(
        UserWarning, match=r"rnn stays as it is \(forward\(\) uses rnn.weight_hh_l0 past the layer"
    ):
        small = gw.compress(model)
    same(small, model, torch.randn(5, 2, 3))


def test_a_compiled_model_is_cut() -> None:
    model = unread(tagger())
    small = gw.compress(torch.compile(model, backend="eager"))
    assert small._orig_mod.rnn.layers[0].kept == 3
    same(small, model, torch.randn(5, 2, 3))


def test_frozen_layers_stay_frozen() -> None:
    model = tagger()
    model.rnn.requires_grad_(False)
    small = gw.compress(model)
    assert not any(p.requires_grad for p in small.rnn.parameters())
    assert all(p.requires_grad for p in small.fc.parameters())


def test_hooks_of_the_user_survive_and_those_of_the_sparsifier_go() -> None:
    seen: list[str] = []
    model = tagger()
    gw.Variational(model, n_train=3)
    model.rnn.register_forward_hook(lambda *_: seen.append("rnn"))
    small = gw.compress(model)
    small(X)
    assert seen == ["rnn"]
    assert not small._forward_pre_hooks


def test_hooks_of_every_kind_survive() -> None:
    """Before and after, forward and backward, with arguments by name."""
    seen: list[str] = []
    model = tagger()
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


# What is promised of the result.


def test_the_same_class_in_the_same_mode() -> None:
    for training in (True, False):
        model = tagger().train(training)
        small = gw.compress(model)
        assert type(small) is Net
        assert small.training == small.rnn.training == training
    kinds = {
        nn.LSTMCell(2, 3): CompactCell,
        nn.Linear(2, 3): CompactLinear,
        nn.Embedding(2, 3): CompactEmbedding,
    }
    for layer, kind in (kinds | {nn.GRU(2, 3): CompactRecurrent}).items():
        assert type(gw.compress(layer)) is kind


def test_fine_tuning_after_the_cut() -> None:
    """Gradients reach every compact parameter, the loss falls, and what was cut stays cut."""
    torch.manual_seed(3)
    model = Net(
        lambda n, x: n.fc(n.rnn(n.emb(x))[0]), emb=nn.Embedding(9, 4), rnn=nn.GRU(4, 6, 2), fc=nn.Linear(6, 9)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(torch.rand_like(parameter) < 0.4)
    small = gw.compress(model)
    shapes = [p.shape for p in small.parameters()]
    ids = torch.randint(0, 9, (8, 4))
    optimizer = torch.optim.Adam(small.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(small(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in small.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert [p.shape for p in small.parameters()] == shapes
    again = gw.compress(small)  # a trained compact model is measured, cut and saved like any other
    with torch.no_grad():
        torch.testing.assert_close(again(ids), small(ids), **CLOSE)


def test_dropout_between_layers_goes_on_in_training_only() -> None:
    model = tagger(hidden=8, num_layers=2, dropout=0.5)
    small = gw.compress(model)
    same(small, model, X)
    small.train()
    assert not torch.equal(small(X), small(X))


def test_one_new_layer_is_reason_enough_to_cut_again() -> None:
    small = gw.compress(tagger())
    assert compacted(small) is small
    small.fc = nn.Linear(4, 7)
    again = compacted(small)
    assert again is not small
    assert type(again.fc) is CompactLinear


def test_deepcopy_state_dict_and_dtype() -> None:
    model = tagger(num_layers=2)
    small = gw.compress(model)
    twin = copy.deepcopy(small)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(small.state_dict())
    same(twin, small, X)
    with torch.no_grad():
        torch.testing.assert_close(small.double()(X.double()).float(), model(X), **CLOSE)
    cell = nn.LSTMCell(3, 4).double()
    torch.testing.assert_close(gw.compress(cell)(X[0].double()), cell(X[0].double()))


@torch.no_grad()
def test_ids_may_lie_in_any_order() -> None:
    """Those of a batch-first loader are turned before they are looked up."""
    emb = nn.Embedding(6, 3)
    emb.weight[2] = 0
    ids = torch.arange(6).view(2, 3).T
    torch.testing.assert_close(gw.compress(emb)(ids), emb(ids))


def test_wrong_widths_are_named() -> None:
    small = gw.compress(tagger())
    with pytest.raises(ValueError, match="input_size is 3"):
        small.rnn(torch.randn(5, 2, 4))
    with pytest.raises(ValueError, match="in_features is 4"):
        small.fc(torch.randn(5, 3))
    with pytest.raises(ValueError, match="no dense twin"):
        small.rnn.to_dense()
    cell = gw.compress(nn.GRUCell(3, 4))
    with pytest.raises(ValueError, match="input_size is 3"):
        cell(torch.randn(5, 2))
    assert cell_of(cell).name == "GRU"


def test_a_model_with_nan_is_refused() -> None:
    model = tagger()
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"fc\.weight: 1 of 8 values are NaN"):
        gw.compress(model)
