"""The layers of a program in the engine: small matrices, C kernels for recurrences, original widths outside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gatewise.compact import CompactCell, CompactEmbedding, CompactRecurrent
from gatewise.compact.compress import compact_recurrent
from gatewise.compact.plan import RecurrentPlan
from gatewise.nn.lookup import bias_of, cell_of, is_compact, matrix_of, places_of
from gatewise.program import operations as ops
from gatewise.readers.graph import block_name
from gatewise.runtime.evaluate import embedding
from gatewise.runtime.narrow import Floats, Level, Narrower, Recurrence, Table, floats, integers
from gatewise.runtime.rounding import Weights, rounded
from gatewise.runtime.stages import Lookup, make_network

Array = NDArray[Any]
Layer = Callable[[Array], Array]


def spread(y: Array, places: Array, width: int) -> Array:  # (..., K) -> (..., width)
    """Removed channels come back as zeros."""
    if len(places) == width:
        return y
    whole = np.zeros((*y.shape[:-1], width), y.dtype)
    whole[..., places] = y
    return whole


def linear(module: nn.Module, weights: Weights = "float32") -> Layer:
    if not is_compact(module):
        return product(rounded(floats(matrix_of(module)), weights), bias_of(module))
    inputs, outputs = integers(module.inputs), integers(module.outputs)
    small = product(rounded(floats(module.weight), weights), module.bias)  # type: ignore[arg-type]
    n_in, n_out = int(module.in_features), int(module.out_features)  # type: ignore[arg-type]
    if len(inputs) == n_in:
        return lambda x: spread(small(x), outputs, n_out)
    return lambda x: spread(small(x[..., inputs]), outputs, n_out)


def product(weight: Floats, bias: torch.Tensor | None) -> Layer:
    columns = np.ascontiguousarray(weight.T)
    shift = None if bias is None else floats(bias)

    def multiplied(x: Array) -> Array:
        # Of two axes: a product takes others one by one.
        y = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) @ columns
        if shift is not None:
            y += shift
        return y.reshape(*x.shape[:-1], columns.shape[1])

    return multiplied


def lookup(module: nn.Module, name: str) -> Layer:
    if not is_compact(module):
        table = Table(embedding(module).astype(np.float32), None, int(module.num_embeddings))  # type: ignore[arg-type]
        return named_lookup(Lookup(table), name)
    words, width = int(module.num_embeddings), int(module.embedding_dim)  # type: ignore[arg-type]
    weight, components = floats(module.weight), integers(module.components)
    rows = None if len(weight) == words else integers(module.rows)
    find = named_lookup(Lookup(Table(weight, rows, words)), name)
    return lambda ids: spread(find(ids), components, width)


def named_lookup(find: Lookup, name: str) -> Layer:
    def vectors(ids: Array) -> Array:
        try:
            return find(ids)
        except IndexError as error:
            raise IndexError(f"{name}: {error}") from None

    return vectors


class Memory(NamedTuple):
    """What a recurrence remembers: the kernels' own layout."""

    parts: Floats
    batch: int


class RecurrentLayer:
    """A stack of one or two directions by the C kernels; with `words`, an embedding, it reads ids."""

    def __init__(
        self,
        module: nn.Module,
        name: str,
        words: CompactEmbedding | None = None,
        fold: bool | None = None,
        weights: Weights = "float32",
        last: bool = False,  # nobody reads a step, only the last states
    ) -> None:
        stack = as_compact(module, name)
        narrower = Narrower(stack.input_size)
        if words is not None:
            narrower.embedding(words)
        narrower.recurrent(name, stack)
        levels = [link for link in narrower.links if isinstance(link, Level)]
        table = None if words is None else narrower.links[0]
        assert table is None or isinstance(table, Table)
        self.name, self.hidden = name, stack.hidden_size
        self.reads = np.float32 if words is None else np.int64
        self.directions: list[Recurrence] = [r for level in levels for r in level.directions]
        top = self.directions[-stack.num_directions :]
        self.places = np.concatenate([r.neurons + d * self.hidden for d, r in enumerate(top)])
        self.width = self.hidden * stack.num_directions
        fold = worth_folding(table, levels[0]) if table is not None and fold is None else fold
        final = "last_state" if last else ""
        self.network = make_network(table, levels, None, stack.input_size, final, False, fold, weights)
        self.no_steps = last
        self.known: dict[int, list[tuple[Array, Array, Floats]]] = {}  # see places_of

    def start(self, batch: int, first: list[Array]) -> Memory:  # first: each (L*D, B, H), or none: zeros
        """The first states in the kernels' layout; what is given for removed neurons counts as zero."""
        memory = np.zeros(batch * self.network.state_size, np.float32)
        for part, (there, outside, scale) in zip(first, self.places_of(batch)):
            memory[there] = part.reshape(-1)[outside] / scale
        return Memory(memory, batch)

    def run(self, x: Array, memory: Memory, lengths: Array | None, threads: int) -> Array:
        """(B, T, I) or ids (B, T) -> (B, T, kept neurons), or the last ones alone; the memory is overwritten."""
        batch, steps = x.shape[:2]
        x = np.require(x, self.reads, ["C", "A"])
        y = np.empty(
            (batch, self.network.width) if self.no_steps else (batch, steps, self.network.width), np.float32
        )
        sizes = None if lengths is None else self.checked(lengths, steps)
        self.network.run(x, memory.parts, y, steps, batch, True, sizes, threads)
        return y

    def widened(self, y: Array) -> Array:  # (B, T, kept neurons) -> (B, T, D*H)
        return spread(y, self.places, self.width)

    def checked(self, lengths: Array, steps: int) -> Array:
        # A copy, then checks: another thread may write into the caller's array.
        lengths = lengths.copy()
        for wrong in np.flatnonzero((lengths < 1) | (lengths > steps))[:1]:
            raise ValueError(
                f"lengths of what {self.name or 'the model'} reads: sequence {wrong} has length {lengths[wrong]}, "
                f"outside 1..{steps}."
            )
        return lengths.astype(np.int32)

    def last(self, memory: Memory, part: str) -> Array:  # (L*D, B, H)
        there, outside, scale = self.places_of(memory.batch)[part == "c"]
        states = np.zeros((len(self.directions), memory.batch, self.hidden), np.float32)
        states.reshape(-1)[outside] = memory.parts[there] * scale
        return states

    def places_of(self, batch: int) -> list[tuple[Array, Array, Floats]]:
        """Of h, and of c: where its numbers lie in a memory and outside, and h outside over h in the memory.

        A neuron with z_h = 0 is not among them: h is zero outside, and counts as zero inside.
        """
        found = self.known.get(batch)  # another thread may replace what is known
        if found is None:
            found = self.placed(batch)
            self.known = {batch: found}  # for the batch of the last call
        return found

    def placed(self, batch: int) -> list[tuple[Array, Array, Floats]]:
        inside = self.network.states(np.arange(batch * self.network.state_size), batch)
        outside = np.arange(len(inside) * batch * self.hidden).reshape(len(inside), batch, self.hidden)
        found = []
        for k in range(len(inside[0])):
            of_part: list[tuple[Array, Array, Floats]] = []
            for place, (r, own) in enumerate(zip(self.directions, inside)):
                scale = np.ones_like(r.state_scale) if k else r.state_scale
                heard = np.flatnonzero(scale)
                of_part.append(
                    (
                        own[k][:, heard].reshape(-1),
                        outside[place][:, r.neurons[heard]].reshape(-1),
                        np.tile(scale[heard], batch).astype(np.float32),
                    )
                )
            found.append(tuple(map(np.concatenate, zip(*of_part))))
        return found  # type: ignore[return-value]


class HandOver:
    """First states of one layer from the last ones of another, without a detour over original widths.

    target = source * z_h of the source / z_h of the target, neuron by neuron; zero where the source has none
    """

    def __init__(self, source: RecurrentLayer, target: RecurrentLayer) -> None:
        self.source, self.target = source, target
        self.places: dict[int, tuple[Array, Floats]] = {}  # for the batch of the last call

    def __call__(self, last: Memory) -> Memory:
        found = self.places.get(last.batch)  # another thread may replace them
        if found is None:
            found = self.placed(last.batch)
            self.places = {last.batch: found}
        index, factor = found
        if not len(last.parts):  # no neuron of the source is left
            return Memory(np.zeros_like(factor), last.batch)
        first = last.parts.take(index)
        first *= factor
        return Memory(first, last.batch)

    def placed(self, batch: int) -> tuple[Array, Floats]:
        """Where every number of the target's memory lies in that of the source, and what it is multiplied by."""
        source, target = self.source.network, self.target.network
        numbers = source.states(np.arange(batch * source.state_size), batch)
        index = np.zeros(batch * target.state_size, np.int64)
        factor = np.zeros(len(index), np.float32)
        views = zip(numbers, target.states(index, batch), target.states(factor, batch))
        for s, t, (number, to, times) in zip(self.source.directions, self.target.directions, views):
            _, theirs, ours = np.intersect1d(s.neurons, t.neurons, assume_unique=True, return_indices=True)
            silent = t.state_scale[ours] == 0
            scale = np.where(silent, 0, s.state_scale[theirs] / np.where(silent, 1, t.state_scale[ours]))
            for k, (one, other, by) in enumerate(zip(number, to, times)):
                other[:, ours], by[:, ours] = one[:, theirs], 1 if k else scale
        return index, factor


def worth_folding(table: Table, level: Level) -> bool:
    """Whether the table word -> input projection takes no more floats than vectors and input matrix do."""
    (words, components), rows = table.weight.shape, sum(len(r.slots) for r in level.directions)
    return bool(words * rows <= words * components + rows * components)


def as_compact(module: nn.Module, name: str) -> CompactRecurrent:
    """Layers that compress() left as they are, because forward() also reads their parameters, are whole ones."""
    if not is_compact(module):
        plans = {
            block_name(module, name, *place): whole_plan(module, place[0]) for place in places_of(module)
        }
        module = compact_recurrent(name, module, plans)
    if isinstance(module, CompactCell):
        return module.as_layer()
    assert isinstance(module, CompactRecurrent)
    return module


def whole_plan(module: nn.Module, layer: int) -> RecurrentPlan:
    cell = cell_of(module)
    assert cell is not None
    hidden, directions = int(module.hidden_size), 2 if getattr(module, "bidirectional", False) else 1  # type: ignore[arg-type]
    inputs = hidden * directions if layer else int(module.input_size)  # type: ignore[arg-type]
    rows = torch.arange(cell.n_gates * hidden)
    return RecurrentPlan(torch.arange(inputs), torch.arange(hidden), rows, torch.arange(hidden))


def plain_layer(op: ops.Operation, model: nn.Module, weights: Weights = "float32") -> Layer | None:
    """What runs an embedding or linear layer."""
    if isinstance(op, ops.Embed):
        return lookup(model.get_submodule(op.module), op.module)
    return linear(model.get_submodule(op.module), weights) if isinstance(op, ops.Linear) else None
