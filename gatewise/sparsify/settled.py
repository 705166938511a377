"""settle(model): a variational network as the deterministic one that it is evaluated as, to be trained on.

    Linear      W = m where m^2 / sigma^2 > snr_threshold, else 0
    Embedding   the same, its rows times z of their words
    recurrent   the same, rows times z of their gate, columns of the input matrix times z_x; z_h stays beside them,
                since who reads the neurons need not be known

Training and evaluation are the same function then: there is no noise, and no sigma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gatewise.layout import Cell
from gatewise.nn import Recurrent
from gatewise.nn.forms import Form
from gatewise.nn.lookup import ending, places_of, replace_module
from gatewise.nn.recurrence import Weights
from gatewise.sparsify.layers import (
    OneStep,
    Posterior,
    RecurrentPosterior,
    Stack,
    VariationalEmbedding,
    VariationalLinear,
    VariationalRecurrent,
)
from gatewise.sparsify.ranks import check_not_wrapped
from gatewise.sparsify.variational import Variational


class Settled(Form):
    """Mixin of recurrent layers: W and b are parameters, z_h is a fixed number for every neuron, if there is one."""

    cell: Cell

    def weights(self, layer: int, direction: int, n_sequences: int) -> Weights:
        end = ending(self, layer, direction)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_ih, w_hh, b_ih, b_hh = (getattr(self, name + end, None) for name in names)
        assert w_ih is not None
        assert w_hh is not None
        return Weights(w_ih, w_hh, b_ih, b_hh, neuron_scale=getattr(self, "neuron_scale" + end))

    def deterministic(self, layer: int, direction: int) -> Weights:
        return self.weights(layer, direction, 1)


class SettledRecurrent(Settled, Stack):
    """A recurrent stack."""


class SettledCell(Settled, OneStep):
    """A recurrent cell."""


class NewParameter(NamedTuple):
    """What a parameter of a new layer is to be, and whether a z is part of it."""

    layer: nn.Module
    name: str
    mean: Tensor  # the parameter of the old one
    value: Tensor
    scaled: bool


@torch.no_grad()
def settle(model: nn.Module) -> None:
    """In place; parameters stay the same objects, and are shared as they were, unless one use of them has a z."""
    if isinstance(model, Posterior):
        raise ValueError(
            "The model itself is a single layer and cannot be replaced in place; put it in a module."
        )
    check_not_wrapped(
        model, (m for m in model.modules() if isinstance(m, Posterior)), "gatewise.Refit(model)"
    )
    values: list[NewParameter] = []
    layers = {old: settled(old, values) for old in model.modules() if isinstance(old, Posterior)}
    uses: dict[int, list[NewParameter]] = {}
    for value in values:
        uses.setdefault(id(value.mean), []).append(value)
    for shared in uses.values():
        apart = len(shared) > 1 and any(use.scaled for use in shared)
        for use in shared:
            new = nn.Parameter(use.value.clone(), use.mean.requires_grad) if apart else use.mean
            setattr(use.layer, use.name, new)
            new.copy_(use.value)
    for old, layer in layers.items():
        if isinstance(layer, Recurrent):
            layer.flatten_parameters()
        replace_module(model, old, layer.train(old.training))
    drop_hooks(model, of_sparsifier)


def settled(old: Posterior, values: list[NewParameter]) -> nn.Module:
    """The deterministic layer of a posterior; what its matrices will be joins `values`."""
    if isinstance(old, VariationalLinear):
        linear = nn.Linear(old.in_features, old.out_features, old.bias is not None, device="meta")
        linear.bias, linear.__class__ = old.bias, old.stands_for
        values.append(NewParameter(linear, "weight", old.weight, old.deterministic_weight(), False))
        return linear
    if isinstance(old, VariationalEmbedding):
        embedding = nn.Embedding(old.num_embeddings, old.embedding_dim, old.padding_idx, device="meta")
        embedding.scale_grad_by_freq, embedding.__class__ = old.scale_grad_by_freq, old.stands_for
        weight, scale = old.deterministic_weight(), old.deterministic_word_scale()
        whole = weight if scale is None else weight * scale[:, None]
        values.append(NewParameter(embedding, "weight", old.weight, whole, scale is not None))
        return embedding
    assert isinstance(old, RecurrentPosterior)
    new: Settled
    new = SettledRecurrent.convert(old) if isinstance(old, VariationalRecurrent) else SettledCell.convert(old)
    for layer, direction in places_of(old):
        end, w = ending(old, layer, direction), old.deterministic(layer, direction)
        scaled = w.input_scale is not None or w.gate_scale is not None
        # Without z_h: folded into the columns it would leave h = s z_h to whoever reads s.
        folded = replace(w, neuron_scale=None).fold()
        for name, value in (("weight_ih" + end, folded.w_ih), ("weight_hh" + end, folded.w_hh)):
            values.append(NewParameter(new, name, getattr(old, name), value, scaled))
        scale = None if w.neuron_scale is None else w.neuron_scale.clone()
        new.register_buffer("neuron_scale" + end, scale)
    return new


def drop_hooks(root: nn.Module, unwanted: Callable[[object], bool]) -> None:
    """Hooks of the sparsifier and of torch's pruning act on parameters that are no longer there."""
    for module in root.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if unwanted(hook)]:
                del hooks[key]


def of_sparsifier(hook: object) -> bool:
    return isinstance(getattr(hook, "__self__", None), Variational)
