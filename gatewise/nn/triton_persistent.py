"""The recurrence of narrow layers in one kernel, with the recurrent matrix in registers over all steps.

A program owns SLICE neurons and ROWS sequences and holds the rows of its neurons' gates. The programs that
share sequences form a team; they write to each other once a step:

    forward    each reads the whole h of its sequences, and writes h of its own neurons
    backward   each writes what its gates say about the whole dh, and adds up what all say about its own

Every number travels in one word with the step it belongs to, so there is no barrier: a reader reads again until
all tags are right.

All programs of a launch must run at the same time, so a launch has no more of them than the GPU has
multiprocessors; a larger batch takes several launches.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gatewise.nn.triton_cells import cell_backward, cell_forward
from gatewise.nn.triton_step import Gradients, Tape, load_or_one

ROWS, SLICE, WARPS = 16, 16, 8
WIDEST = 512  # a program's share of a wider matrix does not fit into its registers


@triton.jit
def sealed(value, tag):
    """A number and the step it belongs to, as one word: whoever reads the tag has the number."""
    return (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | (tag.to(tl.int64) << 32)


@triton.jit
def opened(message):
    return message.to(tl.int32).to(tl.float32, bitcast=True), (message >> 32).to(tl.int32)


@triton.jit
def all_of_step(tags, tag):
    return tl.min(tl.min(tags, axis=1), axis=0) == tag


@triton.jit
def read(box, at, ok, tag):
    """Messages as they are now; where there is nothing to read, a zero with the right tag."""
    return tl.load(box + at, mask=ok, other=tag.to(tl.int64) << 32, volatile=True)


@triton.jit
def read_sum(boxes, at, ok, size, members, tag, TEAM: tl.constexpr):
    """The sum over all senders, always in the same order, and their oldest tags."""
    total = tl.zeros_like(at).to(tl.float32)
    oldest = tl.zeros_like(at) + tag
    for sender in tl.static_range(TEAM):
        value, tags = opened(read(boxes + sender * size, at, ok & (sender < members), tag))
        total += value
        oldest = tl.minimum(oldest, tags)
    return total, oldest


@triton.jit
def operand(x, BF16: tl.constexpr):
    """x as the tensor cores take it: bfloat16, or float32 rounded to TF32, which they would cut off."""
    if BF16:
        y = x.to(tl.bfloat16)
    else:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        y = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return y


@triton.jit
def split_slots(x, ROWS: tl.constexpr, SLICE: tl.constexpr):
    """(ROWS, SLICE * 4), slots innermost, to four of (ROWS, SLICE)."""
    even, odd = tl.split(tl.reshape(x, (ROWS, SLICE, 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def join_slots(x0, x1, x2, x3, ROWS: tl.constexpr, SLICE: tl.constexpr):
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (ROWS, SLICE * 4))


@triton.jit
def load_input(inputs, at, H, ok, SLOT: tl.constexpr, G: tl.constexpr):
    """The input product of a slot, 0 where it has none."""
    return tl.load(inputs + at + SLOT * H, mask=ok, other=0.0) if SLOT < G else 0.0


@triton.jit
def forward_kernel(
    inputs,  # (T, B, G, H)
    products,  # (T, B, 4, H), written
    h_all,  # (T+1, B, H); the first state is there, the others are written
    c_all,  # (T+1, B, H)
    w_hh,  # (G*H, H)
    mask,  # (T, B)
    messages,  # (2, teams, ROWS, WIDTH) int64, zeros
    bias,
    gate_scale,
    neuron_scale,
    gate_stride,
    neuron_stride,
    first_team,
    teams,
    T,
    B,
    H,
    G: tl.constexpr,
    HARD: tl.constexpr,
    REVERSE: tl.constexpr,
    BF16: tl.constexpr,
    ROWS: tl.constexpr,
    SLICE: tl.constexpr,
    WIDTH: tl.constexpr,  # H, rounded up to a power of two
):
    """p = Wx x + Wh h,   h', c' = cell(p * z + b, h, c),   for all steps."""
    team = first_team + tl.program_id(1)
    rows = tl.arange(0, ROWS)[:, None]
    b = team * ROWS + rows
    j = (tl.program_id(0) * SLICE + tl.arange(0, SLICE))[None, :]
    k = tl.arange(0, WIDTH)
    ok = (b < B) & (j < H)
    column = tl.arange(0, SLICE * 4)
    gate = column % 4 + G - 4
    neuron = tl.program_id(0) * SLICE + column // 4
    w_ok = (gate >= 0) & (neuron < H)
    w = tl.load(
        w_hh + (gate * H + neuron)[None, :] * H + k[:, None], mask=w_ok[None, :] & (k < H)[:, None], other=0.0
    )
    w = operand(w, BF16)
    z = b * gate_stride + j
    z0 = load_or_one(gate_scale, z, ok)
    z1 = load_or_one(gate_scale, z + H, ok)
    z2 = load_or_one(gate_scale, z + 2 * H, ok)
    z3 = load_or_one(gate_scale, z + 3 * H, ok)
    z_h = load_or_one(neuron_scale, b * neuron_stride + j, ok)
    b0 = tl.load(bias + j, mask=j < H, other=0.0)
    b1 = tl.load(bias + j + H, mask=j < H, other=0.0)
    b2 = tl.load(bias + j + 2 * H, mask=j < H, other=0.0)
    b3 = tl.load(bias + j + 3 * H, mask=j < H, other=0.0)
    own = b * H + j
    slab = B.to(tl.int64) * H
    t = T - 1 if REVERSE else T * 0
    h = tl.load(h_all + (t + REVERSE) * slab + own, mask=ok, other=0.0)
    c = h
    if G == 4:
        c = tl.load(c_all + (t + REVERSE) * slab + own, mask=ok, other=0.0)
    box = messages + team * ROWS * WIDTH
    tl.store(box + rows * WIDTH + j, sealed(h, T * 0 + 1), mask=j < H)
    step = T * 0
    while step < T:  # a for loop would invite the compiler to fetch w again in every step
        t = T - 1 - step if REVERSE else step
        half = b * G * H + j
        now = inputs + t * slab * G
        p0 = load_input(now, half, H, ok, 0, G)
        p1 = load_input(now, half, H, ok, 1, G)
        p2 = load_input(now, half, H, ok, 2, G)
        p3 = load_input(now, half, H, ok, 3, G)
        live = ok
        if mask is not None:
            live = ok & (tl.load(mask + t * B + b, mask=b < B, other=0) != 0)
        # Two boxes: who sends h of step t + 1 has read all of step t, so all have done with t - 1.
        box = messages + (step % 2 * teams + team) * ROWS * WIDTH
        message = read(box, rows * WIDTH + k[None, :], (k < H)[None, :], step + 1)
        while not all_of_step(opened(message)[1], step + 1):
            message = read(box, rows * WIDTH + k[None, :], (k < H)[None, :], step + 1)
        whole_h, _ = opened(message)
        recurrent = tl.dot(operand(whole_h, BF16), w, input_precision="tf32")
        q0, q1, q2, q3 = split_slots(recurrent, ROWS, SLICE)
        p0 += q0
        p1 += q1
        p2 += q2
        p3 += q3
        h_new, c_new = cell_forward(
            p0 * z0 + b0, p1 * z1 + b1, p2 * z2 + b2, p3 * z3 + b3, h, c, z_h, G == 3, HARD
        )
        h = tl.where(live, h_new, h)
        c = tl.where(live, c_new, c)
        box = messages + ((step + 1) % 2 * teams + team) * ROWS * WIDTH
        tl.store(box + rows * WIDTH + j, sealed(h, step + 2), mask=j < H)
        after = (t + 1 - REVERSE) * slab + own
        tl.store(h_all + after, h, mask=ok)
        keep = products + t * slab * 4 + b * 4 * H + j
        tl.store(keep, p0, mask=ok)
        tl.store(keep + H, p1, mask=ok)
        tl.store(keep + 2 * H, p2, mask=ok)
        tl.store(keep + 3 * H, p3, mask=ok)
        if G == 4:
            tl.store(c_all + after, c, mask=ok)
        step += 1


@triton.jit
def backward_kernel(
    products,  # (T, B, 4, H)
    d_products,  # (T, B, 4, H), written
    d_output,  # (T, B, H)
    h_all,
    c_all,
    dh_all,  # (B, H)
    dc_all,  # (B, H)
    d_bias,  # (B, 4, H), written
    d_gate_scale,  # (B, 4, H), written
    d_neuron_scale,  # (B, H), written
    w_hh,
    mask,
    messages,  # (2, teams, programs of a team, ROWS, WIDTH) int64, zeros
    bias,
    gate_scale,
    neuron_scale,
    gate_stride,
    neuron_stride,
    first_team,
    teams,
    T,
    B,
    H,
    G: tl.constexpr,
    HARD: tl.constexpr,
    REVERSE: tl.constexpr,
    BF16: tl.constexpr,
    ROWS: tl.constexpr,
    SLICE: tl.constexpr,
    WIDTH: tl.constexpr,
    TEAM: tl.constexpr,  # programs of a team, rounded up to a power of two
):
    """dp = ds z,   dz = sum_t ds p,   db = sum_t ds,   dh = dh' (direct) + dp Wh."""
    team = first_team + tl.program_id(1)
    members = tl.num_programs(0)
    rows = tl.arange(0, ROWS)[:, None]
    b = team * ROWS + rows
    j = (tl.program_id(0) * SLICE + tl.arange(0, SLICE))[None, :]
    k = tl.arange(0, WIDTH)
    ok = (b < B) & (j < H)
    column = tl.arange(0, SLICE * 4)
    gate = column % 4 + G - 4
    neuron = tl.program_id(0) * SLICE + column // 4
    w_ok = (gate >= 0) & (neuron < H)
    w = tl.load(
        w_hh + (gate * H + neuron)[:, None] * H + k[None, :], mask=w_ok[:, None] & (k < H)[None, :], other=0.0
    )
    w = operand(w, BF16)
    z = b * gate_stride + j
    z0 = load_or_one(gate_scale, z, ok)
    z1 = load_or_one(gate_scale, z + H, ok)
    z2 = load_or_one(gate_scale, z + 2 * H, ok)
    z3 = load_or_one(gate_scale, z + 3 * H, ok)
    z_h = load_or_one(neuron_scale, b * neuron_stride + j, ok)
    b0 = tl.load(bias + j, mask=j < H, other=0.0)
    b1 = tl.load(bias + j + H, mask=j < H, other=0.0)
    b2 = tl.load(bias + j + 2 * H, mask=j < H, other=0.0)
    b3 = tl.load(bias + j + 3 * H, mask=j < H, other=0.0)
    own = b * H + j
    slab = B.to(tl.int64) * H
    size = ROWS * WIDTH
    inbox = rows * WIDTH + j
    dh = tl.load(dh_all + own, mask=ok, other=0.0)
    dc = tl.zeros_like(dh)
    if G == 4:
        dc = tl.load(dc_all + own, mask=ok, other=0.0)
    db0 = tl.zeros_like(dh)
    db1 = tl.zeros_like(dh)
    db2 = tl.zeros_like(dh)
    db3 = tl.zeros_like(dh)
    dz0 = tl.zeros_like(dh)
    dz1 = tl.zeros_like(dh)
    dz2 = tl.zeros_like(dh)
    dz3 = tl.zeros_like(dh)
    dz_h = tl.zeros_like(dh)
    step = T * 0
    while step < T:
        t = step if REVERSE else T - 1 - step
        keep = t * slab * 4 + b * 4 * H + j
        p0 = tl.load(products + keep, mask=ok, other=0.0)
        p1 = tl.load(products + keep + H, mask=ok, other=0.0)
        p2 = tl.load(products + keep + 2 * H, mask=ok, other=0.0)
        p3 = tl.load(products + keep + 3 * H, mask=ok, other=0.0)
        before = (t + REVERSE) * slab + own
        h = tl.load(h_all + before, mask=ok, other=0.0)
        c = h
        if G == 4:
            c = tl.load(c_all + before, mask=ok, other=0.0)
        dh += tl.load(d_output + t * slab + own, mask=ok, other=0.0)
        d0, d1, d2, d3, dh_before, dc_before, dz_now = cell_backward(
            p0 * z0 + b0, p1 * z1 + b1, p2 * z2 + b2, p3 * z3 + b3, h, c, z_h, dh, dc, G == 3, HARD
        )
        live = ok
        if mask is not None:
            live = ok & (tl.load(mask + t * B + b, mask=b < B, other=0) != 0)
        dh = tl.where(live, dh_before, dh)
        dc = tl.where(live, dc_before, dc)
        d0 = tl.where(live, d0, 0.0)
        d1 = tl.where(live, d1, 0.0)
        d2 = tl.where(live, d2, 0.0)
        d3 = tl.where(live, d3, 0.0)
        e0 = d0 * z0
        e1 = d1 * z1
        e2 = d2 * z2
        e3 = d3 * z3
        said = tl.dot(operand(join_slots(e0, e1, e2, e3, ROWS, SLICE), BF16), w, input_precision="tf32")
        boxes = messages + (step % 2 * teams + team) * members * size  # two sets, as on the way there
        mine = boxes + tl.program_id(0) * size + rows * WIDTH + k[None, :]
        tl.store(mine, sealed(said, step + 1), mask=(k < H)[None, :])
        db0 += d0
        db1 += d1
        db2 += d2
        db3 += d3
        dz0 += d0 * p0
        dz1 += d1 * p1
        dz2 += d2 * p2
        dz3 += d3 * p3
        dz_h += tl.where(live, dz_now, 0.0)
        tl.store(d_products + keep, e0, mask=ok)
        tl.store(d_products + keep + H, e1, mask=ok)
        tl.store(d_products + keep + 2 * H, e2, mask=ok)
        tl.store(d_products + keep + 3 * H, e3, mask=ok)
        step += 1
        heard, tags = read_sum(boxes, inbox, j < H, size, members, step, TEAM)
        while not all_of_step(tags, step):
            heard, tags = read_sum(boxes, inbox, j < H, size, members, step, TEAM)
        # The tags add 0: Triton 3.6 cannot compile a loop that carries what only its condition reads.
        dh += heard + (tags - step).to(tl.float32)
    tl.store(dh_all + own, dh, mask=ok)
    if G == 4:
        tl.store(dc_all + own, dc, mask=ok)
    whole = b * 4 * H + j
    tl.store(d_bias + whole, db0, mask=ok)
    tl.store(d_bias + whole + H, db1, mask=ok)
    tl.store(d_bias + whole + 2 * H, db2, mask=ok)
    tl.store(d_bias + whole + 3 * H, db3, mask=ok)
    if d_gate_scale is not None:
        tl.store(d_gate_scale + whole, dz0, mask=ok)
        tl.store(d_gate_scale + whole + H, dz1, mask=ok)
        tl.store(d_gate_scale + whole + 2 * H, dz2, mask=ok)
        tl.store(d_gate_scale + whole + 3 * H, dz3, mask=ok)
    if d_neuron_scale is not None:
        tl.store(d_neuron_scale + own, dz_h, mask=ok)


def fits(tape: Tape) -> bool:
    return tape.precision != "ieee" and tape.shape[2] <= WIDEST and processors(tape.h.device) >= members(tape)


def forward(tape: Tape, inputs: Tensor) -> None:  # inputs: (T, B, G, H), the input products
    """Fills products and states of the tape, whose first state is there."""
    every = options(tape)
    messages = boxes(tape, 2, teams(tape), ROWS, every["WIDTH"])
    for first, grid in launches(tape):
        forward_kernel[grid](
            inputs, tape.products, tape.h, tape.c, tape.w_hh, tape.mask, messages, first_team=first, **every
        )  # fmt: skip


def backward(tape: Tape, d_output: Tensor, grads: Gradients) -> None:  # d_output: (T, B, H)
    """Fills the gradients, which hold those of the last state."""
    every = options(tape)
    messages = boxes(tape, 2, teams(tape), members(tape), ROWS, every["WIDTH"])
    for first, grid in launches(tape):
        backward_kernel[grid](
            tape.products, grads.products, d_output, tape.h, tape.c, grads.h, grads.c, grads.bias,
            grads.gate_scale, grads.neuron_scale, tape.w_hh, tape.mask, messages, first_team=first,
            TEAM=triton.next_power_of_2(members(tape)), **every,
        )  # fmt: skip


def boxes(tape: Tape, *shape: int) -> Tensor:
    """Empty: no step has the tag 0. Cleared at every call, within a graph too."""
    return torch.zeros(shape, dtype=torch.int64, device=tape.h.device)


def members(tape: Tape) -> int:
    """Programs of a team."""
    return -(-tape.shape[2] // SLICE)


def teams(tape: Tape) -> int:
    return -(-tape.shape[1] // ROWS)


def launches(tape: Tape) -> list[tuple[int, tuple[int, int]]]:
    """(first team, grid) of each launch: as many teams at a time as the GPU can hold."""
    most = processors(tape.h.device) // members(tape)
    every = teams(tape)
    return [(first, (members(tape), min(most, every - first))) for first in range(0, every, most)]


def options(tape: Tape) -> dict[str, Any]:
    steps, batch, hidden = tape.shape
    return {
        **tape.common,
        "teams": teams(tape),
        "T": steps,
        "B": batch,
        "H": hidden,
        "REVERSE": tape.reverse,
        "BF16": tape.precision == "bf16",
        "ROWS": ROWS,
        "SLICE": SLICE,
        "WIDTH": max(triton.next_power_of_2(hidden), 16),
        "num_warps": WARPS,
        "num_stages": 1,  # no load may move ahead of the meeting it waits for
        "launch_cooperative_grid": True,
    }


@functools.cache
def processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
