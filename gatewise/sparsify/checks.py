"""What both sparsifiers ask of their arguments; every refusal names the thing and the way out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from torch import nn

from gatewise.groups import LEVELS
from gatewise.nn.lookup import cell_of, computed_matrix, forward_is_known, why_not_recurrent
from gatewise.readers.graph import joined
from gatewise.wording import by_reason


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


class Chosen(NamedTuple):
    """What a sparsifier works on, and what it leaves as it is."""

    modules: dict[str, nn.Module]
    left_out: dict[str, str]  # name -> why

    def said(self) -> list[str]:
        """`odd: left out, because proj_size=4 mixes ...`, for its one warning."""
        return [f"{names}: left out, because {why}." for names, why in by_reason(self.left_out)]


def chosen_modules(
    model: nn.Module,
    kinds: tuple[type[nn.Module], ...],
    layers: Sequence[str] | None,
    argument: str = "layers",
    why_not: Callable[[str, nn.Module], str | None] = lambda name, module: None,
) -> Chosen:
    """Recurrent layers and modules of the given kinds, by name, each once; `layers` restricts them.

    What cannot be handled, `why_not` says more of it, is left out; that is an error only if it was asked for by name,
    or if nothing else is there.
    """
    if isinstance(layers, str):
        raise ValueError(f"{argument}={layers!r} must be a list of names, not a string.")
    if layers is not None and not layers:
        raise ValueError(f"{argument}={layers!r} names no layer; name one, or leave {argument} out.")
    found: dict[str, nn.Module] = {}
    left_out: dict[str, str] = {}
    inside = attention_modules(model)
    for name, module in model.named_modules():
        reason = why_not_recurrent(module)
        if reason is None:
            if cell_of(module) is None and not (isinstance(module, kinds) and forward_is_known(module)):
                continue
            reason = why_not_own(module) or inside.get(name) or why_not(name, module)
        if reason is None:
            found[name] = module
        else:
            left_out[name] = reason
    for name in layers or ():
        if name in left_out:
            raise ValueError(
                f"{name or 'the model'}: {left_out[name]}, so it cannot be sparsified. Leave it out of {argument}=."
            )
    if not found:
        others = [f"{names}: {why}." for names, why in by_reason(left_out)]
        raise ValueError(" ".join(["The model has no LSTM or GRU layer to sparsify.", *others]))
    check_names(model, found, layers or (), argument)
    if layers is None:
        return Chosen(found, left_out)
    return Chosen({name: found[name] for name in found if name in layers}, {})


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


def why_not_own(module: nn.Module) -> str | None:
    """A weight that torch computes from another one (pruned, parametrised) cannot be changed where it stands."""
    made = computed_matrix(module)
    if made is None:
        return None
    return (
        f"its {made} is computed from another parameter (torch.nn.utils.prune or a parametrisation); make it "
        "permanent first (prune.remove, remove_parametrizations)"
    )


def check_own_parameters(name: str, module: nn.Module) -> None:
    if (why := why_not_own(module)) is not None:
        raise ValueError(f"{name or 'the model'}: {why}.")


def attention_modules(model: nn.Module) -> dict[str, str]:
    """Attention of torch.nn uses the weights of its inner layers without calling them: noise would not reach them."""
    found: dict[str, str] = {}
    for outer, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            why = f"MultiheadAttention {outer!r} uses its weights without calling it"
            found |= {joined(outer, name): why for name, _ in module.named_modules() if name}
    return found


def check_numbers(n_train: int, snr_threshold: float, log_sigma: float, batch_dim: int | None) -> None:
    check_not_negative(snr_threshold=snr_threshold, n_train=n_train)
    if n_train == 0:
        raise ValueError(
            f"n_train={n_train} must be the number of training objects or target tokens, at least 1."
        )
    if snr_threshold == 0:
        raise ValueError("snr_threshold=0 would keep everything; the paper's is 0.05.")
    if not isinstance(log_sigma, Real) or not math.isfinite(log_sigma):
        raise ValueError(f"log_sigma={log_sigma!r} must be a finite number; the paper starts at -3.")
    if batch_dim is not None and (not isinstance(batch_dim, Integral) or batch_dim < 0):
        raise ValueError(f"batch_dim={batch_dim!r} must be a position from the front: 0, 1, ...")


def check_warm_up(warm_up: Any) -> None:
    if warm_up is None:
        return
    steps = tuple(warm_up) if isinstance(warm_up, Sequence) and not isinstance(warm_up, str) else ()
    numbers = all(isinstance(step, Real) for step in steps)
    if len(steps) != 2 or not numbers or not 0 <= steps[0] < steps[1]:
        raise ValueError(f"warm_up={warm_up!r} must be (first, last) steps with 0 <= first < last.")
