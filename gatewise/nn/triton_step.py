"""The recurrence for any width: per step one product with the recurrent matrix and one pointwise kernel."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gatewise.nn.triton_cells import N_SLOTS, cell_backward, cell_forward

BLOCK = 256


@dataclass(frozen=True)
class Tape:
    """What one run over a sequence reads and what it keeps for its gradient. Slots: see `triton_cells`.

    States stand in the order of time, whatever the direction: step t leads from `h[t]` to `h[t + 1]`, in
    reverse from `h[t + 1]` to `h[t]`.
    """

    w_hh: Tensor  # (G*H, H)
    bias: Tensor  # (4, H)
    gate_scale: Tensor | None  # (B, 4, H)
    neuron_scale: Tensor | None  # (B, H)
    mask: Tensor | None  # (T, B) int32; where 0 the state is copied
    products: Tensor  # (T, B, 4, H): what the scales multiply
    h: Tensor  # (T+1, B, H)
    c: Tensor | None  # (T+1, B, H); None: a GRU
    hard: bool
    reverse: bool
    precision: str  # "tf32", "bf16" or "ieee": operands of the recurrent products; sums are float32

    @property
    def shape(self) -> tuple[int, int, int]:  # T, B, H
        steps, batch, _, hidden = self.products.shape
        return steps, batch, hidden

    @property
    def n_gates(self) -> int:
        return N_SLOTS if self.c is not None else N_SLOTS - 1

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The fields that are tensors, in their order."""
        return (
            self.w_hh, self.bias, self.gate_scale, self.neuron_scale, self.mask, self.products, self.h, self.c
        )  # fmt: skip

    @property
    def common(self) -> dict[str, Any]:
        """Arguments that every kernel takes."""
        gate, neuron = self.gate_scale, self.neuron_scale
        return {
            "bias": self.bias,
            "gate_scale": gate,
            "neuron_scale": neuron,
            "gate_stride": 0 if gate is None else gate.stride(0),
            "neuron_stride": 0 if neuron is None else neuron.stride(0),
            "G": self.n_gates,
            "HARD": self.hard,
        }

    def operand(self, x: Tensor) -> Tensor:
        return x.bfloat16() if self.precision == "bf16" else x


@dataclass(frozen=True)
class Gradients:
    """What the way back fills. Sums over time are per sequence: every number has one writer, so none depends
    on the order of execution."""

    products: Tensor  # (T, B, 4, H)
    bias: Tensor  # (B, 4, H)
    gate_scale: Tensor | None  # (B, 4, H)
    neuron_scale: Tensor | None  # (B, H)
    h: Tensor  # (B, H): of the last state, in the end of the first
    c: Tensor | None  # (B, H)

    @classmethod
    def start(cls, tape: Tape, dh: Tensor | None, dc: Tensor | None) -> Gradients:
        """Nothing summed yet; the gradients of the last state copied, 0 where nobody asked for it."""
        _, batch, hidden = tape.shape
        parts = tape.h.new_zeros(2 * N_SLOTS + 3, batch * hidden)  # one fill for all
        slots = (batch, N_SLOTS, hidden)
        for part, given in ((parts[0], dh), (parts[1], dc)):
            if given is not None:
                part.view(batch, hidden).copy_(given)
        return cls(
            products=torch.empty_like(tape.products),
            bias=parts[3 : 3 + N_SLOTS].view(slots),
            gate_scale=None if tape.gate_scale is None else parts[3 + N_SLOTS :].view(slots),
            neuron_scale=None if tape.neuron_scale is None else parts[2].view(batch, hidden),
            h=parts[0].view(batch, hidden),
            c=None if tape.c is None else parts[1].view(batch, hidden),
        )


@triton.jit
def load_or_one(pointer, at, ok):
    """An absent scale is 1."""
    return 1.0 if pointer is None else tl.load(pointer + at, mask=ok, other=0.0)


@triton.jit
def load_scales(pointer, at, H, ok):
    return (
        load_or_one(pointer, at, ok), load_or_one(pointer, at + H, ok), load_or_one(pointer, at + 2 * H, ok),
        load_or_one(pointer, at + 3 * H, ok),
    )  # fmt: skip


@triton.jit
def load_slots(pointer, at, H, ok):
    return (
        tl.load(pointer + at, mask=ok, other=0.0), tl.load(pointer + at + H, mask=ok, other=0.0),
        tl.load(pointer + at + 2 * H, mask=ok, other=0.0), tl.load(pointer + at + 3 * H, mask=ok, other=0.0),
    )  # fmt: skip


@triton.jit
def store_slots(pointer, at, H, ok, x0, x1, x2, x3):
    tl.store(pointer + at, x0, mask=ok)
    tl.store(pointer + at + H, x1, mask=ok)
    tl.store(pointer + at + 2 * H, x2, mask=ok)
    tl.store(pointer + at + 3 * H, x3, mask=ok)


@triton.jit
def slots_where(live, x0, x1, x2, x3):
    """The same, and 0 elsewhere."""
    return tl.where(live, x0, 0.0), tl.where(live, x1, 0.0), tl.where(live, x2, 0.0), tl.where(live, x3, 0.0)


@triton.jit
def slot_product(inputs, recurrent, at, H, ok, SLOT: tl.constexpr, G: tl.constexpr):
    """p = (Wx x) + (Wh h), of which a GRU's candidate has only one in each of its slots."""
    p = tl.zeros_like(at).to(tl.float32)
    if SLOT < G:
        p += tl.load(inputs + at + SLOT * H, mask=ok, other=0.0)
    if SLOT >= 4 - G:
        p += tl.load(recurrent + at + (SLOT + G - 4) * H, mask=ok, other=0.0)
    return p


@triton.jit
def add_at(pointer, at, value, ok):
    """pointer[at] += value, for a place that no other program touches."""
    if pointer is not None:
        tl.store(pointer + at, tl.load(pointer + at, mask=ok, other=0.0) + value, mask=ok)


@triton.jit
def add_slots_at(pointer, at, H, x0, x1, x2, x3, ok):
    add_at(pointer, at, x0, ok)
    add_at(pointer, at + H, x1, ok)
    add_at(pointer, at + 2 * H, x2, ok)
    add_at(pointer, at + 3 * H, x3, ok)


@triton.jit
def forward_kernel(
    inputs,  # (B, G, H) of this step
    recurrent,  # (B, G, H)
    products,  # (B, 4, H), written
    mask,  # (B,)
    h_before,
    h_after,
    c_before,
    c_after,
    bias,
    gate_scale,
    neuron_scale,
    gate_stride,
    neuron_stride,
    n,  # B * H
    H,
    G: tl.constexpr,
    HARD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """h', c' = cell(p * z + b, h, c), and p kept for the way back."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    b = at // H
    j = at % H
    half = b * G * H + j
    p0 = slot_product(inputs, recurrent, half, H, ok, 0, G)
    p1 = slot_product(inputs, recurrent, half, H, ok, 1, G)
    p2 = slot_product(inputs, recurrent, half, H, ok, 2, G)
    p3 = slot_product(inputs, recurrent, half, H, ok, 3, G)
    store_slots(products, b * 4 * H + j, H, ok, p0, p1, p2, p3)
    z0, z1, z2, z3 = load_scales(gate_scale, b * gate_stride + j, H, ok)
    b0, b1, b2, b3 = load_slots(bias, j, H, ok)
    h = tl.load(h_before + at, mask=ok)
    c = h if G == 3 else tl.load(c_before + at, mask=ok)
    z_h = load_or_one(neuron_scale, b * neuron_stride + j, ok)
    h_new, c_new = cell_forward(
        p0 * z0 + b0, p1 * z1 + b1, p2 * z2 + b2, p3 * z3 + b3, h, c, z_h, G == 3, HARD
    )
    if mask is not None:
        live = tl.load(mask + b, mask=ok, other=0) != 0
        h_new = tl.where(live, h_new, h)
        c_new = tl.where(live, c_new, c)
    tl.store(h_after + at, h_new, mask=ok)
    if G == 4:
        tl.store(c_after + at, c_new, mask=ok)


@triton.jit
def backward_kernel(
    products,  # (B, 4, H) of this step
    d_products,  # (B, 4, H), written
    d_output,  # (B, H)
    mask,  # (B,)
    h_before,
    c_before,
    dh,  # (B, H): in, of h after the step; out, of h before it without the recurrent products
    dc,  # (B, H): in, of c after; out, of c before
    d_bias,
    d_gate_scale,
    d_neuron_scale,
    bias,
    gate_scale,
    neuron_scale,
    gate_stride,
    neuron_stride,
    n,
    H,
    G: tl.constexpr,
    HARD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dp = ds z,   dz += ds p,   db += ds,   with ds from the gradients of h' and c'."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    b = at // H
    j = at % H
    whole = b * 4 * H + j
    p0, p1, p2, p3 = load_slots(products, whole, H, ok)
    z0, z1, z2, z3 = load_scales(gate_scale, b * gate_stride + j, H, ok)
    b0, b1, b2, b3 = load_slots(bias, j, H, ok)
    h = tl.load(h_before + at, mask=ok)
    z_h = load_or_one(neuron_scale, b * neuron_stride + j, ok)
    d_after = tl.load(dh + at, mask=ok) + tl.load(d_output + at, mask=ok)
    if G == 3:
        c = h
        dc_after = tl.zeros_like(h)
    else:
        c = tl.load(c_before + at, mask=ok)
        dc_after = tl.load(dc + at, mask=ok)
    d0, d1, d2, d3, dh_before, dc_before, dz_h = cell_backward(
        p0 * z0 + b0, p1 * z1 + b1, p2 * z2 + b2, p3 * z3 + b3, h, c, z_h, d_after, dc_after, G == 3, HARD
    )
    live = ok
    if mask is not None:
        live = ok & (tl.load(mask + b, mask=ok, other=0) != 0)
        dh_before = tl.where(live, dh_before, d_after)
        dc_before = tl.where(live, dc_before, dc_after)
    d0, d1, d2, d3 = slots_where(live, d0, d1, d2, d3)
    store_slots(d_products, whole, H, ok, d0 * z0, d1 * z1, d2 * z2, d3 * z3)
    add_slots_at(d_bias, whole, H, d0, d1, d2, d3, live)
    add_slots_at(d_gate_scale, whole, H, d0 * p0, d1 * p1, d2 * p2, d3 * p3, live)
    add_at(d_neuron_scale, at, dz_h, live)
    tl.store(dh + at, dh_before, mask=ok)
    if G == 4:
        tl.store(dc + at, dc_before, mask=ok)


def forward(tape: Tape, inputs: Tensor) -> None:  # inputs: (T, B, G, H), the input products
    """Fills products and states of the tape, whose first state is there."""
    steps, batch, hidden = tape.shape
    n, common, w = batch * hidden, tape.common, tape.operand(tape.w_hh).mT
    for t in reversed(range(steps)) if tape.reverse else range(steps):
        before, after = t + tape.reverse, t + 1 - tape.reverse
        forward_kernel[(triton.cdiv(n, BLOCK),)](
            inputs[t],
            tape.operand(tape.h[before]) @ w,
            tape.products[t],
            None if tape.mask is None else tape.mask[t],
            tape.h[before],
            tape.h[after],
            None if tape.c is None else tape.c[before],
            None if tape.c is None else tape.c[after],
            n=n,
            H=hidden,
            BLOCK=BLOCK,
            **common,
        )


def backward(tape: Tape, d_output: Tensor, grads: Gradients) -> None:  # d_output: (T, B, H)
    """Fills the gradients, which hold those of the last state; the sums over time must start at zero."""
    steps, batch, hidden = tape.shape
    n, common, w = batch * hidden, tape.common, tape.operand(tape.w_hh)
    recurrent = grads.products.view(steps, batch, -1)[..., -tape.n_gates * hidden :]
    for t in range(steps) if tape.reverse else reversed(range(steps)):
        before = t + tape.reverse
        backward_kernel[(triton.cdiv(n, BLOCK),)](
            tape.products[t],
            grads.products[t],
            d_output[t],
            None if tape.mask is None else tape.mask[t],
            tape.h[before],
            None if tape.c is None else tape.c[before],
            grads.h,
            grads.c,
            grads.bias,
            grads.gate_scale,
            grads.neuron_scale,
            n=n,
            H=hidden,
            BLOCK=BLOCK,
            **common,
        )
        if tape.precision == "bf16":
            grads.h.add_(tape.operand(recurrent[t]) @ w)
        else:
            torch.addmm(grads.h, recurrent[t], w, out=grads.h)
