"""`nn.LSTMCell` and `nn.GRUCell` under gw.Variational: what a layer does in one call they do in many."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gatewise as gw

STEPS, E, H = 4, 3, 5
CELLS = {"LSTM": (nn.LSTM, nn.LSTMCell), "GRU": (nn.GRU, nn.GRUCell)}
both = pytest.mark.parametrize("kind", sorted(CELLS))
levels = pytest.mark.parametrize("levels", ["W", "W+N", "W+G+N"])


class Stepwise(nn.Module):
    """Words, a cell in a loop, a Linear that reads every step."""

    def __init__(self, kind: str, bias: bool = True) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = nn.Embedding(7, E), CELLS[kind][1](E, H, bias), nn.Linear(H, 2)
        self.again = False

    def forward(self, ids: Tensor) -> Tensor:  # (T, B)
        x, state, outputs = self.emb(ids), None, []
        for t in range(STEPS):
            call = partial(checkpoint, self.rnn, use_reentrant=False) if self.again else self.rnn
            state = call(x[t], state)
            outputs.append(self.fc(state if isinstance(state, Tensor) else state[0]))
        return torch.stack(outputs)


class Layered(nn.Module):
    def __init__(self, kind: str, bias: bool = True) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = nn.Embedding(7, E), CELLS[kind][0](E, H, 1, bias), nn.Linear(H, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.rnn(self.emb(ids))[0])


def twins(kind: str, **options: Any) -> tuple[nn.Module, nn.Module, Any, Any]:
    """A model with a cell and one with a layer, of the same means, log sigmas and group variables."""
    one, other = Stepwise(kind), Layered(kind)
    a, b = (gw.Variational(model, n_train=50, **options) for model in (one, other))
    spread_out(one)
    values = one.state_dict()
    other.load_state_dict({name: values[name.replace("_l0", "")] for name in other.state_dict()})
    return one, other, a, b


@torch.no_grad()
def spread_out(model: nn.Module) -> None:
    """Means and log sigmas on both sides of the threshold."""
    for name, p in model.named_parameters():
        p.copy_(torch.randn(p.shape) * (1.5 if "log_sigma" in name else 1.0))


@both
@levels
def test_evaluation_and_penalty_are_those_of_the_layer(kind: str, levels: str) -> None:
    one, other, a, b = twins(kind, levels=levels)
    ids = torch.randint(7, (STEPS, 3))
    torch.testing.assert_close(a.penalty(), b.penalty())
    torch.testing.assert_close(one.eval()(ids), other.eval()(ids))
    found, expected = gw.measure(one), gw.measure(other)
    assert found.neurons == {"rnn": expected.neurons["rnn.l0"]}
    assert found.gates == {"rnn": expected.gates["rnn.l0"]}
    assert found.compression == expected.compression


@both
def test_evaluation_thresholds_once_a_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a step, and from the parameters as they are in that pass."""
    model = Stepwise(kind).eval()
    gw.Variational(model, "W+G+N", n_train=50)
    asked: list[str] = []
    masked = type(model.rnn).masked
    monkeypatch.setattr(
        type(model.rnn), "masked", lambda self, name: asked.append(name) or masked(self, name)
    )
    ids = torch.randint(7, (STEPS, 3))
    with torch.no_grad():
        before = model(ids)
        assert sorted(asked) == ["gate_scale", "input_scale", "neuron_scale", "weight_hh", "weight_ih"]
        model.rnn.weight_ih.mul_(2)
        assert not torch.equal(model(ids), before)


@both
@levels
def test_every_parameter_learns(kind: str, levels: str) -> None:
    """Means, log sigmas, z of gates, neurons and of the embedding's components, which the loop is known to read."""
    model = Stepwise(kind)
    sparsifier = gw.Variational(model, levels, n_train=50)
    (model(torch.randint(7, (STEPS, 3))).square().mean() + sparsifier.penalty()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    names = {name for name, _ in model.rnn.named_parameters() if name.endswith("_scale")}
    scales = {"W": set(), "W+N": {"input_scale", "neuron_scale"}}
    assert names == scales.get(levels, {"input_scale", "neuron_scale", "gate_scale"})


@both
@pytest.mark.parametrize("noise", ["sequence", "batch"])
def test_one_draw_for_all_steps_of_a_pass(kind: str, noise: str) -> None:
    """The same input and state give the same answer again in one pass, another in the next; z differs by sequence."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.fc = CELLS[kind][1](E, H), nn.Linear(H, 2)

        def forward(self, x: Tensor) -> list[Tensor]:
            states = [self.rnn(x), self.rnn(x)]
            return [state if isinstance(state, Tensor) else state[0] for state in states]

    model = Twice()
    gw.Variational(model, "W+G+N", n_train=50, noise=noise, log_sigma=-1.0)
    x = torch.randn(1, E).expand(2, E)
    first, second = model(x)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first, model(x)[0])
    assert torch.equal(first[0], first[1]) == (noise == "batch")


@both
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_compact_cell_is_the_masked_one(kind: str, bias: bool, seed: int) -> None:
    """compress() folds z of the gates into rows, z_x and z_h into columns, and takes out what is left of neither."""
    torch.manual_seed(seed)
    model = Stepwise(kind, bias)
    gw.Variational(model, "W+G+N", n_train=50)
    spread_out(model)
    model.eval()
    small = gw.compress(model)
    assert small.rnn.layer.kept == gw.measure(model).fixed_point.neurons["rnn"] < H + 1
    ids = torch.randint(7, (STEPS, 6))
    torch.testing.assert_close(small(ids), model(ids), rtol=1e-4, atol=1e-5)


@both
def test_it_is_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    model = Stepwise(kind, bias=False)
    gw.Variational(model, "W+N", n_train=50)
    spread_out(model)
    gw.save(model, tmp_path)
    back = gw.load(tmp_path, into=Stepwise(kind, bias=False))
    torch.testing.assert_close(dict(back.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    ids = torch.randint(7, (STEPS, 2))
    torch.testing.assert_close(back.eval()(ids), model.eval()(ids), rtol=0, atol=0)


@both
@pytest.mark.parametrize("training", [True, False])
def test_checkpointed_steps_see_the_same_noise(kind: str, training: bool) -> None:
    """Gradient checkpointing runs every step again on the way back, with the draws of the pass."""
    model = Stepwise(kind).train(training)
    gw.Variational(model, "W+G+N", n_train=50, log_sigma=-1.0, readers={"rnn": ["fc"], "emb": ["rnn"]})
    ids, found = torch.randint(7, (STEPS, 3)), []
    for model.again in (False, True):
        torch.manual_seed(1)
        model.zero_grad()
        model(ids).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert found[0]
    torch.testing.assert_close(found[1], found[0])


def test_a_cell_does_not_tell_where_the_batch_is() -> None:
    """It sees one step: word variables of their own for every sequence need to be told."""
    with pytest.raises(ValueError, match="say it with batch_dim="):
        gw.Variational(Stepwise("LSTM"), n_train=50, vocabulary=["emb"])
    gw.Variational(Stepwise("LSTM"), n_train=50, vocabulary=["emb"], batch_dim=1)


def test_an_input_of_another_width_is_named() -> None:
    model = Stepwise("GRU")
    gw.Variational(model, n_train=50)
    with pytest.raises(ValueError, match="input_size is 3, but the input's last dimension is 4"):
        model.rnn(torch.zeros(2, 4))
    assert model.rnn(torch.zeros(E)).shape == (H,)
    assert repr(model.rnn) == "VariationalGRUCell(GRU, 3, 5)"
