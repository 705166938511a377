"""The cut network answers as the whole one: both are called, on the example or on input that is made up."""

from __future__ import annotations

import copy
import inspect
import math
import random
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from gatewise.nn.lookup import cell_of, evaluating, is_single_step
from gatewise.program.graph import leaves, mapped
from gatewise.program.made_up import Call
from gatewise.program.opened import opened
from gatewise.program.ways import same_random_numbers
from gatewise.readers import ReaderGraph
from gatewise.readers.trace import unwrapped
from gatewise.sparsify.settled import drop_hooks, of_sparsifier

LARGEST = 1e-4  # difference that rounding explains, against the largest answer
ROUNDING = 8  # by how many last digits weights change, to see whether an answer hangs on them
STEPS = (7, 40)  # of input that is made up; a network may need many
ANOTHER = "; compress(model, example=x) tries it on x"
MOST_CALLS = 24  # that are tried, until some are compared
ENOUGH = 4  # ways to call forward() that were compared


@dataclass(frozen=True)
class Trial:
    """A call that both are to answer alike."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    handed_back: tuple[int, ...] = ()  # parts of the answer of which only the neurons count that are left


@torch.no_grad()
def check_same_answer(model: nn.Module, small: nn.Module, graph: ReaderGraph, example: Any) -> str:
    """Raise where the two differ; say why they could not be compared, if so."""
    (_, whole), (_, cut) = unwrapped(model), unwrapped(small)
    names = ", ".join(sorted(graph.believed))
    what, why, compared = "the example" if example is not None else "made-up input", "", set[Any]()
    for way, make in trials(whole, graph, example):
        if way in compared:
            continue
        try:
            trial = make()
            expected = answers(whole, trial)
            found = answers(cut, trial)
        except Exception as error:  # forward() is the user's code, and made-up input may be none for it
            if example is not None:
                raise
            why = why or f"it raises {type(error).__name__} on {what}{ANOTHER}"
            continue
        difference, scale = largest_difference(expected, found, trial.handed_back)
        if not any(isinstance(part, Tensor) for part in expected):
            why = "no tensor is seen in its answer"
        elif difference <= LARGEST * max(scale, 1.0):
            compared.add(way)
        elif hangs_on_chance(whole, trial, expected, difference):
            why = "its answer hangs on chance, or on rounding"
        elif names:
            raise ValueError(
                f"readers: with what is stated about {names} the answer changes by up to {difference:.2g} on {what}: "
                "something else reads it too. State all its readers, or leave it to tracing."
            )
        else:
            raise ValueError(
                f"compress(): the cut network answers otherwise, by up to {difference:.2g} on {what}. forward() goes "
                "by something of its layers that could not be seen; use the network as it is, and please report it."
            )
        if len(compared) == ENOUGH:
            break
    if names and not compared:
        raise ValueError(
            f"readers: what is stated about {names} could not be tried, because no made-up input fits forward(). "
            "Give one: compress(model, readers=..., example=x)."
        )
    return "" if compared else why or f"no input could be made up{ANOTHER}"


def trials(model: nn.Module, graph: ReaderGraph, example: Any) -> Iterator[tuple[Any, Callable[[], Trial]]]:
    """Calls, and which way to call forward() each is; one of every way is enough."""
    if example is not None:
        args = example if isinstance(example, tuple) else (example,)
        yield "example", lambda: Trial(args, {}, places_handed_back(model, graph, args))
        return
    many = [(call, steps, other) for steps in STEPS for other in (steps, 1, 0) for call in graph.calls]
    for call, steps, other in many[:MOST_CALLS]:
        way = (*sorted(call.arguments), *sorted(map(str, call.values.items())))
        yield way, partial(made_up, model, call, steps, other)
    for arguments in () if graph.calls else guessed(model):
        yield "guessed", partial(Trial, arguments, {})


def made_up(model: nn.Module, call: Call, steps: int, other: int) -> Trial:
    given = mapped(lambda value: like_model(value, model), call.made_up(model, steps, other))
    return Trial((), given, call.handed_back)


def places_handed_back(model: nn.Module, graph: ReaderGraph, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Of the call that was traced of which this is an example."""
    bound = inspect.signature(model.forward).bind(*args)
    bound.apply_defaults()

    def fits(call: Call) -> bool:
        others = [name for name, value in call.values.items() if isinstance(value, bool)]
        there = {name for name, value in bound.arguments.items() if value is not None}
        return call.arguments.keys() <= there and all(
            bound.arguments[name] is call.values[name] for name in others
        )

    fitting = sorted(filter(fits, graph.calls), key=lambda call: -len(call.arguments))
    return fitting[0].handed_back if fitting else ()


def like_model(value: Any, model: nn.Module) -> Any:
    """Made-up numbers where the model is, and as exact as it is."""
    if not isinstance(value, Tensor):
        return value
    first = next((p for p in model.parameters() if p.is_floating_point()), value)
    return value.to(first) if value.is_floating_point() else value.to(first.device)


def answers(model: nn.Module, trial: Trial, seed: int = 0, rounding: float = 0.0) -> list[Any]:
    """What a copy says in evaluation: forward() may keep something for the next call.

    `rounding`: how far its weights are from those of the model, relative to them.
    """
    twin = copied(model)
    drop_hooks(twin, of_caller)
    args, named = copy.deepcopy((trial.args, trial.named))
    with evaluating(twin), seeded(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a call that nobody made
        for weight in twin.parameters() if rounding else ():
            if weight.is_floating_point():
                weight.mul_(1 + rounding * torch.randn_like(weight))
        parts = opened(twin(*args, **named))
    return [part.data if isinstance(part, PackedSequence) else part for part in parts]


def of_caller(hook: object) -> bool:
    """Rather than one of torch or a sparsifier, without which the model is another: it may note each call."""
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return not (of_sparsifier(hook) or owner.startswith("torch."))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers that are the same each time, and afterwards as if nobody had drawn any."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with same_random_numbers(), torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def hangs_on_chance(model: nn.Module, trial: Trial, expected: list[Any], difference: float) -> bool:
    """Whether the whole network itself answers so differently with other random numbers, or weights rounded another
    way: an argmax of almost equal numbers may."""
    exact = max((torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()), default=0.0)
    others = (answers(model, trial, seed, ROUNDING * exact) for seed in (1, 2, 3))
    return any(largest_difference(expected, other)[0] * 10 >= difference for other in others)


def largest_difference(
    expected: list[Any], found: list[Any], handed_back: Collection[int] = ()
) -> tuple[float, float]:
    """Over all tensors that both give, and the largest value among them; infinite where shapes, NaN or inf differ."""
    largest, scale = 0.0, 0.0
    if len(expected) != len(found):
        return math.inf, 1.0
    for k, (a, b) in enumerate(zip(expected, found)):
        if not isinstance(a, Tensor):
            continue
        if not isinstance(b, Tensor) or a.shape != b.shape:
            return math.inf, 1.0
        a, b = a.double(), b.double()
        if k in handed_back:  # zero for a neuron that went
            a, b = a[b != 0], b[b != 0]
        odd = ~a.isfinite()
        if not torch.equal(a[odd].nan_to_num(), b[odd].nan_to_num()) or not b[~odd].isfinite().all():
            return math.inf, 1.0
        a, b = a[~odd], b[~odd]
        if a.numel():
            largest, scale = max(largest, float((a - b).abs().max())), max(scale, float(a.abs().max()))
    return largest, scale


def guessed(model: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Likely inputs, where forward() could not be followed, for every argument that has no default: ids, numbers,
    steps in front or not."""
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
                    made = like_model(torch.randn(*sizes, width, generator=chance), model)
                    yield (made,) * len(required)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy. torch refuses to copy tensors with a history: pruned weights, states that forward() keeps."""
    computed: dict[int, Any] = {}
    for module in model.modules():
        for value in leaves(list(vars(module).values())):
            if isinstance(value, Tensor) and not value.is_leaf:
                computed[id(value)] = value.detach().clone()
    return copy.deepcopy(model, computed)
