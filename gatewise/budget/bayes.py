"""What Budget turns of a Variational: the weight of the KL of every group variable, never that of the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gatewise.budget.units import Kept, Layer, Units
from gatewise.masks import find_masks
from gatewise.nn.lookup import ending, places_of
from gatewise.readers import find_readers
from gatewise.readers.graph import block_name, joined
from gatewise.sparsify import Variational
from gatewise.sparsify.layers import LOG_SIGMA, Posterior, RecurrentPosterior
from gatewise.sparsify.posterior import log_alpha
from gatewise.structure import one_pass

MARGIN = 4.0  # of log m^2 / sigma^2 above the threshold: a unit of usual strength


class VariationalHandle:
    """Strength of a unit: log(snr / threshold) of its variables / 4, and 0 if no weight is left of it."""

    most = 4096.0  # the KL of one variable is small beside what the data say of it

    def __init__(self, sparsifier: Variational, by_neuron: bool) -> None:
        self.sparsifier, self.model, self.readers = sparsifier, sparsifier.model, sparsifier.readers
        self.graph = find_readers(self.model, self.readers)
        self.scales: dict[str, tuple[str | None, str]] = {}  # layer -> names of its variables
        layers = []
        for path, module in self.model.named_modules():
            for place in places_of(module) if isinstance(module, RecurrentPosterior) else ():
                assert isinstance(module, RecurrentPosterior)
                end = ending(module, *place)
                if getattr(module, "neuron_scale" + end, None) is None:
                    continue
                name = block_name(module, path, *place)
                # Something unknown sees its c, which a neuron has whose z_h is zero.
                stays = name in self.graph.memory and module.cell.n_states > 1
                if stays and by_neuron:
                    continue
                has_gates = getattr(module, "gate_scale" + end, None) is not None
                self.scales[name] = (
                    joined(path, "gate_scale" + end) if has_gates else None,
                    joined(path, "neuron_scale" + end),
                )
                layers.append(Layer(name, module.cell.n_gates, module.hidden_size, stays))
        self.units = Units(layers)
        self.gated = any(gates is not None for gates, _ in self.scales.values())
        for names in self.scales.values():
            for scale in names:
                if scale is not None:
                    sparsifier.kl_weights[scale] = torch.ones_like(self.model.get_parameter(scale))

    def parameters(self) -> dict[str, Tensor]:
        return {name: self.model.get_parameter(name) for name in self.weight_scores()}

    def capacity(self) -> tuple[int, int]:
        """Gates and neurons that there are."""
        return self.units.n_gates, self.units.n_neurons

    def margin(self, name: str) -> Tensor:
        mean, log_sigma = self.model.get_parameter(name), self.model.get_parameter(name + LOG_SIGMA)
        threshold = self.threshold_of(self.model.get_submodule(name.rpartition(".")[0]))
        return (-log_alpha(mean, log_sigma) - math.log(threshold)).clamp(0, 1e3) / MARGIN

    @torch.no_grad()
    def strengths(self) -> tuple[Tensor, Tensor]:
        left = one_pass(find_masks(self.model), self.graph).recurrent()
        gates, neurons = [], []
        for layer in self.units.layers:
            of_gates, of_neurons = self.scales[layer.name]
            own = self.margin(of_neurons)
            own = own * left[layer.name].keep_neurons.to(own.device)
            each = own.expand(layer.gates, -1)
            if of_gates is not None:
                each = torch.minimum(each, self.margin(of_gates))
            gates.append((each * left[layer.name].keep_gates.to(own.device)).flatten())
            neurons.append(own)
        return torch.cat(gates), torch.cat(neurons)

    def press(self, gates: Tensor, neurons: Tensor) -> None:
        for layer, (of_gates, of_neurons) in self.units.by_layer(gates, neurons).items():
            names = self.scales[layer]
            self.weigh(names[1], of_neurons)
            if names[0] is not None:
                self.weigh(names[0], of_gates)

    def weigh(self, name: str, factor: Tensor) -> None:
        weights, device = self.sparsifier.kl_weights, self.model.get_parameter(name).device
        weights[name] = weights[name].to(device)  # the same one, once the model stays where it is
        weights[name].copy_(factor)

    def press_weights(self, factor: Tensor) -> None:
        """Nothing: the KL of the weights is what the data decide against."""

    @torch.no_grad()
    def cut(self, kept: Kept) -> None:
        """Variables of what does not stay get the mean 0."""
        for layer, (gates, neurons) in self.units.by_layer(kept.gates, kept.neurons).items():
            for name, stays in zip(self.scales[layer], (gates, neurons)):
                if name is not None:
                    mean = self.model.get_parameter(name)
                    mean.masked_fill_(~stays.to(mean.device), 0)

    def freeze(self) -> None:
        """Nothing, likewise."""

    def hold(self) -> None:
        """Nothing: a mean that comes back between two looks stays below the threshold."""

    @torch.no_grad()
    def weight_scores(self) -> dict[str, Tensor]:
        """m^2 / sigma^2 of all weights, and 0 below the threshold."""
        found: dict[int, tuple[str, Tensor]] = {}
        for path, module in self.model.named_modules():
            for name in module.posterior_names() if isinstance(module, Posterior) else ():
                mean = module.get_parameter(name)
                if mean.dim() == 2 and not name.startswith("gate_scale"):
                    log_snr = -log_alpha(mean, module.get_parameter(name + LOG_SIGMA))
                    left = log_snr > math.log(self.threshold_of(module))
                    found.setdefault(id(mean), (joined(path, name), log_snr.exp().clamp(max=1e30) * left))
        return dict(found.values())

    def threshold_of(self, module: nn.Module) -> float:
        return float(module.snr_threshold)  # type: ignore[arg-type]
