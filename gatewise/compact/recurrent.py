"""Compact recurrent layers in plain torch: the oracle of every faster form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatewise.compact.plan import RecurrentPlan
from gatewise.compact.shown import Showing
from gatewise.layout import Cell, Squash, State, suffix
from gatewise.nn import Recurrent
from gatewise.nn.cells import SQUASHES
from gatewise.nn.lookup import Stored
from gatewise.nn.recurrence import (
    Weights,
    faster_unfused,
    fused_layer,
    fusible,
    is_slow,
    scan_anywhere,
    unscale,
    widened_layer,
)
from gatewise.nn.single_step import SingleStep


class CompactLayer(nn.Module):
    """One layer and direction with K neurons of H, R live gates of G*K, and as many columns as are read.

        gate row r (live)      act(w_ih[r] x[inputs] + w_hh[r] s[recurrent] + bias[slot r])
        constant gate          act(bias): one number, no row
        h = s * neuron_scale   z_h; inside the layer z_h is folded into the columns of w_hh

    The GRU's candidate keeps the two halves of its bias, because r multiplies one of them.
    """

    inputs: Tensor
    neurons: Tensor
    slots: Tensor
    recurrent: Tensor
    neuron_scale: Tensor

    def __init__(
        self, cell: Cell, plan: RecurrentPlan, width: int, n_inputs: int, like: Tensor, bias: bool
    ) -> None:
        super().__init__()
        self.cell, self.width, self.n_inputs = cell, width, n_inputs
        for name in ("inputs", "neurons", "slots", "recurrent"):
            self.register_buffer(name, getattr(plan, name).to(like.device))
        k, live = len(plan.neurons), len(plan.slots)
        self.weight_ih = nn.Parameter(like.new_zeros(live, len(plan.inputs)))
        self.weight_hh = nn.Parameter(like.new_zeros(live, len(plan.recurrent)))
        # `bias` has both halves added up, except in gates whose recurrent half is gated: there `bias_gated` has it.
        gated = len(cell.gated_recurrent)
        self.bias = nn.Parameter(like.new_zeros(cell.n_gates, k)) if bias else None
        self.bias_gated = nn.Parameter(like.new_zeros(gated, k)) if bias and gated else None
        self.register_buffer("neuron_scale", like.new_ones(k))

    @property
    def kept(self) -> int:
        return self.neurons.shape[0]

    def extra_repr(self) -> str:
        gates, inputs = self.cell.n_gates * self.width, len(self.inputs)
        return (
            f"{inputs} of {self.n_inputs} inputs, {self.kept} of {self.width} neurons, "
            f"{len(self.slots)} of {gates} gates"
        )

    def stored(self, matrix: str) -> Stored:
        """Original numbers of the rows, gate * H + neuron, and of the columns of `weight_ih` or `weight_hh`."""
        k = max(self.kept, 1)
        rows = self.slots // k * self.width + self.neurons[self.slots % k]
        return Stored(matrix, rows, self.inputs if matrix == "weight_ih" else self.neurons[self.recurrent])

    def gated_gates(self) -> list[int]:
        return [k for k, gate in enumerate(self.cell.gates) if gate in self.cell.gated_recurrent]

    @torch.no_grad()
    def fill(self, weights: Weights, input_scale: Tensor | None) -> None:
        """Take what is kept of the full layer; z of the gates goes into rows, z_x and z_h into columns.

        `input_scale` belongs to the layer below, if it is part of the same stack: its z_h arrives folded in here.
        """
        w = weights.fold()
        w_ih = w.w_ih if input_scale is None else w.w_ih * input_scale
        for name, whole in (("weight_ih", w_ih), ("weight_hh", w.w_hh)):
            _, rows, columns = self.stored(name)
            self.get_parameter(name).copy_(whole[rows][:, columns])
        if w.neuron_scale is not None:
            self.neuron_scale.copy_(w.neuron_scale[self.neurons])
        if self.bias is not None and w.b_ih is not None and w.b_hh is not None:
            b_ih, b_hh = (self.cell.split(b)[:, self.neurons] for b in (w.b_ih, w.b_hh))
            self.bias.copy_(b_ih + b_hh)
            if self.bias_gated is not None:
                gated = self.gated_gates()
                self.bias[gated] = b_ih[gated]
                self.bias_gated.copy_(b_hh[gated])

    def weights(self) -> Weights:
        """The layer as an ordinary one of width K: zero rows for constant gates, zero columns for unread neurons."""
        rows, k = self.cell.n_gates * self.kept, self.kept
        w_hh = spread(self.weight_hh, self.recurrent, k, dim=1)
        w_ih, w_hh = (spread(w, self.slots, rows, dim=0) for w in (self.weight_ih, w_hh))
        if self.bias is None:
            return Weights(w_ih, w_hh, None, None)
        return Weights(w_ih, w_hh, self.bias.flatten(), self.add_gated(torch.zeros_like(self.bias)).flatten())

    def add_gated(self, recurrent_part: Tensor) -> Tensor:  # (..., G, K)
        """In place: the halves of biases that are gated."""
        if self.bias_gated is not None:
            for k, gate in enumerate(self.gated_gates()):
                recurrent_part.select(-2, gate).add_(self.bias_gated[k])
        return recurrent_part

    def original(self, input_scale: Tensor | None) -> Weights:
        """The layer in its original shape, zeros where something was cut, z_h apart again."""
        w = self.weights()
        hidden, gates = self.width, self.cell.n_gates
        scale = self.neuron_scale
        rows = (torch.arange(gates, device=scale.device)[:, None] * hidden + self.neurons).flatten()
        w_ih = w.w_ih if input_scale is None else w.w_ih / input_scale[self.inputs]
        w_ih = spread(spread(w_ih, self.inputs, self.n_inputs, dim=1), rows, gates * hidden, dim=0)
        w_hh = spread(unscale(w.w_hh, scale), self.neurons, hidden, dim=1)
        w_hh = spread(w_hh, rows, gates * hidden, dim=0)
        biases = [None if b is None else spread(b, rows, gates * hidden, dim=0) for b in (w.b_ih, w.b_hh)]
        return Weights(
            w_ih, w_hh, biases[0], biases[1], neuron_scale=spread(scale, self.neurons, hidden, dim=0)
        )

    def read(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """The inputs that some live gate reads, of all or of those `kept` below, both in the original numbering."""
        if self.inputs.shape[0] == x.shape[-1]:
            return x
        if kept is not None and torch._C._get_tracing_state() is not None:
            # As ONNX has no searchsorted, which torch's older exporter would trace.
            x, kept = spread(x, kept, self.n_inputs, dim=-1), None
        return x.index_select(-1, self.inputs if kept is None else torch.searchsorted(kept, self.inputs))

    def step(self, x: Tensor, state: State, squash: Squash) -> State:  # (B, n_in), each (B, K)
        """state' = step(...), with products of live rows alone, each put in the place of its gate.

        Through weights() a step would first copy both matrices, which takes longer than the step itself.
        """
        s = pick(state[0], self.recurrent, dim=1)
        rows = F.linear(x, self.weight_ih)
        if self.bias is not None and self.bias_gated is None:
            # The two halves are only added up, as those of their biases were.
            recurrent_part = self.by_gate(torch.addmm(rows, s, self.weight_hh.mT))
            input_part = self.bias.expand_as(recurrent_part)
        else:
            input_part = self.by_gate(rows) if self.bias is None else self.by_gate(rows) + self.bias
            recurrent_part = self.add_gated(self.by_gate(F.linear(s, self.weight_hh)))
        return self.cell.step(input_part, recurrent_part, state, 1.0, squash)

    def by_gate(self, rows: Tensor) -> Tensor:  # (B, R) -> (B, G, K)
        """The live rows in their places, zeros in those of constant gates."""
        gates = self.cell.n_gates
        return spread(rows, self.slots, gates * self.kept, dim=1).view(rows.shape[0], gates, self.kept)

    def enter(self, state: State) -> State:  # (B, H) -> (B, K)
        """The caller's state: original width, h with its z_h. Removed neurons count as zero."""
        h, *rest = (pick(part, self.neurons, dim=1) for part in state)
        return (unscale(h, self.neuron_scale), *rest)

    def leave(self, state: State) -> State:  # (B, K) -> (B, H)
        h, *rest = state
        return tuple(spread(part, self.neurons, self.width, dim=1) for part in (h * self.neuron_scale, *rest))


class CompactRecurrent(Showing, Recurrent):
    """A stack of compact layers with the call of `torch.nn`: original input and output widths, original states.

    Removed neurons are zeros in the output; between the layers of the stack only kept ones travel.
    """

    is_compact = True

    def __init__(self, cell: Cell, layers: Sequence[CompactLayer], options: dict[str, Any]) -> None:
        nn.Module.__init__(self)
        self.cell = cell
        for name in OPTIONS:
            setattr(self, name, options[name])
        self.proj_size = 0
        self.layers = nn.ModuleList(layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.layer(0, 0).weight_ih.dtype

    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OPTIONS}

    def layer(self, layer: int, direction: int) -> CompactLayer:
        found = self.layers[layer * self.num_directions + direction]
        assert isinstance(found, CompactLayer)
        return found

    def stored(self, matrix: str) -> Stored:
        """Of `weight_ih_l0` and the like, as the dense layer calls them."""
        place = next(k for k, place in enumerate(self.places()) if matrix.endswith(suffix(*place)))
        layer = self.layers[place]
        assert isinstance(layer, CompactLayer)
        own = layer.stored(matrix[: len("weight_ih")])
        return own._replace(name=f"layers.{place}.{own.name}")

    def flatten_parameters(self) -> None:
        """Nothing to do: widths differ from layer to layer."""

    def deterministic(self, layer: int, direction: int) -> Weights:
        below = self._scale_below(layer)
        return self.layer(layer, direction).original(below)

    def _scale_below(self, layer: int) -> Tensor | None:
        """z_h of the layer below in its original width, which was folded into this layer's columns."""
        if layer == 0:
            return None
        parts = [self.layer(layer - 1, d) for d in range(self.num_directions)]
        return torch.cat(
            [p.neuron_scale.new_ones(p.width).index_copy(0, p.neurons, p.neuron_scale) for p in parts]
        )

    def _run(
        self, x: Tensor, state: State, sizes: Tensor | None, order: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, State]:
        lasts: list[State] = []
        kept: Tensor | None = None  # what a level hands over, in the numbering of its original output
        for level in range(self.num_layers):
            layers = [self.layer(level, d) for d in range(self.num_directions)]
            if level and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            outputs = []
            for d, layer in enumerate(layers):
                place = level * self.num_directions + d
                before = layer.enter(tuple(part[place] for part in state))
                out, after = self._one(layer.read(x, kept), before, layer, sizes, mask, reverse=d == 1)
                outputs.append(out)
                lasts.append(layer.leave(after))
            x = joined(outputs)  # s of the kept neurons of every direction
            first, *second = (layer.neurons for layer in layers)
            kept = joined([first, *(neurons + self.hidden_size for neurons in second)])
        after_all = tuple(torch.stack(parts) for parts in zip(*lasts))
        if x.shape[0] == 1 and sizes is None:  # one step: what it says is the h it leaves
            return joined([h for h, *_ in lasts[-len(layers) :]]).unsqueeze(0), after_all
        assert kept is not None
        x = x * joined([layer.neuron_scale for layer in layers])
        return spread(x, kept, self.hidden_size * self.num_directions, dim=-1), after_all

    def _one(
        self,
        x: Tensor,  # the inputs that the layer reads
        state: State,
        layer: CompactLayer,
        sizes: Tensor | None,
        mask: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, State]:
        if not layer.kept:
            return x.new_zeros(*x.shape[:-1], 0), state
        if x.shape[0] == 1 and x.is_cpu and sizes is None and mask is None:
            # torch's kernel arranges the weights anew at every call, which pays off over several steps only.
            after = layer.step(x[0], state, SQUASHES[self.gate_activation])
            return after[0].unsqueeze(0), after
        weights = layer.weights()
        backwards_packed = reverse and sizes is not None  # torch has no kernel for that direction alone
        fused = (
            x.shape[-1] and not backwards_packed and fusible(self.cell, [weights], self.gate_activation, mask)
        )
        if fused and not faster_unfused(self.cell, x, [weights], len(state[0]), sizes):
            ahead = x.flip(0) if reverse else x
            if x.is_cuda and is_slow(weights):
                out, after = widened_layer(self.cell, ahead, state, weights, sizes)
            else:
                out, (after,) = fused_layer(self.cell, ahead, [state], [weights], sizes)
            return (out.flip(0) if reverse else out), after
        if layer.bias_gated is None:
            weights = replace(weights, b_hh=None)  # zeros, which every step would add
        return scan_anywhere(
            self.cell,
            x,
            state,
            weights,
            gate_activation=self.gate_activation,
            batch_sizes=sizes,
            mask=mask,
            reverse=reverse,
        )

    def to_dense(self) -> nn.LSTM | nn.GRU:
        raise ValueError(
            "A compact layer has no dense twin: its layers differ in width. The original model has it."
        )


OPTIONS = "input_size hidden_size num_layers bias batch_first dropout bidirectional gate_activation".split()


class CompactCell(Showing, SingleStep):
    """A compact `nn.LSTMCell` or `nn.GRUCell`, with states in the original width."""

    is_compact = True
    gate_activation = "sigmoid"

    def __init__(self, cell: Cell, layer: CompactLayer) -> None:
        super().__init__()
        self.cell, self.layer = cell, layer
        self.input_size, self.hidden_size, self.bias = layer.n_inputs, layer.width, layer.bias is not None

    def deterministic(self, layer: int, direction: int) -> Weights:
        return self.layer.original(None)

    def stored(self, matrix: str) -> Stored:
        own = self.layer.stored(matrix)
        return own._replace(name=f"layer.{own.name}")

    def step(self, x: Tensor, state: State) -> State:
        layer, squash = self.layer, SQUASHES[self.gate_activation]
        return layer.leave(layer.step(layer.read(x), layer.enter(state), squash))

    def as_layer(self) -> CompactRecurrent:
        """The same steps over whole sequences, with the cell's own parameters."""
        values = self.input_size, self.hidden_size, 1, self.layer.bias is not None, False, 0.0, False
        options = dict(zip(OPTIONS, (*values, self.gate_activation), strict=True))
        return CompactRecurrent(self.cell, [self.layer], options)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Side by side, without a copy where there is one alone."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)


def pick(values: Tensor, index: Tensor, dim: int) -> Tensor:
    """Values at `index` along one axis."""
    if index.shape[0] == values.shape[dim]:
        return values  # all kept, in order
    return values.index_select(dim, index)


def spread(values: Tensor, index: Tensor, size: int, dim: int) -> Tensor:
    """Values placed at `index` along one axis of length `size`, zeros elsewhere."""
    if index.shape[0] == size:
        return values  # all kept, in order
    shape = list(values.shape)
    shape[dim] = size
    return values.new_zeros(shape).index_copy_(dim, index, values)
