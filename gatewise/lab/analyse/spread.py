"""The values that decide what is kept: log alpha of a posterior, or the norms of groups of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import cell_of, places_of, weights_of
from gatewise.readers.graph import block_name
from gatewise.sparsify.layers import LOG_SIGMA
from gatewise.sparsify.posterior import log_alpha

SCALES = {
    "gate_scale": "gates",
    "neuron_scale": "neurons",
    "input_scale": "inputs",
    "word_scale": "words",
}


@dataclass(frozen=True)
class Spread:
    """Flat values by what they belong to, and the number that divides them."""

    label: str
    values: Mapping[str, Tensor]
    threshold: float  # minus infinity: none, so that all but zero is kept
    kept_below: bool  # log alpha: small means kept; norms: large does


def log_alphas(state: Mapping[str, Tensor], snr_threshold: float = 0.05) -> Spread:
    """log alpha of every mean in a state_dict that has its log sigma beside it: weights, and each kind of variable.

    Kept is what has an SNR above the threshold, so log alpha < -log(threshold).
    """
    found: dict[str, list[Tensor]] = {}
    for name, sigma in state.items():
        mean = state.get(name.removesuffix(LOG_SIGMA))
        if name.endswith(LOG_SIGMA) and mean is not None:
            own = name.rpartition(".")[2]
            kind = next((what for part, what in SCALES.items() if own.startswith(part)), "weights")
            found.setdefault(kind, []).append(log_alpha(mean, sigma).flatten().detach().float().cpu())
    values = {kind: torch.cat(parts) for kind, parts in sorted(found.items())}
    return Spread("log alpha", values, -math.log(snr_threshold), kept_below=True)


def group_norms(model: nn.Module, threshold: float = 1e-4) -> Spread:
    """log10 of the norm of every gate's incoming weights, layer by layer; minus infinity for a constant gate.

    The threshold is that of single weights: no group can be left whose norm is below it. Where norms did not
    decide, as in a variational model, it is 0.
    """
    values: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        cell = cell_of(module)
        if cell is None:
            continue
        for layer, direction in places_of(module):
            w = replace(weights_of(module, layer, direction), neuron_scale=None).fold()
            rows = torch.cat([w.w_ih, w.w_hh], dim=1).detach().float().cpu().norm(dim=1)
            values[f"{block_name(module, name, layer, direction)}: gates"] = rows.log10()
    line = math.log10(threshold) if threshold else -math.inf
    return Spread("log10 of the norm of a gate's weights", values, line, kept_below=False)
