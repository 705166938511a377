"""What a lasso penalty needs to know of the network, apart from its weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gatewise.groups import transpose_groups

EPS = 1e-8  # under the root, not after it: sqrt has an infinite slope at 0, where groups should end up


class Plan:
    """Lambdas and groups of some matrices: on the device that asks for it."""

    def __init__(
        self,
        group: float,
        l1: tuple[float, ...],  # of every matrix
        groups: Tensor,  # (groups, m): lines of each group
        shapes: Sequence[tuple[int, int]],
        kinds: Tensor,  # (groups,)
    ) -> None:
        self.group, self.l1, self.groups = group, l1, groups.contiguous()  # for kernels
        self.kinds = tuple((kinds == kind).float() for kind in kinds.unique().tolist())  # gates, then neurons
        ends = (0, *accumulate(sum(shape) for shape in shapes))
        self.lines = tuple(slice(*ends) for ends in pairwise(ends))  # of every matrix
        self.members = transpose_groups(groups, ends[-1])  # (lines, k): groups of each line
        self.has_rows = tuple(  # of every matrix: whether some row of it is in a group
            bool((self.members[lines][:rows] < len(groups)).any())
            for lines, (rows, _) in zip(self.lines, shapes)
        )
        self.weights = torch.tensor(l1)
        # What gatewise.Budget turns: tensors, since a captured CUDA graph sees no other number change.
        self.factors = torch.ones(len(groups))  # of every group's part
        self.l1_factor = torch.ones(())

    def on(self, device: torch.device, dtype: torch.dtype) -> Plan:
        if self.groups.device != device:  # once, and never inside a CUDA graph, where the host cannot be read
            self.groups, self.members = self.groups.to(device), self.members.to(device)
            self.factors, self.l1_factor = self.factors.to(device), self.l1_factor.to(device)
            self.kinds = tuple(kind.to(device) for kind in self.kinds)
        if (self.weights.device, self.weights.dtype) != (device, dtype):
            self.weights = torch.tensor(self.l1, dtype=dtype, device=device)
        return self

    def summed(self, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:  # (groups,)
        """Sums over the groups from those over all lines."""
        lines = torch.cat([*(line for pair in zip(rows, columns) for line in pair), rows[0].new_zeros(1)])
        return lines[self.groups].sum(1)
