"""An output layer that shares its matrix with the embedding: one matrix in every file, and the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from chains import CLOSE
from compiled import Compiled
from networks import CELLS, LanguageModel, randomly_sparse
from onnx.reference import ReferenceEvaluator
from reference import should_fold

import gatewise as gw
from gatewise.export.c.rounded import rounded_model
from gatewise.runtime.narrow import narrow_chain

WORDS, WIDTH = 70, 12  # a whole panel of rows and a rest
IDS = torch.tensor([[0, 63, 64, 69, 5]]).t()  # (T, 1)


def language_model(cell: str = "LSTM", density: float = 1.0, tied: bool = True) -> Any:
    torch.manual_seed(0)
    model = LanguageModel(WORDS, WIDTH, WIDTH, 1, cell, tied=tied)
    with torch.no_grad():
        model.emb.weight[:, 3] = 0
        model.fc.weight.copy_(model.emb.weight)
    return randomly_sparse(model, density).eval()


def bayesian() -> Any:
    """z_h of some neurons is zero, z_x of other components: the two layers read different columns."""
    model = language_model()
    gw.Variational(model, n_train=10)
    with torch.no_grad():
        model.rnn.neuron_scale_l0.copy_(torch.linspace(0.5, 2, WIDTH))
        model.rnn.neuron_scale_l0_log_sigma[5:8] = 9
        model.rnn.input_scale_log_sigma[:2] = 9
    return model


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("density", [1.0, 0.2])
def test_onnx_has_one_constant(cell: str, density: float, tmp_path: Path) -> None:
    check_onnx(gw.compress(language_model(cell, density)), tmp_path)


def test_onnx_has_one_constant_of_different_columns(tmp_path: Path) -> None:
    """What each layer reads is taken from it by nodes on constants, z_h included."""
    small = gw.compress(bayesian())
    narrow = narrow_chain(small)
    assert len(narrow.links[-1].tied) < narrow.table.weight.shape[1]
    check_onnx(small, tmp_path)


def check_onnx(small: Any, folder: Path) -> None:
    proto = onnx.load(gw.export.to_onnx(small, folder / "m.onnx", states=False))
    matrices = [tuple(t.dims) for t in proto.graph.initializer if len(t.dims) == 2 and WORDS in t.dims]
    assert matrices == [tuple(small.emb.weight.shape)]
    once = {t.name for t in proto.graph.initializer}
    for node in proto.graph.node:
        once |= set(node.output) if once.issuperset(node.input) else set()
        assert node.op_type != "Mul" or once.issuperset(node.output)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    with torch.no_grad():
        expected = small(IDS)[0].numpy()
    np.testing.assert_allclose(session.run(["y"], {"ids": IDS.numpy()})[0], expected, **CLOSE)
    np.testing.assert_allclose(
        ReferenceEvaluator(proto).run(["y"], {"ids": IDS.numpy()})[0], expected, **CLOSE
    )


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("density", [1.0, 0.2, 0.02])
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_c_has_one_matrix(cell: str, density: float, weights: str, kernels: Any, tmp_path: Path) -> None:
    """Dense and masked, in floats and bytes: a word's vector is a row of the matrix that multiplies."""
    small, apart = (gw.compress(language_model(cell, density, tied)) for tied in (True, False))
    compiled = Compiled(small, tmp_path, kernels, weights=weights)
    check_c(compiled, small, weights)
    twice = gw.export.to_c(apart, tmp_path / "apart", weights=weights, fold_embedding=False)
    # What the bytes of the nonzeros are, at the least.
    saved = np.count_nonzero(small.emb.weight.detach()) * (4 if weights == "float32" else 1)
    assert compiled.report.flash_bytes <= twice.flash_bytes - saved


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize(("make", "fold"), [(bayesian, None), (bayesian, True), (language_model, True)])
def test_c_with_two(make: Any, fold: bool | None, weights: str, kernels: Any, tmp_path: Path) -> None:
    """Different columns, or a user who wants the vectors folded: then there are two matrices."""
    small = gw.compress(make())
    check_c(Compiled(small, tmp_path, kernels, weights=weights, fold_embedding=fold), small, weights, fold)


def check_c(compiled: Compiled, small: Any, weights: str, fold: bool | None = None) -> None:
    model = small if weights == "float32" else rounded_model(small, fold)
    with torch.no_grad():
        expected = model(IDS)[0][:, 0].numpy()
    np.testing.assert_allclose(compiled.run(compiled.instance(), IDS[:, 0].numpy()), expected, **CLOSE)


def test_an_embedding_that_is_stored_anyway_is_not_folded(tmp_path: Path) -> None:
    """A layer of few gates: word -> input projection would be a second table beside the matrix."""
    model = language_model()
    with torch.no_grad():
        for weight in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            weight[4:] = 0  # four input gates are live
    narrow = narrow_chain(gw.compress(model))
    assert should_fold(narrow, True)
    assert not should_fold(narrow, None)
    folded, shared = (
        gw.export.to_c(model, tmp_path / str(fold), fold_embedding=fold) for fold in (True, None)
    )
    assert shared.flash_bytes < folded.flash_bytes


def test_counts_and_the_saved_file_have_it_once(tmp_path: Path) -> None:
    model, apart = language_model(), language_model(tied=False)
    assert gw.measure(apart).weights - gw.measure(model).weights == WORDS * WIDTH
    saved = [gw.save(gw.compress(m), tmp_path / str(k)).stored_bytes for k, m in enumerate((model, apart))]
    assert saved[1] - saved[0] == WORDS * (WIDTH - 1) * 4  # a column of zeros goes
    loaded = gw.load(tmp_path / "0", into=LanguageModel(WORDS, WIDTH, WIDTH, 1))
    assert loaded.fc.weight is loaded.emb.weight
