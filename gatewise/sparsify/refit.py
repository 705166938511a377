"""Refit: what a sparsifier kept is trained on without its penalty, while what it removed stays removed."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

from gatewise.masks import Masks, find_masks
from gatewise.nn.lookup import check_finite, computed_matrix, ending, stored
from gatewise.readers import Stated, find_readers
from gatewise.readers.graph import find_blocks, joined
from gatewise.sparsify.checks import check_choice, why_not_own
from gatewise.sparsify.fixed import Fixed
from gatewise.sparsify.held import Held
from gatewise.sparsify.layers import is_variational
from gatewise.sparsify.settled import settle
from gatewise.structure import Structure, reachable
from gatewise.wording import by_reason, counted

HOLDS = ("weights", "structure")


class Refit(Fixed):
    """penalty = 0;  step(): w = 0 where it is held at zero

    A lasso shrinks what it keeps, too. A refit undoes that: the loop of the sparsifiers once more, with neither
    penalty nor threshold. Takes models that GroupLasso or Variational made sparse, any model that contains zeros,
    and compact ones. A variational model becomes the deterministic network that it is evaluated as, in place
    (`gatewise.sparsify.settled`). Add the optimizer afterwards.

    Gradients of what is held are zero, too, so clipping and moments see what is left: a masked network is trained as
    its compact one is.

    Args:
        hold: "weights": what is zero stays zero. "structure": rows of live gates and columns that some live gate
            reads may fill again; constant gates, removed neurons, inputs, words and outputs stay as they are. So does
            everything that a compact layer has not.
        readers: who reads a layer, where tracing cannot prove it.
        state: state_dict() of an earlier Refit of the same model, to go on from a file. Load the model's own after.
    """

    changing = frozenset({"held"})

    def __init__(
        self,
        model: nn.Module,
        hold: str = "weights",
        *,
        readers: Stated | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        check_choice("hold", hold, HOLDS)
        check_finite(model)
        modules = dict.fromkeys(block.module for block in find_blocks(model).values())
        reasons = {name: why_not_own(model.get_submodule(name)) for name in modules}
        left_out = {name: why for name, why in reasons.items() if why is not None}
        if len(left_out) == len(modules):
            raise ValueError(" ".join(f"{names}: {why}." for names, why in by_reason(left_out)))
        if left_out:
            said = (f"{names}: its zeros are not held, because {why}." for names, why in by_reason(left_out))
            warnings.warn(" ".join(said), stacklevel=2)
        structure = None
        if state is None:
            masks = find_masks(model)
            structure = reachable(masks, find_readers(model, readers))
            refuse_nothing(model, hold, masks, structure)
        if is_variational(model):
            settle(model)
        self.model, self.hold, self.readers = model, hold, readers
        if structure is None:
            self.load_state_dict(state or {})
        else:
            self.held = held_at_zero(model, hold, structure)
        for name in matrices_of(model):
            parameter = model.get_parameter(name)
            if parameter.requires_grad:
                parameter.register_hook(self._without_held(name))
        self._made = True

    def __repr__(self) -> str:
        held, all_of = (sum(int(f(mask)) for mask in self.held.values()) for f in (torch.sum, torch.numel))
        return f"<Refit of {type(self.model).__name__}: hold={self.hold!r}, {held:,} of {all_of:,} weights stay zero>"

    def _without_held(self, name: str) -> Callable[[Tensor], Tensor]:
        """A hook that sets the gradient of what is held to zero, as long as somebody has this Refit."""
        me = weakref.ref(self)

        def without_held(grad: Tensor) -> Tensor:
            refit = me()
            if refit is None or name not in refit.held:
                return grad
            return grad.masked_fill(refit.held.on(name, grad.device), 0)

        unserializable_hook(without_held)  # without it torch.save would warn
        return without_held

    def penalty(self) -> Tensor:
        """Zero, so that the loop of the sparsifiers need not be changed."""
        zero = next(self.model.parameters()).new_zeros(())
        return zero.requires_grad_(torch.is_grad_enabled())

    def step(self) -> None:
        """w = 0 where it is held. Call it after the optimizer's step."""
        self.held.apply(self.model.get_parameter)

    def structure(self) -> Structure:
        """What is left: the paper's one-pass count, as keep-masks."""
        return Structure.from_weights(self.model, self.readers)

    def state_dict(self) -> dict[str, Tensor]:
        """What is held, by parameter; everything else is in the model's."""
        return {name: held.clone() for name, held in self.held.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        shapes = {name: self.model.get_parameter(name).shape for name in matrices_of(self.model)}
        for name, held in state.items():
            if shapes.get(name) != held.shape:
                there = (
                    f"has the shape {tuple(shapes[name])}" if name in shapes else "is no matrix of the model"
                )
                raise ValueError(
                    f"{name}: {there}, what is held of it {tuple(held.shape)}. Build the model as it was when the "
                    "Refit was saved."
                )
        self.held = Held({name: held.clone() for name, held in state.items()})


def matrices_of(model: nn.Module) -> list[str]:
    """Parameters that hold a layer's matrices, dense or compact, each once; none of which they are computed."""
    first: dict[int, str] = {}
    for module in dict.fromkeys(block.module for block in find_blocks(model).values()):
        if computed_matrix(model.get_submodule(module)) is not None:
            continue
        for name, parameter in model.get_submodule(module).named_parameters():
            if name.rpartition(".")[2].startswith("weight"):
                first.setdefault(id(parameter), joined(module, name))
    return list(first.values())


def refuse_nothing(model: nn.Module, hold: str, masks: Masks, structure: Structure) -> None:
    """A network without zeros, or one whose zeros would all fill again; in a compact one they are gone already."""
    if any(getattr(module, "is_compact", False) for module in model.modules()):
        return
    kept = [
        *(without_padding(model, name, mask) for name, mask in masks.matrix.items()),
        *masks.words.values(),
    ]
    kept += [mask for own in masks.recurrent.values() for mask in (own.gate, own.neuron)]
    if all(mask.all() for mask in kept):
        raise ValueError(
            "The model is dense, so there is nothing to hold: train it on as it is. To get a sparse one use "
            "gatewise.GroupLasso or gatewise.Variational first, and refit what they leave."
        )
    if hold == "structure" and all(
        mask.all() for own in structure.layers.values() for mask in vars(own).values()
    ):
        n = sum(int((~mask).sum()) for mask in kept)
        raise ValueError(
            'hold="structure" would hold nothing: no gate, neuron or input was removed, and '
            f'{counted(n, "zero")} would fill again. Use hold="weights".'
        )


def without_padding(model: nn.Module, name: str, mask: Tensor) -> Tensor:
    """The row of padding is zero from the start."""
    module = model.get_submodule(name.rpartition(".")[0])
    padding = module.padding_idx if isinstance(module, nn.Embedding) else None
    return mask if padding is None else mask[torch.arange(len(mask)) != padding]


def held_at_zero(model: nn.Module, hold: str, structure: Structure) -> Held:
    """What a refit holds, by parameter; only parameters of which anything is held."""
    parameters = {name: model.get_parameter(name) for name in matrices_of(model)}
    held = {name: parameter.detach() == 0 for name, parameter in parameters.items()}
    if hold == "structure":
        fills = may_fill(model, structure)
        held = {name: zero & ~fills[id(parameters[name])].to(zero.device) for name, zero in held.items()}
    return Held({name: zero for name, zero in held.items() if zero.any()})


def may_fill(model: nn.Module, structure: Structure) -> dict[int, Tensor]:
    """By the id of a parameter: its weights between what is kept; of a compact layer too, which may be cut once more.

    New weights there reach nothing that was not reached. A shared matrix may fill where all its layers let it.
    """
    fills: dict[int, Tensor] = {}
    for block in find_blocks(model).values():
        module, layer = model.get_submodule(block.module), structure.layers[block.name]
        end = "" if block.place is None else ending(module, *block.place)
        for name, (rows, columns) in layer.matrices().items():
            own = stored(module, name + end)
            rows = rows if own.rows is None else rows[own.rows.to(rows.device)]
            columns = columns if own.columns is None else columns[own.columns.to(columns.device)]
            fill = rows[:, None] & columns
            parameter = attrgetter(own.name)(module)
            fills[id(parameter)] = fill & fills.get(id(parameter), torch.ones_like(fill))
    return fills
