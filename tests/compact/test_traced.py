"""Out of Python with torch itself: tracing and the older ONNX exporter take compact models, scripting does not."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from chains import CLOSE
from networks import CELLS, OURS, Classifier, randomly_sparse, tagger
from torch import nn

import gatewise as gw

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.(jit|onnx).*:DeprecationWarning"),
]
SHAPES = [(5, 2, 3), (9, 2, 3), (5, 4, 3), (1, 1, 3)]
STACKS = [{}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True}]


def cut(cell: str, stack: dict[str, Any], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return gw.compress(randomly_sparse(tagger(OURS[cell](3, 4, **stack)), 0.4)).eval()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("stack", STACKS)
def test_a_trace_is_the_model(cell: str, stack: dict[str, Any]) -> None:
    """Traced with one shape it takes others; dense layers as well as compact ones."""
    for model in (cut(cell, stack, 0), tagger(OURS[cell](3, 4, **stack)).eval()):
        traced = torch.jit.trace(model, torch.randn(SHAPES[0]))
        for shape in SHAPES:
            x = torch.randn(shape)
            torch.testing.assert_close(traced(x), model(x), **CLOSE)


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning"
)  # torch's, about its exporter
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("stack", STACKS)
def test_torchs_older_onnx_exporter(cell: str, stack: dict[str, Any]) -> None:
    """The upper layers of a stack pick what they read of those below without an operator that ONNX has not."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    for seed in range(3):
        model, file = cut(cell, stack, seed), io.BytesIO()
        axes = {"x": {0: "steps", 1: "batch"}}
        example = (torch.randn(SHAPES[0]),)
        torch.onnx.export(model, example, file, input_names=["x"], dynamic_axes=axes, dynamo=False)
        session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
        for shape in ((5, 2, 3), (9, 3, 3)):
            x = torch.randn(shape)
            (found,) = session.run(None, {"x": x.numpy()})
            np.testing.assert_allclose(found, model(x).detach().numpy(), **CLOSE)


@pytest.mark.parametrize("make", [
    Classifier, lambda: tagger(gw.nn.GRU(3, 4)), lambda: nn.Sequential(nn.Linear(3, 2)),
    lambda: nn.Sequential(nn.Embedding(3, 2)), lambda: nn.Sequential(nn.LSTMCell(3, 2)),
])  # fmt: skip
def test_scripting_is_refused_in_one_sentence(make: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"cannot be scripted: .* torch\.jit\.trace\(model, x\)"):
        torch.jit.script(gw.compress(make()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model_is_refused_with_what_works() -> None:
    """The advice is a call that the tests above make."""
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match=r"Give the model it was made from, and trace the result"):
        gw.compress(scripted)
