"""Which weights vanish together: a gate's row, a neuron's columns, its readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import cell_of, ending
from gatewise.readers import ReaderGraph
from gatewise.readers.graph import joined

LEVELS = ("W", "W+N", "W+G+N")  # weights; weights and neurons; weights, gates and neurons


class Lines:
    """Numbers for all rows and columns of some matrices: matrix by matrix, first its rows, then its columns.

    Every group is a union of such lines, so sums of squares over lines are all that norms of groups need.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self.first_row: dict[str, int] = {}
        self.first_column: dict[str, int] = {}
        self.count = 0
        for name, (rows, columns) in shapes.items():
            self.first_row[name], self.first_column[name] = self.count, self.count + rows
            self.count += rows + columns


def find_groups(
    model: nn.Module, graph: ReaderGraph, modules: Iterable[str], levels: str, lines: Lines
) -> Tensor:  # (groups, lines of the largest group); lines.count stands for "no line"
    """The lines of every group of the named recurrent modules.

    gate k of neuron j    row k*H + j of the input and of the recurrent matrix
    neuron j              every column that reads it: its recurrent one, and those of its readers
    neuron j at W+N       all of these as one group (ISS; a neuron's weights to itself count twice, as in ISS)
    """
    wanted = set(modules)
    groups: list[Tensor] = []
    for block in graph.blocks.values():
        if block.module not in wanted or block.place is None or levels == "W":
            continue
        module = model.get_submodule(block.module)
        cell = cell_of(module)
        assert cell is not None
        end = ending(module, *block.place)
        rows = torch.arange(cell.n_gates * block.width)
        own = [lines.first_row[joined(block.module, label + end)] for label in ("weight_ih", "weight_hh")]
        gates = torch.stack([first + rows for first in own], dim=1)  # (G*H, 2)
        reads = graph.reads_of(block.name)
        neurons = torch.full((block.width, len(reads)), lines.count)
        for k, r in enumerate(reads):
            columns = lines.first_column[r.matrix] + r.column + torch.arange(r.width)
            neurons[r.unit : r.unit + r.width, k] = columns
        if levels == "W+N":
            neurons = torch.cat([*cell.split(gates), neurons], dim=1)
        groups += [gates, neurons] if levels == "W+G+N" else [neurons]
    width = max((group.shape[1] for group in groups), default=0)
    padded = [nn.functional.pad(group, (0, width - group.shape[1]), value=lines.count) for group in groups]
    return torch.cat(padded) if padded else torch.zeros(0, 0, dtype=torch.int64)


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
