"""Whether tensors are still what they were: also where torch does not count who wrote into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 15  # weights: a few microseconds


class Contents:
    """b_k = W_k v for blocks of rows W_k of every tensor and a random v: what no such product sees, no answer does.

    A tensor that was replaced, given other memory, or changed as torch counts changes is noticed at once; what was
    written through `.data` or NumPy when its block comes up. A look takes the next blocks, of 32,768 weights for each
    of its `steps`: all of a small network, and of a large one in a lone step a part, which costs less than the step.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.state = states(self.tensors)
        self.blocks: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, v, their product
        self.size = sum(t.numel() for t in self.tensors)
        self.next = 0
        own = torch.Generator().manual_seed(0)
        for tensor in (t for t in self.tensors if t.numel()):
            matrix = tensor.detach().reshape(-1, tensor.shape[-1])
            v = torch.rand(matrix.shape[1], generator=own) + 0.5
            for rows in matrix.split(max(BLOCK // len(v), 1)):
                self.blocks.append((rows, v, torch.mv(rows, v)))

    def same(self, tensors: Sequence[Tensor], steps: int) -> bool:
        """Whether these are the tensors, as they were."""
        if len(tensors) != len(self.tensors) or any(a is not b for a, b in zip(tensors, self.tensors)):
            return False
        if states(tensors) != self.state:
            return False
        left = min(BLOCK * steps, self.size)
        for _ in range(len(self.blocks)):
            rows, v, product = self.blocks[self.next]
            self.next = (self.next + 1) % len(self.blocks)
            if not torch.equal(torch.mv(rows, v), product):
                return False
            left -= rows.numel()
            if left <= 0:
                break
        return True


def states(tensors: Sequence[Tensor]) -> list[tuple[int, int, torch.Size]]:
    """Where each lies, and how often torch knows it to have been changed in place."""
    return [(t.data_ptr(), t._version, t.shape) for t in tensors]
