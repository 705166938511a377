"""Saved models with one thing changed, and the sum corrected: what a program would write that is wrong or malicious.

base      a file that save() wrote: compact, dense, variational, sparse, with shared tensors
mutant    its config or its tensors with one or two changes, drawn from a seed, then the sum
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from saved_models import Tagger, sparse, variational
from torch import Tensor, nn

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.export.saved.file import packed
from gatewise.lab.models import CharLM, SeriesModel, TextClassifier, WordLM

Config = dict[str, Any]
Tensors = dict[str, Tensor]
NUMBERS = [-1, 0, 1, 2, 3, 7, 63, 64, 10**3, 15_000, 10**5, 2 * 10**9, 2**31, 2**40, 2**63, 10**30]
ODD = [*NUMBERS, None, True, False, "", "x", "float16", "LSTM", "int64", 0.5, 1e308, float("nan"), float("inf"), [],
       {}, [1], [[]], {"a": 1}, "gatewise.nn.LSTM", "é\x00"]  # fmt: skip


class Cells(nn.Module):
    """Single-step cells in a loop, and a buffer of the user's."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.fc = nn.GRUCell(4, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:  # (T, B, 4)
        h = x.new_zeros(x.shape[1], 6)
        for step in x.unbind(0):
            h = self.cell(step, h)
        y: Tensor = self.fc(h) * self.scale
        return y


Base = tuple[Callable[[], nn.Module], Callable[[], nn.Module | None], Tensor]  # to save, to load into, x
IDS = torch.arange(12).view(6, 2) % 11
VECTORS = torch.linspace(-1, 1, 48).view(6, 2, 4)


def bases() -> dict[str, Base]:
    """What to save, what to load into (None: nothing), and an input."""
    none: Callable[[], None] = lambda: None  # noqa: E731
    word: dict[str, Any] = {"vocabulary": 11, "embedding": 5, "hidden": 6, "layers": 2}
    text: dict[str, Any] = {"vocabulary": 11, "outputs": 2, "embedding": 5, "hidden": 6}
    return {
        "compact words": (lambda: gw.compress(sparse(WordLM(**word), 0.5)), none, IDS),
        "sparse characters": (lambda: sparse(CharLM(11, 12, cell="GRU"), 0.9), none, IDS),
        "compact texts": (lambda: gw.compress(sparse(TextClassifier(**text), 0.7)), none, IDS),
        "dense series": (lambda: SeriesModel(4, 2, hidden=5).eval(), none, VECTORS),
        "compact tagger": (lambda: gw.compress(sparse(Tagger(), 0.6)), Tagger, IDS),
        "tied tagger": (lambda: gw.compress(sparse(Tagger(tied=True), 0.3)), lambda: Tagger(tied=True), IDS),
        "variational tagger": (lambda: variational(Tagger()), Tagger, IDS),
        "one layer": (lambda: gw.compress(sparse(nn.LSTM(4, 6, 2, bidirectional=True), 0.7)), none, VECTORS),
        "cells": (lambda: gw.compress(sparse(Cells(), 0.6)), Cells, VECTORS),
    }


@contextmanager
def room_for(size: int, room: int = 200 * 2**20) -> Iterator[None]:
    """Four times as many bytes of memory, and some, no more. Linux alone counts what is asked for, touched or not."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (now + 4 * size + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def loaded(file: Path, into: nn.Module | None = None) -> nn.Module:
    """load() with as much memory as it may take. Out of it, torch says what it could not allocate."""
    size = file.stat().st_size
    try:
        with room_for(size):
            return gw.load(file, into)
    except CheckpointError as error:
        if str(file) not in str(error) or "allocate" in str(error):
            raise AssertionError(f"a load of {size:,} bytes: {error}") from error
        raise


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a config, containers too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def draw_place(rng: random.Random, config: Config) -> tuple[Any, Any]:
    """A container and a key in it; layers and the model's arguments more often than the many tensors."""
    top = rng.choice([key for key in config if key != "sha256"])
    path = rng.choice(places(config[top], (top,)))
    box: Any = config
    for key in path[:-1]:
        box = box[key]
    return box, path[-1]


# Changes of a config.


def other_value(rng: random.Random, config: Config, tensors: Tensors) -> None:
    box, key = draw_place(rng, config)
    box[key] = copy.deepcopy(rng.choice(ODD))


def near_value(rng: random.Random, config: Config, tensors: Tensors) -> None:
    """A number by one, twice or half as large, a switch turned: the mistakes of programs."""
    for _ in range(50):
        box, key = draw_place(rng, config)
        value = box[key]
        if isinstance(value, bool):
            box[key] = not value
            return
        if isinstance(value, int):
            box[key] = rng.choice([value - 1, value + 1, value * 2, value // 2, -value])
            return


def left_out(rng: random.Random, config: Config, tensors: Tensors) -> None:
    box, key = draw_place(rng, config)
    del box[key]


def taken_from_elsewhere(rng: random.Random, config: Config, tensors: Tensors) -> None:
    (box, key), (other, there) = draw_place(rng, config), draw_place(rng, config)
    box[key] = copy.deepcopy(other[there])


def added(rng: random.Random, config: Config, tensors: Tensors) -> None:
    box, _ = draw_place(rng, config)
    if isinstance(box, dict):
        names = ["x", "", "rnn", "fc", "a.b", *rng.sample(sorted(tensors) or ["x"], 1)]
        box[rng.choice(names)] = copy.deepcopy(rng.choice([*ODD, *config["modules"].values()]))


def nested(rng: random.Random, config: Config, tensors: Tensors) -> None:
    box, key = draw_place(rng, config)
    for _ in range(rng.choice([3, 100, 200])):
        box[key] = [box[key]]


def another_kind(rng: random.Random, config: Config, tensors: Tensors) -> None:
    kinds = ["dense", "compact-linear", "compact-recurrent", "compact-cell", "compact-embedding", "variational-cell",
             "variational-linear", "variational-recurrent", "variational-embedding"]  # fmt: skip
    if config["modules"]:
        config["modules"][rng.choice(list(config["modules"]))]["kind"] = rng.choice(kinds)


def another_class(rng: random.Random, config: Config, tensors: Tensors) -> None:
    names = ["WordLM", "CharLM", "TextClassifier", "SeriesModel", "TaskModel", "nothing", "nn", "recurrent"]
    modules = [
        "gatewise.lab.models",
        "gatewise.nn",
        "gatewise.nothing",
        "gatewise.",
        "gatewise..x",
        "os",
        "torch.nn",
    ]
    config["class"] = f"{rng.choice(modules)}.{rng.choice(names)}"
    if rng.random() < 0.5:
        config["arguments"] = rng.choice(
            [{}, {"vocabulary": 11}, {"x": 1}, None, {"vocabulary": 11, "layers": 10**5}]
        )


# Changes of tensors.


def draw_tensor(rng: random.Random, tensors: Tensors) -> str:
    return rng.choice(sorted(tensors))


def other_index(rng: random.Random, config: Config, tensors: Tensors) -> None:
    """One number of an index list, of sparse parts or of weights."""
    name = draw_tensor(rng, tensors)
    flat = tensors[name].flatten().clone()
    if flat.numel():
        value = rng.choice([*flat.tolist()[:5], 0, 1, 2, 5, 6, 11, 100])
        flat[rng.randrange(len(flat))] = value
        tensors[name] = flat.view(tensors[name].shape)


def other_length(rng: random.Random, config: Config, tensors: Tensors) -> None:
    name = draw_tensor(rng, tensors)
    flat = tensors[name].flatten()
    n = rng.choice([0, 1, max(0, len(flat) - 1), len(flat) + 1])
    longer = torch.cat([flat, flat.new_zeros(1) if flat.numel() == 0 else flat[-1:] + 1 if flat.dtype != torch.uint16
                        else flat[-1:]])  # fmt: skip
    tensors[name] = longer[:n].clone()
    if tensors[name].numel() == len(flat):
        tensors[name] = tensors[name].view(-1, 1)


def other_type(rng: random.Random, config: Config, tensors: Tensors) -> None:
    name = draw_tensor(rng, tensors)
    kinds = [torch.float16, torch.float64, torch.int32, torch.int64, torch.bool, torch.complex64, torch.uint8]
    tensors[name] = tensors[name].to(rng.choice(kinds))


def exchanged(rng: random.Random, config: Config, tensors: Tensors) -> None:
    a, b = draw_tensor(rng, tensors), draw_tensor(rng, tensors)
    tensors[a], tensors[b] = tensors[b], tensors[a]


def missing(rng: random.Random, config: Config, tensors: Tensors) -> None:
    del tensors[draw_tensor(rng, tensors)]


def renamed(rng: random.Random, config: Config, tensors: Tensors) -> None:
    name = draw_tensor(rng, tensors)
    new = rng.choice([name + "x", "", "rnn.layers.7.weight_ih", "x" * 500, name.replace("0", "1")])
    tensors[new] = tensors.pop(name)


def other_form(rng: random.Random, config: Config, tensors: Tensors) -> None:
    """A tensor that is said to be sparse or narrow, or not to be."""
    name, narrow = draw_tensor(rng, tensors).partition(":")[0], config["narrow"]
    shape = [rng.choice(NUMBERS), rng.choice(NUMBERS)]
    if isinstance(narrow, list) and rng.random() < 0.5:
        narrow.remove(name) if name in narrow else narrow.append(name)
    elif isinstance(config["sparse"], dict):
        config["sparse"] |= {name: shape}


CHANGES = [other_value, near_value, near_value, left_out, taken_from_elsewhere, added, nested, another_kind,
           another_class, other_index, other_index, other_length, other_type, exchanged, missing,
           renamed, other_form]  # fmt: skip


def mutant(seed: int, config: Config, tensors: Tensors) -> bytes:
    """A file with one or two changes and the right sum; now and then its header has some more."""
    rng = random.Random(seed)
    config, tensors = copy.deepcopy(config), {name: t.clone() for name, t in tensors.items()}
    for _ in range(rng.choice([1, 1, 2])):
        rng.choice(CHANGES)(rng, config, tensors)
        if not {"modules", "sparse", "narrow"} <= config.keys() or not tensors:
            break
        if not isinstance(config["modules"], dict):
            break
    data = bytearray(packed(tensors, config, Path("mutant")))
    if rng.random() < 0.1:
        header = 8 + int.from_bytes(data[:8], "little")
        for _ in range(rng.choice([1, 3])):
            data[rng.randrange(header)] = rng.choice(b'0123456789{}[]",:FIU\x00\xff')
    return bytes(data)
