"""compress(model): makes zero weights absent."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from gatewise.compact.plain import CompactEmbedding, CompactLinear
from gatewise.compact.plan import EmbeddingPlan, LayerPlan, LinearPlan, RecurrentPlan, make_plan
from gatewise.compact.recurrent import OPTIONS, CompactCell, CompactLayer, CompactRecurrent
from gatewise.masks import Masks, find_masks
from gatewise.nn.lookup import (
    bias_of,
    cell_of,
    gate_activation_of,
    is_single_step,
    matrix_of,
    places_of,
    weights_of,
)
from gatewise.readers import ReaderGraph, find_readers
from gatewise.readers.graph import block_name
from gatewise.sparsify.variational import Variational, replace_module
from gatewise.structure import Structure, reachable, read_at_all


def compress(model: nn.Module, readers: Mapping[str, Sequence[str]] | None = None) -> nn.Module:
    """The same class and forward(), with compact layers inside: only what can reach the output is left.

    Accepts models of either sparsifier and any model that simply contains zeros. The argument is not changed.
    `readers` states who reads a layer where tracing cannot prove it; without proof only neurons that are always zero
    are removed from such a layer, and one warning says what that cost.
    """
    graph = find_readers(model, readers)
    masks = find_masks(model)
    structure = reachable(masks, graph)
    warn_exposed(graph, masks, structure)
    tied = tied_layers(model, masks)
    plans = make_plan(structure, graph.blocks, tied)
    small = copy.deepcopy(model)
    drop_hooks(small)
    shared: dict[int, nn.Parameter] = {}
    raw_owners = {name.rpartition(".")[0] for name in graph.raw}
    for name in dict.fromkeys(block.module for block in graph.blocks.values()):
        if name in raw_owners:
            continue  # forward() uses its parameter past the layer, in the original shape
        old = small.get_submodule(name)
        new = compact_module(name, old, plans, shared).train(old.training)
        if not name:
            return new
        replace_module(small, old, new)
        drop_hooks(new)
    return small


@torch.no_grad()
def compact_module(
    name: str, old: nn.Module, plans: Mapping[str, LayerPlan], shared: dict[int, nn.Parameter]
) -> nn.Module:
    if isinstance(old, nn.Linear):
        plan = plans[name]
        assert isinstance(plan, LinearPlan)
        weight = shared_part(old.weight, matrix_of(old), plan.outputs, plan.inputs, shared)
        bias = bias_of(old)
        kept = None if bias is None else bias[plan.outputs.to(bias.device)].clone()
        return CompactLinear(old.in_features, old.out_features, plan, weight, kept)
    if isinstance(old, nn.Embedding):
        plan = plans[name]
        assert isinstance(plan, EmbeddingPlan)
        weight = shared_part(old.weight, matrix_of(old), plan.words, plan.components, shared)
        scale = getattr(old, "deterministic_word_scale", lambda: None)()
        if scale is not None:
            # z of the words is folded into rows, which another layer that shares the matrix must not see.
            weight = nn.Parameter(weight * scale[plan.words.to(scale.device)][:, None])
        return CompactEmbedding(old.num_embeddings, old.embedding_dim, plan, weight, old.padding_idx)
    return compact_recurrent(name, old, plans)


def compact_recurrent(
    name: str, old: nn.Module, plans: Mapping[str, LayerPlan]
) -> CompactRecurrent | CompactCell:
    cell = cell_of(old)
    assert cell is not None
    layers: list[CompactLayer] = []
    below: list[Tensor | None] = []  # z_h of the layer below, direction by direction
    here: list[Tensor | None] = []
    for layer, direction in places_of(old):
        if direction == 0:
            below, here = here, []
        w = weights_of(old, layer, direction)
        plan = plans[block_name(old, name, layer, direction)]
        assert isinstance(plan, RecurrentPlan)
        hidden, width = w.w_hh.shape[1], w.w_ih.shape[1]
        compact = CompactLayer(cell, plan, hidden, width, w.w_hh, w.b_ih is not None)
        scales = [w.w_hh.new_ones(hidden) if z is None else z for z in below]
        layers.append(compact.fill(plan, w, torch.cat(scales) if scales else None))
        here.append(w.neuron_scale)
    if is_single_step(old):
        return CompactCell(cell, layers[0])
    options = {option: getattr(old, option, None) for option in OPTIONS}
    return CompactRecurrent(cell, layers, options | {"gate_activation": gate_activation_of(old)})


def shared_part(
    parameter: Tensor, matrix: Tensor, rows: Tensor, columns: Tensor, shared: dict[int, nn.Parameter]
) -> nn.Parameter:
    """The kept part of a matrix, made once for all layers that share it."""
    part = matrix[rows.to(matrix.device)][:, columns.to(matrix.device)]
    return shared.setdefault(id(parameter), nn.Parameter(part.clone()))


def tied_layers(model: nn.Module, masks: Masks) -> dict[str, tuple[str, ...]]:
    """Linear and Embedding layers that share one matrix, each with the others."""
    groups: dict[str, list[str]] = {}
    for matrix, first in masks.shared.items():
        module = matrix.rpartition(".")[0]
        if isinstance(model.get_submodule(module), nn.Linear | nn.Embedding):
            groups.setdefault(first, []).append(module)
    return {
        name: tuple(o for o in group if o != name)
        for group in groups.values()
        if len(group) > 1
        for name in group
    }


def warn_exposed(graph: ReaderGraph, masks: Masks, structure: Structure) -> None:
    """One warning for all layers that keep neurons only because nobody knows who reads them."""
    known = ReaderGraph(graph.blocks, graph.reads)
    costs = []
    for name, why in graph.exposed.items():
        if name in masks.recurrent:
            unread = ~read_at_all(name, masks.matrix, known).cpu() & structure.recurrent()[name].keep_neurons
            if unread.any():
                costs.append(f"{name} keeps {int(unread.sum())} neurons that no known weight reads ({why})")
    if costs:
        said = "; ".join(costs)
        warnings.warn(
            f'{said}. State their readers if you know them: readers={{"rnn": ["fc"]}}.', stacklevel=3
        )


def drop_hooks(module: nn.Module) -> None:
    """Hooks of the sparsifier and of torch's pruning act on parameters that are no longer there."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(hook, BasePruningMethod) or isinstance(
                getattr(hook, "__self__", None), Variational
            ):
                del hooks[key]
