"""The compact torch model that computes what the C export with int8 weights computes."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import nn

from gatewise.compact import CompactEmbedding, CompactLayer, CompactLinear, CompactRecurrent, compacted
from gatewise.export.c.chain import should_fold
from gatewise.export.c.golden_program import rounded_layers
from gatewise.runtime.chained import ChainError
from gatewise.runtime.narrow import (
    Affine,
    Floats,
    Function,
    Ints,
    Level,
    Link,
    NarrowChain,
    Recurrence,
    Table,
    integers,
    narrow_chain,
)
from gatewise.runtime.rounding import rounded

LAYERS = ("embedding", "one_hot", "recurrent", "linear")


def rounded_model(model: nn.Module, fold_embedding: bool | None = None) -> nn.Module:
    """A copy with the weights of to_c(weights="int8"), and float32 all else: same class, states, masks, any device.

    Where C folds the embedding into the first layer it rounds the table word -> input projection, not the two
    matrices. The embedding is then that table, and the layer reads it through the identity; of one-hot vectors the
    table is the layer's matrix. A model that is no chain of layers has its matrices rounded one by one.
    """
    small = copy.deepcopy(compacted(model))
    try:
        narrow = narrow_chain(small, norms_apart=True)
    except ChainError:
        return rounded_layers(small)
    fold = should_fold(narrow, fold_embedding)
    links = iter(rounded_chain(narrow, fold).links)
    kept: Ints = np.arange(narrow.n_inputs)  # original numbers of the channels that reach a layer
    one_hot: Table | None = None
    for own in narrow.chain.links:
        if own.kind not in LAYERS:
            continue
        module, link = own.module, next(links)
        while not is_layer(link):  # a function, a normalisation, or constants that come back before scores
            kept = link.outputs if isinstance(link, Affine) else kept
            link = next(links)
        if isinstance(link, Table) and isinstance(module, CompactEmbedding):
            kept = np.arange(link.weight.shape[1]) if fold else integers(module.components)
            module.weight, module.components = as_parameter(link.weight), torch.from_numpy(kept)
            module.embedding_dim = max(module.embedding_dim, len(kept))  # a table may be wider
        elif isinstance(link, Table):
            kept, one_hot = np.arange(link.n_words), link if fold else None
        elif isinstance(module, CompactRecurrent):
            module.input_size = max(module.input_size, int(kept.max(initial=0)) + 1)
            for level, found in enumerate([link, *islice(links, module.num_layers - 1)]):
                assert isinstance(found, Level)
                kept = put_level(module, level, found if one_hot is None else by_word(found, one_hot), kept)
                one_hot = None
        elif isinstance(module, CompactLinear):
            assert isinstance(link, Affine)
            module.inputs = torch.from_numpy(kept[link.inputs])
            module.weight, module.bias = as_parameter(link.weight), as_parameter(link.bias)
            kept = link.outputs
    return small


def is_layer(link: Link) -> bool:
    return isinstance(link, Table | Level) or (isinstance(link, Affine) and bool(link.module))


def put_level(module: CompactRecurrent, level: int, link: Level, kept: Ints) -> Ints:
    """Write one layer of a stack; the channels it hands on."""
    for d, r in enumerate(link.directions):
        put_layer(module.layer(level, d), r, kept)
    return np.concatenate([r.neurons + d * module.hidden_size for d, r in enumerate(link.directions)])


def put_layer(layer: CompactLayer, r: Recurrence, kept: Ints) -> None:
    layer.inputs = torch.from_numpy(kept[r.inputs])
    layer.weight_ih, layer.weight_hh = as_parameter(r.w_ih), as_parameter(r.w_hh)
    layer.bias = as_parameter(r.bias)
    # Both or none: a layer with the first alone has no gated recurrent half.
    layer.bias_gated = as_parameter(r.bias_gated) if len(r.bias_gated) else None


def by_word(level: Level, table: Table) -> Level:
    """The level with the table as its input matrix, one column for each word: what a one-hot vector picks."""
    words = np.arange(len(table.weight))
    directions = (replace(r, inputs=words, w_ih=table.weight[:, r.inputs].T) for r in level.directions)
    return replace(level, directions=tuple(directions))


def as_parameter(array: Floats) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array)), requires_grad=False)


def rounded_chain(narrow: NarrowChain, fold: bool) -> NarrowChain:
    """The chain with every matrix as int8 weights stand for it; `fold`: the embedding is part of the first level."""
    links = narrow.links
    if not fold:
        return replace(narrow, links=tuple(map(rounded_link, links)))
    table, level = links[:2]
    assert isinstance(table, Table)
    assert isinstance(level, Level)
    return replace(narrow, links=(*rounded_fold(table, level), *map(rounded_link, links[2:])))


def rounded_fold(table: Table, level: Level) -> tuple[Table, Level]:
    """The table word -> input projection, rounded, as an embedding that the level reads through the identity."""
    columns: list[Floats] = []
    directions: list[Recurrence] = []
    for r in level.directions:
        n, bias = len(r.slots), r.bias.reshape(-1)[r.slots]
        columns.append(rounded(table.weight[:, r.inputs] @ r.w_ih.T + bias, "int8") - bias)
        inputs = np.arange(n) + sum(part.shape[1] for part in columns[:-1])
        directions.append(
            replace(r, inputs=inputs, w_ih=np.eye(n, dtype=np.float32), w_hh=rounded(r.w_hh, "int8"))
        )
    return replace(table, weight=np.concatenate(columns, axis=1)), replace(
        level, directions=tuple(directions)
    )


def rounded_link(link: Link) -> Link:
    if isinstance(link, Level):
        directions = (
            replace(r, w_ih=rounded(r.w_ih, "int8"), w_hh=rounded(r.w_hh, "int8")) for r in link.directions
        )
        return replace(link, directions=tuple(directions))
    return link if isinstance(link, Function) else replace(link, weight=rounded(link.weight, "int8"))
