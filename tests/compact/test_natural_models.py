"""What people write around a recurrent layer: neurons that nobody reads go, without a word, and no answer changes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import packing_elsewhere
import pytest
import torch
import torch.nn.functional as F
from networks import Net
from torch import Tensor, nn

import gatewise as gw

H = 4
X = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))


def model_of(rule: Callable[..., Any], width: int = H, rnn: nn.Module | None = None, first: int = 0) -> Net:
    """Neuron 1 is read by nobody: neither by its own layer, nor by fc, which reads neurons from column `first` on."""
    torch.manual_seed(0)
    model = Net(rule, rnn=rnn or nn.GRU(3, H, batch_first=True), fc=nn.Linear(width, 2)).eval()
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, 1] = 0
        for start in range(first, width - H + 1, H):
            model.fc.weight[:, start + 1] = 0
    return model


def last_state(rule: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda m, x: m.fc(rule(m.rnn(x)[1]))


def output(rule: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda m, x: m.fc(rule(m.rnn(x)[0]))


NATURAL: dict[str, Callable[[], Net]] = {
    "beside the raw input": lambda: model_of(lambda m, x: m.fc(torch.cat([m.rnn(x)[0], x], -1)), width=H + 3),
    "behind the raw input": lambda: model_of(
        lambda m, x: m.fc(torch.cat([x, m.rnn(x)[0]], -1)), width=H + 3, first=3
    ),
    "padded in time": lambda: model_of(output(lambda y: F.pad(y, (0, 0, 1, 0))[:, :-1])),
    "select": lambda: model_of(output(lambda y: y.select(1, -1))),
    "expand": lambda: model_of(output(lambda y: y[:, -1:].expand(-1, 5, -1))),
    "repeat": lambda: model_of(output(lambda y: y[:, -1:].repeat(1, 3, 1))),
    "h_n.squeeze()": lambda: model_of(last_state(lambda h: h.squeeze())),
    "h_n.view(-1, H)": lambda: model_of(last_state(lambda h: h.view(-1, H))),
    "packed elsewhere": lambda: model_of(lambda m, x: m.fc(packing_elsewhere.last_states(m.rnn, x))),
    "a forward() inherited from elsewhere": lambda: packing_elsewhere.inherited(H),
}


@pytest.mark.parametrize("name", NATURAL)
def test_neurons_go_without_a_word(name: str) -> None:
    model = NATURAL[name]()
    if "inherited" in name:
        with torch.no_grad():
            model.rnn.weight_hh_l0[:, 1] = 0
            model.fc.weight[:, 1] = 0
    small = gw.compress(model)  # a warning would be an error
    assert small.rnn.layers[0].kept == H - 1
    torch.testing.assert_close(small(X), model(X))


def test_a_cell_state_is_read_by_columns_too() -> None:
    """c_n[-1] keeps the neurons whose columns are not zero; others go."""
    model = model_of(lambda m, x: m.fc(m.rnn(x)[1][1][-1]), rnn=nn.LSTM(3, H, batch_first=True))
    small = gw.compress(model)
    assert small.rnn.layers[0].kept == H - 1
    torch.testing.assert_close(small(X), model(X))


def test_a_forward_of_the_instance_is_followed() -> None:
    """It reads another layer than that of the class does."""
    model = model_of(lambda m, x: m.fc(m.rnn(x)[0]))
    model.forward = types.MethodType(lambda self, x: self.rnn(x)[0], model)  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="keeps 1 neuron"):
        small = gw.compress(model)
    torch.testing.assert_close(small(X), model(X))


def test_parameters_that_forward_walks_through_stay() -> None:
    """A cut would change their sum; the layer stays as it is, and is named."""
    model = model_of(lambda m, x: m.fc(m.rnn(x)[0]) + sum(p.pow(2).sum() for p in m.rnn.parameters()))
    with pytest.warns(UserWarning, match=r"rnn stays as it is \(forward\(\) uses rnn\.\w+ past the layer"):
        small = gw.compress(model)
    torch.testing.assert_close(small(X), model(X))


class Counting(nn.Module):
    """The third step is another one, by a count that is no name of forward()."""

    seen = 0

    def __init__(self, how: str) -> None:
        super().__init__()
        self.cell, self.fc, self.how = nn.GRUCell(3, H), nn.Linear(H, 2), how

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), H)
        k = np.zeros(1)
        type(self).seen = 0
        for t in range(x.size(1)):
            if self.how == "array":
                k += 1
            else:
                type(self).seen += 1
            h = self.cell(x[:, t], h) * (1.0 if max(float(k[0]), type(self).seen) < 4 else 2.0)
        return self.fc(h)


@pytest.mark.parametrize("how", ["array", "class"])
def test_a_count_that_is_no_name_is_seen(how: str) -> None:
    """Three steps do not show the fourth: engine and exports refuse the loop, compress() leaves it exact."""
    model = Counting(how).eval()
    with pytest.raises(ValueError, match="not the same in every step"):
        gw.Engine(model)
    torch.testing.assert_close(gw.compress(model)(X), model(X))


@pytest.mark.parametrize("place", ["", "rnn"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_refused_by_engine_and_exports(place: str, kind: str, tmp_path: Any) -> None:
    """Nobody would call them."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, H, batch_first=True), fc=nn.Linear(H, 2)).eval()
    hook = (lambda m, args, out: None) if kind == "register_forward_hook" else (lambda m, args: None)
    getattr(model.get_submodule(place), kind)(hook)
    for use in (
        gw.Engine,
        lambda m: gw.export.to_onnx(m, tmp_path / "m.onnx"),
        lambda m: gw.export.to_c(m, tmp_path / "c"),
    ):
        with pytest.raises(ValueError, match="hook"):
            use(model)


def test_the_engine_follows_the_forward_of_the_instance() -> None:
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.GRU(3, H, batch_first=True), fc=nn.Linear(H, 2)).eval()
    model.forward = types.MethodType(lambda self, x: 3 * self.fc(self.rnn(x)[0]), model)  # type: ignore[method-assign]
    answer, _ = gw.Engine(model)(X.numpy())
    torch.testing.assert_close(torch.as_tensor(answer), model(X))


def test_a_neuron_that_reads_only_itself_is_named_behind_layer_norm() -> None:
    """Nobody else needs it, and yet it stays: the warning counts it."""
    model = Net(
        lambda m, x: m.fc(m.norm(m.rnn(x)[0])),
        rnn=nn.GRU(3, H, batch_first=True),
        norm=nn.LayerNorm(H),
        fc=nn.Linear(H, 2),
    ).eval()
    with torch.no_grad():
        column = model.rnn.weight_hh_l0[:, 1].clone()
        model.rnn.weight_hh_l0[:, 1] = 0
        model.rnn.weight_hh_l0[1::H, 1] = column[1::H]
        model.fc.weight[:, 1] = 0
    with pytest.warns(
        UserWarning, match=r"rnn\.l0 keeps 1 neuron that no known weight reads \(layer_norm\(\) may mix"
    ):
        small = gw.compress(model)
    torch.testing.assert_close(small(X), model(X))
