"""Which weights vanish together: a gate's row, a neuron's columns, its readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gatewise.layout import Cell
from gatewise.nn.lookup import cell_of, ending
from gatewise.readers import Read, ReaderGraph
from gatewise.readers.graph import joined

LEVELS = ("W", "W+N", "W+G+N")  # weights; weights and neurons; weights, gates and neurons


@dataclass(frozen=True)
class LayerGroups:
    """The groups of one recurrent layer and direction, as squared norms over rows and columns of matrices.

    gate k of neuron j    row k*H + j of the input and of the recurrent matrix
    neuron j              every column that reads it: its recurrent one, and those of its readers
    neuron j at W+N       all of these as one group (ISS; a neuron's weights to itself count twice, as in ISS)
    """

    cell: Cell
    width: int
    input_matrix: str
    recurrent_matrix: str
    reads: tuple[Read, ...]

    def squares(
        self, levels: str, row_squares: Mapping[str, Tensor], column_squares: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Squared norm of every group: [(G*H,), (H,)] at W+G+N, [(H,)] at W+N."""
        rows = row_squares[self.input_matrix] + row_squares[self.recurrent_matrix]
        neurons = torch.zeros_like(rows[: self.width])
        for r in self.reads:
            neurons[r.unit : r.unit + r.width] += column_squares[r.matrix][r.column : r.column + r.width]
        return [rows, neurons] if levels == "W+G+N" else [self.cell.split(rows).sum(0) + neurons]

    def spread(
        self, levels: str, groups: list[Tensor], rows: Mapping[str, Tensor], columns: Mapping[str, Tensor]
    ) -> None:
        """Add a number per group to the rows and columns that make the group up; undoes the sum of `squares`."""
        neurons = groups[-1]
        per_row = groups[0] if levels == "W+G+N" else neurons.repeat(self.cell.n_gates)
        for matrix in (self.input_matrix, self.recurrent_matrix):
            rows[matrix].add_(per_row)
        for r in self.reads:
            columns[r.matrix][r.column : r.column + r.width] += neurons[r.unit : r.unit + r.width]


def find_groups(model: nn.Module, graph: ReaderGraph, modules: Iterable[str]) -> dict[str, LayerGroups]:
    """The groups of every layer of the named recurrent modules, by block."""
    wanted, found = set(modules), {}
    for block in graph.blocks.values():
        if block.module not in wanted or block.place is None:
            continue
        module = model.get_submodule(block.module)
        cell = cell_of(module)
        assert cell is not None
        end = ending(module, *block.place)
        found[block.name] = LayerGroups(
            cell,
            block.width,
            joined(block.module, "weight_ih" + end),
            joined(block.module, "weight_hh" + end),
            tuple(graph.reads_of(block.name)),
        )
    return found
