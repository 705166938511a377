"""Gate names and their order in stacked matrices; no other module knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from torch import Tensor

State = tuple[Tensor, ...]  # (h,) or (h, c), each (B, H)
Squash = Callable[[Tensor], Tensor]  # logistic or hard sigmoid


@dataclass(frozen=True)
class Cell:
    """A gated recurrent cell, declared once and read by every stage.

        gate k of neuron j:  act_k((Wx x + Wh h)_kj * z_kj + b_kj)

    `step` holds the equations. It gets the two halves of every pre-activation apart, because some cells
    (the GRU) gate the recurrent half before adding it:

        step(input_part, recurrent_part, state, neuron_scale, squash) -> state'
            input_part      (B, G, H)   (Wx x) * z + b_ih
            recurrent_part  (B, G, H)   (Wh h) * z + b_hh
            neuron_scale    (H,), (B, H) or 1.0: z_h, applied to the output h
            squash          the sigmoid of the gates not in `tanh_gates`

    A third architecture is one such object and a subclass of `gatewise.nn.Recurrent` that names it:
    see docs/new-cell.md.
    """

    name: str
    gates: tuple[str, ...]  # in the order in which torch stacks their rows
    tanh_gates: AbstractSet[str]  # the others use `squash`
    n_states: int  # 1: h; 2: h and c
    step: Callable[[Tensor, Tensor, State, Tensor | float, Squash], State]
    # A gate whose recurrent half is multiplied by another gate, and that other gate.
    gated_recurrent: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.gates, str) or not self.gates or len(set(self.gates)) < len(self.gates):
            raise ValueError(
                f"{self.name}: gates={self.gates!r} must be a tuple of different names, such as ('f', 'n')."
            )
        if self.n_states not in (1, 2):
            raise ValueError(f"{self.name}: n_states={self.n_states} must be 1 (h) or 2 (h and c).")
        gated = {*self.gated_recurrent, *self.gated_recurrent.values()}
        for label, names in (("tanh_gates", self.tanh_gates), ("gated_recurrent", gated)):
            unknown = sorted(set(names) - set(self.gates))
            if unknown:
                raise ValueError(
                    f"{self.name}: {label} names {unknown}, but the gates are {list(self.gates)}. Name gates only; "
                    "a set of one name is {'new'}, while frozenset('new') is a set of letters."
                )
        # A list or a plain set would leave the cell without a hash.
        object.__setattr__(self, "gates", tuple(self.gates))
        object.__setattr__(self, "tanh_gates", frozenset(self.tanh_gates))

    @property
    def n_gates(self) -> int:
        return len(self.gates)

    def split(self, stacked: Tensor) -> Tensor:  # (G*H, ...) -> (G, H, ...)
        """Rows of a stacked matrix or bias by gate and neuron."""
        return stacked.view(self.n_gates, stacked.shape[0] // self.n_gates, *stacked.shape[1:])


def suffix(layer: int, direction: int) -> str:
    """Ending of the parameter names of one layer and direction: `_l0`, `_l1_reverse`."""
    return f"_l{layer}" + ("_reverse" if direction else "")
