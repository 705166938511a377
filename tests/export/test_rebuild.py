"""Layers from what a file says of them: every option, and no index that kernels could not trust."""

from __future__ import annotations

import pytest
import torch
from networks import Classifier
from torch import nn

import gatewise as gw
from gatewise.export.saved.rebuild import build, describe
from gatewise.export.saved.rebuild_compact import check_ascends, check_embedding
from gatewise.export.saved.schema import SchemaError


@pytest.mark.parametrize("indices", [[0, 2, 1], [1, 1], [-1, 0], [0, 4]])
def test_an_index_list_ascends_within_its_places(indices: list[int]) -> None:
    with pytest.raises(SchemaError, match=r"rnn\.neurons does not ascend within 0\.\.3"):
        check_ascends("rnn", {"neurons": torch.tensor(indices)}, neurons=4)


def test_a_word_has_a_row_or_none() -> None:
    fields = {"where": "emb", "num_embeddings": 3, "embedding_dim": 2, "padding_idx": None}
    for rows in ([0, -2, 1], [0, 2, 1], [0, 1, 2]):
        tensors = {"rows": torch.tensor(rows), "weight": torch.zeros(2, 2), "components": torch.arange(2)}
        with pytest.raises(SchemaError, match=r"emb\.rows does not map 3 words to 2 rows"):
            check_embedding(fields, tensors)


@pytest.mark.parametrize("option", ["scale_grad_by_freq", "sparse"])
def test_how_a_compact_embedding_learns_is_kept(option: str) -> None:
    small = gw.compress(nn.Embedding(6, 3, **{option: True}))
    fields = describe(small)
    assert fields is not None
    assert getattr(build(fields, small.state_dict()), option)
    assert not getattr(build({**fields, option: False}, small.state_dict()), option)


def test_how_a_variational_embedding_learns_is_kept() -> None:
    model = Classifier()
    model.emb.scale_grad_by_freq = True
    gw.Variational(model, n_train=1)
    fields = describe(model.emb)
    assert fields is not None
    assert build(fields, model.emb.state_dict()).scale_grad_by_freq
