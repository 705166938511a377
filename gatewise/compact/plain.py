"""Compact Linear and Embedding layers: fewer columns, rows and words, the original shapes outside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatewise.compact.plan import MatrixPlan
from gatewise.compact.recurrent import pick, spread
from gatewise.nn.forms import Form
from gatewise.nn.lookup import Stored
from gatewise.nn.scripting import Unscriptable


class CompactLinear(Form, Unscriptable, nn.Linear):
    """y[outputs] = x[inputs] W^T + b, and zero for outputs that nobody reads."""

    is_compact = True
    inputs: Tensor
    outputs: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        plan: MatrixPlan,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.weight = in_features, out_features, weight
        self.register_buffer("inputs", plan.columns.to(weight.device))
        self.register_buffer("outputs", plan.rows.to(weight.device))
        self.register_parameter("bias", bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kept={len(self.inputs)} -> {len(self.outputs)}"

    def stored(self, matrix: str) -> Stored:
        return Stored(matrix, self.outputs, self.inputs)

    def deterministic_weight(self) -> Tensor:
        """The weight in its original shape, zeros where something was cut."""
        rows = spread(self.weight, self.inputs, self.in_features, dim=1)
        return spread(rows, self.outputs, self.out_features, dim=0)

    def deterministic_bias(self) -> Tensor | None:
        return None if self.bias is None else spread(self.bias, self.outputs, self.out_features, dim=0)

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[-1] != self.in_features:
            raise ValueError(
                f"in_features is {self.in_features}, but the input's last dimension is {input.shape[-1]}."
            )
        y = F.linear(pick(input, self.inputs, dim=-1), self.weight, self.bias)
        return spread(y, self.outputs, self.out_features, dim=-1)


class CompactEmbedding(Form, Unscriptable, nn.Embedding):
    """e(word)[components] = W[row of word], and zero for words and components that were removed.

    Words keep their ids: `rows` maps each of the V words to its row, or to -1. The gradient is that of nn.Embedding,
    scaled by frequency or sparse if asked for.
    """

    is_compact = True
    rows: Tensor
    components: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        plan: MatrixPlan,
        weight: nn.Parameter,
        padding_idx: int | None = None,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim, self.weight = num_embeddings, embedding_dim, weight
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, None, 2.0
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        rows = torch.full((num_embeddings,), -1, dtype=torch.int64)
        rows[plan.rows] = torch.arange(len(plan.rows))
        self.register_buffer("rows", rows.to(weight.device))
        self.register_buffer("components", plan.columns.to(weight.device))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kept={self.weight.shape[0]} words x {self.weight.shape[1]}"

    def stored(self, matrix: str) -> Stored:
        return Stored(matrix, (self.rows >= 0).nonzero().flatten(), self.components)

    def deterministic_weight(self) -> Tensor:
        words = (self.rows >= 0).nonzero().flatten()
        columns = spread(self.weight, self.components, self.embedding_dim, dim=1)
        return spread(columns, words, self.num_embeddings, dim=0)

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.shape[0] == self.num_embeddings:  # every word has its own row
            return spread(super().forward(input), self.components, self.embedding_dim, dim=-1)
        # index_select, unlike indexing, refuses negative ids as nn.Embedding does.
        rows = self.rows.index_select(0, input.reshape(-1)).view(input.shape)
        if not self.weight.shape[0]:
            return self.weight.new_zeros(*input.shape, self.embedding_dim)
        kept = rows >= 0
        learns = kept
        if self.padding_idx is not None and torch.is_grad_enabled():
            learns = kept & (input != self.padding_idx)  # its row gets no gradient, as in the dense layer
        if self.scale_grad_by_freq or self.sparse:
            # Words that do not learn must neither be counted nor have a place in a sparse gradient.
            vectors = F.embedding(rows.clamp(min=0), self.weight.detach())
            vectors[learns] = F.embedding(
                rows[learns], self.weight, scale_grad_by_freq=self.scale_grad_by_freq, sparse=self.sparse
            )
        else:
            vectors = F.embedding(rows.clamp(min=0), self.weight)
            if learns is not kept:
                vectors = torch.where(learns.unsqueeze(-1), vectors, vectors.detach())
        return spread(vectors * kept.unsqueeze(-1), self.components, self.embedding_dim, dim=-1)
