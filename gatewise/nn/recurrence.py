"""One layer over a whole sequence: a plain scan of the equations, or torch's fused kernels where exact."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn.functional import pad

from gatewise.layout import Cell, State
from gatewise.nn.cells import SQUASHES

REPLAYED: ContextVar[bool] = ContextVar("replayed", default=False)
MOST_PACKED = 2**19  # numbers that the inputs add to the gates of a batch
FUSED: dict[str, Callable[..., Any]] = {"LSTM": _VF.lstm, "GRU": _VF.gru}


@dataclass(frozen=True)
class Weights:
    """What one layer and direction computes with. A scale serves the whole batch or has a row per sequence."""

    w_ih: Tensor  # (G*H, I)
    w_hh: Tensor  # (G*H, H)
    b_ih: Tensor | None  # (G*H,)
    b_hh: Tensor | None  # (G*H,)
    input_scale: Tensor | None = None  # z_x: (I,) or (B, I)
    gate_scale: Tensor | None = None  # z of the gates: (G, H) or (B, G, H)
    neuron_scale: Tensor | None = None  # z_h: (H,) or (B, H)

    @property
    def plain(self) -> bool:
        return self.input_scale is None and self.gate_scale is None and self.neuron_scale is None

    @property
    def per_sequence(self) -> bool:
        shared = ((self.input_scale, 1), (self.gate_scale, 2), (self.neuron_scale, 1))
        return any(scale is not None and scale.dim() > dims for scale, dims in shared)

    def for_sequences(self, order: Tensor) -> Weights:  # order: (B,)
        """The same weights with the rows of per-sequence scales taken in `order`."""

        def take(scale: Tensor | None, dims: int) -> Tensor | None:
            return scale if scale is None or scale.dim() == dims else scale.index_select(0, order)

        return replace(
            self,
            input_scale=take(self.input_scale, 1),
            gate_scale=take(self.gate_scale, 2),
            neuron_scale=take(self.neuron_scale, 1),
        )

    def fold(self) -> Weights:
        """Shared scales multiplied into the matrices: rows by gate z, columns by z_x and z_h.

            (Wx (x z_x) + Wh (s z_h)) * z + b  =  (z Wx z_x) x + (z Wh z_h) s + b         with h = s z_h

        The layer then computes s; `neuron_scale` stays, because the output is h.
        """
        w_ih, w_hh = self.w_ih, self.w_hh
        if self.input_scale is not None:
            w_ih = w_ih * self.input_scale
        if self.neuron_scale is not None:
            w_hh = w_hh * self.neuron_scale
        if self.gate_scale is not None:
            rows = self.gate_scale.reshape(-1, 1)
            w_ih, w_hh = w_ih * rows, w_hh * rows
        return replace(self, w_ih=w_ih, w_hh=w_hh, input_scale=None, gate_scale=None)


def scan(
    cell: Cell,
    x: Tensor,  # (T, B, I), or (N, I) with batch_sizes
    state: State,  # each (B, H)
    weights: Weights,
    *,
    gate_activation: str = "sigmoid",
    # (T,) of a PackedSequence: step t holds the first batch_sizes[t] sequences.
    batch_sizes: Tensor | None = None,
    mask: Tensor | None = None,  # (T, B) bool; where False the state is copied from the step before
    reverse: bool = False,
) -> tuple[Tensor, State]:  # (T, B, H) or (N, H); the last state
    """The reference: the cell's equations, step by step. Everything faster is tested against it."""
    squash = SQUASHES[gate_activation]
    sizes = [x.shape[1]] * x.shape[0] if batch_sizes is None else batch_sizes.tolist()
    rows = None if batch_sizes is None else torch.cat([torch.arange(n, device=x.device) for n in sizes])
    input_scale = of_rows(weights.input_scale, rows, 1)
    if input_scale is not None:
        x = x * input_scale
    input_part = affine(cell, x, weights.w_ih, weights.b_ih, of_rows(weights.gate_scale, rows, 2))
    input_steps = input_part.unbind(0) if batch_sizes is None else input_part.split(sizes)
    outputs: list[Tensor] = [x] * len(sizes)
    steps, batch = range(len(sizes)), state[0].shape[0]
    for t in reversed(steps) if reverse else steps:
        n = sizes[t]
        before = state if n == batch else tuple(part[:n] for part in state)
        gate_scale = of_first(weights.gate_scale, n, 2)
        neuron_scale = of_first(weights.neuron_scale, n, 1)
        recurrent_part = affine(cell, before[0], weights.w_hh, weights.b_hh, gate_scale)
        scale = 1.0 if neuron_scale is None else neuron_scale
        after = cell.step(input_steps[t], recurrent_part, before, scale, squash)
        if mask is not None:
            after = tuple(torch.where(mask[t, :, None], new, old) for new, old in zip(after, before))
        outputs[t] = after[0]
        state = after if n == batch else tuple(torch.cat([new, old[n:]]) for new, old in zip(after, state))
    return (torch.stack(outputs) if batch_sizes is None else torch.cat(outputs)), state


def scan_anywhere(
    cell: Cell, x: Tensor, state: State, weights: Weights, **options: Any
) -> tuple[Tensor, State]:
    """`scan`; on a GPU by kernels that compute the same, or, where they cannot, with one warning."""
    reason = no_kernel(cell, x, weights)
    if reason is None:
        from gatewise.nn.triton_scan import device_scan

        return device_scan(cell, x, state, weights, **options)
    if x.is_cuda:
        say_once(f"A recurrent layer runs step by step in plain torch, which is slow on a GPU: {reason}.")
    return scan(cell, x, state, weights, **options)


def no_kernel(cell: Cell, x: Tensor, weights: Weights) -> str | None:
    """Why our GPU kernels cannot run this layer, or None if they can."""
    if not x.is_cuda:
        return "it is not on a GPU"
    try:
        from gatewise.nn.triton_scan import unsupported
    except ImportError:
        return "Triton cannot be imported"
    return unsupported(cell, x, weights)


@cache
def say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def affine(cell: Cell, x: Tensor, w: Tensor, bias: Tensor | None, gate_scale: Tensor | None) -> Tensor:
    """(x W^T) * z + b, with gates and neurons on axes of their own: (..., G, H)."""
    pre = x @ w.mT
    pre = pre.view(*pre.shape[:-1], cell.n_gates, w.shape[0] // cell.n_gates)  # no -1: a batch may be empty
    if gate_scale is not None:
        pre = pre * gate_scale
    return pre if bias is None else pre + cell.split(bias)


def of_first(scale: Tensor | None, n: int, shared_dims: int) -> Tensor | None:
    """The scales of the first n sequences, if every sequence has its own."""
    return scale[:n] if scale is not None and scale.dim() > shared_dims else scale


def of_rows(scale: Tensor | None, rows: Tensor | None, shared_dims: int) -> Tensor | None:
    """The scales of each packed row, if every sequence has its own."""
    if scale is None or rows is None or scale.dim() == shared_dims:
        return scale
    return scale.index_select(0, rows)


@contextmanager
def replayed() -> Iterator[None]:
    """What runs in here is, or is warming up for, a CUDA graph: a launch costs next to nothing."""
    token = REPLAYED.set(True)
    try:
        yield
    finally:
        REPLAYED.reset(token)


def faster_unfused(
    cell: Cell, x: Tensor, weights: Sequence[Weights], batch: int, batch_sizes: Tensor | None = None
) -> bool:
    """Whether our own way beats torch's kernels, by `benchmarks/recurrence.py` and `benchmarks/padded.py`.

    On a GPU: with scales our kernels save folding them, and undoing that on the way back. Without, they win in
    training in a graph, where a launch or two per step cost nothing: while the recurrent matrix stays on chip, and
    beyond for batches that keep the GPU busy. On a CPU: to train packed sequences torch makes a gradient of the whole
    input at every step, so the time grows with the square of the length.
    """
    if batch_sizes is not None and x.is_cpu:
        return torch.is_grad_enabled() and len(x) * len(weights[0].w_hh) > MOST_PACKED
    if any(no_kernel(cell, x, w) for w in weights):
        return False
    if not any(w.plain for w in weights):
        return True
    least = 16 if weights[0].w_hh.shape[1] <= 512 else 64
    return REPLAYED.get() and torch.is_grad_enabled() and batch >= least


def fusible(cell: Cell, weights: Sequence[Weights], gate_activation: str, mask: Tensor | None) -> bool:
    """Whether torch's kernels compute exactly this: a known cell, logistic gates, one z for all sequences."""
    known = cell.name in FUSED and gate_activation == "sigmoid" and mask is None
    return known and not any(w.per_sequence for w in weights)


def fused_layer(
    cell: Cell,
    x: Tensor,  # (T, B, I), or (N, I) with batch_sizes
    states: Sequence[State],  # per direction, each part (B, H)
    weights: Sequence[Weights],  # per direction
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, list[State]]:  # (T, B, D*H) or (N, D*H); per direction
    """One layer, all its directions, by torch's kernel, with shared z folded into the matrices.

    The kernel computes s with h = s z_h, so h goes in divided by z_h and comes out multiplied by it. Where z_h
    is zero the neuron says nothing, whatever s is: its state counts as zero on input.
    """
    folded = [w.fold() for w in weights]
    scales = [w.neuron_scale for w in folded]
    inner = [(unscale(s[0], z), *s[1:]) for s, z in zip(states, scales)]
    flat = [p for w in folded for p in (w.w_ih, w.w_hh, w.b_ih, w.b_hh) if p is not None]
    hx = tuple(torch.stack(parts) for parts in zip(*inner))
    output, *last = fused_stack(
        cell, x, hx, flat, folded[0].b_ih is not None, batch_sizes, bidirectional=len(weights) == 2
    )
    if any(z is not None for z in scales):
        hidden = weights[0].w_hh.shape[1]
        whole = torch.cat([output.new_ones(hidden) if z is None else z for z in scales])
        output = output * whole
        last[0] = last[0] * whole.view(len(weights), 1, hidden)
    return output, [tuple(part[d] for part in last) for d in range(len(weights))]


def is_slow(weights: Weights) -> bool:
    """Whether cuDNN has only its slow kernels for such widths: 1.1 to 1.6 times a step, measured on an H200."""
    hidden = weights.w_hh.shape[1]
    return hidden > 512 and bool(hidden % 4 or weights.w_ih.shape[1] % 4)


def widened_layer(
    cell: Cell, x: Tensor, state: State, weights: Weights, batch_sizes: Tensor | None = None, to: int = 8
) -> tuple[Tensor, State]:
    """`fused_layer` of one direction, its widths filled up with zeros to multiples of `to`.

    cuDNN's fast kernels want such widths, which a cut does not leave. A neuron without weights and biases stays at
    zero: c' = (c + tanh(0)) / 2, and h' = h / 2 of a GRU.
    """
    (_, n_inputs), hidden = weights.w_ih.shape, weights.w_hh.shape[1]
    more_inputs, more = -n_inputs % to, -hidden % to

    def rows(w: Tensor, columns: int) -> Tensor:  # (G*H, C)
        return pad(w.view(cell.n_gates, hidden, -1), (0, columns, 0, more)).flatten(0, 1)

    biases = (
        None if b is None else pad(cell.split(b), (0, more)).flatten() for b in (weights.b_ih, weights.b_hh)
    )
    wide = Weights(rows(weights.w_ih, more_inputs), rows(weights.w_hh, more), *biases)
    first = tuple(pad(part, (0, more)) for part in state)
    out, (last,) = fused_layer(cell, pad(x, (0, more_inputs)), [first], [wide], batch_sizes)
    return out[..., :hidden], tuple(part[:, :hidden] for part in last)


def fused_stack(
    cell: Cell,
    x: Tensor,
    hx: State,  # each (L*D, B, H)
    flat: list[Tensor],
    bias: bool,
    batch_sizes: Tensor | None,
    *,
    num_layers: int = 1,
    dropout: float = 0.0,
    training: bool = True,
    bidirectional: bool = False,
) -> tuple[Tensor, ...]:  # output, then the last states
    """torch's fused kernel for one or several plain layers, time first."""
    op = FUSED[cell.name]
    if x.is_cuda:
        flat = one_block(flat)
    # cuDNN keeps what its backward needs only when told that it trains; without dropout the flag does no more.
    training = training or (x.is_cuda and dropout == 0 and torch.is_grad_enabled())
    state = hx if cell.n_states == 2 else hx[0]
    if batch_sizes is None:
        result = op(x, state, flat, bias, num_layers, dropout, training, bidirectional, False)
    else:
        result = op(x, batch_sizes, state, flat, bias, num_layers, dropout, training, bidirectional)
    return tuple(result)


def one_block(flat: list[Tensor]) -> list[Tensor]:
    """The same tensors as views of one buffer, matrices before biases: cuDNN takes it as it is.

    From tensors that lie otherwise (samples, folded matrices) torch would make this copy itself, with a warning
    at every call.
    """
    order = sorted(range(len(flat)), key=lambda k: flat[k].dim() == 1)
    sizes = [flat[k].numel() for k in order]
    starts = [flat[order[0]].data_ptr() + flat[0].element_size() * sum(sizes[:k]) for k in range(len(order))]
    if flat[order[0]].storage_offset() == 0 and starts == [flat[k].data_ptr() for k in order]:
        return flat
    pieces = [flat[k].reshape(-1) for k in order]
    if all(p.dim() == 2 for p in flat):  # cuDNN keeps the room of the biases even where there are none
        pieces.append(flat[0].new_zeros(sum(len(p) for p in flat)))
    views = torch.cat(pieces).split([piece.numel() for piece in pieces])
    return [view.view(flat[k].shape) for k, view in sorted(zip(order, views), key=lambda pair: pair[0])]


def unscale(h: Tensor, z: Tensor | None) -> Tensor:  # (B, H), (H,)
    """s = h / z_h, and 0 where z_h = 0."""
    if z is None:
        return h
    silent = z.logical_not()
    return (h / (z + silent)).masked_fill_(silent, 0)  # a division by zero would leave a NaN in the gradient
