"""Stated readers are believed where tracing cannot tell, tried, and never against what it has proven."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.readers import find_readers


class Handed(nn.Module):
    """An encoder whose last state starts a decoder."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.enc, self.dec, self.fc = encoder, decoder, nn.Linear(4, 2)
        self.steps = isinstance(decoder, nn.GRUCell)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.enc(x)
        if self.steps:
            return self.fc(self.dec(x[:, 0], state[-1]))
        return self.fc(self.dec(x, state)[0])


def pairs() -> list[tuple[nn.Module, nn.Module]]:
    return [
        (nn.GRU(3, 4, batch_first=True), nn.GRU(3, 4, batch_first=True)),
        (nn.LSTM(3, 4, batch_first=True), nn.LSTM(3, 4, batch_first=True)),
        (nn.GRU(3, 4, batch_first=True), nn.GRUCell(3, 4)),
    ]


@pytest.mark.parametrize("k", range(3))
def test_a_state_that_starts_another_layer_cannot_be_stated_away(k: int) -> None:
    """Without a word of the user a neuron goes exactly where that which it starts goes; a wrong word is refused."""
    model = Handed(*pairs()[k]).eval()
    own = "weight_hh" if model.steps else "weight_hh_l0"
    with torch.no_grad():
        for weight in (model.enc.weight_hh_l0, getattr(model.dec, own), model.fc.weight):
            weight[:, 1] = 0
        model.enc.weight_hh_l0[:, 2] = 0  # started by it, dec's neuron 2 is read
    x = torch.randn(2, 5, 3)
    small = gw.compress(model)
    torch.testing.assert_close(small(x), model(x))
    assert small.enc.layers[0].neurons.tolist() == [0, 2, 3]
    with pytest.raises(ValueError, match="the last state of 'enc' starts that of"):
        gw.compress(model, readers={"enc": []})


@pytest.mark.parametrize("method", ["lasso", "variational"])
@pytest.mark.parametrize("k", range(3))
def test_hand_over_works_in_both_sparsifiers(k: int, method: str) -> None:
    torch.manual_seed(k)
    model = Handed(*pairs()[k])
    x = torch.randn(6, 5, 3)
    sparsifier: Any = (
        gw.GroupLasso(model, levels="W+G+N", group=1e-2)
        if method == "lasso"
        else gw.Variational(model, levels="W+G+N", n_train=6)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x).square().mean() + sparsifier.penalty()).backward()
        optimizer.step()
        sparsifier.step()
    model.eval()
    torch.testing.assert_close(gw.compress(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_proven_reader_cannot_be_left_out() -> None:
    model = Net(
        lambda m, x: m.fc(m.rnn(x)[0]) + m.other(m.rnn(x)[0]),
        rnn=nn.GRU(3, 4),
        fc=nn.Linear(4, 2),
        other=nn.Linear(4, 2),
    )
    with pytest.raises(ValueError, match="'rnn' is read by other"):
        find_readers(model, {"rnn": ["fc"]})


def mixed(m: Any, x: Any) -> Any:
    """Nobody can follow it, and it needs every neuron."""
    out = m.rnn(x)[0]
    return m.fc(out) + torch.fft.rfft(out, dim=-1).abs().sum(-1, keepdim=True)


def harmless(m: Any, x: Any) -> Any:
    """Nobody can follow it, and it looks at the first neuron only."""
    out = m.rnn(x)[0]
    return m.fc(out) + torch.fft.rfft(out[..., :1], dim=0).abs().sum() * 0


def unread(rule: Any) -> Net:
    model = Net(rule, rnn=nn.GRU(3, 4), fc=nn.Linear(4, 2)).eval()
    with torch.no_grad():
        for weight in (model.rnn.weight_hh_l0, model.fc.weight):
            weight[:, 2] = 0
    return model


@pytest.mark.parametrize("example", [None, torch.randn(5, 2, 3)])
def test_a_wrong_statement_is_found_out(example: Tensor | None) -> None:
    with pytest.raises(
        ValueError, match=r"readers: with what is stated about rnn\.l0 the answer changes by up to"
    ):
        gw.compress(unread(mixed), readers={"rnn": ["fc"]}, example=example)


@pytest.mark.parametrize("example", [None, torch.randn(5, 2, 3)])
def test_a_right_statement_is_believed(example: Tensor | None) -> None:
    model = unread(harmless)
    small = gw.compress(model, readers={"rnn": ["fc"]}, example=example)
    assert small.rnn.layers[0].kept == 3


def test_a_statement_that_cannot_be_tried_asks_for_an_example() -> None:
    def forward(m: Any, x: Any) -> Any:
        if x["numbers"].sum() > 1e9:
            return x
        return m.fc(m.rnn(x["numbers"])[0])

    model = unread(forward)
    with pytest.raises(ValueError, match="example=x"):
        gw.compress(model, readers={"rnn": ["fc"]})
    small = gw.compress(model, readers={"rnn": ["fc"]}, example={"numbers": torch.randn(5, 2, 3)})
    assert small.rnn.layers[0].kept == 3


def test_a_reader_may_begin_at_any_column() -> None:
    """As traced, so stated: fc reads the layer behind two columns of something else."""

    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        extra = x[..., :2] if x.sum() < 1e9 else x[..., 1:]
        return m.fc(torch.cat([extra, out], -1))

    model = Net(forward, rnn=nn.GRU(3, 4), fc=nn.Linear(6, 2)).eval()
    (read,) = [r for r in find_readers(model, {"rnn": [("fc", 2)]}).reads if r.matrix == "fc.weight"]
    assert (read.column, read.width) == (2, 4)
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, 1] = 0
        model.fc.weight[:, 3] = 0
    x = torch.randn(5, 2, 3)
    small = gw.compress(model, readers={"rnn": [("fc", 2)]}, example=x)
    assert small.rnn.layers[0].kept == 3
    torch.testing.assert_close(small(x), model(x))
    with pytest.raises(ValueError, match="from column 3 on"):
        find_readers(model, {"rnn": [("fc", 3)]})
    with pytest.raises(ValueError, match=r"or to \(name, first column\)"):
        find_readers(model, {"rnn": [("fc",)]})  # type: ignore[list-item]
