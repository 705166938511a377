"""Neurons go if all their readers are known not to read them; what stays, and why, is said once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from chains import CLOSE
from cuts import X, same, unread
from networks import Net
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

import gatewise as gw


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
    said = r"rnn\.l0 keeps 2 neurons .*layer_norm\(\) may mix.*State their readers.*readers=\{\"rnn\": "
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
        small = gw.compress(model)  # without a warning: what stays is needed
        same(small, model, X)
        assert small.encoder.layers[0].kept == kept


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
    with pytest.warns(UserWarning, match="keeps 1 neuron that .*forward\\(\\) stores it in h"):
        small = gw.compress(model)
    smaller = gw.compress(model, readers={"rnn": ["fc"]}, example=X)
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


def where(net: Any) -> Any:
    return net.fc.weight.device


def where_it_begins(net: Any) -> Any:
    """The first state of many a public model is made by this line."""
    like = net.rnn.weight_hh_l0
    return torch.zeros(4, device=like.device, dtype=like.dtype).device


def in_one_block(net: Any) -> Any:
    net.rnn.flatten_parameters()
    return net.rnn.all_weights[0][0].device


def _cudnn_rnn_flatten_weight(weights: Any) -> None:
    """What flatten_parameters() calls on a GPU."""
    if has_torch_function(weights):
        handle_torch_function(_cudnn_rnn_flatten_weight, weights, weights)


def in_one_block_on_a_gpu(net: Any) -> Any:
    _cudnn_rnn_flatten_weight(net.rnn._flat_weights)
    return net.fc.weight.device


@pytest.mark.parametrize("asks", [where, where_it_begins, in_one_block, in_one_block_on_a_gpu])
def test_asking_where_a_matrix_is_costs_nothing(asks: Callable[[Any], Any]) -> None:
    """An LSTM whose parameters forward() asks for, or wants in one block, stayed as it was."""

    def forward(net: Any, x: Any) -> Any:
        return net.fc(net.rnn(x.to(asks(net)))[0])

    model = unread(Net(forward, rnn=nn.LSTM(3, 4), fc=nn.Linear(4, 2)).eval())
    small = gw.compress(model)
    assert small.rnn.layers[0].kept == 3
    same(small, model, torch.randn(5, 2, 3))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda net: net.rnn.weight_hh_l0.sum(), r"rnn .* uses rnn.weight_hh_l0 past the layer"),
        (lambda net: net.fc.weight.shape[1], r"fc .* asks how large fc.weight is"),
        (lambda net: next(net.rnn.parameters()).size(1), r"rnn .* asks how large rnn.weight_ih_l0 is"),
        (lambda net: len(net.fc.bias), r"fc .* asks how large fc.bias is"),
    ],
)
def test_a_layer_whose_parameter_forward_uses_stays_and_is_named(
    use: Callable[[Any], Any], said: str
) -> None:
    """Also where it asks only for the size, which a cut of a Linear layer changes."""

    def forward(net: Any, x: Any) -> Any:
        return net.fc(net.rnn(x)[0]) + use(net)

    model = unread(Net(forward, rnn=nn.LSTM(3, 4), fc=nn.Linear(4, 2)).eval())
    with pytest.warns(UserWarning, match=said.replace(" .* ", r" stays as it is \(forward\(\) ")):
        small = gw.compress(model)
    same(small, model, torch.randn(5, 2, 3))
