"""Where the parameters of a compact layer come from, and optimisers that go on with them.

parameter   the kept rows and columns of what it was
its state   the same rows and columns of every tensor of its shape (momentum, moments, averages); counters stay
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.compact.recurrent import CompactCell, CompactLayer, CompactRecurrent
from gatewise.layout import Cell
from gatewise.nn.lookup import bias_of, ending, matrix_names, places_of, stored

Pick = Callable[[Tensor], Tensor]
PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Move:
    """new = pick(old), and so is what an optimiser remembers of it."""

    old: nn.Parameter
    new: nn.Parameter
    pick: Pick

    @property
    def whole(self) -> bool:
        return self.old.numel() == self.new.numel()


def moves_between(name: str, old: nn.Module, new: nn.Module) -> list[Move]:
    """For every parameter of a compact layer that a layer became."""
    moves = [matrix_move(name, old, new, matrix) for matrix in matrix_names(old)]
    if isinstance(new, CompactRecurrent | CompactCell):
        for place in places_of(old):
            moves += bias_moves(name, old, new, place)
    elif isinstance(old, nn.Linear) and bias_of(old) is not None:
        outputs = positions(name, stored(new, "weight").rows, stored(old, "weight").rows)
        moves.append(Move(parameter(old, "bias"), parameter(new, "bias"), lambda b: b[outputs]))
    return moves


def matrix_move(name: str, old: nn.Module, new: nn.Module, matrix: str) -> Move:
    before, after = stored(old, matrix), stored(new, matrix)
    rows = positions(name, after.rows, before.rows)
    columns = positions(name, after.columns, before.columns)
    return Move(parameter(old, before.name), parameter(new, after.name), lambda w: w[rows][:, columns])


def bias_moves(
    name: str, old: nn.Module, new: CompactRecurrent | CompactCell, place: tuple[int, int]
) -> list[Move]:
    """A compact layer has the sum of two biases; both have the same gradient, so the state of one is that of the sum.

    The GRU's candidate keeps its second half, which r multiplies.
    """
    after = layer_at(new, place)
    if after.bias is None:
        return []
    if isinstance(old, CompactRecurrent | CompactCell):
        before = layer_at(old, place)
        kept = positions(name, after.neurons, before.neurons)
        pairs = ((before.bias, after.bias), (before.bias_gated, after.bias_gated))
        return [Move(b, a, lambda t: t[:, kept]) for b, a in pairs if b is not None and a is not None]
    end, neurons = ending(old, *place), after.neurons
    first, second = (parameter(old, half + end) for half in ("bias_ih", "bias_hh"))
    source = second if second.requires_grad and not first.requires_grad else first
    moves = [Move(source, after.bias, kept_gates(after.cell, neurons))]
    if after.bias_gated is not None:
        moves.append(Move(second, after.bias_gated, kept_gates(after.cell, neurons, after.gated_gates())))
    return moves


def kept_gates(cell: Cell, neurons: Tensor, gates: Sequence[int] | None = None) -> Pick:
    every = list(range(cell.n_gates) if gates is None else gates)
    return lambda b: cell.split(b)[every][:, neurons]


def layer_at(module: CompactRecurrent | CompactCell, place: tuple[int, int]) -> CompactLayer:
    return module.layer if isinstance(module, CompactCell) else module.layer(*place)


def parameter(module: nn.Module, name: str) -> nn.Parameter:
    return module.get_parameter(name)


def positions(name: str, wanted: Tensor | None, there: Tensor | None) -> Tensor:
    """Where lines of the original numbering are among those that a layer has; None: all of them."""
    assert wanted is not None
    if there is None:
        return wanted
    gone = wanted[~torch.isin(wanted, there)]
    if len(gone):
        raise ValueError(
            f"{name}: keep= has {len(gone)} of its rows or columns that an earlier cut took away. Take the structure "
            "that is to stay after the last cut."
        )
    return torch.searchsorted(there, wanted)


# Optimisers.


def check_state(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
    """What it remembers of a parameter can be cut as that is."""
    kind = type(optimizer).__name__
    way_out = (
        "Use one whose state has the shape of the parameter (SGD, Adam, AdamW, ASGD, RMSprop, ...), or shrink before "
        "it is made."
    )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(f"{kind} remembers steps of all parameters as one, which cannot be cut. {way_out}")
    for p, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, PLAIN) or (isinstance(value, Tensor) and value.shape in ((), p.shape)):
                continue
            what = (
                f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            raise ValueError(
                f"{kind} keeps {key!r} of {names.get(id(p), 'a parameter')}, {what}, which cannot be cut as the "
                f"parameter of shape {tuple(p.shape)} is. {way_out}"
            )


@torch.no_grad()
def carry(
    optimizer: torch.optim.Optimizer, moves: Mapping[int, Sequence[Move]], names: Mapping[int, str]
) -> None:
    """New parameters in the places of the old ones, by whose ids `moves` are, with what is left of their state."""
    for group in optimizer.param_groups:
        old = group["params"]
        group["params"] = [q for p in old for q in ([m.new for m in moves[id(p)]] if id(p) in moves else [p])]
        if "param_names" in group:
            group["param_names"] = [names[id(q)] for q in group["params"]]
    for p in [p for p in optimizer.state if id(p) in moves]:
        state = optimizer.state.pop(p)
        for move in moves[id(p)]:
            optimizer.state[move.new] = {key: carried(value, move) for key, value in state.items()}


def carried(value: Any, move: Move) -> Any:
    if not isinstance(value, Tensor):
        return value
    return move.pick(value).clone() if value.shape == move.old.shape else value.clone()
