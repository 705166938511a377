"""The dense cells, written as equations."""

from __future__ import annotations

import torch
from torch import Tensor

from gatewise.layout import Cell, Squash, State


def hard_sigmoid(x: Tensor) -> Tensor:
    """clip(0.2 x + 0.5, 0, 1): the authors' classification gates. torch's own `hardsigmoid` has slope 1/6."""
    return (0.2 * x + 0.5).clamp(0, 1)


SQUASHES: dict[str, Squash] = {"sigmoid": torch.sigmoid, "hard_sigmoid": hard_sigmoid}


def lstm_step(
    input_part: Tensor,  # (B, 4, H)
    recurrent_part: Tensor,  # (B, 4, H)
    state: State,  # h, c: (B, H)
    neuron_scale: Tensor | float,
    squash: Squash,
) -> State:
    """One LSTM step with group variables (paper, appendix B).

        f  = sigmoid((Wx_f x + Wh_f h) * z_f + b_f)      same for i and o, tanh for g
        c' = f * c + i * g
        h' = o * tanh(c') * z_h

    The scale comes before the bias, so a zero scale leaves the constant gate act(b), not act(0).
    """
    _, c = state
    pre = input_part + recurrent_part
    # g too, in vain: three calls of squash cost more than its numbers.
    i, f, _, o = squash(pre).unbind(-2)
    g = pre.select(-2, 2).tanh()
    c = f * c + i * g
    return scaled(o * c.tanh(), neuron_scale), c


def gru_step(
    input_part: Tensor,  # (B, 3, H)
    recurrent_part: Tensor,  # (B, 3, H)
    state: State,  # h: (B, H)
    neuron_scale: Tensor | float,
    squash: Squash,
) -> State:
    """One GRU step in torch's form, with group variables.

        r  = sigmoid((Wx_r x + Wh_r h) * z_r + b_r)      same for u
        n  = tanh(z_n * (Wx_n x + r * Wh_n h) + b_in + r * b_hn)
        h' = u * h + (1 - u) * n * z_h

    With a zero row, n = tanh(b_in + r * b_hn): no dot product, yet constant only if r is, or if b_hn = 0.
    """
    (h,) = state
    r, u = squash(input_part[..., :2, :] + recurrent_part[..., :2, :]).unbind(-2)
    n = torch.tanh(input_part.select(-2, 2) + r * recurrent_part.select(-2, 2))
    added = scaled(n, neuron_scale)
    return (added + u * (h - added),)


def scaled(h: Tensor, neuron_scale: Tensor | float) -> Tensor:
    """h * z_h; without group variables z_h is the number 1 and costs nothing."""
    return h if isinstance(neuron_scale, float) and neuron_scale == 1 else h * neuron_scale


LSTM = Cell("LSTM", gates=("i", "f", "g", "o"), tanh_gates={"g"}, n_states=2, step=lstm_step)
GRU = Cell(
    "GRU",
    gates=("r", "u", "n"),  # torch calls the update gate z; here z is a group variable
    tanh_gates={"n"},
    n_states=1,
    step=gru_step,
    gated_recurrent={"n": "r"},
)
