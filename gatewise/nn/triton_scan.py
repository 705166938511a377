"""The recurrence that cuDNN cannot express, for CUDA: scales per sequence, hard sigmoid, masks.

`device_scan` means what `recurrence.scan` means and is tested against it. The input products of all steps are
one matrix product, and so is the gradient of each matrix; between them runs a persistent kernel that keeps
the recurrent matrix on chip over all steps, or, for wide layers, one product and one pointwise kernel a step.
Imported only where Triton is: see `Recurrent._layer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gatewise.layout import Cell, State
from gatewise.nn import triton_persistent, triton_step
from gatewise.nn.recurrence import Weights
from gatewise.nn.triton_cells import N_SLOTS
from gatewise.nn.triton_step import Gradients, Tape


def unsupported(cell: Cell, x: Tensor, weights: Weights) -> str | None:
    """Why the kernels cannot run this layer, or None if they can."""
    known = "the kernels know float32, and bfloat16 by autocast"
    if cell.name not in ("LSTM", "GRU"):
        return f"the cell {cell.name} has no kernel; LSTM and GRU have one"
    if weights.w_hh.dtype != torch.float32:
        return f"the weights are {weights.w_hh.dtype}; {known}"
    if x.dtype != torch.float32 and precision() != "bf16":
        return f"the input is {x.dtype}; {known}"
    return None


def precision() -> str:
    """What torch's own LSTM would multiply in: cuDNN uses TF32 unless it is told otherwise."""
    if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16:
        return "bf16"
    rnn = getattr(torch.backends.cudnn, "rnn", None)
    allowed = torch.backends.cudnn.allow_tf32 if rnn is None else rnn.fp32_precision == "tf32"
    return "tf32" if allowed else "ieee"


@contextmanager
def multiplying_in(precision: str) -> Iterator[None]:
    """cuBLAS, too, keeps to the precision of the layer, and autocast keeps out."""
    matmul = torch.backends.cuda.matmul
    switch, on, off = ("fp32_precision", "tf32", "ieee") if hasattr(matmul, "fp32_precision") else (
        "allow_tf32", True, False,
    )  # fmt: skip
    before = getattr(matmul, switch)
    setattr(matmul, switch, on if precision == "tf32" else off)
    try:
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        setattr(matmul, switch, before)


def device_scan(
    cell: Cell,
    x: Tensor,  # (T, B, I), or (N, I) with batch_sizes
    state: State,  # each (B, H)
    weights: Weights,
    *,
    gate_activation: str = "sigmoid",
    batch_sizes: Tensor | None = None,  # (T,), on the CPU
    mask: Tensor | None = None,  # (T, B) bool
    reverse: bool = False,
) -> tuple[Tensor, State]:  # (T, B, H) or (N, H); the last state
    """`recurrence.scan` on a GPU."""
    rows = None
    if batch_sizes is not None:
        # Packed rows become a padded batch: a few products too many, and one kernel for all inputs.
        mask = torch.arange(len(state[0]), device=x.device) < batch_sizes.to(x.device)[:, None]
        rows = mask.flatten().nonzero().squeeze(1)
        x = x.new_zeros(mask.numel(), x.shape[-1]).index_copy(0, rows, x).view(*mask.shape, -1)
    gru, hidden, batch = cell.name == "GRU", weights.w_hh.shape[1], x.shape[1]
    w_ih = weights.w_ih
    if weights.input_scale is not None:
        if weights.input_scale.dim() == 1:  # one for all: the matrix is smaller than the input
            w_ih = w_ih * weights.input_scale
        else:
            x = x * weights.input_scale
    gate_scale, neuron_scale = weights.gate_scale, weights.neuron_scale
    if gate_scale is not None:
        if gru:
            gate_scale = torch.cat([gate_scale[..., 2:, :], gate_scale], -2)
        gate_scale = gate_scale.expand(batch, N_SLOTS, hidden)
    if neuron_scale is not None:
        neuron_scale = neuron_scale.expand(batch, hidden)
    output, *last = Recurrence.apply(  # type: ignore[no-untyped-call]
        x,
        state[0],
        None if gru else state[1],
        w_ih.roll(hidden, 0) if gru else w_ih,  # slots: the candidate's input half first
        weights.w_hh,
        slot_bias(cell, weights),
        gate_scale,
        neuron_scale,
        mask,
        (gate_activation == "hard_sigmoid", reverse, precision()),
    )
    if rows is not None:
        output = output.flatten(0, 1).index_select(0, rows)
    return output, tuple(last)


def slot_bias(cell: Cell, weights: Weights) -> Tensor:  # (4, H)
    """LSTM: b_ih + b_hh. GRU: b_in, b_r, b_u, b_hn."""
    none = weights.w_hh.new_zeros(cell.n_gates, weights.w_hh.shape[1])
    b_ih, b_hh = (none if half is None else cell.split(half) for half in (weights.b_ih, weights.b_hh))
    if cell.name == "LSTM":
        return b_ih + b_hh
    return torch.cat([b_ih[2:], b_ih[:2] + b_hh[:2], b_hh[2:]])


class Recurrence(torch.autograd.Function):
    """One layer and direction over a padded batch; rows of `w_ih` and `bias` in the order of the slots."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # (T, B, I)
        h: Tensor,  # (B, H)
        c: Tensor | None,  # (B, H)
        w_ih: Tensor,  # (G*H, I)
        w_hh: Tensor,  # (G*H, H)
        bias: Tensor,  # (4, H)
        gate_scale: Tensor | None,  # (B, 4, H)
        neuron_scale: Tensor | None,  # (B, H)
        mask: Tensor | None,  # (T, B)
        options: tuple[bool, bool, str],  # hard, reverse, precision
    ) -> tuple[Tensor, ...]:
        (steps, batch, _), hidden, reverse = x.shape, w_hh.shape[1], options[1]
        first, last = (-1, 0) if reverse else (0, -1)
        h_all = w_hh.new_empty(steps + 1, batch, hidden)
        h_all[first] = h
        c_all = None if c is None else torch.empty_like(h_all)
        if c is not None and c_all is not None:
            c_all[first] = c
        tape = Tape(
            w_hh.contiguous(),
            bias.contiguous(),
            in_rows(gate_scale),
            in_rows(neuron_scale),
            None if mask is None else mask.int().contiguous(),  # a batch-first mask comes as a view
            w_hh.new_empty(steps, batch, N_SLOTS, hidden),
            h_all,
            c_all,
            *options,
        )
        with multiplying_in(tape.precision):
            inputs = (tape.operand(x) @ tape.operand(w_ih).mT).float()
            backend(tape).forward(tape, inputs.contiguous().view(steps, batch, tape.n_gates, hidden))
        ctx.save_for_backward(x, w_ih, *tape.tensors)
        ctx.options = options
        ctx.set_materialize_grads(False)
        output = tape.h[:-1] if reverse else tape.h[1:]
        return output, *(part[last].clone() for part in (h_all, c_all) if part is not None)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_output: Tensor | None, dh: Tensor | None, dc: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        x, w_ih, *tensors = ctx.saved_tensors
        tape = Tape(*tensors, *ctx.options)
        (steps, batch, hidden), rows = tape.shape, tape.n_gates * tape.shape[2]
        d_output = torch.zeros_like(tape.h[1:]) if d_output is None else d_output.contiguous()
        grads = Gradients.start(tape, dh, dc)
        with multiplying_in(tape.precision):
            backend(tape).backward(tape, d_output, grads)
            flat = tape.operand(grads.products.view(steps * batch, N_SLOTS * hidden))
            before = tape.h[1:] if tape.reverse else tape.h[:-1]
            d_inputs, d_recurrent = flat[:, :rows], flat[:, -rows:]
            d_x = (d_inputs @ tape.operand(w_ih)).view_as(x).to(x.dtype) if ctx.needs_input_grad[0] else None
            d_w_ih = (d_inputs.mT @ tape.operand(x).flatten(0, 1)).float()
            d_w_hh = (d_recurrent.mT @ tape.operand(before).flatten(0, 1)).float()
        return (
            d_x, grads.h, grads.c, d_w_ih, d_w_hh, grads.bias.sum(0), grads.gate_scale, grads.neuron_scale,
            None, None,
        )  # fmt: skip


def backend(tape: Tape) -> Any:
    """The module that runs this tape."""
    return triton_persistent if triton_persistent.fits(tape) else triton_step


def in_rows(scale: Tensor | None) -> Tensor | None:
    """The same scales, each sequence's in one piece; those of a shared scale stay one (stride 0)."""
    return scale if scale is None or scale[0].is_contiguous() else scale.contiguous()
