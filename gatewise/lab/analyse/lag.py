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
from functools import reduce
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

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON; `norms` has a row per neuron, None where no sequence is that long."""
        rows = self.norms.T.tolist()
        return {
            "cell": self.cell,
            "neurons": self.neurons.tolist(),
            "patterns": list(self.patterns),
            "kinds": self.kinds,
            "sequences": self.sequences.tolist(),
            "norms": [[None if value != value else value for value in row] for row in rows],
        }


@dataclass(frozen=True)
class LagMap:
    """The recurrent layers of a network by name, in the order of the network."""

    layers: Mapping[str, LayerLags]

    def to_dict(self) -> dict[str, Any]:
        return {name: layer.to_dict() for name, layer in self.layers.items()}


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
    gates = map_gates(model, readers).layers
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
    return LagMap({name: sums[name].layer(layer) for name, layer in gates.items()})


class Sums:
    """Norms added up over sequences, lag by lag."""

    def __init__(self, lags: int, n_neurons: int) -> None:
        self.lags = lags
        self.norms = torch.zeros(lags + 1, n_neurons, dtype=torch.float64)
        self.sequences = torch.zeros(lags + 1, dtype=torch.int64)

    def add(self, lag: int, norms: Tensor, real: Tensor) -> None:  # (K, B); (B,) bool
        self.norms[lag] += (norms * real).sum(1).double().cpu()
        self.sequences[lag] += int(real.sum())

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
        states = one.states(read, seen)
        one.gradients(states, read, seen, sums[block])
        narrow = torch.stack([state[0] for state in states[1:]])
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

    def states(self, x: Tensor, real: Tensor) -> list[State]:
        """The state before the first step, then after every step; steps of padding leave it as it is."""
        zero = x.new_zeros(x.shape[1], self.n_neurons)
        states: list[State] = [tuple(zero for _ in range(self.cell.n_states))]
        for x_t, real_t in zip(x, real):
            after = self.step(affine(self.cell, x_t, self.weights.w_ih, self.weights.b_ih, None), states[-1])
            states.append(tuple(torch.where(real_t[:, None], a, b) for a, b in zip(after, states[-1])))
        return states

    def gradients(self, states: Sequence[State], x: Tensor, real: Tensor, sums: Sums) -> None:
        """Back from the last step, all neurons and sequences at once:

        a_T = d h_T / d state_T;    d h_T / d x_t = a_t J_t^x;    a_{t-1} = a_t J_t^state

        `a` has one row per neuron of h_T, for each part of the state.
        """
        n, batch = self.n_neurons, x.shape[1]
        if n == 0:
            return
        eye = torch.eye(n, dtype=x.dtype, device=x.device).expand(batch, n, n)
        back: list[Tensor] = [eye, *(torch.zeros_like(eye) for _ in range(self.cell.n_states - 1))]
        for lag in range(min(sums.lags + 1, len(x))):
            t = len(x) - 1 - lag
            to_x, to_h, to_rest = self.jacobians(x[t], states[t])
            norms = sum_of(a @ j for a, j in zip(back, to_x)).norm(dim=2)  # (B, K)
            sums.add(lag, norms.T, real[t])
            back = [
                sum_of(a @ j for a, j in zip(back, to_h)),
                *(sum_of(a * j[:, None] for a, j in zip(back, part)) for part in zip(*to_rest)),
            ]

    def jacobians(self, x: Tensor, state: State) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
        """Of each part of the state after a step: by x (B, K, I), by h (B, K, K), by each other part (B, K).

            J^x = sum over gates k of D_k Wx_k;    D_k diagonal, and the same with Wh and h

        Neurons meet in the matrices alone, so a gradient of all of them at once holds the diagonals.
        """
        cell, w = self.cell, self.weights
        with torch.enable_grad():
            own = [part.detach().requires_grad_() for part in state]
            halves = [
                affine(cell, x, w.w_ih, w.b_ih, None).detach().requires_grad_(),
                affine(cell, own[0], w.w_hh, w.b_hh, None).detach().requires_grad_(),
            ]
            after = cell.step(halves[0], halves[1], tuple(own), self.scale, self.squash)
        to_x, to_h, to_rest = [], [], []
        for part in after:
            of_x, of_h, h, *rest = torch.autograd.grad(
                part, [*halves, *own], torch.ones_like(part), retain_graph=True, materialize_grads=True
            )
            to_x.append(torch.einsum("bgk,gki->bki", of_x, cell.split(w.w_ih)))
            to_h.append(torch.einsum("bgk,gkj->bkj", of_h, cell.split(w.w_hh)) + h.diag_embed())
            to_rest.append(rest)
        return to_x, to_h, to_rest


def sum_of(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
