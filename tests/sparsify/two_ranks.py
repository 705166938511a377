"""Two processes that train one model: each writes what it saw to a file. `python two_ranks.py RANK FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: gatewise/lab/training/ranks.py says why
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
from networks import Classifier

import gatewise as gw

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


def made(**options: Any) -> tuple[nn.Module, gw.Variational]:
    torch.manual_seed(0)
    model = Classifier(hidden=3)
    return model, gw.Variational(model, n_train=100, **options)


def train(model: nn.Module, trained: nn.Module, sparsifier: gw.Variational, updates: int) -> str:
    """Each rank on texts of its own; what step() raised, if it did."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(RANK)
    for _ in range(updates):
        optimizer.zero_grad()
        loss = trained(torch.randint(9, (4, 2), generator=data)).square().mean()
        (loss + sparsifier.penalty()).backward()
        optimizer.step()
        try:
            sparsifier.step()
        except RuntimeError as error:
            return str(error)
    return ""


def refusal(wrapped: DistributedDataParallel, inner: bool) -> str:
    try:
        gw.Variational(wrapped.module if inner else wrapped, n_train=100)
    except ValueError as error:
        return str(error)
    return ""


def too_early() -> dict[str, Any]:
    wrapped = DistributedDataParallel(Classifier())
    return {"outer": refusal(wrapped, False), "inner": refusal(wrapped, True)}


def thrown_away() -> dict[str, Any]:
    """One that wrapped the model and is gone is no reason to refuse."""
    model = Classifier()
    DistributedDataParallel(model)
    gw.Variational(model, n_train=100)
    return {}


def right() -> dict[str, Any]:
    model, sparsifier = made()
    error = train(model, DistributedDataParallel(model), sparsifier, 12)
    weights = {name: p.tolist() for name, p in model.named_parameters()}
    torch.manual_seed(5)
    draws = [model(torch.zeros(4, 2, dtype=torch.int64)).tolist() for _ in range(2)]
    return {"error": error, "weights": weights, "draws": draws, "outside": torch.rand(3).tolist()}


def pruned() -> dict[str, Any]:
    """Group lasso with a budget, then a refit, each wrapped by itself; what is left after each."""
    torch.manual_seed(0)
    model = Classifier(hidden=6)
    lasso = gw.GroupLasso(model, "W+G+N", l1=1e-4, group=1e-2)
    budget = gw.Budget(lasso, gates=0.5, steps=20)
    found = {"lasso": after(model, lasso, 20, budget)}
    return {**found, "refit": after(model, gw.Refit(model), 5)}


def after(model: nn.Module, sparsifier: Any, updates: int, budget: Any = None) -> dict[str, Any]:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(RANK)
    for _ in range(updates):
        optimizer.zero_grad()
        loss = wrapped(torch.randint(9, (4, 2), generator=data)).square().mean()
        (loss + sparsifier.penalty()).backward()
        optimizer.step()
        sparsifier.step()
        if budget is not None:
            budget.step()
    return {
        "weights": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "compact": {name: tensor.tolist() for name, tensor in gw.compress(model).state_dict().items()},
        "gates": sum(gw.measure(model).gates.values()),
    }


def forgotten() -> dict[str, Any]:
    """Someone averages the gradients of all but the parameters that were added."""
    model, sparsifier = made(levels="W")
    added = [name for name, _ in model.named_parameters() if name.endswith("log_sigma")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, added)
    wrapped = DistributedDataParallel(model)
    error = train(model, wrapped, sparsifier, 10)
    dist.barrier()
    return {"error": error}


def independent() -> dict[str, Any]:
    model, sparsifier = made()
    return {"error": train(model, model, sparsifier, 12)}


def shrunk() -> dict[str, Any]:
    """Pruned together, refused while it is wrapped, then unwrapped, cut, wrapped and trained on."""
    torch.manual_seed(0)
    model = Classifier(hidden=3)
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, 0] = 0
        model.fc.weight[:, 0] = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(RANK)
    refused = ""
    for part in range(2):
        trained = DistributedDataParallel(model)
        sparsifier = gw.Refit(model)
        for _ in range(4):
            optimizer.zero_grad()
            trained(torch.randint(9, (4, 2), generator=data)).square().mean().backward()
            optimizer.step()
            sparsifier.step()
        if part == 0:
            try:
                gw.shrink(trained.module, optimizer)
            except ValueError as error:
                refused = str(error)
            del trained
            gw.shrink(model, optimizer)
    weights = {name: p.tolist() for name, p in model.named_parameters()}
    return {"refused": refused, "weights": weights, "kept": model.rnn.layers[0].kept}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER / 'meeting'}", rank=RANK, world_size=2)
    parts = (too_early, thrown_away, right, pruned, forgotten, independent, shrunk)
    (FOLDER / f"{RANK}.json").write_text(json.dumps({part.__name__: part() for part in parts}))
    dist.barrier()
    dist.destroy_process_group()
