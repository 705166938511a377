"""A chain of compact layers as arrays in which only kept channels appear: what engine, ONNX and C are built from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from gatewise.compact import CompactEmbedding, CompactLayer, CompactLinear, CompactRecurrent, compacted
from gatewise.layout import Cell
from gatewise.runtime.chain import SCORES, find_chain
from gatewise.runtime.steps import POOLS, Chain, ChainError

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
# What a pointwise function makes of a removed channel, which is one number.
OF_CONSTANT: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


@dataclass(frozen=True)
class Table:
    """Embedding: word -> row -> vector. `rows` is None when no word was removed, else -1 marks removed words."""

    weight: Floats  # (V', E')
    rows: Ints | None  # (V,)
    n_words: int
    one_hot: bool = False  # no embedding: the weight is the identity


@dataclass(frozen=True)
class Recurrence:
    """One layer and direction: live rows only, z folded in, the output h = s * scale."""

    inputs: Ints  # (n_in,) positions in what the step before hands over
    reads: Ints  # (n_rec,) positions among the K neurons
    slots: Ints  # (R,) gate * K + neuron
    w_ih: Floats  # (R, n_in)
    w_hh: Floats  # (R, n_rec)
    bias: Floats  # (G, K)
    bias_gated: Floats  # (gates with a gated recurrent half, K)
    scale: Floats  # (K,) 1 inside a stack, whose next level has this z_h in its columns
    state_scale: Floats  # (K,) z_h: the caller's h is s * state_scale
    neurons: Ints  # (K,) their original numbers
    hidden: int  # H
    reverse: bool

    @property
    def kept(self) -> int:
        return len(self.neurons)


@dataclass(frozen=True)
class Level:
    """One layer of a stack: one or two directions, whose outputs stand side by side."""

    module: str
    layer: int
    cell: Cell
    gate_activation: str
    directions: tuple[Recurrence, ...]


@dataclass(frozen=True)
class Affine:
    """y = x[inputs] W^T + b on narrow channels; `outputs` are the original numbers of its rows."""

    inputs: Ints
    weight: Floats
    bias: Floats
    outputs: Ints
    out_features: int
    tied: Ints | None = None  # (n_in,) one parameter with the embedding: which columns of the table these are


@dataclass(frozen=True)
class Function:
    """A pointwise function, scores over channels ("softmax"), or one step made of many ("last_step", "mean")."""

    name: str


Link = Table | Level | Affine | Function


@dataclass(frozen=True)
class NarrowChain:
    """The links, the layout of input and output, and which original channels the last link hands over."""

    links: tuple[Link, ...]
    chain: Chain
    n_inputs: int  # width of a vector input; 0 for words
    kept: Ints  # original numbers of the output channels
    width: int  # original number of output channels
    # output of the removed channels, constant
    rest: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def table(self) -> Table:
        """The first link, where the input are words."""
        table = self.links[0]
        assert isinstance(table, Table)
        return table


def narrow_chain(model: torch.nn.Module) -> NarrowChain:
    """The narrow chain of a compact model; one that is not compact, or only in part, is compressed first.

    Raises:
        ChainError: the model is not a chain, or is not float32 on the CPU.
    """
    model = compacted(model)
    check_cpu_float32(model)
    return Narrower().through(find_chain(model))


def check_cpu_float32(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ChainError(
                f"{name} is {parameter.dtype} on {parameter.device}; the engine computes in float32 on the CPU. "
                "Use model.float().cpu()."
            )


class Narrower:
    """Walks the chain and keeps which channels travel, and what the removed ones are worth."""

    def __init__(self) -> None:
        self.kept: Ints = np.zeros(0, np.int64)
        self.width = 0
        self.removed = 0.0  # the value of every removed channel here: a constant
        self.vectors: object = None  # the embedding's parameter
        self.links: list[Link] = []

    def through(self, chain: Chain) -> NarrowChain:
        n_inputs = 0
        if not chain.words:
            first = next(step.module for step in chain.steps if step.module is not None)
            size = getattr(first, "in_features", None) or getattr(first, "input_size", None)
            assert isinstance(size, int)
            n_inputs = self.width = size
            self.kept = np.arange(size)
        for step in chain.steps:
            module = step.module
            if isinstance(module, CompactEmbedding):
                self.embedding(module)
            elif isinstance(module, CompactRecurrent):
                self.recurrent(step.name, module)
            elif isinstance(module, CompactLinear):
                self.linear(module)
            elif step.kind == "one_hot":
                self.one_hot(step.classes)
            elif module is None:
                self.function(step.name if step.kind == "pointwise" else step.kind)
            else:
                raise ChainError(f"{step.name}: {type(module).__name__} was left as it is by compress(), because "
                                 "forward() uses its parameter directly.")  # fmt: skip
        return NarrowChain(
            tuple(self.links), chain, n_inputs, self.kept, self.width, self.constant_channels()
        )

    def embedding(self, module: CompactEmbedding) -> None:
        rows = None if len(module.weight) == module.num_embeddings else integers(module.rows)
        self.links.append(Table(floats(module.weight), rows, module.num_embeddings))
        self.vectors = module.weight
        self.kept, self.width, self.removed = integers(module.components), module.embedding_dim, 0.0

    def one_hot(self, classes: int) -> None:
        self.links.append(Table(np.eye(classes, dtype=np.float32), None, classes, one_hot=True))
        self.kept, self.width, self.removed = np.arange(classes), classes, 0.0

    def recurrent(self, name: str, module: CompactRecurrent) -> None:
        for level in range(module.num_layers):
            top = level == module.num_layers - 1
            layers = [module.layer(level, d) for d in range(module.num_directions)]
            directions = tuple(self.recurrence(layer, top, d == 1) for d, layer in enumerate(layers))
            self.links.append(Level(name, level, module.cell, module.gate_activation, directions))
            numbers = [integers(layer.neurons) + d * module.hidden_size for d, layer in enumerate(layers)]
            self.kept, self.removed = np.concatenate(numbers), 0.0
            self.width = module.hidden_size * module.num_directions

    def recurrence(self, layer: CompactLayer, top: bool, reverse: bool) -> Recurrence:
        kept = layer.kept
        w_ih, inputs, constant = self.columns(floats(layer.weight_ih), integers(layer.inputs))
        slots = integers(layer.slots)
        bias = np.zeros((layer.cell.n_gates, kept), np.float32) if layer.bias is None else floats(layer.bias)
        bias.reshape(-1)[slots] += constant
        gated = len(layer.cell.gated_recurrent)
        apart = layer.bias_gated
        bias_gated = np.zeros((gated, kept), np.float32) if apart is None else floats(apart)
        z_h = floats(layer.neuron_scale)
        scale = z_h if top else np.ones(kept, np.float32)
        return Recurrence(
            inputs, integers(layer.recurrent), slots, w_ih, floats(layer.weight_hh), bias, bias_gated, scale,
            z_h, integers(layer.neurons), layer.width, reverse,
        )  # fmt: skip

    def linear(self, module: CompactLinear) -> None:
        weight, inputs, constant = self.columns(floats(module.weight), integers(module.inputs))
        bias = constant if module.bias is None else floats(module.bias) + constant
        outputs = integers(module.outputs)
        own = np.flatnonzero(np.isin(integers(module.inputs), self.kept))
        tied = own if module.weight is self.vectors else None
        self.links.append(Affine(inputs, weight, bias, outputs, module.out_features, tied))
        self.kept, self.width, self.removed = outputs, module.out_features, 0.0

    def columns(self, weight: Floats, inputs: Ints) -> tuple[Floats, Ints, Floats]:
        """Columns that read kept channels, where those stand, and what the columns of removed ones add up to."""
        at = np.searchsorted(self.kept, inputs).clip(max=max(len(self.kept) - 1, 0))
        present = self.kept[at] == inputs if len(self.kept) else np.zeros(len(inputs), bool)
        constant = weight[:, ~present].sum(axis=1) * np.float32(self.removed)
        return np.ascontiguousarray(weight[:, present]), at[present], constant.astype(np.float32)

    def function(self, name: str) -> None:
        if name in SCORES or (name == "sum" and self.removed):
            self.restore()
        self.links.append(Function(name))
        if name in OF_CONSTANT:
            self.removed = OF_CONSTANT[name](self.removed)

    def restore(self) -> None:
        """Scores weigh all channels against each other, a sum grows with every step: removed channels come back as
        the constants they are."""
        if len(self.kept) == self.width:
            return
        weight = np.zeros((self.width, len(self.kept)), np.float32)
        weight[self.kept, np.arange(len(self.kept))] = 1
        bias = self.constant_channels()
        bias[self.kept] = 0
        everything = np.arange(self.width)
        self.links.append(Affine(np.arange(len(self.kept)), weight, bias, everything, self.width))
        self.kept, self.removed = everything, 0.0

    def constant_channels(self) -> Floats:
        """The whole output as far as it is constant: zeros or f(0) for removed channels."""
        return np.full(self.width, self.removed, np.float32)


def pools(link: Link) -> TypeGuard[Function]:
    """Whether a link makes one step of many: mean, maximum or sum."""
    return isinstance(link, Function) and link.name in POOLS


def takes_last_state(level: Level, after: Sequence[Link]) -> bool:
    """Whether a level hands on its last state alone. With one direction that is its last step."""
    names = ("last_state", "last_step") if len(level.directions) == 1 else ("last_state",)
    return bool(after) and isinstance(after[0], Function) and after[0].name in names


def spread_columns(weight: Floats, columns: Ints, width: int) -> Floats:
    """A matrix over all channels that it is handed, zero in those it does not read."""
    if len(columns) == width:
        return weight
    whole = np.zeros((len(weight), width), np.float32)
    whole[:, columns] = weight
    return whole


def floats(tensor: Any) -> Floats:
    array: Floats = np.array(tensor.detach().cpu().numpy(), np.float32, copy=True)
    return array


def integers(tensor: Any) -> Ints:
    array: Ints = tensor.cpu().numpy().astype(np.int64)
    return array
