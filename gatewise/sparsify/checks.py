"""What both sparsifiers ask of their arguments; every refusal names the thing and the way out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from torch import nn

from gatewise.groups import LEVELS
from gatewise.nn.lookup import cell_of, forward_is_known, is_compact, matrix_names, stored, why_not_recurrent


def check_levels(levels: str) -> None:
    if levels not in LEVELS:
        raise ValueError(f"levels={levels!r} is not one of {', '.join(LEVELS)} (weights, gates, neurons).")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(choices)}.")


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not isinstance(value, Real):
            raise ValueError(f"{name}={value!r} must be a number, not of type {type(value).__name__}.")
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} must be a finite number.")
        if value < 0:
            raise ValueError(f"{name}={value} must not be negative.")


def chosen_modules(
    model: nn.Module,
    kinds: tuple[type[nn.Module], ...],
    layers: Sequence[str] | None,
    argument: str = "layers",
) -> dict[str, nn.Module]:
    """Recurrent layers and modules of the given kinds, by name, each once; `layers` restricts them.

    A recurrent layer that cannot be handled raises instead of being passed over.
    """
    if isinstance(layers, str):
        raise ValueError(f"{argument}={layers!r} must be a list of names, not a string.")
    if layers is not None and not layers:
        raise ValueError(f"{argument}={layers!r} names no layer; name one, or leave {argument} out.")
    found: dict[str, nn.Module] = {}
    refused: dict[str, str] = {}
    for name, module in model.named_modules():
        wanted = layers is None or name in layers
        reason = why_not_recurrent(module)
        plain = isinstance(module, kinds) and forward_is_known(module)
        if reason is not None and wanted:
            refused[name] = reason
        if reason is None and (cell_of(module) is not None or plain):
            if wanted:
                check_own_parameters(name, module, argument)
            found[name] = module
    for name, reason in refused.items():
        ways_out = []
        if getattr(model.get_submodule(name), "proj_size", 0):
            ways_out.append("use proj_size=0 and a Linear after it")
        if found:
            others = "name the layers to work on" if layers is None else "leave it out"
            ways_out.append(f"{others} with {argument}=[...]")
        raise ValueError(
            f"{name or 'the model'}: {reason}, so it cannot be sparsified; "
            f"{', or '.join(ways_out) or 'the model has no other layer that can'}."
        )
    if not found:
        raise ValueError("The model has no LSTM or GRU layer to sparsify.")
    check_names(model, found, layers or (), argument)
    chosen = found if layers is None else {name: found[name] for name in found if name in layers}
    check_called(model, chosen, argument)
    return chosen


def check_names(
    model: nn.Module, found: Mapping[str, nn.Module], layers: Sequence[str], argument: str
) -> None:
    modules = dict(model.named_modules())
    for name in layers:
        if name not in found:
            what = "is not a layer of the model"
            if name in modules:
                what = f"is of type {type(modules[name]).__name__}, which is not taken here"
            there = ", ".join(other or "''" for other in found)
            raise ValueError(f"{argument}: {name!r} {what}; there are {there}.")


def check_own_parameters(name: str, module: nn.Module, argument: str = "") -> None:
    """A weight that torch computes from another one (pruned, parametrised) cannot be changed where it stands."""
    own = dict(module.named_parameters(remove_duplicate=False))  # layers of a stack may share one
    made = [matrix for matrix in matrix_names(module) if stored(module, matrix).name not in own]
    if made:
        without = f", or leave the layer out with {argument}=[...]" if argument else ""
        raise ValueError(
            f"{name or 'the model'}: {made[0]} is computed from another parameter (torch.nn.utils.prune or a "
            f"parametrisation). Make it permanent first (prune.remove, remove_parametrizations){without}."
        )


def check_whole(chosen: Mapping[str, nn.Module]) -> None:
    """A posterior for every weight of a dense layer: what was cut has none to begin with."""
    for name, module in chosen.items():
        if is_compact(module):
            raise ValueError(
                f"{name or 'the model'}: it is compact already, and gatewise.Variational converts whole layers. To "
                "sparsify it further use gatewise.GroupLasso, to train it on gatewise.Refit."
            )


def check_called(model: nn.Module, chosen: Mapping[str, nn.Module], argument: str) -> None:
    """Attention of torch.nn uses the weights of its inner layers without calling them: noise would not reach them."""
    for outer, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            inner = [name for name in chosen if name.startswith(f"{outer}." if outer else "")]
            if inner:
                raise ValueError(
                    f"{inner[0]}: it belongs to MultiheadAttention {outer!r}, which uses its weights without calling "
                    f"it. Leave it out with {argument}=[...]."
                )


def check_numbers(n_train: int, snr_threshold: float, log_sigma: float, batch_dim: int | None) -> None:
    check_not_negative(snr_threshold=snr_threshold, n_train=n_train)
    if n_train == 0:
        raise ValueError(
            f"n_train={n_train} must be the number of training objects or target tokens, at least 1."
        )
    if snr_threshold == 0:
        raise ValueError("snr_threshold=0 would keep everything; the paper's is 0.05.")
    if not isinstance(log_sigma, int | float) or not math.isfinite(log_sigma):
        raise ValueError(f"log_sigma={log_sigma!r} must be a finite number; the paper starts at -3.")
    if batch_dim is not None and (not isinstance(batch_dim, int) or batch_dim < 0):
        raise ValueError(f"batch_dim={batch_dim!r} must be a position from the front: 0, 1, ...")


def check_warm_up(warm_up: Any) -> None:
    if warm_up is None:
        return
    steps = tuple(warm_up) if isinstance(warm_up, Sequence) and not isinstance(warm_up, str) else ()
    numbers = all(isinstance(step, int | float) for step in steps)
    if len(steps) != 2 or not numbers or not 0 <= steps[0] < steps[1]:
        raise ValueError(f"warm_up={warm_up!r} must be (first, last) steps with 0 <= first < last.")
