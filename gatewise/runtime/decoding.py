"""A decoder that reads its own answers, in the engine: the whole loop is one call of the kernels."""

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
from gatewise.runtime.narrow import Table, floats
from gatewise.runtime.rounding import Weights

Array = NDArray[Any]


class Decoder:
    """ids = decoder(memory, threads), as `Decode` says."""

    def __init__(
        self, model: nn.Module, op: ops.Decode, fold: bool | None, weights: Weights = "float32"
    ) -> None:
        rnn, head = model.get_submodule(op.module), model.get_submodule(op.head)
        words: Any = model.get_submodule(op.embedding)
        if not isinstance(words, CompactEmbedding):
            words = Table(embedding(words).astype(np.float32), None, words.num_embeddings)
        weight, bias = matrix_of(head), bias_of(head)
        # Also symbols whose score is always zero: it may be the largest.
        scores = floats(weight), np.zeros(len(weight), np.float32) if bias is None else floats(bias)
        self.layer = RecurrentLayer(rnn, op.module, words, fold, scores, weights)
        self.decode, self.limits = self.layer.network.decode, (op.start, op.end, op.longest)

    def __call__(self, memory: Memory, threads: int) -> Array:  # (B, longest)
        """From the first states, which are overwritten."""
        ids = np.empty((memory.batch, self.limits[2]), np.int64)
        self.decode(memory.parts, ids, memory.batch, *self.limits, threads)
        return ids
