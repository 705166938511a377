"""Readers that were stated where tracing could not tell are tried: the cut network must answer as the whole one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import cell_of, evaluating, is_single_step
from gatewise.program.graph import leaves
from gatewise.readers import ReaderGraph

LARGEST = 1e-4  # difference that rounding explains, against the largest answer


@torch.no_grad()
def check_stated(model: nn.Module, small: nn.Module, graph: ReaderGraph, example: Any) -> None:
    """Raise where the two differ on the example, or on made-up input if there is none."""
    if not graph.believed:
        return
    names = ", ".join(sorted(graph.believed))
    tried = [as_arguments(example)] if example is not None else made_up(model)
    for arguments in tried:
        try:
            expected = answers(model, arguments)
        except Exception:  # forward() is the user's code, and made-up input may be none for it
            if example is not None:
                raise
            continue
        difference, scale = largest_difference(expected, answers(small, arguments))
        if not difference <= LARGEST * max(scale, 1.0):
            what = "the example" if example is not None else "made-up input"
            raise ValueError(
                f"readers: with what is stated about {names} the answer changes by up to {difference:.2g} on {what}: "
                "something else reads it too. State all its readers, or leave it to tracing."
            )
        return
    raise ValueError(
        f"readers: what is stated about {names} could not be tried, because no made-up input fits forward(). Give "
        "one: compress(model, readers=..., example=x)."
    )


def as_arguments(example: Any) -> tuple[Any, ...]:
    return example if isinstance(example, tuple) else (example,)


def answers(model: nn.Module, arguments: tuple[Any, ...]) -> list[Tensor]:
    """What a copy says in evaluation: forward() may keep something for the next call."""
    twin = copied(model)
    with evaluating(twin):
        return [leaf for leaf in leaves(twin(*copy.deepcopy(arguments))) if isinstance(leaf, Tensor)]


def largest_difference(expected: list[Tensor], found: list[Tensor]) -> tuple[float, float]:
    """Over all tensors that both give, and the largest value among them; infinite where shapes or NaN differ."""
    if [a.shape for a in expected] != [b.shape for b in found]:
        return float("inf"), 1.0
    pairs = [(a.double(), b.double()) for a, b in zip(expected, found) if a.numel()]
    if any((a.isnan() != b.isnan()).any() for a, b in pairs):
        return float("inf"), 1.0
    differences = [float((a - b).nan_to_num().abs().max()) for a, b in pairs]
    return max(differences, default=0.0), max(
        (float(a.nan_to_num().abs().max()) for a, _ in pairs), default=0.0
    )


def made_up(model: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Likely inputs for every argument that has no default: ids, numbers, steps in front or not."""
    chance = torch.Generator().manual_seed(0)
    required = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for shape in ((3, 7), (7, 3), (3,)):
        for layer in model.modules():
            if isinstance(layer, nn.Embedding):
                yield (torch.randint(layer.num_embeddings, shape, generator=chance),) * len(required)
            elif cell_of(layer) is not None or isinstance(layer, nn.Linear):
                width: Any = layer.in_features if isinstance(layer, nn.Linear) else layer.input_size
                first = shape[:1] if cell_of(layer) is not None and is_single_step(layer) else shape
                for sizes in dict.fromkeys((shape, first)):
                    like = next(layer.parameters())
                    yield (torch.randn(*sizes, width, generator=chance).to(like),) * len(required)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy. torch refuses to copy tensors with a history: pruned weights, states that forward() keeps."""
    computed: dict[int, Any] = {}
    for module in model.modules():
        for value in leaves(list(vars(module).values())):
            if isinstance(value, Tensor) and not value.is_leaf:
                computed[id(value)] = value.detach().clone()
    return copy.deepcopy(model, computed)
