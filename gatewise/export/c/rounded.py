"""The compact torch model that computes what the C export with int8 weights computes."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from gatewise.compact import CompactEmbedding, CompactLayer, CompactLinear, compacted
from gatewise.export.c.fold import Fold, folded
from gatewise.export.c.golden_program import chosen
from gatewise.export.c.layers import Floats, recurrent_of, vectors_of
from gatewise.program.stand_ins import Refused
from gatewise.program.ways import programs
from gatewise.runtime.narrow import floats, integers
from gatewise.runtime.rounding import rounded


def rounded_model(model: nn.Module, fold_embedding: bool | None = None) -> nn.Module:
    """A copy with the weights of to_c(weights="int8"), and float32 all else: same class, states, masks, any device.

    Where C folds the embedding into the first layer it rounds the table word -> input projection, not the two
    matrices. The embedding is then that table, and the layer reads it through the identity; of one-hot vectors the
    table is the layer's matrix. A model that cannot be recorded has its matrices rounded one by one.
    """
    small = compacted(model)
    try:
        program = chosen(programs(small), small, None)
    except Refused:
        return rounded_layers(small)
    return rounded_layers(small, folded(program, small, fold_embedding)[1])


def rounded_layers(model: nn.Module, folds: Iterable[Fold] = ()) -> nn.Module:
    """A copy with the weights of compact layers, and the tables of what is folded, as int8 stands for them."""
    small = copy.deepcopy(model)
    done: set[int] = set()
    for module in small.modules():
        names: tuple[str, ...] = ()
        if isinstance(module, CompactLinear | CompactEmbedding):
            names = ("weight",)
        elif isinstance(module, CompactLayer):
            names = ("weight_ih", "weight_hh")
        for parameter in (module.get_parameter(name) for name in names):
            if id(parameter) not in done:
                done.add(id(parameter))
                parameter.data.copy_(torch.from_numpy(rounded(parameter.detach().numpy(), "int8")))
    for fold in folds:
        put_table(fold, model, small)
    return small


def put_table(fold: Fold, model: nn.Module, small: nn.Module) -> None:
    """The rounded table as an embedding that the layers read through the identity, or as an input matrix."""
    vectors, _ = vectors_of(fold.rows, model)
    tables: list[Floats] = []
    for name in fold.readers:
        exact, module = (recurrent_of(m.get_submodule(name), name) for m in (model, small))
        for d in range(module.num_directions):
            layer, own = exact.layer(0, d), module.layer(0, d)
            slots, inputs = integers(layer.slots), integers(layer.inputs)
            bias = np.zeros(1, np.float32) if layer.bias is None else floats(layer.bias).reshape(-1)[slots]
            table = rounded(vectors[:, inputs] @ floats(layer.weight_ih).T + bias, "int8") - bias
            first = sum(part.shape[1] for part in tables) if fold.rows.module else 0
            matrix = np.eye(len(slots), dtype=np.float32) if fold.rows.module else table.T
            own.inputs, own.weight_ih = torch.arange(matrix.shape[1]) + first, as_parameter(matrix)
            tables.append(table)
    if fold.rows.module:
        embedding: Any = small.get_submodule(fold.rows.module)
        embedding.weight = as_parameter(np.concatenate(tables, axis=1))
        embedding.components = torch.arange(embedding.weight.shape[1])
        embedding.embedding_dim = max(embedding.embedding_dim, len(embedding.components))
        for name in fold.readers:
            layers: Any = small.get_submodule(name)
            layers.input_size = embedding.embedding_dim


def as_parameter(array: Floats) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array)), requires_grad=False)
