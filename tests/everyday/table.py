"""The table of everyday models: how one gets into it, and what its inputs and weights are."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.nn.lookup import cell_of

Made = TypeVar("Made", bound=type[nn.Module])
EVERYDAY: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {}


def everyday(*inputs: Any) -> Callable[[Made], Made]:
    """Enters a class under its name in words, with the inputs that forward() gets: `ResidualSum`, "residual sum"."""

    def enter(made: Made) -> Made:
        name = re.sub(r"(?<=.)(?=[A-Z])", " ", made.__name__).lower()
        assert name not in EVERYDAY, name
        EVERYDAY[name] = lambda: (seeded(made, sum(map(ord, name))), inputs)
        return made

    return enter


def seeded(made: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model in evaluation, the same every time; what torch fills with one number has several, so that all count."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = made()
        for tensor in model.parameters():
            if tensor.numel() > 1 and (tensor == tensor.flatten()[0]).all():
                tensor.add_(torch.randn_like(tensor) * 0.3)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model.eval()


@torch.no_grad()
def thinned(model: nn.Module, seed: int = 0) -> nn.Module:
    """In place: zeros as training leaves them, so that compress() finds neurons, gates and inputs to cut."""
    chance = torch.Generator().manual_seed(seed)
    for module in model.modules():
        cell = cell_of(module)
        if cell is None and not isinstance(module, nn.Linear):
            continue
        silent = torch.rand(getattr(module, "hidden_size", 1), generator=chance) < 0.25
        silent[-1] = False
        for weight in module.parameters(recurse=False):
            if weight.dim() == 2:
                weight *= torch.rand(weight.shape, generator=chance) > 0.3
                weight *= torch.rand(weight.shape[1], generator=chance) > 0.2
            if cell is not None:
                cell.split(weight)[:, silent] = 0
    return model


def compressed(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """An everyday model, thinned and cut, and its inputs."""
    model, inputs = EVERYDAY[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which neurons stay although nobody reads them
        return gw.compress(thinned(model)), inputs


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def words(*shape: int, of: int) -> Tensor:
    return torch.randint(of, shape, generator=torch.Generator().manual_seed(of))


def lengths(*sizes: int) -> Tensor:
    return torch.tensor(sizes)
