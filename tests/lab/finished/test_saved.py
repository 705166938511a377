"""What `gatewise evaluate` computes from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import answer, rounded_chain, should_fold
from tiny_corpora import tiny

import gatewise as gw
from gatewise.lab.finished import saved
from gatewise.lab.training.trainer import Options, train
from gatewise.runtime.narrow import narrow_chain


@pytest.mark.parametrize("task", ["word-ptb", "char-ptb", "imdb", "series"])
def test_int8_is_the_network_of_the_c_export(
    task: str, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """What is evaluated answers as the reference of to_c(weights="int8"); the counts are the saved model's."""
    seen: list[torch.nn.Module] = []

    class Watched(saved.Evaluator):
        def __init__(self, model: torch.nn.Module, *args: Any, **options: Any) -> None:
            seen.append(model)
            super().__init__(model, *args, **options)

    train(tiny(task, folder, "sparsify.method=variational"), Options(tmp_path, folder, "cpu", quiet=True))
    monkeypatch.setattr(saved, "Evaluator", Watched)
    _, report = saved.evaluate_saved(tmp_path, data_dir=folder, int8=True)
    small = gw.load(tmp_path).eval()
    narrow = narrow_chain(small)
    axis = narrow.chain.batch_axis
    x = torch.arange(6) % 4 if narrow.chain.words else torch.randn(6, narrow.n_inputs)
    expected = answer(rounded_chain(narrow, should_fold(narrow, None)), x.numpy())
    with torch.no_grad():
        output = seen[0](x.unsqueeze(axis))
    got = output[0] if isinstance(output, tuple) else output
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)
    assert report.to_dict() == gw.measure(small).to_dict()
