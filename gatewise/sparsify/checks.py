"""What both sparsifiers ask of their arguments; every refusal names the thing and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from gatewise.groups import LEVELS
from gatewise.nn.lookup import cell_of, forward_is_known, why_not_recurrent


def check_levels(levels: str) -> None:
    if levels not in LEVELS:
        raise ValueError(f"levels={levels!r} is not one of {', '.join(LEVELS)} (weights, gates, neurons).")


def check_not_negative(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value >= 0:  # also refuses NaN
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
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        reason = why_not_recurrent(module)
        if reason is not None and (layers is None or name in layers):
            others = "name the layers to work on" if layers is None else "leave it out"
            raise ValueError(
                f"{name or 'the model'}: {reason}, so it cannot be sparsified; {others} with {argument}=[...]."
            )
        plain = isinstance(module, kinds) and forward_is_known(module)
        if reason is None and (cell_of(module) is not None or plain):
            if layers is None or name in layers:
                check_own_parameters(name, module, argument)
            found[name] = module
    if not found:
        raise ValueError("The model has no LSTM or GRU layer to sparsify.")
    unknown = [name for name in layers or () if name not in found]
    if unknown:
        raise ValueError(
            f"{argument}: {unknown[0]!r} is not a layer of the model; there are {', '.join(found)}."
        )
    chosen = found if layers is None else {name: found[name] for name in found if name in layers}
    check_called(model, chosen, argument)
    return chosen


def check_own_parameters(name: str, module: nn.Module, argument: str) -> None:
    """A weight that torch computes from another one (pruned, parametrised) cannot be changed where it stands."""
    made = [
        w
        for w in ("weight", "weight_ih_l0", "weight_ih")
        if hasattr(module, w) and w not in module._parameters
    ]
    if made:
        raise ValueError(
            f"{name or 'the model'}: {made[0]} is computed from another parameter (torch.nn.utils.prune or a "
            "parametrisation). Make it permanent first (prune.remove, remove_parametrizations), or leave the layer "
            f"out with {argument}=[...]."
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
