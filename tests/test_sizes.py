"""Bytes of a report against the constants that the C source has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from chains import Case, chains
from hypothesis import given, settings
from networks import LanguageModel, randomly_sparse
from torch import nn

import gatewise as gw
from gatewise.compact import CompactRecurrent
from gatewise.runtime.arrangement import arrange_matrix
from gatewise.sizes import matrix_bytes


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (40, 1), (33, 50), (200, 300)])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.2, 1.0])
def test_a_matrix_takes_what_arranging_it_takes(shape: tuple[int, int], density: float) -> None:
    """One formula for both: what a report says is what the smallest form has."""
    w = torch.where(torch.rand(shape) < density, torch.rand(shape) + 0.5, 0.0)
    for int8 in (False, True):
        arranged = arrange_matrix(w.numpy(), tight=True, int8=int8)
        assert matrix_bytes(w != 0, int8) == arranged.nbytes


def not_counted(small: nn.Module) -> int:
    """What C adds: index lists, z_h, descriptions of layers and matrices, output channels."""
    total = 0
    for module in small.modules():
        if isinstance(module, CompactRecurrent):
            total += sum(240 + 4 * (m.n_inputs + 3 * m.width) for m in module.layers)
        elif isinstance(module, nn.Linear):
            total += 36 + 4 * (module.in_features + module.out_features)
        elif isinstance(module, nn.Embedding):
            total += 36 + 4
    return total


@settings(max_examples=8)
@given(case=chains(norm="", layout="same"))
def test_the_export_has_these_bytes(case: Case, tmp_path: Path) -> None:
    """All numbers of the C source, and no others but those that are left out by definition."""
    report = gw.measure(case.model)
    for weights, said in (("float32", report.bytes), ("int8", report.bytes_int8)):
        options = {"weights": weights, "fold_embedding": False, "overwrite": True}
        made = gw.export.to_c(case.small, tmp_path / "c", **options)
        assert 0 <= made.flash_bytes - said <= not_counted(case.small)


@pytest.mark.parametrize("tied", [False, True])
def test_large_networks(tied: bool, tmp_path: Path) -> None:
    """Here what is not counted is hundredths; a matrix that two layers share is stored and counted once."""
    torch.manual_seed(0)
    model = randomly_sparse(LanguageModel(words=500, width=60, hidden=60, tied=tied), 0.3).eval()
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, :30] = model.rnn.weight_ih_l1[:, :30] = 0
    report = gw.measure(model)
    for weights, said in (("float32", report.bytes), ("int8", report.bytes_int8)):
        options = {"weights": weights, "fold_embedding": False}
        made = gw.export.to_c(model, tmp_path / weights, **options)
        np.testing.assert_allclose(made.flash_bytes, said, rtol=0.03)
    small = gw.measure(gw.compress(model))
    assert (small.bytes, small.bytes_int8) == (report.bytes, report.bytes_int8)
    assert f"{report.bytes:,} bytes of float32, {report.bytes_int8:,} of int8" in str(report)
    assert report.to_dict()["bytes_int8"] == report.bytes_int8
