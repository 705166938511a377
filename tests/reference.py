"""A narrow chain in plain NumPy, step by step: what the generated C is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.runtime.narrow import Affine, Level, NarrowChain, Recurrence, Table
from gatewise.runtime.stages import log_softmax

Doubles = NDArray[np.float64]


def answer(
    narrow: NarrowChain,
    x: NDArray[Any],  # (T, n_inputs) or ids (T,)
) -> Doubles:  # (T, width) or (1, width)
    """The chain's answer to one sequence, in double precision."""
    value: NDArray[Any] = x if narrow.chain.words else x.astype(np.float64)
    last_state: Doubles = np.zeros((1, 0))
    for link in narrow.links:
        if isinstance(link, Table):
            rows = value if link.rows is None else link.rows[value]
            removed = np.zeros((1, link.weight.shape[1]))  # row -1 is the last
            value = np.concatenate([link.weight.astype(np.float64), removed])[rows]
        elif isinstance(link, Level):
            parts = [recurrence(link, r, value) for r in link.directions]
            value = np.concatenate([y for y, _ in parts], axis=1)
            last_state = np.concatenate([last for _, last in parts])[None]
        elif isinstance(link, Affine):
            value = value[:, link.inputs] @ link.weight.astype(np.float64).T + link.bias
        elif link.name == "last_state":
            value = last_state
        elif link.name == "layer_norm":
            value = layer_norm(value, link.eps)
        else:
            value = FUNCTIONS[link.name](value)
    whole: Doubles = np.broadcast_to(narrow.rest.astype(np.float64), (len(value), narrow.width)).copy()
    whole[:, narrow.kept] = value
    return whole


def recurrence(level: Level, r: Recurrence, x: Doubles) -> tuple[Doubles, Doubles]:  # (T, C) -> (T, K), (K,)
    """h of every step, and the last one."""
    gates = {gate: k for k, gate in enumerate(level.cell.gates)}
    act = FUNCTIONS[level.gate_activation]
    s, c = np.zeros(r.kept), np.zeros(r.kept)
    y = np.zeros((len(x), r.kept))
    for t in reversed(range(len(x))) if r.reverse else range(len(x)):
        given, recurrent = r.bias.astype(np.float64), np.zeros(r.bias.shape)
        given.reshape(-1)[r.slots] += r.w_ih.astype(np.float64) @ x[t, r.inputs]
        recurrent.reshape(-1)[r.slots] = r.w_hh.astype(np.float64) @ s[r.reads]
        if level.cell.name == "LSTM":
            total = given + recurrent
            c = act(total[gates["f"]]) * c + act(total[gates["i"]]) * np.tanh(total[gates["g"]])
            s = act(total[gates["o"]]) * np.tanh(c)
        else:
            reset, update = (act(given[gates[k]] + recurrent[gates[k]]) for k in "ru")
            candidate = np.tanh(given[gates["n"]] + reset * (recurrent[gates["n"]] + r.bias_gated[0]))
            s = update * s + (1 - update) * candidate
        y[t] = s * r.scale
    return y, s * r.scale


def layer_norm(x: Doubles, eps: float) -> Doubles:
    centred: Doubles = x - x.mean(axis=-1, keepdims=True)
    normed: Doubles = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps)
    return normed


FUNCTIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "softmax": lambda x: np.exp(log_softmax(x)),
    "log_softmax": log_softmax,
    "last_step": lambda x: x[-1:],
    "mean": lambda x: x.mean(axis=0, keepdims=True),
    "max": lambda x: x.max(axis=0, keepdims=True),
    "sum": lambda x: x.sum(axis=0, keepdims=True),
}
