"""A chain of compact layers as arrays in which only kept channels appear: what engine, ONNX and C are built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gatewise.compact import CompactEmbedding, CompactLayer, CompactLinear, CompactRecurrent, compacted
from gatewise.layout import Cell
from gatewise.nn.lookup import cell_of, why_not_recurrent
from gatewise.program import Program
from gatewise.program.stand_ins import Refused
from gatewise.program.ways import programs
from gatewise.readers.trace import unwrapped
from gatewise.runtime.chain import find_chain
from gatewise.runtime.chained import NO_LAYER, POOLS, Chain, ChainError, ChainLink, way_out
from gatewise.runtime.scaled import Channels, Doubles, doubles

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
SCORES = ("softmax", "log_softmax")
# What a pointwise function makes of removed channels, which are constants.
OF_CONSTANTS: dict[str, Callable[[Doubles], Doubles]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": lambda x: np.tanh(x),
    "sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
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

    inputs: Ints  # (n_in,) positions in what the link before hands over
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

    module: str  # the linear layer; empty: channels are scaled, or come back as constants

    inputs: Ints
    weight: Floats
    bias: Floats
    outputs: Ints
    out_features: int
    tied: Ints | None = None  # (n_in,) one parameter with the embedding: which columns of the table these are


@dataclass(frozen=True)
class Function:
    """A pointwise function, scores over channels ("softmax"), channels normalised ("layer_norm"), or one step made of
    many ("last_step", "mean")."""

    name: str
    eps: float = 0.0  # of "layer_norm"


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

    @property
    def levels(self) -> list[Level]:
        return [link for link in self.links if isinstance(link, Level)]

    @property
    def both_ways(self) -> str:
        """A layer with two directions, whose answers depend on steps to come; empty if there is none."""
        return next((level.module or "the model" for level in self.levels if len(level.directions) == 2), "")


def narrow_chain(model: nn.Module, norms_apart: bool = False) -> NarrowChain:
    """The narrow chain of a compact model; one that is not compact, or only in part, is compressed first.

    Args:
        norms_apart: normalisations are links of their own and in no other matrix. With int8 weights all columns share
            the scale of a row, and channels of other sizes would not be left with their digits.

    Raises:
        ChainError: the model is not a chain, or is not float32 on the CPU.
    """
    small = shippable(model)
    return narrowed(small, recorded(small), norms_apart)


def shippable(model: nn.Module) -> nn.Module:
    """The compact model that is to leave torch, without what it may be wrapped in."""
    _, small = unwrapped(compacted(model))
    check_cpu_float32(small)
    return small


def recorded(model: nn.Module, example: Any = None) -> list[Program]:
    """The programs of a model; ChainError where forward() cannot be recorded."""
    try:
        return programs(model, example)
    except Refused as error:
        if all(cell_of(module) is None for module in model.modules()):
            raise ChainError(NO_LAYER) from error
        raise ChainError(f"{strange_layer(model) or error}. {way_out(model)}") from error


def strange_layer(model: nn.Module) -> str:
    """A recurrent layer that is beyond us, and why; the first line of its own forward() would say less."""
    known = ((name, why_not_recurrent(module)) for name, module in model.named_modules())
    return next((f"{name or 'the model'}: {why}" for name, why in known if why), "")


def narrowed(model: nn.Module, ways: Sequence[Program], norms_apart: bool = False) -> NarrowChain:
    """narrow_chain() of a model that is compact already, by its programs."""
    chain = find_chain(model, ways)
    names = [link.name for link in chain.links if link.module is not None]
    if norms_apart and len(set(names)) < len(
        names
    ):  # each call reads other columns, which int8 scales by themselves
        raise ChainError("A layer is called twice, so that its int8 weights would be rounded in two ways.")
    return Narrower(chain.n_inputs, norms_apart).through(chain)


def check_cpu_float32(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ChainError(
                f"{name} is {parameter.dtype} on {parameter.device}; the engine computes in float32 on the CPU. "
                "Use model.float().cpu()."
            )


class Narrower:
    """Walks the chain and keeps which channels travel, and what is still to be done to them."""

    def __init__(self, n_inputs: int, norms_apart: bool = False) -> None:
        self.n_inputs, self.norms_apart = n_inputs, norms_apart
        self.channels = Channels.plain(np.arange(n_inputs), n_inputs)
        self.vectors: object = None  # the embedding's parameter
        self.links: list[Link] = []

    def through(self, chain: Chain) -> NarrowChain:
        for link in chain.links:
            module = link.module
            if isinstance(module, CompactEmbedding):
                self.embedding(module)
            elif isinstance(module, CompactRecurrent):
                self.recurrent(link.name, module)
            elif isinstance(module, CompactLinear):
                self.linear(link.name, module)
            elif link.kind == "affine":
                self.affine(link)
            elif link.kind == "one_hot":
                self.one_hot(link.classes)
            elif module is None:
                self.function(Function(link.name if link.kind == "pointwise" else link.kind, link.eps))
            else:
                raise ChainError(f"{link.name}: {type(module).__name__} was left as it is by compress(), because "
                                 "forward() uses its parameter directly.")  # fmt: skip
        rest = self.answer()
        kept, width = self.channels.kept, self.channels.width
        return NarrowChain(tuple(self.links), chain, self.n_inputs, kept, width, rest)

    def embedding(self, module: CompactEmbedding) -> None:
        rows = None if len(module.weight) == module.num_embeddings else integers(module.rows)
        self.links.append(Table(floats(module.weight), rows, module.num_embeddings))
        self.vectors = module.weight
        self.channels = Channels.plain(integers(module.components), module.embedding_dim)

    def one_hot(self, classes: int) -> None:
        self.links.append(Table(np.eye(classes, dtype=np.float32), None, classes, one_hot=True))
        self.channels = Channels.plain(np.arange(classes), classes)

    def recurrent(self, name: str, module: CompactRecurrent) -> None:
        for level in range(module.num_layers):
            top = level == module.num_layers - 1
            layers = [module.layer(level, d) for d in range(module.num_directions)]
            directions = tuple(self.recurrence(layer, top, d == 1) for d, layer in enumerate(layers))
            self.links.append(Level(name, level, module.cell, module.gate_activation, directions))
            numbers = [integers(layer.neurons) + d * module.hidden_size for d, layer in enumerate(layers)]
            self.channels = Channels.plain(
                np.concatenate(numbers), module.hidden_size * module.num_directions
            )

    def recurrence(self, layer: CompactLayer, top: bool, reverse: bool) -> Recurrence:
        kept = layer.kept
        w_ih, inputs, constant = self.channels.read(floats(layer.weight_ih), integers(layer.inputs))
        slots = integers(layer.slots)
        bias = np.zeros((layer.cell.n_gates, kept)) if layer.bias is None else doubles(layer.bias)
        bias.reshape(-1)[slots] += constant
        gated = len(layer.cell.gated_recurrent)
        apart = layer.bias_gated
        bias_gated = np.zeros((gated, kept), np.float32) if apart is None else floats(apart)
        z_h = floats(layer.neuron_scale)
        scale = z_h if top else np.ones(kept, np.float32)
        return Recurrence(
            inputs, integers(layer.recurrent), slots, w_ih, floats(layer.weight_hh), bias.astype(np.float32),
            bias_gated, scale, z_h, integers(layer.neurons), layer.width, reverse,
        )  # fmt: skip

    def linear(self, name: str, module: CompactLinear) -> None:
        is_tied = module.weight is self.vectors
        if is_tied:
            self.settle()  # what an embedding shares stays what it is
        weight, inputs, constant = self.channels.read(floats(module.weight), integers(module.inputs))
        bias = constant if module.bias is None else doubles(module.bias) + constant
        outputs = integers(module.outputs)
        own = np.flatnonzero(np.isin(integers(module.inputs), self.channels.kept))
        tied = own if is_tied else None
        self.links.append(
            Affine(name, inputs, weight, bias.astype(np.float32), outputs, module.out_features, tied)
        )
        self.channels = Channels.plain(outputs, module.out_features)

    def affine(self, link: ChainLink) -> None:
        """scale * x + shift: in the matrix behind, or in the linear layer before."""
        scale, shift = np.array(link.scale), np.array(link.shift)
        settles = self.norms_apart or self.layer_before() is not None
        if self.layer_before() is None and (scale == 1).all():  # in the sums of a matrix it might cost digits
            self.settle()
            self.diagonal(scale, shift)
        else:
            self.channels = self.channels.then(scale, shift)
        if settles:
            self.settle()

    def function(self, link: Function) -> None:
        """A link that works on kept channels as they are, after what is still to be done to them."""
        c = self.channels
        if link.name in (*SCORES, "layer_norm") or (link.name == "sum" and c.constants.any()):
            self.restore()
        elif (
            link.name in OF_CONSTANTS
            or (link.name == "sum" and c.shift.any())
            or (link.name == "max" and (c.scale[c.kept] < 0).any())
        ):
            self.settle()
        self.links.append(link)
        if link.name in OF_CONSTANTS:
            self.channels = self.channels.mapped(OF_CONSTANTS[link.name])

    def settle(self) -> None:
        """What is still to be done to the kept channels, now: in the linear layer before, or by a diagonal matrix."""
        c = self.channels
        if c.settled:
            return
        last = self.layer_before()
        if last is None:
            self.diagonal(np.ones(c.width), np.zeros(c.width))
            return
        scale, shift = c.scale[c.kept], c.shift[c.kept]
        weight, bias = last.weight * scale[:, None], last.bias * scale + shift
        self.links[-1] = replace(last, weight=weight.astype(np.float32), bias=bias.astype(np.float32))
        self.channels = c.mapped(np.copy)

    def layer_before(self) -> Affine | None:
        """The linear layer that channels come from, if it may take in what is to be done to them."""
        last = self.links[-1] if self.links and not self.norms_apart else None
        return last if isinstance(last, Affine) and last.module and last.tied is None else None

    def diagonal(self, scale: Doubles, shift: Doubles) -> None:  # (C,), (C,)
        """y = scale * x + shift as a link, and before that what is still to be done to x."""
        c = self.channels.then(scale, shift)
        kept, bias = c.kept, c.shift[c.kept].astype(np.float32)
        weight = np.diag(c.scale[kept]).astype(np.float32)
        self.links.append(Affine("", np.arange(len(kept)), weight, bias, kept, c.width))
        self.channels = c.mapped(np.copy)

    def restore(self) -> None:
        """Scores and LayerNorm weigh all channels against each other, a sum grows with every step: removed channels
        come back as the constants they are."""
        c = self.channels
        if len(c.kept) == c.width:
            self.settle()
            return
        weight = np.zeros((c.width, len(c.kept)), np.float32)
        weight[c.kept, np.arange(len(c.kept))] = c.scale[c.kept]
        everything = np.arange(c.width)
        bias = c.shift.astype(np.float32)
        self.links.append(Affine("", np.arange(len(c.kept)), weight, bias, everything, c.width))
        self.channels = Channels.plain(everything, c.width)

    def answer(self) -> Floats:
        """The whole output as far as it is constant, one number for all removed channels; others come back."""
        if len(set(self.channels.constants.tolist())) > 1:
            self.restore()
        self.settle()
        constants = self.channels.constants
        return np.full(self.channels.width, constants[0] if len(constants) else 0, np.float32)


def is_diagonal(link: Link, width: int) -> bool:
    """Whether a link is y = scale * x + shift for every one of the channels that it is handed."""
    return isinstance(link, Affine) and not link.module and link.weight.shape == (width, width)


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
