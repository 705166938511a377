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
from gatewise.runtime.decoding import Decoder
from gatewise.runtime.evaluate import parameter
from gatewise.runtime.layers import Memory, RecurrentLayer, plain_layer
from gatewise.runtime.rules import computed, kind_of
from gatewise.runtime.steps import WAY_OUT

Array = NDArray[Any]


@dataclass
class Call:
    """One call: the sizes it has, and what nodes remember of the pieces before and leave for those to come."""

    letters: dict[str, int]
    threads: int = 1
    before: dict[Node, Any] = field(default_factory=dict)
    after: dict[Node, Any] = field(default_factory=dict)
    offset: int = 0  # steps of the pieces before
    factors: dict[Node, Array] = field(default_factory=dict)  # see runtime/pieces.py


Run = Callable[[list[Array], Call], Array]


class Step(NamedTuple):
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
    ) -> None:
        if (node := program.opaque()) is not None:
            assert isinstance(node.op, ops.Opaque)
            raise Unrunnable(f"{node.line}: {node.op.what}. {WAY_OUT}")
        self.program, self.model, self.special = program, model, special or {}
        self.fold_embedding = fold_embedding
        self.layers: dict[tuple[str, str], RecurrentLayer] = {}
        self.constants: dict[Node, Array] = {}
        users = program.users()
        self.words = {node for node in users if self.is_of_layers(node, users[node])}
        nodes = [node for node in users if not isinstance(node.op, ops.Input) and node not in self.words]
        moving = [(node, self.runner(node), self.sources(node)) for node in nodes if not self.folded(node)]
        last = {source: node for node, _, reads in moving for source in reads}
        kept = {*program.results, *self.constants}
        ends: dict[Node, list[Node]] = {}
        for source, reader in last.items():
            if source not in kept:
                ends.setdefault(reader, []).append(source)
        self.steps = [Step(node, run, reads, tuple(ends.get(node, ()))) for node, run, reads in moving]

    def is_of_layers(self, node: Node, users: list[Node]) -> bool:
        """Whether an embedding is read by recurrent layers alone, which then read words."""
        if not isinstance(node.op, ops.Embed) or not users or node in self.program.results:
            return False
        compact = isinstance(self.model.get_submodule(node.op.module), CompactEmbedding)
        layers = all(isinstance(u.op, ops.Recurrent) and node not in u.inputs[1:] for u in users)
        return compact and layers and node.rank == 3

    def sources(self, node: Node) -> tuple[Node, ...]:
        first, *rest = node.inputs or (node,)
        return (first.inputs[0], *rest) if first in self.words else node.inputs

    def folded(self, node: Node) -> bool:
        """Whether a value is the same in every call; it is computed now."""
        if isinstance(node.op, ops.Parameter):
            value = parameter(self.model, node.op.tensor)
            self.constants[node] = value.astype(kind_of(node), copy=True)
            return True
        fixed = all(source in self.constants for source in node.inputs) and not letters_in(node)
        if not fixed or isinstance(node.op, ops.Recurrent | ops.LastState | ops.Decode):
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
        if isinstance(op, ops.Decode):
            decoder = Decoder(self.model, op, self.fold_embedding)
            return lambda inputs, call: decoder(inputs, call.threads)
        if (plain := plain_layer(op, self.model)) is not None:
            return lambda inputs, _: plain(inputs[0])
        return lambda inputs, call: computed(node, inputs, call.letters)

    def layer(self, node: Node) -> RecurrentLayer:
        """The kernels of a recurrent layer, and of the embedding that it reads alone."""
        op, below = node.op, node.inputs[0]
        assert isinstance(op, ops.Recurrent)
        embedding = below.op.module if isinstance(below.op, ops.Embed) and below in self.words else None
        key = (op.module, embedding or "")
        if key not in self.layers:
            words = None if embedding is None else self.model.get_submodule(embedding)
            module = self.model.get_submodule(op.module)
            self.layers[key] = RecurrentLayer(module, op.module, words, self.fold_embedding)  # type: ignore[arg-type]
        return self.layers[key]

    def recurrence(self, node: Node, op: ops.Recurrent) -> Run:
        layer = self.layer(node)

        def run(inputs: list[Array], call: Call) -> Array:
            x, first = inputs[0], inputs[len(inputs) - op.states :]
            before = call.before.get(node)
            memory = layer.start(len(x), first) if before is None else Memory(before.parts.copy(), len(x))
            call.after[node] = memory
            return layer.run(x, memory, inputs[1] if op.lengths else None, call.threads)

        return run

    def run(self, arrays: dict[Node, Array], call: Call) -> Any:
        values = self.constants | arrays
        with np.errstate(all="ignore"):
            for node, run, reads, done in self.steps:
                values[node] = run([values[source] for source in reads], call)
                for source in done:
                    del values[source]
        own = {id(array) for array in (*self.constants.values(), *arrays.values())}
        return mapped(
            lambda leaf: owned(values[leaf], own) if isinstance(leaf, Node) else leaf, self.program.outputs
        )


def owned(value: Array, others: set[int]) -> Array:
    """An answer in one piece that is nobody else's."""
    if not isinstance(value, np.ndarray) or id(value) in others or value.base is not None:
        return np.array(value, order="C")  # sums of single numbers are no arrays
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)
