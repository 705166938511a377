"""Loops around cells that run as often as the input is long, in the ways in which people write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from patterns import B, E, H, linear, made, words
from torch import nn

cell = partial(nn.LSTMCell, E, H)
gru_cell = partial(nn.GRUCell, E, H)
wide = partial(nn.GRUCell, H, H)


def every_step(m: Any, x: Any) -> Any:
    e, outputs = m.emb(x), []
    h, c = torch.zeros(x.size(1), H), torch.zeros(x.size(1), H)
    for t in range(x.size(0)):
        h, c = m.rnn(e[t], (h, c))
        outputs.append(h)
    return m.fc(torch.stack(outputs, dim=1))


def last_step(m: Any, x: Any) -> Any:
    steps, batch = x.shape
    h = c = m.emb(x).new_zeros(batch, H)
    for t in range(steps):
        h, c = m.rnn(m.emb(x[t]), (h, c))
    return m.fc(h)


def over_unbind(m: Any, x: Any) -> Any:
    state = None
    for step in m.emb(x.t()).unbind(1):
        state = m.rnn(step, state)
    return m.fc(state[0])  # type: ignore[index]


def over_the_tensor(m: Any, x: Any) -> Any:
    h, outputs = None, []
    for step in m.emb(x):
        h = m.rnn(step, h)
        outputs += [m.fc(h)]
    return torch.stack(outputs)


def by_len(m: Any, x: Any) -> Any:
    h = None
    for t in range(len(x)):
        h = m.rnn(m.emb(x)[t], h)
    return m.fc(h)


def counted(m: Any, x: Any) -> Any:
    h, outputs = None, []
    for t, step in enumerate(m.emb(x).split(1)):
        h = m.rnn(step.squeeze(0), h)
        outputs.append((h * (t + 1)).unsqueeze(0))
    return m.fc(torch.cat(outputs))


def together(m: Any, x: Any) -> Any:
    h, outputs = None, []
    for one, other in zip(m.emb(x), m.emb(x).unbind(0)):
        h = m.rnn(one + other, h)
        outputs.append(h)
    return torch.stack([m.fc(h) for h in outputs])


def both_ways(m: Any, x: Any) -> Any:
    e, steps = m.emb(x), x.size(0)
    forth = back = torch.zeros(B, H)
    for t in range(steps):
        forth, back = m.rnn(e[t], forth), m.back(e[steps - 1 - t], back)
    for t in reversed(range(steps)):
        back = m.back(e[t], back)
    return m.fc(torch.cat([forth, back], dim=1))


def stacked(m: Any, x: Any) -> Any:
    e, cells, outputs = m.emb(x), (m.rnn, m.middle, m.top), []
    states = [torch.zeros(B, H) for _ in cells]
    for t in range(x.size(0)):
        h = e[t]
        for layer, one in enumerate(cells):
            h = states[layer] = one(nn.functional.dropout(h, training=m.training), states[layer])
        outputs.append(h)
    return m.fc(torch.stack(outputs))


def attention(m: Any, x: Any) -> Any:
    e, h, outputs = m.emb(x), None, []
    for t in range(x.size(0)):
        h = m.rnn(e[t], h)
        outputs.append(h)
    whole = torch.stack(outputs, dim=1)
    return m.fc((whole * torch.softmax(m.look(whole), dim=1)).sum(1))


def greedy(m: Any, x: Any) -> Any:
    """Reads its own last answer."""
    word, state, outputs = x[0], None, []
    for _ in range(x.size(0)):
        state = m.rnn(m.emb(word), state)
        outputs.append(m.fc(state[0]))
        word = outputs[-1].argmax(-1)
    return torch.stack(outputs)


def fed_back(m: Any, x: Any) -> Any:
    """The cell reads its own last answer beside the input."""
    y = torch.zeros(x.size(1), 2)
    h = torch.zeros(x.size(1), H)
    for step in x.unbind(0):
        h = m.rnn(torch.cat([step, y], -1), h)
        y = m.fc(h)
    return y


def padded(m: Any, x: Any) -> Any:
    h, real = torch.zeros(B, H), (x > 0).float().unsqueeze(-1)
    for t in range(x.size(0)):
        h = real[t] * m.rnn(m.emb(x[t]), h) + (1 - real[t]) * h
    return m.fc(h)


def in_a_helper(m: Any, x: Any) -> Any:
    outputs: list[Any] = []

    def run(state: Any) -> None:
        for step in m.emb(x):
            state = m.rnn(step, state)
            outputs.append(state[0])

    run(None)
    return m.fc(sum(outputs) / len(x))


def encoder_and_decoder(m: Any, x: Any) -> Any:
    h = None
    for step in m.emb(x):
        h = m.rnn(step, h)
    g = None
    for step in m.emb(x):
        g = m.top(m.mix(h) + step, g)
    return m.fc(g)


def of_state(m: Any, x: Any, state: Any) -> Any:
    h = torch.zeros(B, H) if state is None else state
    for step in m.emb(x):
        h = m.rnn(step, h)
    return m.fc(h)


def flattened(m: Any, x: Any) -> Any:
    """Another matrix would be needed for every length."""
    h, outputs = None, []
    for step in m.emb(x):
        h = m.rnn(step, h)
        outputs.append(h)
    return m.fc(torch.cat(outputs, -1))


LOOPS = {
    "a loop over steps": words(every_step, rnn=cell),
    "a loop of which the last step is used": words(last_step, rnn=cell),
    "a loop over unbind()": words(over_unbind, rnn=cell),
    "a loop over a tensor": words(over_the_tensor, rnn=gru_cell),
    "a loop over len()": words(by_len, rnn=gru_cell),
    "a counted loop": words(counted, rnn=gru_cell),
    "a loop over two": words(together, rnn=gru_cell),
    "a loop in both directions": words(both_ways, rnn=gru_cell, back=gru_cell, fc=linear(2 * H)),
    "a loop around stacked cells": words(stacked, rnn=gru_cell, middle=wide, top=wide),
    "attention over what a loop collects": words(attention, "look", rnn=gru_cell, look=linear(H, 1)),
    "a loop that reads its answer": words(greedy, rnn=cell, fc=linear(H, 7)),
    "a loop that feeds its answer back": made(fed_back, rnn=partial(nn.GRUCell, E + 2, H), fc=linear(H, 2)),
    "a loop over padded steps": words(padded, rnn=gru_cell),
    "a loop in a function": words(in_a_helper, rnn=cell),
    "two loops": words(encoder_and_decoder, rnn=gru_cell, mix=linear(H, E), top=gru_cell),
    "a loop from a given state": words(of_state, rnn=gru_cell),
    "a loop of which all steps are read at once": words(flattened, "rnn", rnn=gru_cell, fc=linear(5 * H)),
}
