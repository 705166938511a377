"""Decoders that read their own answers, carried away: ONNX and C give the same symbols."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from compiled import CompiledProgram, run
from decoders import END, Case, margin, speller, spellers
from everyday import EVERYDAY
from hypothesis import assume, given, settings
from test_onnx_programs import Session

import gatewise as gw
from gatewise.export.c.golden_program import answers, from_example
from gatewise.export.c.rounded import rounded_layers


@given(case=spellers())
def test_onnx_gives_the_same_symbols(case: Case, tmp_path: Path) -> None:
    """A Loop that stops when all have ended, whatever the batch."""
    session = Session(case.small, tmp_path)
    for batch in (case.words, case.words[:1]):
        (ids,) = session(batch)
        assert torch.equal(ids, case.answer[: len(batch)])


def test_the_loop_of_onnx_stops_when_all_have_ended(tmp_path: Path) -> None:
    """It runs as many steps as the longest answer has, its end included."""
    model = speller(longest=9)
    with torch.no_grad():
        model.fc.bias[END] += 1.5
        words = torch.randint(9, (8, 4))
        answers = model(words)
    proto = onnx.load(gw.export.to_onnx(model, tmp_path / "model.onnx"))
    (loop,) = (node for node in proto.graph.node if node.op_type == "Loop")
    every = onnx.helper.make_tensor_value_info(loop.output[-1], onnx.TensorProto.INT64, None)
    proto.graph.output.append(every)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    counts = [
        len(session.run([every.name], {"words": word.numpy()})[0])
        for word in (*words.split(1), words)
    ]  # fmt: skip
    ends = (answers != END).sum(1).add(1).clamp(max=9)
    assert counts == [*ends.tolist(), int(ends.max())]
    assert len(set(counts)) > 2


def test_onnx_stores_once_what_the_loop_shares(tmp_path: Path) -> None:
    """Of a language model that goes on by itself: matrices of the layer, and the table that its head shares."""
    model, _ = EVERYDAY["continued text"]()
    graph = onnx.load(gw.export.to_onnx(model, tmp_path / "model.onnx")).graph
    floats = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    assert [array.shape for array in floats if array.shape in ((9, 6), (6, 9))] == [(9, 6)]
    assert len([array for array in floats if array.shape == (1, 24, 6)]) == 4


@pytest.mark.parametrize("opset", [18, 23])
def test_onnx_versions(opset: int, tmp_path: Path) -> None:
    model = speller(layers=2, cell="LSTM")
    words = torch.randint(9, (3, 5))
    (ids,) = Session(model, tmp_path, opset=opset)(words)
    assert torch.equal(ids, model(words))


@pytest.mark.parametrize("weights", ["float32", "int8"])
@settings(max_examples=3)
@given(case=spellers())
def test_c_gives_the_same_symbols(weights: str, case: Case, kernels: list[Path], tmp_path: Path) -> None:
    """Whole words, one by one; with int8 the symbols of the rounded network, as far as no rounding decides."""
    small = case.small
    compiled = CompiledProgram(small, tmp_path, kernels, (case.words,), weights=weights, block=8)
    measure = compiled.measure(small)
    for word in case.words.split(1):
        one = from_example(compiled.program, small, (word,))
        (expected,) = answers(compiled.program, measure, one)
        with torch.no_grad():
            doubted = weights == "int8" and margin(measure, word, torch.from_numpy(expected)) < 1e-3
        assume(not doubted)
        (found,) = compiled.run(compiled.instance(), one, [expected])
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_the_folder_checks_itself(weights: str, tmp_path: Path) -> None:
    """make check compares the golden word exactly, whole and letter by letter, also with weights in a file."""
    model = speller(layers=2, cell="LSTM")
    with torch.no_grad():
        model.phones.weight[3] = 0
        model.decoder.weight_hh_l1[:, ::2] = 0
        model.fc.weight[:, ::2] = 0
    gw.export.to_c(model, tmp_path / "m", weights=weights, file_above=0 if weights == "int8" else 1 << 20)
    said = run("make", "check", "-C", tmp_path / "m")
    assert said.count("whole numbers: ok") == 2
    assert "malloc" not in (tmp_path / "m" / "model.c").read_text()


def test_the_error_of_symbols_is_a_share_of_words(tmp_path: Path) -> None:
    """How many words int8 says otherwise, on words that are given."""
    small = gw.compress(speller(hidden=8, longest=9))
    words = torch.randint(9, (200, 3))
    made = gw.export.to_c(small, tmp_path / "m", weights="int8", example=words)
    with torch.no_grad():
        differ = (rounded_layers(small)(words) != small(words)).any(1)
    assert 0 < differ.sum() < 100
    assert made.max_abs_error == pytest.approx(float(differ.double().mean()))
