"""shrink(model, optimizer): what is zero is cut out of the network that trains, between two updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from gatewise.compact.compress import SharedParts, compact_module, tied_layers
from gatewise.compact.moved import Move, carry, check_state, moves_between
from gatewise.compact.plan import make_plan
from gatewise.masks import find_masks
from gatewise.nn.lookup import cell_of, ending, is_compact, places_of, replace_module, weights_of
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import joined
from gatewise.sparsify.checks import check_own_parameters
from gatewise.sparsify.layers import is_variational
from gatewise.sparsify.ranks import check_not_wrapped
from gatewise.structure import Structure, reachable


def shrink(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    keep: Structure | None = None,
    readers: Stated | None = None,
) -> Structure:
    """Cut out of a model what cannot reach its output, in place, and go on training what is left.

    As compress(), but the model itself gets the compact layers, and the optimizer their parameters, with what it
    remembers of the rows and columns that stay. The function is the same before and after, and so are all moments of
    kept weights. A layer of which nothing goes stays as it is. Call it between two updates: gradients are not carried
    over. Make the sparsifier again afterwards: GroupLasso(model, ...) or Refit(model).

    A cut is for ever, while a zero weight may grow again. Therefore `keep`: what this structure has stays, too. With
    that of some epochs ago, sparsifier.structure(), what goes is what was removable then and is now.

    The two biases of an LSTM's gate, and of r and u of a GRU, become one. If both were trained, it moves half as fast
    as their sum did.

    Returns what is left.
    """
    graph = find_readers(model, readers)
    structure = reachable(find_masks(model), graph)
    if keep is not None:
        structure = structure | keep
    cut(model, optimizer, structure, graph)
    return structure


def cut(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    structure: Structure,
    graph: ReaderGraph | None = None,
) -> list[str]:
    """Leave what a structure has, whatever the weights are; the layers that were replaced. All or nothing."""
    graph = graph or find_readers(model)
    refuse_others(model, graph)
    plans = make_plan(structure, tied_layers(model, find_masks(model)))
    shared = SharedParts()
    made: dict[str, nn.Module] = {}
    moves: dict[int, list[Move]] = {}
    for name in layers_of(graph):
        old = model.get_submodule(name)
        new = compact_module(name, old, plans, shared).train(old.training)
        found = moves_between(name, old, new)
        if all(move.whole for move in found):
            continue
        made[name] = new
        for p in old.parameters():  # of two biases only one goes on
            moves.setdefault(id(p), [])
        for move in found:
            if all(move.new is not other.new for other in moves[id(move.old)]):
                moves[id(move.old)].append(move)
    if optimizer is not None:
        before = {id(p): name for name, p in model.named_parameters()}
        check_state(optimizer, before)
        refuse_folded(model, optimizer, made)
    for name, new in made.items():
        old = model.get_submodule(name)
        if is_compact(old):  # to the bit: z_h was taken out of its columns and put in again
            copy_exactly(moves, old)
        replace_module(model, old, new)
    if optimizer is not None:
        carry(optimizer, moves, {id(p): name for name, p in model.named_parameters()})
    return list(made)


def layers_of(graph: ReaderGraph) -> list[str]:
    """Names of all layers but those whose parameters forward() uses past them, in the original shape."""
    names = dict.fromkeys(block.module for block in graph.blocks.values())
    return [name for name in names if name not in graph.kept_whole]


@torch.no_grad()
def copy_exactly(moves: Mapping[int, Sequence[Move]], old: nn.Module) -> None:
    for p in old.parameters():
        for move in moves[id(p)]:
            move.new.copy_(move.pick(p))


def refuse_others(model: nn.Module, graph: ReaderGraph) -> None:
    """Models whose layers cannot be replaced where they stand."""
    if is_variational(model):
        raise ValueError(
            "The model is variational, and its posteriors belong to whole layers. Make a gatewise.Refit of it first, "
            "or cut a copy: gatewise.compress(model)."
        )
    names = layers_of(graph)
    if "" in names:
        raise ValueError(
            "The model itself is a single layer and cannot be replaced in place; put it in a module."
        )
    check_not_wrapped(model, map(model.get_submodule, names), "gatewise.shrink(model)")
    for name in names:
        layer = model.get_submodule(name)
        if not is_compact(layer):
            check_own_parameters(name, layer)
        if not is_compact(layer) and cell_of(layer) is not None:
            refuse_half_frozen(name, layer)
        if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
            raise ValueError(
                f"{name}: max_norm={layer.max_norm} shortens its rows whenever they are looked up, which a compact "
                "embedding does not do. Train without max_norm, or use gatewise.compress(model) at the end."
            )


def refuse_half_frozen(name: str, layer: nn.Module) -> None:
    """A GRU whose b_ih is frozen while b_hh is trained: those of r and u become one, which n's b_ih is part of."""
    cell = cell_of(layer)
    for place in places_of(layer) if cell is not None and cell.gated_recurrent else ():
        first, second = (joined(name, half + ending(layer, *place)) for half in ("bias_ih", "bias_hh"))
        own = [getattr(layer, full.rpartition(".")[2], None) for full in (first, second)]
        if own[0] is not None and own[1] is not None and own[1].requires_grad and not own[0].requires_grad:
            raise ValueError(
                f"{first} is frozen and {second} is not, but a cut adds them up for r and u. Freeze both, or neither."
            )


def refuse_folded(model: nn.Module, optimizer: torch.optim.Optimizer, made: Mapping[str, nn.Module]) -> None:
    """A cut folds z_h into columns: gradients of other scales follow, which moments of before do not fit."""
    for name in made:
        old = model.get_submodule(name)
        if cell_of(old) is None or is_compact(old) or not any(p in optimizer.state for p in old.parameters()):
            continue
        scales = (weights_of(old, *place).neuron_scale for place in places_of(old))
        if any(scale is not None and bool((scale != 1).any()) for scale in scales):
            raise ValueError(
                f"{name}: was variational, and a cut folds its z_h into its weights, to which the state of the "
                "optimizer does not belong. Shrink it right after gatewise.Refit(model), then make both again."
            )
