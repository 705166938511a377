"""compress(model): makes zero weights absent."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from gatewise.budget.asked import warn_unmet
from gatewise.compact.compared import check_same_answer, copied
from gatewise.compact.moved import layer_at
from gatewise.compact.plain import CompactEmbedding, CompactLinear
from gatewise.compact.plan import LayerPlan, MatrixPlan, RecurrentPlan, make_plan
from gatewise.compact.recurrent import OPTIONS, CompactCell, CompactLayer, CompactRecurrent
from gatewise.masks import Masks, find_masks
from gatewise.nn.assumptions import check_biases_add_up
from gatewise.nn.forms import stand_in
from gatewise.nn.lookup import (
    bias_of,
    cell_of,
    ending,
    gate_activation_of,
    is_single_step,
    matrix_of,
    places_of,
    replace_module,
    weights_of,
    why_not_recurrent,
    word_scale_of,
)
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import block_name, find_blocks
from gatewise.sparsify.settled import drop_hooks, of_sparsifier
from gatewise.structure import Structure, reachable, read_at_all
from gatewise.wording import counted


def compress(model: nn.Module, readers: Stated | None = None, *, example: Any = None) -> nn.Module:
    """The same class and forward(), with compact layers inside: only what can reach the output is left.

    Accepts models of either sparsifier and any model that simply contains zeros. The argument is not changed.
    `readers` states who reads a layer where tracing cannot prove it; without proof only neurons that are always zero
    are removed from such a layer, and one warning says what that cost. A model that has more than a gatewise.Budget
    gave it is cut with a warning.

    What comes out is called, on `example`, the arguments of one call, or on made-up input, and must answer as the
    model does: else that is an error. If no input can be made up, the warning says so.
    """
    graph = find_readers(model, readers)
    masks = find_masks(model)
    structure = reachable(masks, graph)
    warn_unmet(model)
    plans = make_plan(structure, tied_layers(model, masks))
    small = copied(model)
    drop_hooks(small, of_sparsifier)
    shared = SharedParts()
    kept_whole = graph.kept_whole
    for name in dict.fromkeys(block.module for block in graph.blocks.values()):
        if name in kept_whole:
            continue
        old = small.get_submodule(name)
        new = compact_module(name, old, plans, shared).train(old.training)
        if not name:
            small = stand_in(new, old)
            break
        replace_module(small, old, new)
        drop_hooks(new, of_pruning)
    untried = check_same_answer(model, small, graph, example)
    warn_left(model, graph, masks, structure, untried)
    return small


def compacted(model: nn.Module) -> nn.Module:
    """The model itself if all its layers are compact, else compress(model): one new layer is reason enough."""
    layers = {block.module for block in find_blocks(model).values()}
    compact = [getattr(model.get_submodule(name), "is_compact", False) for name in layers]
    if compact and all(compact):
        return model
    with warnings.catch_warnings():
        if any(compact):
            warnings.simplefilter("ignore")  # what stays as it is was named when the model was cut
        return compress(model)


class SharedParts:
    """The kept part of every matrix, made once for all layers that share it."""

    def __init__(self) -> None:
        self.parts: dict[int, nn.Parameter] = {}
        self.held: list[Tensor] = []  # a computed weight must live on, or its id would be given again

    def take(self, parameter: Tensor, matrix: Tensor, plan: MatrixPlan, trains: bool) -> nn.Parameter:
        self.held.append(parameter)
        if id(parameter) not in self.parts:
            part = matrix[plan.rows.to(matrix.device)][:, plan.columns.to(matrix.device)]
            self.parts[id(parameter)] = nn.Parameter(part.clone(), trains)
        return self.parts[id(parameter)]


@torch.no_grad()
def compact_module(
    name: str, old: nn.Module, plans: Mapping[str, LayerPlan], shared: SharedParts
) -> nn.Module:
    plan = plans.get(name)
    if isinstance(old, nn.Linear):
        assert isinstance(plan, MatrixPlan)
        weight = shared.take(old.weight, matrix_of(old), plan, trains(old))
        return CompactLinear(old.in_features, old.out_features, plan, weight, kept_bias(old, plan))
    if isinstance(old, nn.Embedding):
        assert isinstance(plan, MatrixPlan)
        matrix, scale = matrix_of(old), word_scale_of(old)
        if old.max_norm is not None:
            # nn.Embedding shortens a row when it is looked up; here all of them once, while they are whole.
            matrix = torch.renorm(matrix, old.norm_type, 0, old.max_norm)
        if scale is not None:
            matrix = matrix * scale[:, None]
        key = old.weight if keeps_tie(old) else matrix
        weight = shared.take(key, matrix, plan, trains(old))
        gradient = {"scale_grad_by_freq": old.scale_grad_by_freq, "sparse": old.sparse}
        sizes = old.num_embeddings, old.embedding_dim
        return CompactEmbedding(*sizes, plan, weight, old.padding_idx, **gradient)
    return compact_recurrent(name, old, plans)


def kept_bias(old: nn.Linear, plan: MatrixPlan) -> nn.Parameter | None:
    bias = bias_of(old)
    if bias is None:
        return None
    return nn.Parameter(bias[plan.rows.to(bias.device)].clone(), trains(old, "bias"))


def trains(layer: nn.Module, name: str = "weight") -> bool:
    """A frozen parameter stays frozen. A computed weight is trained if anything in its layer is."""
    own = layer._parameters.get(name)
    return any(p.requires_grad for p in layer.parameters()) if own is None else own.requires_grad


def keep_frozen(old: nn.Module, place: tuple[int, int], new: CompactLayer) -> None:
    """What was frozen stays frozen. The sum of two biases moves if either does, but a GRU's n has b_ih alone."""
    if isinstance(old, CompactRecurrent | CompactCell):
        before = layer_at(old, place)
        for name, p in new.named_parameters():
            p.requires_grad_(before.get_parameter(name).requires_grad)
        return
    end = ending(old, *place)
    new.weight_ih.requires_grad_(trains(old, "weight_ih" + end))
    new.weight_hh.requires_grad_(trains(old, "weight_hh" + end))
    first, second = (trains(old, half + end) for half in ("bias_ih", "bias_hh"))
    if new.bias is not None:
        new.bias.requires_grad_(first or (second and new.bias_gated is None))
    if new.bias_gated is not None:
        new.bias_gated.requires_grad_(second)


def keeps_tie(layer: nn.Module) -> bool:
    """What is folded into an embedding's rows must not be seen by a layer that shares its matrix."""
    return not isinstance(layer, nn.Embedding) or (layer.max_norm is None and word_scale_of(layer) is None)


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
        if w.b_ih is not None and not getattr(old, "is_compact", False):  # then it was asked when it was cut
            check_biases_add_up(cell)
        plan = plans[block_name(old, name, layer, direction)]
        assert isinstance(plan, RecurrentPlan)
        hidden, width = w.w_hh.shape[1], w.w_ih.shape[1]
        compact = CompactLayer(cell, plan, hidden, width, w.w_hh, w.b_ih is not None)
        scales = [w.w_hh.new_ones(hidden) if z is None else z for z in below]
        compact.fill(w, torch.cat(scales) if scales else None)
        keep_frozen(old, (layer, direction), compact)
        layers.append(compact)
        here.append(w.neuron_scale)
    if is_single_step(old):
        return CompactCell(cell, layers[0])
    options = {option: getattr(old, option, None) for option in OPTIONS}
    return CompactRecurrent(cell, layers, options | {"gate_activation": gate_activation_of(old)})


def tied_layers(model: nn.Module, masks: Masks) -> dict[str, tuple[str, ...]]:
    """Linear and Embedding layers that share one matrix and go on sharing it, each with the others."""
    groups: dict[str, list[str]] = {}
    for matrix, first in masks.shared.items():
        name = matrix.rpartition(".")[0]
        module = model.get_submodule(name)
        if isinstance(module, nn.Linear | nn.Embedding) and keeps_tie(module):
            groups.setdefault(first, []).append(name)
    return {
        name: tuple(o for o in group if o != name)
        for group in groups.values()
        if len(group) > 1
        for name in group
    }


def warn_left(model: nn.Module, graph: ReaderGraph, masks: Masks, structure: Structure, untried: str) -> None:
    """One warning for all that stays only because it is not understood: neurons without known readers, layers.

    Also that the cut could not be tried, and why.
    """
    known = ReaderGraph(graph.blocks, graph.reads)
    unread: dict[str, dict[str, str]] = {}  # reason -> layer -> how many neurons it keeps
    for name, why in graph.exposed.items():
        if name in masks.recurrent:
            own = masks.recurrent[name]
            matrices = dict(masks.matrix)
            if name not in graph.answers:
                matrices[own.recurrent_matrix] = read_by_others(matrices[own.recurrent_matrix])
            silent = ~read_at_all(name, matrices, known).cpu() | ~own.neuron
            kept = silent & structure.recurrent()[name].keep_neurons
            if kept.any():
                unread.setdefault(why, {})[name] = counted(int(kept.sum()), "neuron")
    left = [
        f"{', '.join(f'{name} keeps {kept}' for name, kept in own.items())} that no known weight reads ({why})"
        for why, own in unread.items()
    ]
    unknown = [name for own in unread.values() for name in own]
    for name, module in model.named_modules():
        why_not = why_not_recurrent(module)
        if why_not is not None and cell_of(module) is None:
            left.append(f"{name or 'the model'} stays as it is ({why_not})")
    modules = {block.module for block in graph.blocks.values()}
    for owner, raw in graph.kept_whole.items():
        if owner in modules:
            uses = f"uses {raw} past the layer" if raw in graph.raw else f"asks how large {raw} is"
            left.append(f"{owner} stays as it is (forward() {uses})")
    if untried and not is_whole(structure):
        left.append(f"the cut could not be tried: {untried}")
    if left:
        warnings.warn(f"{'; '.join(left)}.{graph.way_out(unknown)}", stacklevel=3)


def is_whole(structure: Structure) -> bool:
    """Whether nothing goes."""
    return all(mask.all() for layer in structure.layers.values() for mask in vars(layer).values())


def read_by_others(recurrent: Tensor) -> Tensor:  # (G*H, H) bool
    """Without the weights through which a neuron reads itself: they alone keep nobody."""
    hidden = recurrent.shape[1]
    own = torch.eye(hidden, dtype=torch.bool, device=recurrent.device)
    return recurrent & ~own.repeat(recurrent.shape[0] // hidden, 1)


def of_pruning(hook: object) -> bool:
    return isinstance(hook, BasePruningMethod)
