"""What a layer is and what it computes with, whoever made it: torch.nn, gatewise.nn or a sparsifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gatewise.layout import Cell, suffix
from gatewise.nn.cells import GRU as GRU_CELL
from gatewise.nn.cells import LSTM as LSTM_CELL
from gatewise.nn.forms import stand_in
from gatewise.nn.recurrence import Weights

TORCH_CELLS: dict[type[nn.Module], Cell] = {
    nn.LSTM: LSTM_CELL,
    nn.GRU: GRU_CELL,
    nn.LSTMCell: LSTM_CELL,
    nn.GRUCell: GRU_CELL,
}
SINGLE_STEP: dict[str, type[nn.LSTMCell | nn.GRUCell]] = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell}


def cell_of(module: nn.Module) -> Cell | None:
    """The cell of a recurrent layer we understand; None for every other module."""
    if getattr(module, "proj_size", 0):
        return None
    own = getattr(module, "cell", None)
    if isinstance(own, Cell) and hasattr(module, "hidden_size"):
        return own if forward_is_known(module) else None
    cells = (cell for kind, cell in TORCH_CELLS.items() if isinstance(module, kind))
    return next(cells, None) if forward_is_known(module) else None


# What a call of a layer goes through: whoever writes one of these anew may have changed the answer.
CALLED = frozenset(
    "forward __call__ _wrapped_call_impl _call_impl _slow_forward __getattr__ __getattribute__ "
    "check_forward_args check_input check_hidden_size get_expected_hidden_size permute_hidden".split()
)


def forward_is_known(module: nn.Module) -> bool:
    """Whether a layer computes what its base class says, with the parameters it has.

    A forward() or __call__() of its own, in a subclass or in the instance, may do anything, and so may what makes its
    weights.
    """
    if isinstance(module, torch.jit.ScriptModule) or own_call(module):
        return False
    forward = type(module).forward
    if forward.__module__.startswith("gatewise."):
        return True
    known: tuple[type[nn.Module], ...] = (*TORCH_CELLS, nn.Linear, nn.Embedding)
    return any(forward is kind.forward for kind in known) and makes_weights(module) is None


def own_call(module: nn.Module) -> str | None:
    """What a layer has of its own, in its class or instance, among that which its call goes through."""
    kinds = type(module).__mro__
    own = vars(module).keys() & CALLED
    for kind in kinds:
        if not kind.__module__.startswith(("gatewise.", "torch.", "builtins")):
            written = vars(kind).keys() & CALLED
            own |= {name for name in written if next(k for k in kinds if name in vars(k)) is kind}
    return min(own, default=None)


def makes_weights(module: nn.Module) -> str | None:
    """What makes the weights of a layer anew in every call, so that nobody else may know them; None if nothing does.

    weight_norm and spectral_norm in the form that works by a hook, or a module around the layer that took a parameter
    away and puts a tensor in its place (weight drop). torch.nn.utils.prune and parametrisations are understood.
    """
    if any(isinstance(hook, WeightNorm | SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return "a hook makes its weights"
    names = getattr(module, "_flat_weights_names", ("weight_ih", "weight_hh"))
    for name in names if isinstance(module, nn.RNNBase | nn.RNNCellBase) else ("weight",):
        if {name, name + "_orig"}.isdisjoint(module._parameters) and not is_parametrized(module, name):
            return f"its {name} is no parameter but something outside puts it there"
    return None


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and forward_is_known(module)


def is_embedding(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and forward_is_known(module)


def is_single_step(module: nn.Module) -> bool:
    """nn.LSTMCell, nn.GRUCell and their compact forms: one step a call, the caller keeps the state."""
    return cell_of(module) is not None and not hasattr(module, "num_layers")


def why_not_recurrent(module: nn.Module) -> str | None:
    """Why a recurrent-looking module is beyond us; None if it is not recurrent, or is understood."""
    if getattr(module, "proj_size", 0):
        return (
            f"proj_size={module.proj_size} mixes the neurons that would be removed one by one; use proj_size=0 and a "
            "Linear after it"
        )
    ours = isinstance(getattr(module, "cell", None), Cell) and hasattr(module, "hidden_size")
    if (ours or isinstance(module, tuple(TORCH_CELLS))) and not forward_is_known(module):
        own = f"{type(module).__name__} has a {own_call(module) or 'forward'}() of its own"
        return makes_weights(module) or own
    if is_quantized(module) and hasattr(module, "hidden_size"):
        return (
            "it is quantized, which comes after sparsifying and compressing, "
            'or with gatewise.export.to_c(..., weights="int8")'
        )
    if isinstance(module, nn.RNNBase | nn.RNNCellBase) and cell_of(module) is None:
        return f"{type(module).__name__} has no gates"
    return None


def is_quantized(module: nn.Module) -> bool:
    """A layer that torch.ao.quantization made, not the packed weights inside it, which are modules as well."""
    return type(module).__module__.startswith("torch.ao.nn.") and "Quantized" in module._get_name()


def places_of(module: nn.Module) -> Iterator[tuple[int, int]]:
    """(layer, direction) of every recurrence in a recurrent layer, in the order of its states."""
    layers, directions = getattr(module, "num_layers", 1), 2 if getattr(module, "bidirectional", False) else 1
    return ((layer, d) for layer in range(layers) for d in range(directions))


def ending(module: nn.Module, layer: int, direction: int) -> str:
    """How the parameter names of one recurrence end; those of a single-step cell have no ending."""
    return "" if is_single_step(module) else suffix(layer, direction)


def matrix_names(module: nn.Module) -> list[str]:
    """The parameters that hold a layer's matrices: of a Linear or an Embedding, or of every recurrence."""
    if cell_of(module) is None:
        return ["weight"]
    return [w + ending(module, *place) for place in places_of(module) for w in ("weight_ih", "weight_hh")]


def computed_matrix(module: nn.Module) -> str | None:
    """The first matrix that torch computes from another parameter (pruned, parametrised); None if there is none."""
    if is_compact(module):
        return None
    own = dict(module.named_parameters(remove_duplicate=False))  # layers of a stack may share one
    return next((name for name in matrix_names(module) if stored(module, name).name not in own), None)


class Stored(NamedTuple):
    """Where a layer has one of its matrices: the parameter's name inside it, and what it has of the original."""

    name: str
    rows: Tensor | None = None  # (rows,) their original numbers; None: all
    columns: Tensor | None = None


def stored(module: nn.Module, matrix: str) -> Stored:
    """A matrix by the name that it had before a cut; only of a compact layer it is another parameter's."""
    found = module.stored(matrix) if is_compact(module) else Stored(matrix)  # type: ignore[operator]
    assert isinstance(found, Stored)
    return found


def is_compact(module: nn.Module) -> bool:
    return getattr(module, "is_compact", False)


def weights_of(module: nn.Module, layer: int, direction: int) -> Weights:
    """What the layer computes with in evaluation: noise-free, with everything below a threshold at zero."""
    deterministic = getattr(module, "deterministic", None)
    if deterministic is not None:
        weights = deterministic(layer, direction)
        assert isinstance(weights, Weights)
        return weights
    end = ending(module, layer, direction)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w_ih, w_hh, b_ih, b_hh = (current(module, name + end) for name in names)
    assert w_ih is not None
    assert w_hh is not None
    return Weights(w_ih, w_hh, b_ih, b_hh)


def current(module: nn.Module, name: str) -> Tensor | None:
    """A parameter as it is now; torch.nn.utils.prune renews the masked one only when the layer runs."""
    original, mask = getattr(module, name + "_orig", None), getattr(module, name + "_mask", None)
    tensor = getattr(module, name, None) if original is None or mask is None else original * mask
    assert tensor is None or isinstance(tensor, Tensor)
    return tensor


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """In evaluation mode, and then every module in its own again: some may be kept there while others train."""
    before = [(m, m.training) for model in models for m in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for m, training in before:
            m.training = training


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Parametrisations as in evaluation: in training, to look at a weight with spectral_norm is to iterate."""
    with evaluating(*(m for m in model.modules() if isinstance(m, ParametrizationList))):
        yield


def matrix_of(module: nn.Module) -> Tensor:
    """The weight of a Linear or Embedding in evaluation, noise-free and thresholded."""
    deterministic = getattr(module, "deterministic_weight", None)
    weight = current(module, "weight") if deterministic is None else deterministic()
    assert isinstance(weight, Tensor)
    return weight


def bias_of(module: nn.Module) -> Tensor | None:
    """The bias of a Linear layer in its original width."""
    deterministic = getattr(module, "deterministic_bias", None)
    bias = current(module, "bias") if deterministic is None else deterministic()
    assert bias is None or isinstance(bias, Tensor)
    return bias


def word_scale_of(module: nn.Module) -> Tensor | None:
    """z of every word of an Embedding in evaluation; None where its vocabulary has no variables."""
    scale = getattr(module, "deterministic_word_scale", lambda: None)()
    assert scale is None or isinstance(scale, Tensor)
    return scale


def gate_activation_of(module: nn.Module) -> str:
    return getattr(module, "gate_activation", "sigmoid")


def check_finite(model: nn.Module) -> None:
    """NaN and infinite weights are refused by name: they would poison every sum. So are weights without values."""
    if (name := next((name for name, p in model.named_parameters() if p.is_meta), None)) is not None:
        raise ValueError(
            f"{name}: is on the meta device, where it has a shape and no values. Fill the model first, with "
            "load_state_dict(..., assign=True) or gatewise.load(path, into=model)."
        )
    if (name := broken_parameter(model)) is not None:
        values = broken_values(model.get_parameter(name))
        raise ValueError(f"{name}: {values}. Load the last good checkpoint, or lower the learning rate.")
    with at_rest(model), torch.no_grad():
        for path, module in model.named_modules():
            for name in getattr(module, "parametrizations", ()) if is_parametrized(module) else ():
                if values := broken_values(getattr(module, name)):
                    raise ValueError(
                        f"{path}.{name}: {values}, made by its parametrisation of parameters that are finite: "
                        "weight_norm of a row of zeros divides by zero. Make it permanent and set them to zero: "
                        "torch.nn.utils.parametrize.remove_parametrizations, nan_to_num_."
                    )


def broken_values(tensor: Tensor) -> str:
    """`3 of 8 values are NaN or infinite`; empty if none is."""
    broken = int((~torch.isfinite(tensor)).sum())
    return f"{broken} of {tensor.numel()} values are NaN or infinite" if broken else ""


def broken_parameter(model: nn.Module) -> str | None:
    """The first parameter with values that are NaN or infinite."""
    named = model.named_parameters()
    return next((name for name, parameter in named if not torch.isfinite(parameter).all()), None)


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is a child, as one of its class, with its hooks."""
    stand_in(new, old)
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    flags = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
    # Without the last, torch would take none of the backward hooks for its own.
    for hooks in (*kinds, *flags, "_is_full_backward_hook"):
        setattr(new, hooks, getattr(old, hooks))
    for parent in list(model.modules()):
        # Not named_children(): it would give a child of two names once.
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
