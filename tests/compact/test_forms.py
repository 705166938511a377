"""What takes the place of a layer: of its class, with its attributes, and with parameters that can only be read."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Net, randomly_sparse, tagger
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import gatewise as gw


class Own(nn.LSTM):
    """A class of the user's that writes something into its instance."""

    def __init__(self, hidden: int, label: str) -> None:
        super().__init__(3, hidden, batch_first=True)
        self.label = label


class Scores(nn.Linear):
    def __init__(self, label: str) -> None:
        super().__init__(4, 2)
        self.label = label


def model() -> Net:
    return randomly_sparse(tagger(Own(4, "a"), Scores("b")), 0.6).eval()  # type: ignore[return-value]


def variational(net: nn.Module) -> nn.Module:
    gw.Variational(net, n_train=5)
    return net


def settled(net: nn.Module) -> nn.Module:
    gw.Refit(variational(net))
    return net


def loaded(net: nn.Module, folder: Path) -> nn.Module:
    gw.save(gw.compress(net), folder)
    return gw.load(folder, into=model())


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "variational": lambda net, _: variational(net),
    "settled": lambda net, _: settled(net),
    "compact": lambda net, _: gw.compress(net),
    "compact, variational before": lambda net, _: gw.compress(variational(net)),
    "compact, settled before": lambda net, _: gw.compress(settled(net)),
    "compact twice": lambda net, _: gw.compress(gw.compress(net)),
    "accelerated": lambda net, _: gw.accelerate(net),
    "loaded": loaded,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_class_of_the_users_goes_along(form: str, tmp_path: Path) -> None:
    """isinstance() of it, and what it wrote into its instance: 'CompactRecurrent' had no attribute 'label'."""
    net = FORMS[form](model(), tmp_path)
    for one in (net, copy.deepcopy(net)):
        assert isinstance(one.rnn, Own)
        assert isinstance(one.fc, Scores)
        assert (one.rnn.label, one.fc.label) == ("a", "b")
        assert "LSTM" not in vars(one.rnn)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "loaded"])
def test_pickle_keeps_the_class(form: str, tmp_path: Path) -> None:
    """It goes by type(layer): a class that only isinstance() sees would come back as another one, or not at all."""
    layer: Any = FORMS[form](model(), tmp_path).rnn
    again, x = pickle.loads(pickle.dumps(layer)), torch.randn(2, 5, 3)
    assert type(again) is type(layer)
    assert torch.equal(again.eval()(x)[0], layer.eval()(x)[0])


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4), nn.GRUCell(3, 4), Own(4, "a"), gw.nn.GRU(3, 4)], ids=repr)
def test_a_layer_alone_is_of_its_class(layer: nn.Module, tmp_path: Path) -> None:
    """As the whole model, and loaded without a model to load into: of the class that the cell has in torch."""
    small = gw.compress(layer)
    assert isinstance(small, type(layer))
    gw.save(small, tmp_path)
    torch_class = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn"))
    assert isinstance(gw.load(tmp_path), torch_class)
    assert isinstance(gw.load(tmp_path, into=small), type(layer))


def test_a_parametrised_layer_leaves_its_class_behind() -> None:
    """Which torch made for it, with a property where the compact layer has a parameter."""
    net = tagger(nn.LSTM(3, 4), weight_norm(Scores("b")))
    x = torch.randn(5, 2, 3)
    small = gw.compress(net)
    assert isinstance(small.fc, Scores)
    assert "weight" in small.fc._parameters
    torch.testing.assert_close(small(x), net(x))


# Parameters that a compact layer shows.


def test_it_shows_what_the_dense_layer_has() -> None:
    """Of a pruned model matrix by matrix; a compact layer has the sum of two biases, in the first of them."""
    net = tagger(nn.LSTM(3, 4, 2, bidirectional=True), nn.Linear(8, 2))
    small: Any = gw.compress(net)
    for name, p in net.rnn.named_parameters():  # type: ignore[union-attr]
        if name.startswith("weight"):
            torch.testing.assert_close(getattr(small.rnn, name), p.detach(), msg=name)
        if name.startswith("bias_ih"):
            other = name.replace("_ih", "_hh")
            both = getattr(net.rnn, name) + getattr(net.rnn, other)
            torch.testing.assert_close(getattr(small.rnn, name) + getattr(small.rnn, other), both)
    assert [len(parts) for parts in small.rnn.all_weights] == [4] * 4


def test_it_follows_the_layer_with_gradients() -> None:
    """A penalty of one's own, or a look at the weights during training, sees what the layer computes with."""
    small: Any = gw.compress(tagger(nn.GRU(3, 4)))
    small.rnn.weight_hh_l0.square().sum().backward()
    own = small.rnn.layers[0].weight_hh
    torch.testing.assert_close(own.grad, 2 * own)
    with torch.no_grad():
        own.mul_(2)
    torch.testing.assert_close(small.rnn.weight_hh_l0.norm(), own.norm())
    changed = small.rnn.weight_hh_l0 * 2
    changed += 1  # what was computed of it is a tensor like any other
    assert type(changed) is Tensor


WRITES: dict[str, Callable[[Any], Any]] = {
    "data": lambda w: w.data.fill_(1),
    "itself": lambda w: w.fill_(1),
    "part": lambda w: w.__setitem__(0, 1),
    "part of data": lambda w: w.data[2:].zero_(),
    "initialiser": lambda w: nn.init.orthogonal_(w),
    "+=": lambda w: w.detach().__iadd__(1),
    "freeze": lambda w: setattr(w, "requires_grad", False),
    "freeze in place": lambda w: w.requires_grad_(False),
    "other data": lambda w: setattr(w, "data", torch.zeros(16, 4)),
    "chunk": lambda w: w.data.chunk(4)[1].fill_(1),
    "flattened": lambda w: w.view(-1).copy_(torch.zeros(64)),
    "out": lambda w: torch.add(torch.zeros(16, 4), 1, out=w),
    "array": lambda w: w.detach().numpy().fill(1),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_refused(write: str) -> None:
    """It would go into a copy, and change nothing: the usual forget bias, say."""
    small: Any = gw.compress(tagger(nn.LSTM(3, 4)))
    with pytest.raises((RuntimeError, ValueError), match=r"cannot be changed: it is made anew|read-only"):
        WRITES[write](small.rnn.weight_hh_l0)


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4), nn.LSTMCell(3, 4)], ids=repr)
def test_a_parameter_cannot_be_set(layer: nn.Module) -> None:
    """nn.Module would take it for a further parameter, of which the layer computes nothing."""
    small, name = gw.compress(layer), [*layer._parameters][1]
    with pytest.raises(AttributeError, match=f"{name} cannot be set: .*smaller parameters in its place"):
        setattr(small, name, nn.Parameter(torch.zeros(16, 4)))


def test_an_initialiser_that_walks_through_layers_takes_effect() -> None:
    """model.apply(init) finds the smaller parameters, whose names have the usual words in them."""

    def init(layer: nn.Module) -> None:
        if isinstance(layer, nn.LSTM):
            for name, p in layer.named_parameters():
                nn.init.constant_(p, 0.5 if "weight_hh" in name else 0.25)

    small: Any = gw.compress(tagger(nn.LSTM(3, 4)))
    small.apply(init)
    assert (small.rnn.weight_hh_l0 == 0.5).all()
    assert (small.rnn.weight_ih_l0 == 0.25).all()


def test_without_biases_it_has_none_to_show() -> None:
    """As in torch: no attribute of a stack, None of a cell."""
    small = gw.compress(nn.LSTM(3, 4, bias=False))
    with pytest.raises(AttributeError, match="'CompactLSTM' object has no attribute 'bias_hh_l0'"):
        _ = small.bias_hh_l0
    assert gw.compress(nn.LSTMCell(3, 4, bias=False)).bias_hh is None
