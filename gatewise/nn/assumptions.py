"""What is taken for granted of a cell when it is cut, tried out on its equations."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from gatewise.layout import Cell, State

TOLERANCE = 1e-5  # a step may round to float32; a wrong declaration is off by tenths


@cache
def check_biases_add_up(cell: Cell) -> None:
    """step(a + d, b - d) = step(a, b) in every gate but those of `gated_recurrent`: its two biases act as one."""
    a, b, *state = numbers(cell)
    expected = run(cell, a, b, state)
    for k, gate in enumerate(cell.gates):
        if gate in cell.gated_recurrent:
            continue
        d = torch.zeros_like(a)
        d[:, k] = 1
        error = distance(run(cell, a + d, b - d, state), expected)
        if not error < TOLERANCE:
            raise ValueError(
                f"{cell.name}: the two biases of gate {gate!r} cannot be added up: moving 1 from the recurrent half "
                f"to the input half changes the state by {error:.2g}. Declare which gate multiplies the recurrent "
                f"half, gated_recurrent={{{gate!r}: ...}}, or let step() use the sum alone."
            )


@cache
def check_neuron_scale_folds(cell: Cell) -> None:
    """step(a, b, z s, z) = z step(a, b, s, 1): z_h can move from the neuron into the columns that read it."""
    a, b, s, *rest = numbers(cell)
    z = torch.linspace(-1, 2, s.shape[1], dtype=s.dtype, device="cpu")
    plain, *others = run(cell, a, b, [s, *rest])
    error = distance(run(cell, a, b, [z * s, *rest], z), (z * plain, *others))
    if not error < TOLERANCE:
        raise ValueError(
            f"{cell.name}: z_h cannot be folded into the weights: from h = z s, neuron_scale=z must lead to z times "
            f"what neuron_scale=1 makes of s, but step() is {error:.2g} away. Multiply by neuron_scale what the "
            "neuron adds to its output, not the h that is carried over: see docs/new-cell.md."
        )


def numbers(cell: Cell) -> list[Tensor]:  # input_part, recurrent_part: (B, G, H); then the state, each (B, H)
    """Always the same, and drawn without touching the caller's random numbers."""
    own = torch.Generator("cpu").manual_seed(0)
    batch, hidden = 4, 8
    shapes = [(batch, cell.n_gates, hidden)] * 2 + [(batch, hidden)] * cell.n_states
    return [torch.randn(shape, generator=own, dtype=torch.float64, device="cpu") for shape in shapes]


def run(cell: Cell, a: Tensor, b: Tensor, state: list[Tensor], z: Tensor | float = 1.0) -> State:
    return cell.step(a, b, tuple(state), z, torch.sigmoid)


def distance(found: State, expected: State) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(found, expected, strict=True))
