"""Masks and last steps of padded sequences in ONNX Runtime and in compiled C: what torch gives, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from chains import CLOSE
from compiled import Compiled
from masked import LENGTHS, PAD, WORDS, E, OfVectors, OfWords, texts

import gatewise as gw


def session_of(model: torch.nn.Module, path: Path, opset: int = 18) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, too
    return onnxruntime.InferenceSession(
        str(gw.export.to_onnx(model, path / "model.onnx", opset=opset)), options
    )


@pytest.mark.parametrize("name", LENGTHS)
def test_onnx_takes_the_lengths(name: str, tmp_path: Path) -> None:
    model = OfVectors(LENGTHS[name]).eval()
    session = session_of(model, tmp_path)
    for lengths in ([4, 1, 3], [2], [1, 1], [5, 5]):
        x, n = torch.randn(len(lengths), 5, E), torch.tensor(lengths)
        with torch.no_grad():
            expected = model(x, n)
        (got,) = session.run(["y"], {"x": x.numpy(), "lengths": n.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), expected, **CLOSE)
    check_no_step(session, model, torch.randn(2, 3, E), torch.tensor([3, 0]))


def check_no_step(session: Any, model: torch.nn.Module, *inputs: torch.Tensor) -> None:
    """A sequence of no step: what the cut model gives, NaN perhaps, and an error where it raises one."""
    feed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs)}
    try:
        with torch.no_grad():
            expected = gw.compress(model)(*inputs)
    except RuntimeError:
        with pytest.raises(Exception, match=r"a_sequence_has_no_step|GatherElements"):
            session.run(["y"], feed)
    else:
        (got,) = session.run(["y"], feed)
        torch.testing.assert_close(torch.from_numpy(got), expected, **CLOSE, equal_nan=True)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("name", WORDS)
def test_onnx_finds_the_ends_of_texts(name: str, opset: int, tmp_path: Path) -> None:
    model = OfWords(WORDS[name]).eval()
    session = session_of(model, tmp_path, opset)
    assert [given.name for given in session.get_inputs()] == ["x"]
    for lengths in ([4, 1, 3], [2], [1, 1], [5, 5]):
        x = texts(lengths, 5)
        with torch.no_grad():
            expected = model(x)
        (got,) = session.run(["y"], {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), expected, **CLOSE)
    with pytest.raises(ValueError, match=r"lengths=True: forward\(\) takes no lengths; pack"):
        gw.export.to_onnx(model, tmp_path / "lengths.onnx", lengths=True)
    for text in ([1, PAD, 1], [PAD, 1, 1], [PAD, PAD, PAD]):  # padding may be anywhere
        check_no_step(session, model, torch.tensor([[1, 1, 3], text]))


@pytest.mark.parametrize("name", ["mean by mask", "maximum", "sum of norms", "last step", "every step"])
def test_c_takes_a_sequence_as_long_as_it_is(name: str, kernels: list[Path], tmp_path: Path) -> None:
    model = OfVectors(LENGTHS[name]).eval()
    compiled = Compiled(gw.compress(model), tmp_path, kernels)
    for length in range(1, 7):
        x = torch.randn(1, 6, E)
        with torch.no_grad():
            expected = model(x, torch.tensor([length])).numpy().reshape(-1, 2)
        got = compiled.run(compiled.instance(), x[0, :length].numpy())
        np.testing.assert_allclose(got.reshape(-1, 2), expected[: len(got.reshape(-1, 2))], **CLOSE)


@pytest.mark.parametrize("name", WORDS)
def test_c_takes_texts_without_padding(name: str, kernels: list[Path], tmp_path: Path) -> None:
    """Nor does padding change the answer: C masks it as forward() does."""
    model = OfWords(WORDS[name]).eval()
    compiled = Compiled(gw.compress(model), tmp_path, kernels)
    for length in range(1, 7):
        x = texts([length], 6)
        with torch.no_grad():
            expected = model(x).numpy()[0]
        for words in (x[0, :length], x[0]):
            got = compiled.run(compiled.instance(), words.numpy())
            np.testing.assert_allclose(got.reshape(-1), expected, **CLOSE)
