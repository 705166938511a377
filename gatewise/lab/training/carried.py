"""The state that a language model hands from window to window."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gatewise.lab.models import State, stack_of


class CarriedState:
    """In one place, which a captured step reads and writes."""

    def __init__(self, model: nn.Module, batch_size: int, device: torch.device) -> None:
        rnn = stack_of(model)
        shape = (rnn.num_layers, batch_size, rnn.hidden_size)
        self.parts = [torch.zeros(shape, device=device) for _ in range(rnn.cell.n_states)]

    def given(self) -> State:
        return tuple(self.parts) if len(self.parts) > 1 else self.parts[0]

    def keep(self, after: State | None) -> None:
        assert after is not None
        for part, new in zip(self.parts, [after] if isinstance(after, Tensor) else after):
            part.copy_(new.detach())

    def zero(self) -> None:
        for part in self.parts:
            part.zero_()
