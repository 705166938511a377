"""The same network, the same unread neurons, several tools: is what they return smaller, and is it the same?

Each network has eight neurons a layer of which some are read by nobody: their columns are zero in the layer itself,
in the layer above and in the Linear after it. Taking them away cannot change the answer. Every tool is asked for just
that, by its own documented way, and its answer is compared with the masked network's. Tools that are not installed
are marked absent; the script needs none of them.

    python benchmarks/exactness_of_public_tools.py [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.metadata
import io
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import gatewise as gw

HIDDEN, DEAD = 8, [1, 4, 6]
NETWORKS: dict[str, dict[str, Any]] = {
    "LSTM": {"cell": nn.LSTM},
    "LSTM, 2 layers": {"cell": nn.LSTM, "num_layers": 2},
    "LSTM, 2 layers of different width": {"cell": nn.LSTM, "num_layers": 2, "dead": [DEAD, [2]]},
    "LSTM, both directions": {"cell": nn.LSTM, "bidirectional": True},
    "GRU": {"cell": nn.GRU},
}


class Tagger(nn.Module):
    dead: list[list[int]]  # of each layer

    def __init__(self, cell: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.rnn = cell(5, HIDDEN, batch_first=True, **options)
        self.fc = nn.Linear(HIDDEN * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out)


@torch.no_grad()
def masked_network(cell: type[nn.Module], dead: list[list[int]] | None = None, **options: Any) -> Tagger:
    """Weights drawn at random; every column that reads one of the dead neurons of a layer is zero."""
    torch.manual_seed(0)
    model = Tagger(cell, **options).eval()
    model.dead = dead or [DEAD] * model.rnn.num_layers
    directions = model.fc.in_features // HIDDEN
    for name, parameter in model.named_parameters():
        layer = int(name.split("_l")[1][0]) if "_l" in name else model.rnn.num_layers
        if "weight_hh" in name:
            parameter[:, model.dead[layer]] = 0
        elif name == "fc.weight" or (layer and "weight_ih" in name):
            parameter[:, [d * HIDDEN + j for d in range(directions) for j in model.dead[layer - 1]]] = 0
    return model


def with_gatewise(model: Tagger, x: Tensor) -> nn.Module:
    return gw.compress(model)


def with_torch_prune(model: Tagger, x: Tensor) -> nn.Module:
    """Masks, made permanent by remove(): the shapes stay."""
    for module in (model.rnn, model.fc):
        for name, parameter in list(module.named_parameters()):
            prune.custom_from_mask(module, name, parameter != 0)
            prune.remove(module, name)
    return model


def with_torch_pruning(model: Tagger, x: Tensor) -> nn.Module:
    """A group of the dependency graph, rooted at the recurrent layer."""
    import torch_pruning as tp

    graph = tp.DependencyGraph().build_dependency(model, example_inputs=x)
    pruner = graph.get_pruner_of_module(model.rnn)
    if pruner is None:
        raise NotImplementedError("no pruning function for this layer")
    group = graph.get_pruning_group(model.rnn, pruner.prune_out_channels, idxs=model.dead[0])
    group.prune()
    return model


def with_ao_pruning(model: Tagger, x: Tensor) -> nn.Module:
    """The LSTM pruner of torch.ao, with the masks set to the dead neurons in each of the four gates."""
    from torch.ao.pruning._experimental.pruner.base_structured_sparsifier import BaseStructuredSparsifier

    class Chosen(BaseStructuredSparsifier):
        def update_mask(self, module: nn.Module, tensor_name: str, **kwargs: Any) -> None:
            for part in module.parametrizations[tensor_name]:
                if hasattr(part, "mask"):
                    layer = int(tensor_name.split("_l")[1][0])
                    part.mask.view(-1, HIDDEN)[:, model.dead[layer]] = False

    pruner = Chosen({})
    names = [name for name, p in model.rnn.named_parameters() if name.startswith("weight")]
    pruner.prepare(model, [{"tensor_fqn": f"rnn.{name}"} for name in names])
    pruner.enable_mask_update = True
    pruner.step()
    return pruner.prune()


def with_bayesian_torch(model: Tagger, x: Tensor) -> nn.Module:
    """Converted, given the weights as means, and without noise; it has no operation that removes anything."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    dense = copy.deepcopy(model)
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -60.0}
    with contextlib.redirect_stdout(io.StringIO()):
        dnn_to_bnn(model, prior | {"type": "Reparameterization", "moped_enable": False, "moped_delta": 0.1})
    pairs = [(model.fc, dense.fc, "weight", "bias")]
    if hasattr(model.rnn, "ih"):
        pairs += [(model.rnn.ih, dense.rnn, "weight_ih_l0", "bias_ih_l0")]
        pairs += [(model.rnn.hh, dense.rnn, "weight_hh_l0", "bias_hh_l0")]
    with torch.no_grad():
        for bayesian, plain, weight, bias in pairs:
            bayesian.mu_weight.copy_(getattr(plain, weight))
            bayesian.mu_bias.copy_(getattr(plain, bias))
            bayesian.rho_weight.fill_(-60.0)
            bayesian.rho_bias.fill_(-60.0)
    return model


TOOLS: dict[str, tuple[str, Callable[[Tagger, Tensor], nn.Module]]] = {
    "gatewise": ("gatewise", with_gatewise),
    "torch.nn.utils.prune": ("torch", with_torch_prune),
    "torch.ao.pruning": ("torch", with_ao_pruning),
    "torch-pruning": ("torch-pruning", with_torch_pruning),
    "bayesian-torch": ("bayesian-torch", with_bayesian_torch),
}


def check(tool: Callable[[Tagger, Tensor], nn.Module], options: dict[str, Any]) -> dict[str, Any]:
    """What became of one network in one tool's hands."""
    model = masked_network(**options)
    x = torch.randn(2, 6, 5)
    expected = model(x)
    before = numbers(model)
    result: dict[str, Any] = {"parameters_before": before}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            small = tool(copy.deepcopy(model), x)
            got = small(x)
        got = got[0] if isinstance(got, tuple) else got
    except Exception as error:  # whatever a tool raises is the finding
        text = (str(error).strip().splitlines() or [""])[0][:60]
        return result | {"outcome": "raises", "said": f"{type(error).__name__}: {text}".rstrip(": (")}
    result["parameters"] = numbers(small)
    if got.shape != expected.shape:
        return result | {"outcome": "differs", "said": f"answer of shape {tuple(got.shape)}"}
    largest = (got - expected).abs().max().item()
    error = largest if math.isfinite(largest) else None  # JSON knows no NaN
    same = torch.allclose(got, expected, rtol=1e-4, atol=1e-5)
    return result | {"outcome": "equal" if same else "differs", "max_error": error}


def numbers(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def cell_text(result: dict[str, Any]) -> str:
    if result["outcome"] == "raises":
        return f"raises `{result['said']}`"
    said = result.get("said") or (how_far(result["max_error"]) if result["outcome"] == "differs" else "")
    return (
        f"{result['outcome']} {said}".strip()
        + f", {result['parameters']} of {result['parameters_before']} numbers"
    )


def how_far(error: float | None) -> str:
    return "by NaN" if error is None else f"by {error:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    print("| tool | " + " | ".join(NETWORKS) + " |")
    print("| --- |" + " --- |" * len(NETWORKS))
    for name, (package, tool) in TOOLS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            results[name] = {"version": None}
            print(f"| {name} (absent) |" + " |" * len(NETWORKS))
            continue
        found = {network: check(tool, options) for network, options in NETWORKS.items()}
        results[name] = {"version": version, "networks": found}
        print(f"| {name} {version} | " + " | ".join(cell_text(found[network]) for network in NETWORKS) + " |")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
