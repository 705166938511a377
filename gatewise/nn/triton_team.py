"""The kernels of the recurrence on chip: programs that hold the recurrent matrix together and meet once a step.

A program owns SLICE neurons and some sequences (ROWS) and holds the rows of its neurons' gates. The programs that
share sequences form a team:

    forward    each reads the whole h of its sequences, and writes h of its own neurons
    backward   each writes what its gates say about the whole dh, and adds up what all say about its own

All programs of a launch must run at the same time: see `triton_persistent`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from gatewise.nn.triton_cells import cell_backward, cell_forward
from gatewise.nn.triton_step import load_or_one, load_scales, load_slots, slots_where, store_slots

# One kernel for all values of these; Triton would make a constant of each that is 1.
SIZES = ["first_team", "teams", "T", "B"]


@triton.jit
def arrive(counter):
    """This program's writes are there for all who see its count."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def await_all(counter, count):
    """Every thread sees what those who have counted wrote before. A plain load in a loop, not an atomic one,
    which would keep the others from counting."""
    seen = count - 1
    while seen < count:
        seen = tl.inline_asm_elementwise(
            "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [counter], dtype=tl.int32, is_pure=False, pack=1
        )


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
def own_share(team, B, H, G: tl.constexpr, ROWS: tl.constexpr, SLICE: tl.constexpr):
    """A program's sequences and neurons, which of both there are, and its rows of w_hh, slots innermost."""
    b = (team * ROWS + tl.arange(0, ROWS))[:, None]
    j = (tl.program_id(0) * SLICE + tl.arange(0, SLICE))[None, :]
    column = tl.arange(0, SLICE * 4)
    gate = column % 4 + G - 4
    neuron = tl.program_id(0) * SLICE + column // 4
    return b, j, (b < B) & (j < H), gate * H + neuron, (gate >= 0) & (neuron < H)


@triton.jit
def load_input(inputs, at, H, ok, SLOT: tl.constexpr, G: tl.constexpr):
    """The input product of a slot, 0 where it has none."""
    return tl.load(inputs + at + SLOT * H, mask=ok, other=0.0) if SLOT < G else 0.0


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    inputs,  # (T, B, G, H)
    products,  # (T, B, 4, H), written
    h_all,  # (T+1, B, H); the first state is there, the others are written
    c_all,  # (T+1, B, H)
    w_hh,  # (G*H, H)
    mask,  # (T, B)
    sent,  # (2, B, H): scratch, h as the tensor cores take it
    counters,  # (teams,) zeros
    bias,
    gate_scale,
    neuron_scale,
    gate_stride,
    neuron_stride,
    first_team,
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
    counter = counters + team
    b, j, ok, row, w_ok = own_share(team, B, H, G, ROWS, SLICE)
    k = tl.arange(0, WIDTH)
    w = tl.load(w_hh + row[None, :] * H + k[:, None], mask=w_ok[None, :] & (k < H)[:, None], other=0.0)
    w = operand(w, BF16)
    z0, z1, z2, z3 = load_scales(gate_scale, b * gate_stride + j, H, ok)
    z_h = load_or_one(neuron_scale, b * neuron_stride + j, ok)
    b0, b1, b2, b3 = load_slots(bias, j, H, j < H)
    own = b * H + j
    slab = B.to(tl.int64) * H
    t = T - 1 if REVERSE else T * 0
    h = tl.load(h_all + (t + REVERSE) * slab + own, mask=ok, other=0.0)
    c = h
    if G == 4:
        c = tl.load(c_all + (t + REVERSE) * slab + own, mask=ok, other=0.0)
    tl.store(sent + own, operand(h, BF16), mask=ok)
    arrive(counter)
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
        await_all(counter, (step + 1) * tl.num_programs(0))
        whole_h = tl.load(
            sent + step % 2 * slab + b * H + k[None, :],
            mask=(b < B) & (k < H)[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        recurrent = tl.dot(whole_h, w, input_precision="tf32")
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
        # Two buffers in turn: this one was read by all before they counted for this step.
        tl.store(sent + (step + 1) % 2 * slab + own, operand(h, BF16), mask=ok)
        arrive(counter)
        after = (t + 1 - REVERSE) * slab + own
        tl.store(h_all + after, h, mask=ok)
        store_slots(products, t * slab * 4 + b * 4 * H + j, H, ok, p0, p1, p2, p3)
        if G == 4:
            tl.store(c_all + after, c, mask=ok)
        step += 1


@triton.jit
def load_step(
    products, h_all, c_all, d_output, mask, t, b, j, B, H, ok, G: tl.constexpr, REVERSE: tl.constexpr
):
    """What the way back needs of step t: four products, the state before it, the gradient from outside."""
    slab = B.to(tl.int64) * H
    p0, p1, p2, p3 = load_slots(products, t * slab * 4 + b * 4 * H + j, H, ok)
    before = (t + REVERSE) * slab + b * H + j
    h = tl.load(h_all + before, mask=ok, other=0.0)
    c = tl.load(c_all + before, mask=ok, other=0.0) if G == 4 else h
    outside = tl.load(d_output + t * slab + b * H + j, mask=ok, other=0.0)
    if mask is not None:
        ok = ok & (tl.load(mask + t * B + b, mask=b < B, other=0) != 0)
    return p0, p1, p2, p3, h, c, outside, ok


@triton.jit(do_not_specialize=SIZES)
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
    messages,  # (2, teams, programs of a team, ROWS, WIDTH): scratch
    counters,
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
    counter = counters + team
    rows = tl.arange(0, ROWS)
    b, j, ok, row, w_ok = own_share(team, B, H, G, ROWS, SLICE)
    k = tl.arange(0, WIDTH)
    w = tl.load(w_hh + row[:, None] * H + k[None, :], mask=w_ok[:, None] & (k < H)[None, :], other=0.0)
    w = operand(w, BF16)
    z0, z1, z2, z3 = load_scales(gate_scale, b * gate_stride + j, H, ok)
    z_h = load_or_one(neuron_scale, b * neuron_stride + j, ok)
    b0, b1, b2, b3 = load_slots(bias, j, H, j < H)
    own = b * H + j
    slab = B.to(tl.int64) * H
    box = ROWS * WIDTH
    inbox = rows[:, None] * WIDTH + j
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
    t = T * 0 if REVERSE else T - 1
    p0, p1, p2, p3, h, c, outside, live = load_step(
        products, h_all, c_all, d_output, mask, t, b, j, B, H, ok, G, REVERSE
    )
    step = T * 0
    while step < T:
        dh += outside
        d0, d1, d2, d3, dh_before, dc_before, dz_now = cell_backward(
            p0 * z0 + b0, p1 * z1 + b1, p2 * z2 + b2, p3 * z3 + b3, h, c, z_h, dh, dc, G == 3, HARD
        )
        dh = tl.where(live, dh_before, dh)
        dc = tl.where(live, dc_before, dc)
        d0, d1, d2, d3 = slots_where(live, d0, d1, d2, d3)
        e0 = d0 * z0
        e1 = d1 * z1
        e2 = d2 * z2
        e3 = d3 * z3
        spoken = join_slots(
            operand(e0, BF16), operand(e1, BF16), operand(e2, BF16), operand(e3, BF16), ROWS, SLICE
        )
        said = tl.dot(spoken, w, input_precision="tf32")
        # Two sets of boxes: nobody writes a set again before all have read it, one meeting later.
        boxes = messages + (step % 2 * teams + team).to(tl.int64) * members * box
        mine = boxes + tl.program_id(0) * box + rows[:, None] * WIDTH + k[None, :]
        tl.store(mine, said, mask=(k < H)[None, :])
        arrive(counter)
        db0 += d0
        db1 += d1
        db2 += d2
        db3 += d3
        dz0 += d0 * p0
        dz1 += d1 * p1
        dz2 += d2 * p2
        dz3 += d3 * p3
        dz_h += tl.where(live, dz_now, 0.0)
        store_slots(d_products, t * slab * 4 + b * 4 * H + j, H, ok, e0, e1, e2, e3)
        step += 1
        t = step if REVERSE else T - 1 - step
        # Fetched before the wait, used after it: the way to memory is as long as the wait.
        p0, p1, p2, p3, h, c, outside, live = load_step(
            products, h_all, c_all, d_output, mask, t, b, j, B, H, ok & (step < T), G, REVERSE
        )
        await_all(counter, step * members)
        for sender in tl.static_range(TEAM):
            sent = (j < H) & (sender < members)
            dh += tl.load(boxes + sender * box + inbox, mask=sent, other=0.0, cache_modifier=".cg")
    tl.store(dh_all + own, dh, mask=ok)
    if G == 4:
        tl.store(dc_all + own, dc, mask=ok)
    whole = b * 4 * H + j
    store_slots(d_bias, whole, H, ok, db0, db1, db2, db3)
    if d_gate_scale is not None:
        store_slots(d_gate_scale, whole, H, ok, dz0, dz1, dz2, dz3)
    if d_neuron_scale is not None:
        tl.store(d_neuron_scale + own, dz_h, mask=ok)
