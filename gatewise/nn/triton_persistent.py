"""The recurrence of narrow layers in one kernel, with the recurrent matrix in registers over all steps.

`triton_team` has the kernels. All programs of a launch must run at the same time, so a launch has no more of them
than the GPU has multiprocessors; a larger batch takes several launches.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from torch import Tensor

from gatewise.nn.triton_step import Gradients, Tape
from gatewise.nn.triton_team import backward_kernel, forward_kernel

ROWS = (16, 32)  # of a team, the fewest that make one launch of the batch, else the most
SLICE, WARPS = 16, 8
WIDEST = 512  # a program's share of a wider matrix does not fit into its registers


def fits(tape: Tape) -> bool:
    """Whether the GPU has tensor cores for TF32, enough multiprocessors and, on each, enough shared memory."""
    device = gpu(tape.h.device)
    able = device.major >= 8 and torch.version.hip is None and device.multi_processor_count >= members(tape)
    return able and holds(tape, ROWS[0]) and tape.shape[2] <= WIDEST and tape.precision != "ieee"


def holds(tape: Tape, rows: int) -> bool:
    """Whether the shared memory takes the way back: a program's share of the matrix, and what it says."""
    needed = 4 * (4 * SLICE + rows) * width(tape)
    return bool(needed <= getattr(gpu(tape.h.device), "shared_memory_per_block_optin", 0))


def forward(tape: Tape, inputs: Tensor) -> None:  # inputs: (T, B, G, H), the input products
    """Fills products and states of the tape, whose first state is there."""
    counters = torch.zeros(teams(tape), dtype=torch.int32, device=tape.h.device)
    sent = torch.empty_like(tape.operand(tape.h[:2]))
    for first, grid in launches(tape):
        forward_kernel[grid](
            inputs, tape.products, tape.h, tape.c, tape.w_hh, tape.mask, sent, counters, first_team=first,
            **options(tape),
        )  # fmt: skip


def backward(tape: Tape, d_output: Tensor, grads: Gradients) -> None:  # d_output: (T, B, H)
    """Fills the gradients, which hold those of the last state."""
    counters = torch.zeros(teams(tape), dtype=torch.int32, device=tape.h.device)
    messages = tape.h.new_empty(2, teams(tape), members(tape), rows(tape), width(tape))
    for first, grid in launches(tape):
        backward_kernel[grid](
            tape.products, grads.products, d_output, tape.h, tape.c, grads.h, grads.c, grads.bias,
            grads.gate_scale, grads.neuron_scale, tape.w_hh, tape.mask, messages, counters, first_team=first,
            teams=teams(tape), TEAM=triton.next_power_of_2(members(tape)), **options(tape),
        )  # fmt: skip


def members(tape: Tape) -> int:
    """Programs of a team."""
    return -(-tape.shape[2] // SLICE)


def width(tape: Tape) -> int:
    return max(16, 1 << (tape.shape[2] - 1).bit_length())


def most_teams(tape: Tape) -> int:
    """That run at the same time."""
    return int(gpu(tape.h.device).multi_processor_count // members(tape))


def rows(tape: Tape) -> int:
    """Sequences of a team."""
    possible = [n for n in ROWS if holds(tape, n)]
    return next((n for n in possible if n * most_teams(tape) >= tape.shape[1]), possible[-1])


def teams(tape: Tape) -> int:
    return -(-tape.shape[1] // rows(tape))


def launches(tape: Tape) -> list[tuple[int, tuple[int, int]]]:
    """(first team, grid) of each launch: as many teams at a time as the GPU can hold."""
    most, every = most_teams(tape), teams(tape)
    return [(first, (members(tape), min(most, every - first))) for first in range(0, every, most)]


def options(tape: Tape) -> dict[str, Any]:
    steps, batch, hidden = tape.shape
    return {
        **tape.common,
        "T": steps,
        "B": batch,
        "H": hidden,
        "REVERSE": tape.reverse,
        "BF16": tape.precision == "bf16",
        "ROWS": rows(tape),
        "SLICE": SLICE,
        "WIDTH": width(tape),
        "num_warps": WARPS,
        "num_stages": 1,  # no load may move ahead of the meeting it waits for
        "launch_cooperative_grid": True,
    }


@functools.cache
def gpu(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)
