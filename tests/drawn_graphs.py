"""Random graphs around recurrent layers: what every back end must run as forward() does.

A model is a list of moves. Each takes values that were made before and makes another one; forward() makes them in
turn and returns some of the last. Values are sequences (B, T, C), or one vector (B, C) a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from everyday.table import seeded, thinned
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WIDTHS = (1, 2, 3, 4, 6)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu, "silu": F.silu, "elu": F.elu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "softplus": F.softplus, "hardtanh": F.hardtanh, "clamp": lambda x: x.clamp(-0.5, 0.7), "half": lambda x: x * 0.5,
    "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1), "square": lambda x: x**2,
    "one_minus": lambda x: 1 - x, "identity": lambda x: x,
}  # fmt: skip
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda x: x[:, -1], "mean": lambda x: x.mean(1), "max": lambda x: x.max(1).values,
    "sum": lambda x: x.sum(dim=1), "min": lambda x: x.amin(1),
}  # fmt: skip


@dataclass
class Move:
    """What is done (`kind`), to which values, with which setting; the width of what comes out."""

    kind: str
    sources: tuple[int, ...]
    setting: Any = None
    width: int = 0
    sequence: bool = True  # (B, T, C) rather than (B, C)


@dataclass
class Graph:
    """A drawn model: the kinds of its inputs, its moves, how many of the last values it returns."""

    inputs: list[tuple[str, int]]  # ("sequence", width), ("words", vocabulary), ("static", width)
    moves: list[Move] = field(default_factory=list)
    lengths: bool = False
    answers: int = 1
    structure: str = "tuple"
    seed: int = 0

    def model(self) -> nn.Module:
        kinds = (Drawn1, Drawn2, Drawn3, Drawn4)
        kind = kinds[len(self.inputs) + self.lengths - 1]
        return thinned(seeded(lambda: kind(self), self.seed), self.seed)

    def arguments(self, batch: int, steps: int) -> tuple[Tensor, ...]:
        chance = torch.Generator().manual_seed(self.seed)
        made = []
        for kind, width in self.inputs:
            if kind == "words":
                made.append(torch.randint(width, (batch, steps), generator=chance))
            else:
                shape = (batch, width) if kind == "static" else (batch, steps, width)
                made.append(torch.randn(shape, generator=chance))
        if self.lengths:
            made.append(torch.randint(1, steps + 1, (batch,), generator=chance))
        return tuple(made)


class Drawn(nn.Module):
    """forward() of a graph."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.layers = nn.ModuleDict()
        self.gains = nn.ParameterDict()
        widths = [(width, kind != "static") for kind, width in graph.inputs]
        for k, move in enumerate(graph.moves):
            width = widths[move.sources[0]][0]
            layer = made_layer(move, width, graph.inputs[move.sources[0]] if move.kind == "embed" else None)
            if layer is not None:
                self.layers[str(k)] = layer
            if move.kind == "gain":
                self.gains[str(k)] = nn.Parameter(torch.randn(width))
            widths.append((move.width, move.sequence))

    def answered(self, *given: Tensor) -> Any:
        values = list(given)
        lengths = values.pop() if self.graph.lengths else None
        for k, move in enumerate(self.graph.moves):
            values.append(self.moved(str(k), move, [values[s] for s in move.sources], lengths))
        answers = values[-self.graph.answers :]
        if self.graph.structure == "dict":
            return {f"answer{k}": value for k, value in enumerate(answers)}
        return answers[0] if len(answers) == 1 else tuple(answers)

    def moved(self, key: str, move: Move, x: list[Tensor], lengths: Any) -> Tensor:
        layer = dict(self.layers).get(key)
        if move.kind == "gain":
            return x[0] * self.gains[key]
        if layer is None:
            return MOVES[move.kind](move, *x)
        if move.kind in ("rnn", "packed", "state", "handed"):
            return recurrent(layer, move, x, lengths)
        if move.kind == "conv":
            return layer(x[0].transpose(1, 2)).transpose(1, 2)
        if move.kind == "causal":
            if move.setting == 1:
                return layer(x[0].transpose(1, 2))[:, :, :-2].transpose(1, 2)  # padded on both sides
            return layer(F.pad(x[0].transpose(1, 2), (2, 0))).transpose(1, 2)
        if move.kind == "batch_norm":
            return layer(x[0].transpose(1, 2)).transpose(1, 2) if move.sequence else layer(x[0])
        if move.kind == "attend":
            weights = torch.softmax(layer(x[0]), dim=1)
            return (weights * x[0]).sum(1)
        return layer(x[0])


class Drawn1(Drawn):
    def forward(self, a: Tensor) -> Any:
        return self.answered(a)


class Drawn2(Drawn):
    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.answered(a, b)


class Drawn3(Drawn):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Any:
        return self.answered(a, b, c)


class Drawn4(Drawn):
    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        return self.answered(a, b, c, d)


def recurrent(layer: nn.Module, move: Move, x: list[Tensor], lengths: Any) -> Tensor:
    if move.kind == "packed":
        packed = pack_padded_sequence(x[0], lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x[0].size(1))[0]
    if move.kind == "handed":  # the first state is a value of its own
        first = torch.tanh(x[1]).unsqueeze(0)
        return layer(x[0], first if move.setting == "GRU" else (first, first))[0]
    out, state = layer(x[0])
    if move.kind == "rnn":
        return out
    h = state[0] if isinstance(state, tuple) else state
    return torch.cat([h[-2], h[-1]], 1) if layer.bidirectional else h[-1]


def made_layer(move: Move, width: int, given: Any) -> nn.Module | None:
    """What a move needs of parameters; later values may be of any width."""
    if move.kind == "embed":
        return nn.Embedding(given[1], move.width)
    if move.kind in ("rnn", "packed", "state"):
        cell, layers, both = move.setting
        kind = nn.LSTM if cell == "LSTM" else nn.GRU
        return kind(width, move.width // (2 if both else 1), layers, batch_first=True, bidirectional=both)
    if move.kind == "handed":
        return (nn.LSTM if move.setting == "LSTM" else nn.GRU)(width, move.width, batch_first=True)
    if move.kind == "linear":
        return nn.Linear(width, move.width)
    if move.kind == "attend":
        return nn.Linear(width, 1)
    if move.kind == "layer_norm":
        return nn.LayerNorm(width, eps=0.1)  # channels that are almost the same would show rounding
    if move.kind == "batch_norm":
        return nn.BatchNorm1d(width)
    if move.kind == "conv":
        return nn.Conv1d(width, move.width, 3, padding=1)
    if move.kind == "causal":
        return nn.Conv1d(width, move.width, 2, dilation=2, padding=2 if move.setting == 1 else 0)
    return None


def shifted(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 1, 0))[:, :-1]


MOVES: dict[str, Callable[..., Tensor]] = {
    "function": lambda m, x: FUNCTIONS[m.setting](x),
    "add": lambda m, x, y: x + y,
    "mul": lambda m, x, y: x * torch.sigmoid(y),
    "sub": lambda m, x, y: x - y,
    "cat": lambda m, x, y: torch.cat([x, y], dim=-1),
    "beside": lambda m, x, y: x + y.unsqueeze(1),
    "repeat": lambda m, x, y: torch.cat([x, y.unsqueeze(1).expand(-1, x.size(1), -1)], dim=-1),
    "pool": lambda m, x: POOLS[m.setting](x),
    "half": lambda m, x: x.chunk(2, dim=-1)[m.setting],
    "some": lambda m, x: x[..., m.setting :],
    "flip": lambda m, x: x.flip(1),
    "shift": lambda m, x: shifted(x),
    "cumsum": lambda m, x: x.cumsum(1) / 4,
    "score": lambda m, x, y: torch.bmm(torch.softmax(x @ y.transpose(1, 2), dim=-1), y),
}


@st.composite
def graphs(draw: Any, causal: bool = False) -> Graph:
    """Graphs of one to three inputs; `causal`: only with moves that run in pieces."""
    kinds = draw(st.lists(st.sampled_from(["sequence", "sequence", "words", "static"]), max_size=2))
    inputs = [
        (kind, draw(st.integers(2, 6))) for kind in [draw(st.sampled_from(["sequence", "words"])), *kinds]
    ]
    graph = Graph(inputs, lengths=draw(st.booleans()) and not causal, seed=draw(st.integers(0, 999)))
    values = [(width, kind == "sequence", kind == "words") for kind, width in inputs]
    for k, (kind, _) in enumerate(inputs):
        if kind == "words":
            put(graph, values, Move("embed", (k,), None, draw(st.sampled_from(WIDTHS))))
    for _ in range(draw(st.integers(1, 7))):
        move = draw_move(draw, graph, values, causal)
        if move is not None:
            put(graph, values, move)
    graph.answers = draw(st.integers(1, min(2, len(graph.moves) or 1)))
    graph.structure = draw(st.sampled_from(["tuple", "dict"]))
    sequence = [k for k, (_, is_sequence, words) in enumerate(values) if is_sequence and not words][-1]
    if not any(move.kind in ("rnn", "packed", "state", "handed") for move in trimmed(graph).moves):
        put(graph, values, Move("rnn", (sequence,), ("GRU", 1, False), 3))
    return trimmed(graph)


def trimmed(graph: Graph) -> Graph:
    """Without inputs and moves that no answer needs."""
    first = len(graph.inputs)
    count = first + len(graph.moves)
    needed = set(range(count - graph.answers, count))
    for k in range(count - 1, first - 1, -1):
        needed |= set(graph.moves[k - first].sources) if k in needed else set()
    place = {k: new for new, k in enumerate(sorted(needed))}
    moves = [replace(m, sources=tuple(place[s] for s in m.sources))
             for k, m in enumerate(graph.moves, first) if k in needed]  # fmt: skip
    inputs = [given for k, given in enumerate(graph.inputs) if k in needed]
    lengths = any(move.kind == "packed" for move in moves)
    return replace(graph, inputs=inputs, moves=moves, lengths=lengths)


def put(graph: Graph, values: list[Any], move: Move) -> None:
    graph.moves.append(move)
    values.append((move.width, move.sequence, False))


def draw_move(draw: Any, graph: Graph, values: list[Any], causal: bool) -> Move | None:
    """One more move that fits the values there are; None where the drawn one does not."""
    sequences = [k for k, (_, is_sequence, words) in enumerate(values) if is_sequence and not words]
    vectors = [k for k, (_, is_sequence, words) in enumerate(values) if not is_sequence and not words]
    x = draw(st.sampled_from(sequences[-3:]))
    width, kind = values[x][0], draw(st.sampled_from(KINDS))
    out = draw(st.sampled_from(WIDTHS))
    alike = [k for k in sequences if values[k][0] == width]
    y = draw(st.sampled_from(alike))
    both = draw(st.booleans()) and not causal
    setting = (draw(st.sampled_from(["LSTM", "GRU"])), draw(st.integers(1, 2)), both)
    static = [k for k in vectors if k < len(graph.inputs)] if causal else vectors
    if kind in ("rnn", "packed", "state"):
        kind = "rnn" if kind == "packed" and not graph.lengths else kind
        return Move(kind, (x,), setting, out * (2 if both else 1), kind != "state")
    if kind in ("linear", "causal"):
        return Move(kind, (x,), draw(st.integers(1, 2)), out)
    if kind in ("add", "mul", "sub"):
        return Move(kind, (x, y), None, width)
    if kind == "cat":
        return Move(kind, (x, z := draw(st.sampled_from(sequences))), None, width + values[z][0])
    if kind == "function":
        return Move(kind, (x,), draw(st.sampled_from(sorted(FUNCTIONS))), width)
    if kind == "pool" or (kind == "attend" and not causal):
        return Move(kind, (x,), draw(st.sampled_from(sorted(POOLS))), width, sequence=False)
    if kind in ("gain", "layer_norm", "batch_norm", "shift", "cumsum"):
        return Move(kind, (x,), None, width)
    if kind in ("half", "some") and width > 1:
        kept = width // 2 if kind == "half" and width % 2 == 0 else width - 1
        return Move("half" if width % 2 == 0 and kind == "half" else "some", (x,), 1, kept)
    if kind == "repeat" and static:
        return Move(kind, (x, v := draw(st.sampled_from(static))), None, width + values[v][0])
    fitting = [k for k in static if values[k][0] == width]
    if kind == "beside" and fitting:
        return Move(kind, (x, draw(st.sampled_from(fitting))), None, width)
    if kind == "handed" and static:
        v = draw(st.sampled_from(static))
        return Move(kind, (x, v), setting[0], values[v][0])
    if kind in ("conv", "flip", "score") and not causal:
        return Move(kind, (x, y) if kind == "score" else (x,), None, out if kind == "conv" else width)
    if kind == "vector" and vectors:
        v = draw(st.sampled_from(vectors))
        return Move("linear", (v,), None, out, sequence=False)
    return None


KINDS = """
    rnn rnn rnn packed state linear add mul sub cat function function pool attend gain layer_norm batch_norm shift
    cumsum half some repeat beside handed conv causal flip score vector
""".split()
