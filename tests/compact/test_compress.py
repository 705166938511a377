"""What compress() leaves, counted by hand, down to nothing; and what is promised of the result."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from chains import CLOSE
from cuts import X, numbers, same
from networks import CELLS, TORCH, Net, tagger
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gatewise as gw
from gatewise.compact import CompactCell, CompactEmbedding, CompactLinear, CompactRecurrent, compacted
from gatewise.nn.lookup import cell_of


@torch.no_grad()
def test_what_goes_counted_by_hand() -> None:
    """Four neurons of an LSTM: one unread, one all constant, one with only its output gate, one whole."""
    model = tagger(nn.LSTM(3, 4)).eval()
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
    model = tagger(nn.GRU(3, 4)).eval()
    model.rnn.weight_ih_l0[8:] = model.rnn.weight_hh_l0[8:] = 0
    small = gw.compress(model)
    same(small, model, X)
    (layer,) = small.rnn.layers
    assert numbers(layer) == 8 * 3 + 8 * 4 + 4 * 4  # r and u live; biases of r, u, n and the gated half of n


@torch.no_grad()
def test_removal_goes_to_its_fixed_point() -> None:
    """A neuron read only by a removed neuron goes; so do the inputs, components and words behind it."""
    model = tagger(nn.LSTM(3, 3, 2), emb=nn.Embedding(6, 3)).eval()
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


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_a_layer_with_no_neuron_left(cell: str) -> None:
    """Every reader is zero: what is left is the bias of the answer, and words of any length give it."""
    model = tagger(TORCH[cell](3, 4, 2)).eval()
    model.fc.weight.zero_()
    small = gw.compress(model)
    same(small, model, X)
    assert numbers(small) == 2
    out, state = small.rnn(X)
    assert out.shape == (5, 2, 4)
    assert not out.any()
    assert all(part.shape == (2, 2, 4) and not part.any() for part in (state if cell == "LSTM" else [state]))


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_a_network_that_became_constant(cell: str) -> None:
    """No live gate anywhere, yet the neurons are read: a sequence that does not depend on the input."""
    model = tagger(TORCH[cell](3, 4, 2)).eval()
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
    model = tagger(nn.LSTM(3, 4)).eval()
    model.rnn.weight_ih_l0[:12] = model.rnn.weight_hh_l0[:12] = 0
    small = gw.compress(model)
    same(small, model, X)
    assert small.rnn.layers[0].weight_ih.shape == (4, 3)


@torch.no_grad()
def test_an_embedding_without_words() -> None:
    model = tagger(nn.LSTM(3, 2), emb=nn.Embedding(5, 3))
    model.emb.weight.zero_()
    ids = torch.randint(0, 5, (4, 2))
    small = gw.compress(model.eval())
    same(small, model, ids)
    assert small.emb.weight.numel() == 0
    with pytest.raises((IndexError, RuntimeError)):
        small.emb(torch.tensor([5]))
    with pytest.raises((IndexError, RuntimeError)):
        small.emb(torch.tensor([-1]))


def test_the_same_class_in_the_same_mode() -> None:
    for training in (True, False):
        model = tagger(nn.LSTM(3, 4)).eval().train(training)
        small = gw.compress(model)
        assert type(small) is Net
        assert small.training == small.rnn.training == training
    kinds = {
        nn.LSTMCell(2, 3): CompactCell,
        nn.Linear(2, 3): CompactLinear,
        nn.Embedding(2, 3): CompactEmbedding,
    }
    for layer, kind in (kinds | {nn.GRU(2, 3): CompactRecurrent}).items():
        small = gw.compress(layer)
        assert isinstance(small, kind)
        assert isinstance(small, type(layer))


def test_fine_tuning_after_the_cut() -> None:
    """Gradients reach every compact parameter, the loss falls, and what was cut stays cut."""
    torch.manual_seed(3)
    model = tagger(nn.GRU(4, 6, 2), nn.Linear(6, 9), nn.Embedding(9, 4))
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
    model = tagger(nn.LSTM(3, 8, 2, dropout=0.5)).eval()
    small = gw.compress(model)
    same(small, model, X)
    small.train()
    assert not torch.equal(small(X), small(X))


def test_one_new_layer_is_reason_enough_to_cut_again() -> None:
    small = gw.compress(tagger(nn.LSTM(3, 4)).eval())
    assert compacted(small) is small
    small.fc = nn.Linear(4, 7)
    again = compacted(small)
    assert again is not small
    assert type(again.fc) is CompactLinear


def test_deepcopy_state_dict_and_dtype() -> None:
    model = tagger(nn.LSTM(3, 4, 2)).eval()
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


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_one_step_copies_no_matrix(cell: str) -> None:
    """Step by step, a copy of the weights would take longer than the step: nothing made on the way is that large."""
    torch.manual_seed(0)
    model = tagger(TORCH[cell](8, 16, 2)).eval()
    for matrix in model.rnn.parameters():
        if matrix.dim() == 2:
            matrix[torch.rand(len(matrix)) < 0.3] = 0
    small = gw.compress(model)
    least = min(w.numel() for layer in small.rnn.layers for w in (layer.weight_ih, layer.weight_hh))
    with Largest() as made:
        small(torch.randn(1, 1, 8))
    assert 0 < made.numel < least


class Largest(TorchDispatchMode):
    """The size of the largest tensor that torch made; views of parameters are not made."""

    numel = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = op(*args, **(kwargs or {}))
        if not op.is_view:
            made = answer if isinstance(answer, list | tuple) else [answer]
            self.numel = max([self.numel, *(tensor.numel() for tensor in made)])
        return answer


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_nothing_is_remembered_from_the_call_before(cell: str) -> None:
    """New weights count at once, even those written past autograd, in a network that has run before."""
    model = tagger(TORCH[cell](3, 4, 2)).eval()
    model.fc.weight[:, 0] = model.rnn.weight_hh_l1[:, 0] = 0
    small = gw.compress(model)
    for steps in (X[:1], X):
        small(steps)
        for parameter in small.parameters():
            parameter.data.mul_(0.5)
        halved = small(steps)
        fresh = gw.compress(model)
        fresh.load_state_dict(small.state_dict())
        torch.testing.assert_close(halved, fresh(steps), rtol=0, atol=0)
        small.load_state_dict(gw.compress(model).state_dict())
        same(small, model, steps)
        same(copy.deepcopy(small), model, steps)


@torch.no_grad()
def test_ids_may_lie_in_any_order() -> None:
    """Those of a batch-first loader are turned before they are looked up."""
    emb = nn.Embedding(6, 3)
    emb.weight[2] = 0
    ids = torch.arange(6).view(2, 3).T
    torch.testing.assert_close(gw.compress(emb)(ids), emb(ids))


def test_wrong_widths_are_named() -> None:
    small = gw.compress(tagger(nn.LSTM(3, 4)).eval())
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
    model = tagger(nn.LSTM(3, 4)).eval()
    with torch.no_grad():
        model.fc.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"fc\.weight: 1 of 8 values are NaN"):
        gw.compress(model)


def test_a_model_without_values_is_refused() -> None:
    """On the meta device weights have shapes alone, and nothing is known to be zero."""
    with torch.device("meta"):
        model = nn.LSTM(3, 4)
    for function in (gw.compress, gw.measure):
        with pytest.raises(
            ValueError, match="weight_ih_l0: is on the meta device, where it has a shape and no values"
        ):
            function(model)
