"""A decoder that reads its own answers, in the engine: the whole loop is one call of the kernels.

With attention, head and query are one matrix: scores of all symbols, then the query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gatewise.compact import CompactEmbedding
from gatewise.nn.lookup import bias_of, matrix_of
from gatewise.program import operations as ops
from gatewise.runtime.evaluate import embedding
from gatewise.runtime.layers import Memory, RecurrentLayer
from gatewise.runtime.narrow import Floats, Table, floats
from gatewise.runtime.rounding import Weights

Array = NDArray[Any]


class Decoder:
    """ids = decoder(seen, memory, threads), as `Decode` says."""

    def __init__(
        self, model: nn.Module, op: ops.Decode, fold: bool | None, weights: Weights = "float32"
    ) -> None:
        rnn, head = model.get_submodule(op.module), model.get_submodule(op.head)
        words: Any = model.get_submodule(op.embedding)
        if not isinstance(words, CompactEmbedding):
            words = Table(embedding(words).astype(np.float32), None, words.num_embeddings)
        heads = [head, model.get_submodule(op.query)] if op.query else [head]
        matrices, biases = zip(*map(affine, heads))
        self.layer = RecurrentLayer(
            rnn, op.module, words, fold, (np.concatenate(matrices), np.concatenate(biases)), weights
        )
        self.decode, self.limits = self.layer.network.decode, (op.start, op.end, op.longest)

    def __call__(self, seen: list[Array], memory: Memory, threads: int) -> Array:  # (B, longest)
        """From the first states, which are overwritten; `seen` is nothing, or keys and votes."""
        ids = np.empty((memory.batch, self.limits[2]), np.int64)
        keys, votes = (np.ascontiguousarray(array, np.float32) for array in seen) if seen else (None, None)
        things = 0 if keys is None else keys.shape[1]
        self.decode(memory.parts, ids, memory.batch, *self.limits, threads, keys, votes, things)
        return ids


def affine(head: nn.Module) -> tuple[Floats, Floats]:
    """Also symbols whose score is always zero: it may be the largest."""
    weight, bias = matrix_of(head), bias_of(head)
    return floats(weight), np.zeros(len(weight), np.float32) if bias is None else floats(bias)
