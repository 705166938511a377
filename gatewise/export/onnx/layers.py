"""Compact layers as nodes of an ONNX graph, whatever channels travel between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gatewise.export.onnx.graph import Graph
from gatewise.layout import Cell
from gatewise.runtime.narrow import Floats, Ints, Level, Recurrence, spread_columns

GATES = {"LSTM": ("i", "o", "f", "g"), "GRU": ("u", "r", "n")}  # the order of rows in ONNX


def recurrence(
    graph: Graph,
    level: Level,
    r: Recurrence,
    x: str,  # (T, B, n)
    w_ih: Floats,  # (R, n)
    starts: Sequence[str],  # each (1, B, K); none: zeros
    lengths: str,  # int64 (B); empty: all steps
    wanted: Sequence[bool],  # every step's output, the last h, the last c
) -> list[str]:
    """The LSTM or GRU node of one direction: every step's output (T, 1, B, K), the last states (1, B, K)."""
    cell = level.cell
    weights = (gate_matrix(w, r, cell) for w in (w_ih, spread_columns(r.w_hh, r.reads, r.kept)))
    sizes = graph.add("Cast", lengths, to=graph.int32) if lengths else ""
    inputs = [x, *map(graph.constant, weights), graph.constant(gate_biases(r, cell)), sizes, *starts]
    attributes: dict[str, Any] = {"hidden_size": r.kept}
    attributes["direction"] = "reverse" if r.reverse else "forward"
    if level.gate_activation == "hard_sigmoid":
        attributes["activations"] = ["HardSigmoid"] + ["Tanh"] * cell.n_states
        attributes |= {"activation_alpha": [0.2], "activation_beta": [0.5]}
    if cell.name == "GRU":
        attributes["linear_before_reset"] = 1
    return graph.add_many(cell.name, inputs, wanted[: 1 + cell.n_states], **attributes)


def enter(graph: Graph, state: str, places: int, place: int, part: int, r: Recurrence) -> str:
    """One place of the caller's h or c, (places, B, H) -> (1, B, K): without removed neurons, and s = h / z_h."""
    if places > 1:
        state = graph.add("Gather", state, graph.integers(place), axis=0)
    if r.kept < r.hidden:
        state = graph.add("Gather", state, graph.constant(r.neurons), axis=2)
    if part == 0 and (r.state_scale != 1).any():
        # 0 where z_h = 0, as in the compact layer: 0 / 0 would be NaN for ever.
        inverse = np.divide(1, r.state_scale, out=np.zeros_like(r.state_scale), where=r.state_scale != 0)
        state = graph.add("Mul", state, graph.constant(inverse))
    return state


def leave(graph: Graph, state: str, part: int, r: Recurrence) -> str:  # (1, B, K) -> (1, B, H)
    """h or c in its original width and scale."""
    if part == 0 and (r.state_scale != 1).any():
        state = graph.add("Mul", state, graph.constant(r.state_scale))
    return widened(graph, state, 3, r.neurons, r.hidden)


def read(graph: Graph, x: str, columns: int, inputs: Ints, weight: Floats) -> tuple[str, Floats]:
    """The tensor that a matrix reads, and the matrix on its columns: few are gathered, else the rest are zero."""
    if not len(inputs):
        inputs, weight = np.zeros(1, np.int64), np.zeros((len(weight), 1), np.float32)
    if 2 * len(inputs) <= columns and columns > 1:
        return graph.add("Gather", x, graph.constant(inputs), axis=-1), weight
    return x, spread_columns(weight, inputs, columns)


def looked_up(graph: Graph, ids: str, weight: Floats, rows: Ints | None) -> tuple[str, str]:
    """Word -> row -> vector; removed words all have the zero row at the end of the table. And the table's name."""
    if rows is not None:
        weight = np.concatenate([weight, np.zeros((1, weight.shape[1]), np.float32)])
        ids = graph.add("Gather", graph.constant(np.where(rows < 0, len(weight) - 1, rows)), ids)
    table = graph.constant(weight)
    return graph.add("Gather", table, ids), table


def widened(
    graph: Graph, x: str, rank: int, kept: Ints, width: int, columns: int | None = None, rest: float = 0.0
) -> str:
    """All `width` channels, `rest` where nothing was kept: one column is appended and read by all of them.

    Args:
        columns: of x, where they are more than were kept.
    """
    if len(kept) == width:
        return x
    columns = len(kept) if columns is None else columns
    pads = graph.integers(*[0] * (2 * rank - 1), 1)
    padded = graph.add("Pad", x, pads, graph.constant(np.array(rest, np.float32)))
    index = np.full(width, columns, np.int64)
    index[kept] = np.arange(len(kept))
    return graph.add("Gather", padded, graph.constant(index), axis=-1)


def layer_norm(graph: Graph, x: str, shape: Sequence[int], eps: float) -> str:
    """(x - E x) / sqrt(E (x - E x)^2 + eps) over the last axes, of this shape.

    The differences are nodes of their own: in the function that ONNX gives for its node the variance is
    E x^2 - (E x)^2, of which a large mean leaves no digit.
    """
    axes = range(-len(shape), 0)
    centred = graph.add("Sub", x, graph.over("ReduceMean", x, *axes, keepdims=1))
    scale = graph.constant(np.ones(shape, np.float32))
    return graph.add("LayerNormalization", centred, scale, axis=-len(shape), epsilon=eps)


def gate_matrix(live: Floats, r: Recurrence, cell: Cell) -> Floats:  # (R, n) -> (1, G * K, n)
    """Rows of all gates in ONNX's order; those of constant gates are zero."""
    rows = np.zeros((cell.n_gates * r.kept, live.shape[1]), np.float32)
    rows[r.slots] = live
    return rows.reshape(cell.n_gates, r.kept, -1)[gate_order(cell)].reshape(1, len(rows), -1)


def gate_biases(r: Recurrence, cell: Cell) -> Floats:  # (1, 2 * G * K): input half, recurrent half
    recurrent = np.zeros_like(r.bias)
    recurrent[[k for k, gate in enumerate(cell.gates) if gate in cell.gated_recurrent]] = r.bias_gated
    order = gate_order(cell)
    return np.stack([r.bias[order], recurrent[order]]).reshape(1, -1)


def gate_order(cell: Cell) -> list[int]:
    if cell.name not in GATES:
        raise ValueError(f"ONNX has no node for the cell {cell.name}, only for {' and '.join(GATES)}.")
    return [cell.gates.index(gate) for gate in GATES[cell.name]]
