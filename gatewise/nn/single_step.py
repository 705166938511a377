"""One step a call, as `nn.LSTMCell` and `nn.GRUCell`: the caller keeps the state."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gatewise.layout import Cell, State
from gatewise.nn.scripting import Unscriptable


class SingleStep(Unscriptable, nn.Module):
    """state_t = step(x_t, state_{t-1}); subclasses say what a step is."""

    cell: Cell
    input_size: int
    hidden_size: int

    def __init__(self) -> None:
        nn.Module.__init__(self)  # also where torch's class comes after this one

    def step(self, x: Tensor, state: State) -> State:  # (B, I), each (B, H)
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Any = None) -> Tensor | State:
        """x is (B, I) or (I,), the state h or the pair (h, c), zero if there is none."""
        batched = input.dim() == 2
        x = input if batched else input[None]
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"input_size is {self.input_size}, but the input's last dimension is {x.shape[-1]}."
            )
        given = () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)
        state = tuple(part if batched else part[None] for part in given)
        if not state:
            state = tuple(x.new_zeros(len(x), self.hidden_size) for _ in range(self.cell.n_states))
        after = self.step(x, state)
        after = after if batched else tuple(part[0] for part in after)
        return after if self.cell.n_states > 1 else after[0]
