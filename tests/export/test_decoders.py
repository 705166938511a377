"""Decoders that read their own answers, carried away: ONNX and C give the same symbols."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from decoders import Case, speller, spellers
from hypothesis import given
from test_onnx_programs import Session


@given(case=spellers())
def test_onnx_gives_the_same_symbols(case: Case, tmp_path: Path) -> None:
    """A Loop that stops when all have ended, whatever the batch."""
    session = Session(case.small, tmp_path)
    for batch in (case.words, case.words[:1]):
        (ids,) = session(batch)
        assert torch.equal(ids, case.answer[: len(batch)])


@pytest.mark.parametrize("opset", [15, 18, 23])
def test_onnx_versions(opset: int, tmp_path: Path) -> None:
    model = speller(layers=2, cell="LSTM")
    words = torch.randint(9, (3, 5))
    (ids,) = Session(model, tmp_path, opset=opset)(words)
    assert torch.equal(ids, model(words))
