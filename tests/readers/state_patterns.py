"""What models do with states: those of the last step, those handed on, and cells in a loop."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from patterns import (
    TURNED,
    B,
    E,
    H,
    T,
    bidirectional,
    emb,
    gru,
    ids,
    linear,
    lstm,
    made,
    numbers,
    state_head,
    words,
)
from torch import nn

gru2 = partial(nn.GRU, E, H, 2)
cell = partial(nn.LSTMCell, E, H)


def two_calls(m: Any, x: Any) -> Any:
    _, state = m.rnn(m.emb(x))
    again, _ = m.rnn(m.emb(x), state)
    return m.fc(again)


def returned_state(m: Any, x: Any) -> Any:
    out, state = m.rnn(m.emb(x))
    return m.fc(out), state


def cell_loop(m: Any, x: Any) -> Any:
    e = m.emb(x)
    h, c = m.rnn(e[0])
    for t in range(1, T):
        h, c = m.rnn(e[t], (h, c))
    return m.fc(h)


def cell_loop_from_zeros(m: Any, x: Any) -> Any:
    h, c = torch.zeros(x.size(1), H), torch.zeros(x.shape[1], H, device=x.device)
    for t in range(T):
        h, c = m.rnn(m.emb(x)[t], (h, c))
    return m.fc(h)


def cell_state_read(m: Any, x: Any) -> Any:
    _, c = m.rnn(m.emb(x)[0])
    return m.fc(c)


STATES = {
    "h_n[-1]": state_head(lambda h: h[-1], rnn=gru2),
    "h_n squeezed": state_head(lambda h: h.squeeze(0)),
    "both directions of h_n": state_head(
        lambda h: torch.cat((h[-2], h[-1]), dim=1), rnn=bidirectional, width=2 * H
    ),
    "h_n flattened": state_head(lambda h: h.transpose(0, 1).flatten(1), rnn=bidirectional, width=2 * H),
    "h_n turned by permute": state_head(
        lambda h: h.permute(1, 0, 2).reshape(B, -1), rnn=bidirectional, width=2 * H
    ),
    "one text of h_n": state_head(lambda h: h.permute(1, 0, 2)[0], rnn=bidirectional),
    "channels of h_n turned": state_head(lambda h: h[0, :, TURNED], "rnn.l0"),
    "h_n flattened as it is": state_head(lambda h: h.reshape(B, -1), rnn=bidirectional, width=2 * H),
    "h_n of two texts flattened as it is": state_head(
        lambda h: h.flatten(1), rnn=bidirectional, width=2 * H
    )._replace(x=lambda: ids()[:, :2]),
    "a squeeze of two layers": state_head(lambda h: h.squeeze(0)[-1], rnn=gru2),
    "the memory of a layer": words(lambda m, x: m.fc(m.rnn(m.emb(x))[1][1][-1])),
    "c_n squeezed": numbers(lambda m, x: m.fc(m.rnn(x)[1][1].squeeze(0)), rnn=lstm),
    "c_n turned and flattened": numbers(
        lambda m, x: m.fc(m.rnn(x)[1][1].transpose(0, 1).flatten(1)),
        rnn=bidirectional,
        fc=linear(2 * H),
    ),
    "c_n permuted": numbers(
        lambda m, x: m.fc(m.rnn(x)[1][1].permute(1, 0, 2).reshape(B, -1)),
        rnn=bidirectional,
        fc=linear(2 * H),
    ),
    "returned state that is not taken": words(
        returned_state, "rnn.l0", "rnn.l1", rnn=partial(nn.LSTM, E, H, 2)
    ),
    "state of one layer starts another": made(
        lambda m, x: m.fc(m.b(m.emb(x), m.a(m.emb(x))[1])[0]),
        x=ids,
        emb=emb,
        a=gru,
        b=gru,
        fc=linear(),
    ),
    "state of one layer starts another, by name": made(
        lambda m, x: m.fc(input=m.b(input=x, hx=m.a(input=x)[1])[0]), a=gru, b=gru, fc=linear()
    ),
    "the same layer goes on": words(two_calls),
    "an unrolled cell": words(cell_loop, rnn=cell),
    "an unrolled cell that starts from zeros": words(cell_loop_from_zeros, rnn=cell),
    "the memory of a cell": words(cell_state_read, rnn=cell),
}
