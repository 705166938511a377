"""Which weights vanish together: a gate's row, a neuron's columns, its readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import Stored, cell_of
from gatewise.readers import Block, ReaderGraph
from gatewise.readers.graph import own_matrices

LEVELS = ("W", "W+N", "W+G+N")  # weights; weights and neurons; weights, gates and neurons


class Lines:
    """Numbers for all rows and columns of some parameters: one by one, first its rows, then its columns.

    Every group is a union of such lines, so sums of squares over lines are all that norms of groups need. Groups are
    made of matrices as they were before a cut; a row or column that is not there has no line: the number `count`.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self.first: dict[str, tuple[int, int]] = {}  # of each parameter, its first row and column
        self.matrices: dict[
            str, tuple[str, Stored]
        ] = {}  # of each matrix, its parameter and what that has of it
        self.count = 0
        for name, (rows, columns) in shapes.items():
            self.first[name] = self.count, self.count + rows
            self.count += rows + columns

    def add(self, matrix: str, parameter: str, has: Stored) -> None:
        self.matrices[matrix] = parameter, has

    def rows(self, matrix: str, numbers: Tensor) -> Tensor:
        """The lines of some rows of a matrix."""
        return self._lines(matrix, numbers, 0)

    def columns(self, matrix: str, numbers: Tensor) -> Tensor:
        return self._lines(matrix, numbers, 1)

    def _lines(self, matrix: str, numbers: Tensor, axis: int) -> Tensor:
        parameter, has = self.matrices[matrix]
        first, there = self.first[parameter][axis], (has.rows, has.columns)[axis]
        if there is None:
            return first + numbers
        there = torch.cat([there.cpu(), torch.tensor([-1])])  # ascends, and ends with what no number is
        place = torch.searchsorted(there[:-1], numbers)
        return torch.where(there[place] == numbers, first + place, self.count)


def find_groups(
    model: nn.Module, graph: ReaderGraph, modules: Iterable[str], levels: str, lines: Lines
) -> tuple[Tensor, Tensor]:  # (groups, lines of the largest group); lines.count stands for "no line"
    """The lines of every group of the named recurrent modules, and which of all gates and neurons have a group.

    gate k of neuron j    row k*H + j of the input and of the recurrent matrix
    neuron j              every column that reads it: its recurrent one, and those of its readers
    neuron j at W+N       all of these as one group (ISS; a neuron's weights to itself count twice, as in ISS)

    A neuron without known readers has no group: it stays, and at W+N its gates do, too.
    """
    groups: list[Tensor] = []
    for block in grouped_blocks(graph, modules, levels):
        cell = cell_of(model.get_submodule(block.module))
        assert cell is not None
        rows = torch.arange(cell.n_gates * block.width)
        gates = torch.stack([lines.rows(name, rows) for name in own_matrices(model, block)], 1)  # (G*H, 2)
        reads = [] if block.name in graph.exposed else graph.reads_of(block.name)
        neurons = torch.full((block.width, len(reads)), lines.count)
        for k, r in enumerate(reads):
            columns = lines.columns(r.matrix, r.column + torch.arange(r.width))
            neurons[r.unit : r.unit + r.width, k] = columns
        if levels == "W+N":
            neurons = torch.cat([*cell.split(gates), neurons], dim=1)
        groups += [gates, neurons] if levels == "W+G+N" else [neurons]
    width = max((group.shape[1] for group in groups), default=0)
    padded = [nn.functional.pad(group, (0, width - group.shape[1]), value=lines.count) for group in groups]
    found = torch.cat(padded) if padded else torch.zeros(0, 0, dtype=torch.int64)
    there = (found < lines.count).any(1)  # not of constant gates of a compact layer, nor of neurons that went
    return found[there], there


def grouped_blocks(graph: ReaderGraph, modules: Iterable[str], levels: str) -> tuple[Block, ...]:
    """The layers of the named recurrent modules in the order of their groups: of each its gates, then its neurons."""
    wanted = set(modules) if levels != "W" else set[str]()
    own = (b for b in graph.blocks.values() if b.module in wanted and b.place is not None)
    return tuple(b for b in own if levels == "W+G+N" or b.name not in graph.exposed)


def group_kinds(model: nn.Module, blocks: Iterable[Block], levels: str) -> Tensor:  # (groups,)
    """0 for the group of a gate, 1 for that of a neuron, whether or not an earlier cut left anything of it."""
    kinds = [torch.zeros(0, dtype=torch.int64)]
    for block in blocks:
        cell = cell_of(model.get_submodule(block.module))
        assert cell is not None
        gates = cell.n_gates * block.width if levels == "W+G+N" else 0
        kinds += [torch.zeros(gates, dtype=torch.int64), torch.ones(block.width, dtype=torch.int64)]
    return torch.cat(kinds)


def transpose_groups(groups: Tensor, count: int) -> Tensor:  # (count, groups of the busiest line)
    """The groups of every line; the number of groups stands for "no group"."""
    n = len(groups)
    line = groups.flatten()
    group = torch.arange(n).repeat_interleave(groups.shape[1])
    line, group = line[line < count], group[line < count]
    order = line.argsort(stable=True)
    line, group = line[order], group[order]
    counts = torch.bincount(line, minlength=count)
    start = counts.cumsum(0) - counts
    table = torch.full((count, int(counts.max()) if len(line) else 0), n)
    table[line, torch.arange(len(line)) - start[line]] = group
    return table
