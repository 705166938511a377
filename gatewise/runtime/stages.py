"""A narrow chain as stages: as much as possible in networks that the C kernels run, the rest in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewise.runtime.arrangement import CELLS, ArrangedLayer, arrange_layer, arrange_matrix
from gatewise.runtime.bindings import Network, expands, layer_norm, pool, softmax
from gatewise.runtime.narrow import (
    Affine,
    Floats,
    Function,
    Level,
    Link,
    NarrowChain,
    Recurrence,
    Table,
    is_diagonal,
    pools,
    spread_columns,
    takes_last_state,
)
from gatewise.runtime.rounding import Weights, rounded

Array = NDArray[Any]
FLOAT32 = np.dtype(np.float32)


class Frame(NamedTuple):
    """How the sequences of one call lie: x and outputs (T, B, ...) or (B, T, ...), in a single step (B, ...)."""

    axes: tuple[int, ...]  # lengths of the axes before the channels
    steps: int
    batch: int
    batch_first: bool = False
    threads: int = 1


class NetworkStage:
    """Embedding, levels and head that the kernels run in one call."""

    def __init__(self, network: Network, final: bool) -> None:  # final: one answer for a sequence
        self.network, self.final = network, final
        self.kernel, self.step, self.width = network.run, network.step, network.width
        self.state_size, self.zero_state = network.state_size, network.zero_state

    def run(self, x: Array, state: Floats, frame: Frame) -> Floats:
        y = np.empty((frame.batch, self.width) if self.final else (*frame.axes, self.width), FLOAT32)
        self.kernel(x, state, y, frame.steps, frame.batch, frame.batch_first, None, frame.threads)
        return y


class PoolStage:
    """Mean, maximum or sum over time of what no network computes to its end."""

    def __init__(self, name: str, width: int) -> None:
        self.name, self.width, self.state_size = name, width, 1 + width

    def zero_state(self, batch: int) -> Floats:
        return np.zeros(batch * self.state_size, FLOAT32)

    def run(self, x: Array, state: Floats, frame: Frame) -> Floats:
        y = np.empty((frame.batch, self.width), FLOAT32)
        whole = np.require(x, FLOAT32, ["C", "A"])
        pool(self.name, whole, state, y, frame.steps, frame.batch_first, None)
        return y


Stage = NetworkStage | PoolStage | Callable[[Array, Frame], Array]


def make_stages(
    narrow: NarrowChain, fold_embedding: bool | None, weights: Weights = "float32"
) -> list[Stage]:
    """Stages for a narrow chain: as much as possible in networks, the rest in NumPy."""
    links = list(narrow.links)
    stages: list[Stage] = []
    width = narrow.n_inputs
    while links:
        table = links[0] if isinstance(links[0], Table) and isinstance(links[1], Level) else None
        if table is not None:
            links.pop(0)
        levels: list[Level] = []
        while links and isinstance(links[0], Level) and same_directions(levels, links[0]):
            levels.append(links[0])
            links.pop(0)
        if not levels:
            stage, width = numpy_stage(links.pop(0), width, weights)
            stages.append(stage)
            continue
        final = "last_state" if takes_last_state(levels[-1], links) else pooled_by(links)
        if final:
            links.pop(0)
        head = links[0] if links and isinstance(links[0], Affine) else None
        if head is not None:
            links.pop(0)
        scores = head is not None and bool(links) and links[0] == Function("softmax")
        if scores:
            links.pop(0)
        network = make_network(table, levels, head, width, final, scores, fold_embedding, weights)
        stages.append(NetworkStage(network, bool(final)))
        width = network.width
    return stages


def same_directions(levels: list[Level], level: Level) -> bool:
    return not levels or len(levels[-1].directions) == len(level.directions)


def pooled_by(links: list[Link]) -> str:
    """How the next link pools, if it does."""
    return links[0].name if links and pools(links[0]) else ""


def make_network(
    table: Table | None,
    levels: list[Level],
    head: Affine | None,
    width: int,
    final: str,
    scores: bool,
    fold_embedding: bool | None,
    weights: Weights = "float32",
) -> Network:
    fold = table is not None and folds(table, levels[0], fold_embedding)
    vectors = None if table is None else table.weight
    arranged = [
        [arrange(level, r, vectors if fold and k == 0 else None, weights=weights) for r in level.directions]
        for k, level in enumerate(levels)
    ]
    rows = None if table is None or table.rows is None else table.rows.astype(np.int32)
    top = sum(r.kept for r in levels[-1].directions)
    scored = None
    if head is not None:
        columns = spread_columns(head.weight, head.inputs, top)
        scored = arrange_matrix(columns, expands=expands(), weights=weights), head.bias
    return Network(
        arranged,
        width if vectors is None else vectors.shape[1],
        n_words=0 if table is None else table.n_words,
        remap=rows,
        embedding=None if fold else vectors,
        head=scored,
        softmax=scores,
        final=final,
    )


def folds(table: Table, level: Level, wish: bool | None) -> bool:
    """word -> input projection (V', R) in place of the embedding (V', E') and its product: fewer bytes, less work.

    Of one-hot vectors the table is the input matrix itself, a column for each word, so nothing speaks against it.
    """
    rows = sum(len(r.slots) for r in level.directions)
    return table.one_hot or (rows < table.weight.shape[1] if wish is None else wish)


def arrange(
    level: Level,
    r: Recurrence,
    embedding: Floats | None,
    tight: bool = False,
    int8: bool = False,
    weights: Weights = "float32",
) -> ArrangedLayer:
    """The layer as the kernels want it; a list that names everything in order is left out."""
    if level.cell.name not in CELLS:
        where, cells = level.module or "the model", " and ".join(CELLS)
        raise ValueError(f"{where}: there are no C kernels for the cell {level.cell.name}, only for {cells}.")
    return arrange_layer(
        level.cell.name,
        r.w_ih,
        r.w_hh,
        r.slots,
        r.bias,
        r.bias_gated[0] if len(r.bias_gated) else None,
        squash=level.gate_activation,
        inputs=None if np.array_equal(r.inputs, np.arange(len(r.inputs))) else r.inputs,
        reads=None if np.array_equal(r.reads, np.arange(r.kept)) else r.reads,
        scale=None if (r.scale == 1).all() else r.scale,
        embedding=embedding,
        tight=tight,
        int8=int8,
        weights=weights,
    )


def numpy_stage(link: Link, width: int, weights: Weights = "float32") -> tuple[Stage, int]:
    """What the kernels have no call for: functions, pools, and embedding and linear layers before another."""
    if isinstance(link, Table):
        return Lookup(link), link.weight.shape[1]
    if isinstance(link, Affine) and is_diagonal(link, width):
        scale, shift = np.diagonal(link.weight).copy(), link.bias
        return (lambda x, _: x * scale + shift), width
    if isinstance(link, Affine):
        weight = spread_columns(rounded(link.weight, weights), link.inputs, width).T.copy()
        bias = link.bias
        return (lambda x, _: x @ weight + bias), len(bias)
    assert isinstance(link, Function)
    if pools(link):
        return PoolStage(link.name, width), width
    if link.name == "layer_norm":
        return (lambda x, _: normalised(x, link.eps)), width
    return FUNCTIONS[link.name], width


class Lookup:
    """Word -> vector; a removed word is zero."""

    def __init__(self, table: Table) -> None:
        zero = np.zeros((1, table.weight.shape[1]), np.float32)
        self.vectors = np.concatenate([table.weight, zero])
        self.rows = np.arange(table.n_words) if table.rows is None else table.rows

    def __call__(self, ids: Array, _: Frame | None = None) -> Floats:
        outside = (ids < 0) | (ids >= len(self.rows))
        if outside.any():
            at = int(outside.argmax())
            raise IndexError(f"word id {ids.flat[at]} at position {at} is outside 0..{len(self.rows) - 1}")
        return self.vectors[self.rows[ids]]  # row -1 is the last, of zeros


def last_step(x: Array, frame: Frame) -> Array:  # (T, B, C) or (B, T, C) -> (B, C)
    return x[:, -1].copy() if frame.batch_first else x[-1].copy()


def log_softmax(x: Array) -> Array:
    shifted: Array = x - x.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def scores(x: Array) -> Array:
    y = np.array(x, order="C")
    softmax(y)
    return y


def normalised(x: Array, eps: float) -> Array:
    y = np.array(x, order="C")
    layer_norm(y, eps)
    return y


FUNCTIONS: dict[str, Callable[[Array, Frame], Array]] = {
    "relu": lambda x, _: np.maximum(x, 0),
    "tanh": lambda x, _: np.tanh(x),
    "sigmoid": lambda x, _: np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)),
    "softmax": lambda x, _: scores(x),
    "log_softmax": lambda x, _: log_softmax(x),
    "last_step": last_step,
}
