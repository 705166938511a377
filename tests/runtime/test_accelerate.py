"""accelerate() against the compact model: any forward(), layers that take everything, parameters that change."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from chains import CLOSE, VECTORS, Case, build, chains
from hypothesis import given
from hypothesis import strategies as st
from networks import Net, lstm_net, no_grad
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.runtime.accelerate import EngineRecurrent

pytest.importorskip("gatewise.runtime._native", reason="the C kernels are not built")


@given(case=chains())
def test_accelerate(case: Case) -> None:
    """The same call, states in their original form, in and out."""
    fast = gw.accelerate(case.small)
    torch.testing.assert_close(fast(case.x, case.state), no_grad(case.small, case.x, case.state), **CLOSE)
    assert any(isinstance(m, EngineRecurrent) for m in fast.modules())
    assert not any(isinstance(m, EngineRecurrent) for m in case.small.modules())


@given(case=chains(words=0, first=False, steps=5, batch=3), data=st.data())
def test_accelerated_layers_take_everything(case: Case, data: Any) -> None:
    """Packed in any order, masked, one sequence without a batch axis, no sequence at all."""
    slow: Any = case.small.rnn
    fast: Any = gw.accelerate(slow)
    lengths = torch.tensor([data.draw(st.integers(1, 5)) for _ in range(3)])
    packed = pack_padded_sequence(case.x, lengths, slow.batch_first, enforce_sorted=False)
    answers = []
    for rnn in (slow, fast):
        with torch.no_grad():
            out, last = rnn(packed, case.state)
        answers.append((pad_packed_sequence(out), last))
    torch.testing.assert_close(*answers, **CLOSE)
    one = case.x[0] if slow.batch_first else case.x[:, 0]
    torch.testing.assert_close(fast(one), no_grad(slow, one), **CLOSE)
    none = case.x[:0] if slow.batch_first else case.x[:, :0]
    torch.testing.assert_close(fast(none), no_grad(slow, none), **CLOSE)
    mask = torch.rand(case.x.shape[:2]) < 0.6
    with torch.no_grad():
        torch.testing.assert_close(fast(case.x, mask=mask), slow(case.x, mask=mask), **CLOSE)


def test_accelerate_any_forward() -> None:
    """Residual connections, pooling and attention are the user's; the layers inside are faster."""

    def forward(m: Any, x: Tensor) -> Tensor:
        out, _ = m.rnn(x)
        again, _ = m.rnn2(out)
        out = out + again
        answer: Tensor = m.fc((out * torch.softmax(m.one(out), 1)).sum(1))
        return answer

    layers = {"rnn": nn.LSTM(3, 4, batch_first=True), "rnn2": nn.GRU(4, 4, batch_first=True)}
    model = Net(forward, **layers, fc=nn.Linear(4, 2), one=nn.Linear(4, 1)).eval()
    x = torch.randn(2, 5, 3)
    fast = gw.accelerate(model)
    assert sum(isinstance(m, EngineRecurrent) for m in fast.modules()) == 2
    torch.testing.assert_close(fast(x), no_grad(model, x), **CLOSE)


@pytest.mark.parametrize("name", ["rnn", "fc"])
def test_a_new_layer_in_a_compact_model_is_compressed_too(name: str) -> None:
    """Partly compact: no layer is left slow, and none is said to be beyond compress()."""
    model = lstm_net(lambda m, x: m.fc(m.rnn(x)[0])).eval()
    small = gw.compress(model)
    setattr(small, name, copy.deepcopy(getattr(model, name)))
    x = torch.randn(2, 5, 3)
    fast = gw.accelerate(small)
    assert isinstance(fast.rnn, EngineRecurrent)
    torch.testing.assert_close(fast(x), no_grad(model, x), **CLOSE)
    torch.testing.assert_close(gw.Engine(small)(x)[0], no_grad(model, x), **CLOSE)
    assert type(getattr(small, name)) is type(getattr(model, name))  # the argument is not changed


def test_accelerated_models_are_copied_pickled_and_loaded() -> None:
    case = build(8, VECTORS)
    fast = gw.accelerate(case.small)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(other(case.x), fast(case.x), rtol=0, atol=0)
    with torch.no_grad():
        for p in case.small.parameters():
            p.mul_(0.5)
    fast.load_state_dict(case.small.state_dict())
    torch.testing.assert_close(fast(case.x), no_grad(case.small, case.x), **CLOSE)


def test_accelerated_layers_follow_their_parameters() -> None:
    """Changed in place, as an update of deployed weights does."""
    case = build(8, VECTORS)
    fast = gw.accelerate(case.small)
    with torch.no_grad():
        for model in (case.small, fast):
            for p in model.parameters():
                p.mul_(0.5)
    torch.testing.assert_close(fast(case.x), no_grad(case.small, case.x), **CLOSE)


def written_through_data(p: Tensor) -> None:
    p.data.mul_(0.5)


def written_in_numpy(p: Tensor) -> None:
    p.detach().numpy()[...] *= 0.5


@pytest.mark.parametrize("write", [written_through_data, written_in_numpy])
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_refreshed_layers_read_what_torch_does_not_count(write: Any, cell: Any) -> None:
    """Weights that were written past torch's count of changes, tensor by tensor, z_h included."""
    slow = gw.compress(cell(3, 4, 2))
    fast: Any = gw.accelerate(slow)
    x = torch.randn(5, 2, 3)
    fast(x)
    pairs = zip(slow.layers, fast.layers)
    names = ["weight_ih", "weight_hh", "bias", "bias_gated", "neuron_scale"]
    for one, name in [(pair, name) for pair in pairs for name in names]:
        if getattr(one[0], name) is not None:
            for layer in one:
                write(getattr(layer, name))
            fast.refresh()
            torch.testing.assert_close(fast(x), no_grad(slow, x), **CLOSE)


def test_layers_notice_other_data() -> None:
    """`p.data = ...` gives a parameter other memory, which is seen without being told."""
    slow = gw.compress(nn.GRU(3, 4))
    fast: Any = gw.accelerate(slow)
    for one in (slow, fast):
        one.layers[0].weight_hh.data = 0.5 * one.layers[0].weight_hh.data
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(fast(x), no_grad(slow, x), **CLOSE)


def test_looking_rebuilds_nothing_without_a_change() -> None:
    fast: Any = gw.accelerate(gw.compress(nn.GRU(30, 70, 2, bidirectional=True)))
    network = fast.network
    for steps in (1, 1, 7, 40):
        fast(torch.randn(steps, 3, 30))
    assert fast.network is network


def test_accelerated_layers_follow_new_parameters() -> None:
    model = gw.compress(nn.GRU(3, 4))
    fast = gw.accelerate(model)
    x = torch.randn(5, 2, 3)
    for one in (model, fast):
        layer = one.layers[0]
        layer.weight_hh = nn.Parameter(0.5 * layer.weight_hh.detach())
    torch.testing.assert_close(fast(x)[0], no_grad(model, x)[0], **CLOSE)


def test_dropout_between_levels_rests_in_evaluation() -> None:
    model, x = nn.LSTM(3, 4, 2, dropout=0.5).eval(), torch.randn(5, 2, 3)
    torch.testing.assert_close(gw.accelerate(model)(x), no_grad(model, x), **CLOSE)


def test_accelerate_errors() -> None:
    """No gradient, no dropout, no other type: all of it is said."""
    case = build(9, VECTORS)
    fast: Any = gw.accelerate(case.small)
    assert not fast.training
    assert not any(p.requires_grad for p in fast.parameters())
    for threads in (0, 1.5):
        with pytest.raises(ValueError, match=f"threads={threads} must be a whole number"):
            gw.accelerate(case.small, threads=threads)
    x = case.x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no gradient; use the compact model"):
        fast(x)
    with pytest.raises(RuntimeError, match="no gradient"):
        fast(case.x, tuple(part.clone().requires_grad_() for part in case.state))
    torch.testing.assert_close(no_grad(fast, x), fast(case.x), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"float32 on the CPU, got torch\.float64"):
        fast(case.x.double())
    with pytest.raises(ValueError, match="on meta"):
        fast(case.x.to("meta"))
    fast.rnn.dropout = 0.5
    with pytest.raises(RuntimeError, match=r"no dropout; call eval\(\)"):
        fast.train()(case.x)
