"""Structure: what is kept on each level; frozen data, the currency of later stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from gatewise.masks import Masks, find_masks
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import joined


@dataclass(frozen=True)
class RecurrentStructure:
    """What is left of one recurrent layer and direction. True always means *kept*."""

    keep_inputs: Tensor  # (I,) bool; False: no live gate reads this input
    keep_gates: Tensor  # (G, H) bool; False: no dot product; the gate is the constant act(bias)
    keep_neurons: Tensor  # (H,) bool; False: nobody reads this neuron, or it is always zero
    keep_recurrent: Tensor  # (H,) bool; False: no live gate of this layer reads the neuron

    def matrices(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Rows and columns that are kept of each."""
        rows = self.keep_gates.flatten()
        return {"weight_ih": (rows, self.keep_inputs), "weight_hh": (rows, self.keep_recurrent)}

    def units(self) -> Tensor:
        return self.keep_neurons


@dataclass(frozen=True)
class LinearStructure:
    """What is left of a Linear layer. True always means *kept*."""

    keep_inputs: Tensor  # (I,) bool; False: the input is removed, or its column is zero
    keep_outputs: Tensor  # (O,) bool; False: nobody reads this output

    def matrices(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {"weight": (self.keep_outputs, self.keep_inputs)}

    def units(self) -> Tensor:
        return self.keep_outputs


@dataclass(frozen=True)
class EmbeddingStructure:
    """What is left of an embedding. True always means *kept*."""

    keep_words: Tensor  # (V,) bool; False: the word's vector is zero
    keep_components: Tensor  # (E,) bool; False: nobody reads this component, or it is zero for every word

    def matrices(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {"weight": (self.keep_words, self.keep_components)}

    def units(self) -> Tensor:
        return self.keep_components


LayerStructure = RecurrentStructure | LinearStructure | EmbeddingStructure


@dataclass(frozen=True, repr=False)
class Structure:
    """Keep-masks of every layer by name (`rnn.l0`, `rnn.l1_reverse`, `emb`, `fc`), on the CPU."""

    layers: Mapping[str, LayerStructure]
    # Layers whose readers are not all known, and why.
    exposed: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_weights(
        model: nn.Module, readers: Stated | None = None, *, fixed_point: bool = False
    ) -> Structure:
        """What the zeros of a model leave: the paper's one-pass count, or everything that can reach the output."""
        graph = find_readers(model, readers)
        masks = find_masks(model)
        return reachable(masks, graph) if fixed_point else one_pass(masks, graph)

    def __repr__(self) -> str:
        """`<Structure gru.l0: 11 of 32 neurons, 12 of 96 gates; head: 11 of 32 inputs>`"""
        said = []
        for name, layer in self.layers.items():
            masks = ((key.removeprefix("keep_"), mask) for key, mask in vars(layer).items())
            parts = [f"{int(mask.sum()):,} of {mask.numel():,} {key}" for key, mask in masks]
            said.append(f"{name}: {', '.join(parts)}")
        return f"<Structure {'; '.join(said)}>"

    def __or__(self, other: Structure) -> Structure:
        """What either of them keeps, of the same model."""
        if self.layers.keys() != other.layers.keys():
            apart = ", ".join(sorted(self.layers.keys() ^ other.layers.keys()))
            raise ValueError(f"The structures are those of different models: only one of them has {apart}.")
        layers = {}
        for name, mine in self.layers.items():
            theirs = vars(other.layers[name])
            layers[name] = replace(mine, **{key: mask | theirs[key] for key, mask in vars(mine).items()})
        return Structure(layers, self.exposed)

    def recurrent(self) -> dict[str, RecurrentStructure]:
        return {name: layer for name, layer in self.layers.items() if isinstance(layer, RecurrentStructure)}


def one_pass(masks: Masks, graph: ReaderGraph) -> Structure:
    """The paper's count, as its authors coded it; no mask is updated by what another one removes.

    neuron kept     z_h kept and some weight that reads it kept, in this layer or a reader
    gate live       neuron kept, gate z kept, and some incoming weight kept, whatever became of what it reads
    component kept  some embedding weight kept, and some weight that reads it (with its z_x) kept
    word kept       its variable kept; without variables, some weight of its row kept
    """
    keep = {name: read_at_all(name, masks.matrix, graph) for name in graph.blocks}
    for hand in graph.handed:
        keep[hand.source] = keep[hand.source] | keep[hand.target]
    for name, own in masks.recurrent.items():
        keep[name] = keep[name] & own.neuron
    for name, zero in masks.zero_outputs.items():
        if name in masks.words:
            keep[name] = keep[name] & ~zero
    live = {name: keep[name] & own.gate & own.incoming for name, own in masks.recurrent.items()}
    words = {
        name: own if name in masks.word_variables else masks.matrix[joined(name, "weight")].any(1)
        for name, own in masks.words.items()
    }
    return assemble(masks, graph, keep, live, words, masks.matrix)


def reachable(masks: Masks, graph: ReaderGraph) -> Structure:
    """Everything from which a chain of non-zero weights leads to the output; the rest cannot change the answer.

    First zeros are pushed forward (columns that read a unit which is always zero, outputs that read nothing else),
    then life is spread backward from what forward() returns or exposes, each until nothing changes. A neuron read
    only by removed neurons, or only by itself, is never reached.
    """
    zero = {name: ~own.neuron for name, own in masks.recurrent.items()} | masks.zero_outputs
    while True:
        matrix = {
            name: mask & ~zero_columns(name, mask.shape[1], zero, graph)
            for name, mask in masks.matrix.items()
        }
        silent = {
            name: ~(matrix[joined(name, "weight")].any(1) | biased) for name, biased in masks.biased.items()
        }
        if all(torch.equal(silent[name], zero[name]) for name in silent):
            break
        zero = zero | silent
    for name in masks.words:  # an embedding has no input: its columns are its own units
        matrix[joined(name, "weight")] = masks.matrix[joined(name, "weight")] & masks.words[name][:, None]
    remembered = [
        name for name, own in masks.recurrent.items() if name in graph.memory and own.cell.n_states > 1
    ]
    alive = {name: torch.zeros_like(dead) for name, dead in zero.items()}
    while True:
        rows = {name: alive_rows(name, alive, masks) for name in matrix}
        read = {
            name: mask if name.rpartition(".")[0] in masks.words else mask & rows[name][:, None]
            for name, mask in matrix.items()
        }
        spread = {
            name: (read_at_all(name, read, graph) & ~zero[name]) | read_at_all(name, read, graph, cells=True)
            for name in alive
        }
        for hand in graph.handed:
            needed = alive[hand.target] if hand.cell else alive[hand.target] & ~zero[hand.source]
            spread[hand.source] = spread[hand.source] | needed
        # A neuron with z_h = 0 says nothing, but its cell state may be seen.
        spread |= {name: torch.ones_like(spread[name]) for name in remembered}
        if all(torch.equal(spread[name], alive[name]) for name in alive):
            break
        alive = spread
    live = {}
    for name, own in masks.recurrent.items():
        some = matrix[own.input_matrix].any(1) | matrix[own.recurrent_matrix].any(1)
        live[name] = alive[name] & own.gate & own.cell.split(some)
    words = {name: (matrix[joined(name, "weight")] & alive[name]).any(1) for name in masks.words}
    return assemble(masks, graph, alive, live, words, matrix)


def read_at_all(
    block: str, matrix: Mapping[str, Tensor], graph: ReaderGraph, cells: bool = False
) -> Tensor:  # (width,) bool
    """Whether some non-zero weight reads each unit, or only its c; an exposed block counts as read."""
    width = graph.blocks[block].width
    if block in graph.exposed and not cells:
        return torch.ones(width, dtype=torch.bool)
    read = torch.zeros(width, dtype=torch.bool)
    for r in (r for r in graph.reads_of(block) if r.cell or not cells):
        read[r.unit : r.unit + r.width] |= matrix[r.matrix][:, r.column : r.column + r.width].any(0)
    return read


def zero_columns(
    matrix: str, width: int, zero: Mapping[str, Tensor], graph: ReaderGraph
) -> Tensor:  # (columns,)
    """Columns that only ever see zero: every unit that reaches them is zero, and reaches them as zero."""
    reads = graph.reads_by(matrix)
    if not reads or matrix in graph.outside:
        return torch.zeros(width, dtype=torch.bool)
    fed = torch.zeros(width, dtype=torch.bool)
    nonzero = torch.zeros_like(fed)
    for r in reads:
        columns = slice(r.column, r.column + r.width)
        fed[columns] = True
        nonzero[columns] |= (
            ~zero[r.block][r.unit : r.unit + r.width] if r.keeps_zero else torch.ones_like(fed[columns])
        )
    return fed & ~nonzero


def alive_rows(matrix: str, alive: Mapping[str, Tensor], masks: Masks) -> Tensor:
    """Rows that compute something alive: the gates with a non-zero z of living neurons, the living outputs."""
    for name, own in masks.recurrent.items():
        if matrix in (own.input_matrix, own.recurrent_matrix):
            return (own.gate & alive[name]).flatten()
    return alive[matrix.rpartition(".")[0]]


def assemble(
    masks: Masks,
    graph: ReaderGraph,
    keep: Mapping[str, Tensor],
    live: Mapping[str, Tensor],
    words: Mapping[str, Tensor],
    matrix: Mapping[str, Tensor],
) -> Structure:
    layers: dict[str, LayerStructure] = {}
    for name in graph.blocks:
        if name in masks.recurrent:
            own = masks.recurrent[name]
            rows = live[name].flatten()[:, None]
            inputs = (matrix[own.input_matrix] & rows).any(0) & kept_columns(
                own.input_matrix, keep, matrix, graph
            )
            recurrent = (matrix[own.recurrent_matrix] & rows).any(0) & keep[name]
            layers[name] = RecurrentStructure(inputs, live[name], keep[name], recurrent)
        elif name in masks.words:
            layers[name] = EmbeddingStructure(words[name], keep[name])
        else:
            weight = joined(name, "weight")
            inputs = (matrix[weight] & keep[name][:, None]).any(0) & kept_columns(weight, keep, matrix, graph)
            layers[name] = LinearStructure(inputs, keep[name])
    return Structure(layers, dict(graph.exposed))


def kept_columns(
    name: str, keep: Mapping[str, Tensor], matrix: Mapping[str, Tensor], graph: ReaderGraph
) -> Tensor:
    """Columns of a matrix that see a kept unit, a zero that did not stay zero, or something that is no unit."""
    columns = torch.ones(matrix[name].shape[1], dtype=torch.bool)
    reads = [] if name in graph.outside else graph.reads_by(name)
    for r in reads:
        columns[r.column : r.column + r.width] = False
    for r in reads:
        kept = keep[r.block][r.unit : r.unit + r.width]
        columns[r.column : r.column + r.width] |= kept if r.keeps_zero else torch.ones_like(kept)
    return columns
