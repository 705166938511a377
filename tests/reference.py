"""A narrow chain in plain NumPy, step by step, and as int8 weights stand for it: an oracle of rounded_model()."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.runtime.narrow import Affine, Function, Level, Link, NarrowChain, Recurrence, Table
from gatewise.runtime.rounding import rounded
from gatewise.runtime.stages import folds, log_softmax

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


def should_fold(narrow: NarrowChain, wish: bool | None) -> bool:
    """Whether the embedding becomes part of the first level: as in the engine, where it takes fewer bytes.

    One that is the matrix of a later link takes none of its own.
    """
    if wish is None and tied_link(narrow):
        return False
    table, level = narrow.links[0], narrow.links[1] if len(narrow.links) > 1 else None
    return isinstance(table, Table) and isinstance(level, Level) and folds(table, level, wish)


def tied_link(narrow: NarrowChain) -> int | None:
    """The link whose matrix is the embedding's, column for column: it is stored once, in the form that multiplies."""
    for k, link in enumerate(narrow.links):
        tied = link.tied if isinstance(link, Affine) else None
        if tied is not None and len(tied) == narrow.table.weight.shape[1] and narrow.table.weight.size:
            return k
    return None


def rounded_chain(narrow: NarrowChain, fold: bool) -> NarrowChain:
    """The chain with every matrix as int8 weights stand for it; `fold`: the embedding is part of the first level."""
    links = narrow.links
    if not fold:
        return replace(narrow, links=tuple(map(rounded_link, links)))
    table, level = links[:2]
    assert isinstance(table, Table)
    assert isinstance(level, Level)
    return replace(narrow, links=(*rounded_fold(table, level), *map(rounded_link, links[2:])))


def rounded_fold(table: Table, level: Level) -> tuple[Table, Level]:
    """The table word -> input projection, rounded, as an embedding that the level reads through the identity."""
    columns: list[NDArray[np.float32]] = []
    directions: list[Recurrence] = []
    for r in level.directions:
        n, bias = len(r.slots), r.bias.reshape(-1)[r.slots]
        columns.append(rounded(table.weight[:, r.inputs] @ r.w_ih.T + bias, "int8") - bias)
        inputs = np.arange(n) + sum(part.shape[1] for part in columns[:-1])
        directions.append(
            replace(r, inputs=inputs, w_ih=np.eye(n, dtype=np.float32), w_hh=rounded(r.w_hh, "int8"))
        )
    return replace(table, weight=np.concatenate(columns, axis=1)), replace(
        level, directions=tuple(directions)
    )


def rounded_link(link: Link) -> Link:
    if isinstance(link, Level):
        directions = (
            replace(r, w_ih=rounded(r.w_ih, "int8"), w_hh=rounded(r.w_hh, "int8")) for r in link.directions
        )
        return replace(link, directions=tuple(directions))
    return link if isinstance(link, Function) else replace(link, weight=rounded(link.weight, "int8"))
