"""How long a neuron remembers: its gradient with respect to the layer's input, against the lag.

    curve of neuron k at lag t  =  mean over sequences of || d h_{T,k} / d x_{T-t} ||_2       T the last step

x is the input of that layer, so for a second layer the gradient ends at the output of the first. The network is the
deterministic, pruned one, at the width of its kept neurons and inputs; every sequence begins with a zero state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from gatewise.lab.analyse.gate_map import CONSTANT, LayerMap, map_gates
from gatewise.layout import Cell, State
from gatewise.nn.cells import SQUASHES
from gatewise.nn.lookup import cell_of, evaluating, gate_activation_of, is_single_step, places_of, weights_of
from gatewise.nn.recurrence import Weights, affine
from gatewise.readers import Stated
from gatewise.readers.graph import block_name
from gatewise.structure import RecurrentStructure, Structure

SHORT, LONG, NO_GATE = "short", "long", "constant"
OUTPUT_GATE = {"LSTM": "o"}
NEURONS_AT_ONCE = 32  # whose gradients are followed together
ONE_IN = 10  # sequences: a lag that fewer reach says little about the others


def kind_of(cell: str, pattern: str) -> str:
    """short: only the output gate is live; constant: none is; long: every other neuron."""
    if pattern == CONSTANT:
        return NO_GATE
    return SHORT if pattern == OUTPUT_GATE.get(cell) else LONG


@dataclass(frozen=True)
class LayerLags:
    """The curves of one layer and direction; K kept neurons, in the order of the gate map."""

    name: str
    cell: str
    neurons: Tensor  # (K,) int64: their numbers in the layer
    patterns: tuple[str, ...]  # the live gates of each
    norms: Tensor  # (L + 1, K): row t is lag t; NaN where no sequence is that long
    sequences: Tensor  # (L + 1,) int64: how many were averaged

    @property
    def kinds(self) -> list[str]:
        return [kind_of(self.cell, pattern) for pattern in self.patterns]

    @property
    def enough(self) -> int:
        """How many sequences a lag should have: a tenth of all, at least two; all, if there is only one."""
        total = int(self.sequences.max())
        return min(total, max(2, math.ceil(total / ONE_IN)))

    @property
    def shared(self) -> int:
        """How many lags, from 0 on, have enough sequences; longer lags never have more."""
        return int((self.sequences >= self.enough).sum())

    @property
    def reach(self) -> Tensor:  # (K,)
        """The mean lag of a neuron's gradient, sum of t * norm_t / sum of norm_t; 0 where there is no gradient.

        Over the shared lags: a lag weighs as much as any other, so one that few sequences reach must not count.
        """
        norms = self.norms[: self.shared].nan_to_num()
        lag = torch.arange(len(norms), dtype=norms.dtype)[:, None]
        return (lag * norms).sum(0) / norms.sum(0).clamp_min(torch.finfo(norms.dtype).tiny)

    def by_pattern(self) -> dict[str, Tensor]:
        """The median curve (L + 1,) of every pattern that has neurons, the most frequent first."""
        count = {p: self.patterns.count(p) for p in dict.fromkeys(self.patterns)}
        ranked = sorted(count, key=lambda p: -count[p])
        return {p: self.norms[:, [q == p for q in self.patterns]].quantile(0.5, dim=1) for p in ranked}


LagMap = Mapping[str, LayerLags]  # the recurrent layers by name, in the order of the network


def lag_curves(
    model: nn.Module,
    batches: Iterable[Sequence[Any]],
    *,
    lags: int = 100,
    readers: Stated | None = None,
) -> LagMap:
    """The lag curve of every kept neuron, averaged over the sequences of all batches.

    Args:
        batches: the arguments of one call of `model` each; sequences shorter than lags + 1 steps count at the lags
            they have. Padding, by a mask or in a PackedSequence, is no step.
        readers: who reads a layer where tracing cannot prove it, as in measure().
    """
    if lags < 0:
        raise ValueError(f"lags={lags}: the least is 0, the step itself.")
    gates = map_gates(model, readers)
    structure = Structure.from_weights(model, readers).recurrent()
    stacks = {name: module for name, module in model.named_modules() if cell_of(module) is not None}
    for name, module in stacks.items():
        if is_single_step(module):
            raise ValueError(
                f"{name} is a {type(module).__name__}: it sees one step a call, so its lags cannot be followed. "
                "Use the layer that takes whole sequences."
            )
    sums = {name: Sums(lags, len(layer.neurons)) for name, layer in gates.items()}
    device = next(model.parameters()).device
    with listening(model, stacks) as heard, torch.no_grad():
        for arguments in batches:
            heard.clear()
            model(*(a.to(device) if isinstance(a, Tensor) else a for a in arguments))
            for name, x, mask in heard:
                through_stack(stacks[name], name, x, mask, gates, structure, sums)
    return {name: sums[name].layer(layer) for name, layer in gates.items()}


class Sums:
    """Norms added up over sequences, lag by lag."""

    def __init__(self, lags: int, n_neurons: int) -> None:
        self.lags = lags
        self.norms = torch.zeros(lags + 1, n_neurons, dtype=torch.float64)
        self.sequences = torch.zeros(lags + 1, dtype=torch.int64)

    def add(self, first: int, norms: Tensor, real: Tensor) -> None:  # (L, K, B) of some neurons; (L, B) bool
        lags, n, _ = norms.shape
        self.norms[:lags, first : first + n] += (norms * real[:, None]).sum(2).double().cpu()
        if first == 0:
            self.sequences[:lags] += real.sum(1).cpu()

    def layer(self, gates: LayerMap) -> LayerLags:
        mean = self.norms / self.sequences[:, None]  # 0 / 0 is NaN: no sequence is that long
        patterns = tuple(gates.patterns)
        return LayerLags(gates.name, gates.cell, gates.neurons, patterns, mean.float(), self.sequences)


Heard = list[tuple[str, Tensor, Tensor]]  # a stack's name, its input (T, B, I), which steps are real (T, B)


@contextmanager
def listening(model: nn.Module, stacks: Mapping[str, nn.Module]) -> Iterator[Heard]:
    """What every recurrent stack is called with, time first, while the model runs in evaluation mode."""
    heard: Heard = []
    handles = []
    for name, module in stacks.items():

        def note(own: nn.Module, given: tuple[Any, ...], options: dict[str, Any], name: str = name) -> None:
            x = given[0] if given else options["input"]
            mask = options.get("mask")
            if isinstance(x, PackedSequence):
                x, lengths = pad_packed_sequence(x)
                mask = torch.arange(len(x))[:, None] < lengths
            elif x.dim() == 2:
                x = x[:, None]  # one sequence
            elif getattr(own, "batch_first", False):
                x, mask = x.transpose(0, 1), None if mask is None else mask.transpose(0, 1)
            real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
            heard.append((name, x.detach(), real.to(x.device)))

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        with evaluating(model):
            yield heard
    finally:
        for handle in handles:
            handle.remove()


def through_stack(
    stack: nn.Module,
    name: str,
    x: Tensor,  # (T, B, I)
    real: Tensor,  # (T, B) bool
    gates: Mapping[str, LayerMap],
    structure: Mapping[str, RecurrentStructure],
    sums: Mapping[str, Sums],
) -> None:
    """Every layer and direction of a stack, each with the output of the layer below as its input."""
    outputs: list[Tensor] = []
    for layer, direction in places_of(stack):
        if direction == 0 and layer:
            x = torch.cat(outputs, dim=-1)
        outputs = outputs if direction else []
        block = block_name(stack, name, layer, direction)
        inputs = structure[block].keep_inputs.to(x.device)
        one = OneLayer(stack, layer, direction, gates[block].neurons, inputs)
        # Steps in the order in which this direction reads them, padding first: it leaves the zero state as it is.
        order = torch.arange(len(x), device=x.device)[:, None].expand(real.shape)
        order = order.flip(0) if direction else order
        order = order.gather(0, real.gather(0, order).int().argsort(dim=0, stable=True))
        at = order[:, :, None]
        read = x[:, :, inputs]
        read, seen = read.gather(0, at.expand(read.shape)), real.gather(0, order)
        narrow = one.follow(read, seen, sums[block])
        wide = x.new_zeros(*real.shape, gates[block].width)
        wide[:, :, gates[block].neurons.to(x.device)] = narrow
        outputs.append(torch.zeros_like(wide).scatter(0, at.expand(wide.shape), wide))


class OneLayer:
    """One layer and direction at the width of its kept neurons and inputs: the others reach nothing."""

    def __init__(self, stack: nn.Module, layer: int, direction: int, neurons: Tensor, inputs: Tensor) -> None:
        cell = cell_of(stack)
        assert cell is not None
        self.cell: Cell = cell
        self.squash = SQUASHES[gate_activation_of(stack)]
        whole = weights_of(stack, layer, direction)
        keep = neurons.to(whole.w_hh.device)
        self.scale: Tensor | float = 1.0 if whole.neuron_scale is None else whole.neuron_scale[keep].detach()
        folded = replace(whole, neuron_scale=None).fold()  # z_h stays apart: the state is h, as outside
        w_ih, w_hh, b_ih, b_hh = (
            None if tensor is None else cell.split(tensor.detach())[:, keep].flatten(0, 1)
            for tensor in (folded.w_ih, folded.w_hh, folded.b_ih, folded.b_hh)
        )
        assert w_ih is not None
        assert w_hh is not None
        self.weights = Weights(w_ih[:, inputs], w_hh[:, keep], b_ih, b_hh)
        self.n_neurons = len(keep)

    def step(self, input_part: Tensor, state: State) -> State:
        recurrent_part = affine(self.cell, state[0], self.weights.w_hh, self.weights.b_hh, None)
        return self.cell.step(input_part, recurrent_part, state, self.scale, self.squash)

    def outputs(self, x: Iterable[Tensor], real: Tensor) -> list[Tensor]:
        """h (B, K) after every step, from the zero state; steps of padding leave it as it is."""
        zero = self.weights.w_hh.new_zeros(real.shape[1], self.n_neurons)
        state: State = tuple(zero for _ in range(self.cell.n_states))
        found = []
        for x_t, real_t in zip(x, real):
            after = self.step(affine(self.cell, x_t, self.weights.w_ih, self.weights.b_ih, None), state)
            state = tuple(torch.where(real_t[:, None], a, b) for a, b in zip(after, state))
            found.append(state[0])
        return found

    def follow(self, x: Tensor, real: Tensor, sums: Sums) -> Tensor:  # (T, B, I), (T, B) -> (T, B, K)
        """The outputs; and to the sums the norms of the gradients that reach the last of them."""
        n, first = self.n_neurons, max(0, len(x) - sums.lags - 1)
        steps = [x_t.clone().requires_grad_(t >= first) for t, x_t in enumerate(x)]
        with torch.enable_grad():
            outputs = self.outputs(steps, real)
        eye = torch.eye(n, dtype=x.dtype, device=x.device)[:, None].expand(n, x.shape[1], n)
        for start in range(0, n, NEURONS_AT_ONCE):
            ends = eye[start : start + NEURONS_AT_ONCE]
            found = torch.autograd.grad(
                outputs[-1], steps[first:], ends, retain_graph=True, is_grads_batched=True
            )
            norms = torch.stack([gradient.norm(dim=2) for gradient in found]).flip(0)
            sums.add(start, norms, real[first:].flip(0))
        return torch.stack(outputs).detach()
