"""What the neurons of a stored network do on validation text: cell states and gradients. For claims.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from gate_patterns import ONLY_OUTPUT
from stored import StoredRun
from torch import Tensor, nn

from gatewise.lab.analyse import LayerLags, map_gates
from gatewise.lab.analyse.gate_map import CONSTANT
from gatewise.lab.analyse.lag import OneLayer, Sums
from gatewise.lab.data.corpus import Corpus
from gatewise.lab.finished.opened import (
    FinishedRun,
    corpus_of,
    lags_of,
    open_run,
    validation_batches,
)
from gatewise.lab.models import stack_of
from gatewise.layout import State
from gatewise.nn.cells import LSTM
from gatewise.nn.lookup import weights_of

LAGS, SEQUENCES, TEXTS = 100, 64, 16


@dataclass(frozen=True)
class Constants:
    """The o-only neurons of a layer. Of their gates i, f, g are numbers, so from a zero state

    c_t = f c_{t-1} + i g = c* (1 - f^t)        c* = i g / (1 - f)
    """

    neurons: list[int]  # (K,) their numbers in the layer
    f: Tensor  # (K,)
    g: Tensor  # (K,)
    end: Tensor  # (K,) c*

    def c(self, t: Tensor | int) -> Tensor:
        return self.end * (1 - self.f**t)


def output_only_constants(run: StoredRun) -> Constants:
    layer = run.last_layer
    own = [k for k, pattern in enumerate(layer["patterns"]) if pattern == ONLY_OUTPUT]
    value = {gate: torch.tensor([row[k] for k in own]) for gate, row in zip(layer["gates"], layer["constant"])
             if gate != ONLY_OUTPUT}  # fmt: skip
    neurons = [layer["neurons"][k] for k in own]
    return Constants(neurons, value["f"], value["g"], value["i"] * value["g"] / (1 - value["f"]))


@dataclass(frozen=True)
class Trace:
    """o-only neurons of the last layer along B validation texts, from a zero state."""

    constants: Constants
    c: Tensor  # (T, B, K)
    h: Tensor  # (T, B, K) without its z_h
    o: Tensor  # (T, B, K) from its own dot product, not from h and c


def steps(model: nn.Module, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """h and c (L, B, H) of all layers after every word; the zero state comes first."""
    stack = stack_of(model)
    state = tuple(torch.zeros(stack.num_layers, ids.shape[1], stack.hidden_size) for _ in range(2))
    yield state
    for step in ids[:, None]:
        _, state = model(step, state)
        yield state


@cache
@torch.no_grad()
def trace(run: StoredRun) -> Trace:
    opened, corpus = opened_with_data(run)
    ((ids,),) = validation_batches(corpus, LAGS, TEXTS)
    stack = stack_of(opened.model)
    constants = output_only_constants(run)
    own, weights = constants.neurons, weights_of(stack, stack.num_layers - 1, 0)
    w_ih, w_hh, b_ih, b_hh = (
        LSTM.split(part)[LSTM.gates.index(ONLY_OUTPUT), own]
        for part in (weights.w_ih, weights.w_hh, weights.b_ih, weights.b_hh)
    )
    seen = []
    for (before, _), (h, c) in pairwise(steps(opened.model, ids)):
        o = torch.sigmoid(h[-2] @ w_ih.T + before[-1] @ w_hh.T + b_ih + b_hh)
        seen.append((c[-1][:, own], h[-1][:, own] / weights.neuron_scale[own], o))
    return Trace(constants, *(torch.stack(part) for part in zip(*seen)))


@dataclass(frozen=True)
class Gradients:
    """Mean gradient norms of the last layer's neurons, over the lags that enough sequences reach.

    Neurons without a live gate are left out.
    """

    patterns: tuple[str, ...]
    near: Tensor  # (K,) lags 0 to 5
    far: Tensor  # (K,) lags 20 to 100

    @property
    def ratio(self) -> Tensor:
        return self.far / self.near


@cache
def gradients(run: StoredRun) -> Gradients:
    opened, corpus = opened_with_data(run)
    return near_and_far(list(lags_of(opened.model, corpus, LAGS, SEQUENCES).values())[-1])


def near_and_far(layer: LayerLags) -> Gradients:
    moving = [k for k, pattern in enumerate(layer.patterns) if pattern != CONSTANT]
    norms = layer.norms[: layer.shared, moving]
    return Gradients(tuple(layer.patterns[k] for k in moving), norms[:6].mean(0), norms[20:].mean(0))


class OwnCell(OneLayer):
    """A layer whose gradient goes back through c alone: what the neurons of the step before show is held fixed."""

    def step(self, input_part: Tensor, state: State) -> State:
        h, c = state
        return super().step(input_part, (h.detach(), c))


@cache
@torch.no_grad()
def own_gradients(run: StoredRun) -> Gradients:
    """Of a language model's last layer: what a neuron remembers by itself, not what it hears from the others."""
    opened, corpus = opened_with_data(run)
    stack, (*_, gates) = stack_of(opened.model), map_gates(opened.model).values()
    layer = OwnCell(
        stack, stack.num_layers - 1, 0, gates.neurons, torch.ones(stack.hidden_size, dtype=torch.bool)
    )
    sums = Sums(LAGS, len(gates.neurons))
    for (ids,) in validation_batches(corpus, LAGS, SEQUENCES):
        _, *after = steps(opened.model, ids)
        below, real = torch.stack([h[-2] for h, _ in after]), torch.ones(ids.shape, dtype=torch.bool)
        layer.follow(below, real, sums)
    return near_and_far(sums.layer(gates))


def opened_with_data(run: StoredRun) -> tuple[FinishedRun, Corpus]:
    opened = open_run(run.folder)
    corpus, why_not = corpus_of(opened)
    if corpus is None:
        raise SystemExit(f"{run.folder}: {why_not}")
    return opened, corpus
