"""A program made ready to run: constants computed once, layers built, every value dropped behind its last reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gatewise.compact import CompactEmbedding
from gatewise.program import operations as ops
from gatewise.program.graph import Node, Program, letters_in, mapped
from gatewise.runtime.chained import WAY_OUT
from gatewise.runtime.evaluate import parameter
from gatewise.runtime.layers import HandOver, Memory, RecurrentLayer, plain_layer
from gatewise.runtime.rounding import Weights
from gatewise.runtime.rules import Frame, computed, frame_of, kind_of, ruled

Array = NDArray[Any]
MOST_KNOWN = 256  # shapes of calls that are remembered


@dataclass
class Call:
    """One call: the sizes it has, and what nodes remember of the pieces before and leave for those to come."""

    letters: dict[str, int]
    threads: int = 1
    before: dict[Node, Any] = field(default_factory=dict)
    after: dict[Node, Any] = field(default_factory=dict)
    offset: int = 0  # steps of the pieces before


Run = Callable[[list[Array], Call], Array]


class Scheduled(NamedTuple):
    """One node: what computes it, what it reads, and what nobody reads after it."""

    node: Node
    run: Run
    reads: tuple[Node, ...]
    done: tuple[Node, ...]


class Unrunnable(ValueError):
    """A program with something that no back end runs."""


class Prepared:
    """answer = prepared.run(arrays, call), in forward()'s structure."""

    def __init__(
        self,
        program: Program,
        model: nn.Module,
        special: dict[Node, Run] | None = None,
        fold_embedding: bool | None = None,
        weights: Weights = "float32",
    ) -> None:
        if (node := program.opaque()) is not None:
            assert isinstance(node.op, ops.Opaque)
            raise Unrunnable(f"{node.line}: {node.op.what}. {WAY_OUT}")
        self.program, self.model, self.special = program, model, special or {}
        self.fold_embedding, self.weights = fold_embedding, weights
        self.layers: dict[tuple[str, str, bool], RecurrentLayer] = {}
        self.constants: dict[Node, Array] = {}
        users = program.users()
        self.words = {node for node in users if self.is_of_layers(node, users[node])}
        self.handed = {node: source for node in users if (source := handed_from(node)) is not None}
        self.unread = {node for node in users if self.is_unread(node, users[node])}
        left_out = self.words | {node for node in self.unread if isinstance(node.op, ops.LastState)}
        nodes = [node for node in users if not isinstance(node.op, ops.Input) and node not in left_out]
        moving = [(node, self.runner(node), self.sources(node)) for node in nodes if not self.folded(node)]
        last = {source: node for node, _, reads in moving for source in reads}
        kept = {*program.results, *self.constants}
        ends: dict[Node, list[Node]] = {}
        for source, reader in last.items():
            if source not in kept:
                ends.setdefault(reader, []).append(source)
        self.schedule = [
            Scheduled(node, run, reads, tuple(ends.get(node, ()))) for node, run, reads in moving
        ]
        self.own = {id(array) for array in self.constants.values()}
        self.in_numpy = not all(isinstance(one.node.op, ops.Recurrent) for one in self.schedule)

    def is_of_layers(self, node: Node, users: list[Node]) -> bool:
        """Whether an embedding is read by recurrent layers alone, which then read words."""
        if not isinstance(node.op, ops.Embed) or not users or node in self.program.results:
            return False
        compact = isinstance(self.model.get_submodule(node.op.module), CompactEmbedding)
        layers = all(isinstance(u.op, ops.Recurrent) and node not in u.inputs[1:] for u in users)
        return compact and layers and node.rank == 3

    def is_unread(self, node: Node, users: list[Node]) -> bool:
        """Whether nobody reads a value but through the memory of its layer: steps, or a state that is handed over."""
        if node in self.program.results:
            return False
        if isinstance(node.op, ops.LastState):
            return all(user in self.handed and node not in self.sources(user) for user in users)
        return isinstance(node.op, ops.Recurrent) and all(
            isinstance(user.op, ops.LastState) for user in users
        )

    def sources(self, node: Node) -> tuple[Node, ...]:
        """What a node reads in a call."""
        given = node.inputs[: len(node.inputs) - n_states(node)] if node in self.handed else node.inputs
        first, *rest = given or (node,)
        return (first.inputs[0], *rest) if first in self.words else given

    def folded(self, node: Node) -> bool:
        """Whether a value is the same in every call; it is computed now."""
        if isinstance(node.op, ops.Parameter):
            value = parameter(self.model, node.op.tensor)
            self.constants[node] = value.astype(kind_of(node), copy=True)
            return True
        fixed = all(source in self.constants for source in node.inputs) and not letters_in(node)
        if not fixed or isinstance(node.op, ops.Recurrent | ops.LastState):
            return False
        with np.errstate(all="ignore"):
            self.constants[node] = self.runner(node)([self.constants[s] for s in node.inputs], Call({}))
        return True

    def runner(self, node: Node) -> Run:
        op = node.op
        if node in self.special:
            return self.special[node]
        if isinstance(op, ops.Recurrent):
            return self.recurrence(node, op)
        if isinstance(op, ops.LastState):
            (source,) = node.inputs
            assert isinstance(source.op, ops.Recurrent)
            layer = self.layer(source)
            return lambda _, call: layer.last(call.after[source], op.part)
        if (plain := plain_layer(op, self.model, self.weights)) is not None:
            return lambda inputs, _: plain(inputs[0])
        return rule(node)

    def layer(self, node: Node) -> RecurrentLayer:
        """The kernels of a recurrent layer, and of the embedding that it reads alone."""
        op, below = node.op, node.inputs[0]
        assert isinstance(op, ops.Recurrent)
        embedding = below.op.module if isinstance(below.op, ops.Embed) and below in self.words else None
        key = (op.module, embedding or "", node in self.unread)
        if key not in self.layers:
            words = None if embedding is None else self.model.get_submodule(embedding)
            module = self.model.get_submodule(op.module)
            self.layers[key] = RecurrentLayer(
                module,
                op.module,
                words,  # type: ignore[arg-type]
                self.fold_embedding,
                weights=self.weights,
                last=node in self.unread,
            )
        return self.layers[key]

    def recurrence(self, node: Node, op: ops.Recurrent) -> Run:
        layer = self.layer(node)
        begin, unread = self.beginning(node, layer), node in self.unread

        def run(inputs: list[Array], call: Call) -> Array:
            before = call.before.get(node)
            memory = begin(inputs, call) if before is None else Memory(before.parts.copy(), before.batch)
            call.after[node] = memory
            y = layer.run(inputs[0], memory, inputs[1] if op.lengths else None, call.threads)
            return y if unread else layer.widened(y)

        return run

    def beginning(self, node: Node, layer: RecurrentLayer) -> Callable[[list[Array], Call], Memory]:
        """The first states of a layer: from another one's memory, given, or zero."""
        source, states = self.handed.get(node), n_states(node)
        if source is not None:
            hand = HandOver(self.layer(source), layer)
            return lambda _, call: hand(call.after[source])
        if states:
            return lambda inputs, _: layer.start(inputs[-1].shape[1], inputs[len(inputs) - states :])
        return lambda inputs, _: layer.start(len(inputs[0]), [])

    def run(self, arrays: dict[Node, Array], call: Call) -> Any:
        values = self.constants | arrays
        if self.in_numpy:
            with np.errstate(all="ignore"):
                self.compute(values, call)
        else:
            self.compute(values, call)
        own = self.own | {id(array) for array in arrays.values()}
        return mapped(
            lambda leaf: owned(values[leaf], own) if isinstance(leaf, Node) else leaf, self.program.outputs
        )

    def compute(self, values: dict[Node, Array], call: Call) -> None:
        for node, run, reads, done in self.schedule:
            values[node] = run([values[source] for source in reads], call)
            for source in done:
                del values[source]


def rule(node: Node) -> Run:
    """What computes a node that is no layer; of letters that it has seen, its sizes are known."""
    if isinstance(node.op, ops.Unpack):  # its longest length is a letter that the call itself names
        return lambda inputs, call: computed(node, inputs, call.letters)
    names = sorted(letters_in(node))
    frames: dict[tuple[int, ...], Frame] = {}

    def run(inputs: list[Array], call: Call) -> Array:
        sizes = tuple([call.letters[name] for name in names])
        frame = frames.get(sizes)
        if frame is None:
            if len(frames) >= MOST_KNOWN:
                frames.clear()
            frame = frames[sizes] = frame_of(node, dict(zip(names, sizes)))
        return ruled(node, inputs, frame)

    return run


def n_states(node: Node) -> int:
    """How many of a node's inputs, the last ones, are first states of a layer."""
    return node.op.states if isinstance(node.op, ops.Recurrent) else 0


def handed_from(node: Node) -> Node | None:
    """The layer whose last states, as they are, begin those of this node."""
    states = node.inputs[len(node.inputs) - n_states(node) :]
    parts = [state.op.part for state in states if isinstance(state.op, ops.LastState)]
    layers = {state.inputs[0] for state in states if state.inputs}
    return layers.pop() if states and parts == ["h", "c"][: len(states)] and len(layers) == 1 else None


def owned(value: Array, others: set[int]) -> Array:
    """An answer in one piece that is nobody else's."""
    if not isinstance(value, np.ndarray) or id(value) in others or value.base is not None:
        return np.array(value, order="C")  # sums of single numbers are no arrays
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)
