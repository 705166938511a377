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
    i, f, g, o = (input_part + recurrent_part).unbind(-2)
    c = squash(f) * c + squash(i) * g.tanh()
    return squash(o) * c.tanh() * neuron_scale, c


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
    in_r, in_u, in_n = input_part.unbind(-2)
    rec_r, rec_u, rec_n = recurrent_part.unbind(-2)
    r, u = squash(in_r + rec_r), squash(in_u + rec_u)
    n = torch.tanh(in_n + r * rec_n)
    return (u * h + (1 - u) * n * neuron_scale,)


LSTM = Cell("LSTM", gates=("i", "f", "g", "o"), tanh_gates={"g"}, n_states=2, step=lstm_step)
GRU = Cell(
    "GRU",
    gates=("r", "u", "n"),  # torch calls the update gate z; here z is a group variable
    tanh_gates={"n"},
    n_states=1,
    step=gru_step,
    gated_recurrent={"n": "r"},
)
