"""masked == compressed == engine == ONNX Runtime == ONNX's reference, over random chains."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from chains import (
    CLOSE,
    PLAIN,
    POOLS,
    Case,
    build,
    chains,
    emptied,
    packed_chains,
    three_lengths,
)
from hypothesis import given
from hypothesis import strategies as st
from networks import Net, lstm_net
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

import gatewise as gw
from gatewise.runtime.chained import ChainError


class Exported:
    """A model written to a file and read back by ONNX Runtime."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = gw.export.to_onnx(model, Path(folder) / "model.onnx", **options)
            assert [p.name for p in Path(folder).iterdir()] == ["model.onnx"]
            self.bytes = path.read_bytes()
        threads = onnxruntime.SessionOptions()
        threads.intra_op_num_threads = threads.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.bytes, threads)
        self.graph = onnx.load_from_string(self.bytes).graph
        self.inputs = [x.name for x in self.graph.input]

    def feed(self, x: Tensor, states: dict[str, Tensor], lengths: Tensor | None) -> dict[str, Any]:
        given = [x, *([] if lengths is None else [lengths]), *states.values()]
        return {name: tensor.numpy() for name, tensor in zip(self.inputs, given, strict=True)}

    def __call__(
        self, x: Tensor, states: dict[str, Tensor], lengths: Tensor | None = None
    ) -> dict[str, Tensor]:
        names = [y.name for y in self.session.get_outputs()]
        values = self.session.run(names, self.feed(x, states, lengths))
        return {name: torch.from_numpy(value) for name, value in zip(names, values)}

    def reference(self, x: Tensor, states: dict[str, Tensor]) -> Tensor:
        (answer,) = ReferenceEvaluator(onnx.load_from_string(self.bytes)).run(
            ["y"], self.feed(x, states, None)
        )
        return torch.from_numpy(np.asarray(answer))


def states_of(case: Case, given: bool = True) -> dict[str, Tensor]:
    """The initial states in the order of the graph; zeros for the second layer, as forward() starts it."""
    model, batch = case.model, case.model.o["batch"]
    if model.rnn2 is None:
        return {name: part if given else 0 * part for name, part in zip(("h0", "c0"), case.states)}
    found = {f"rnn.{n}": part if given else 0 * part for n, part in zip(("h0", "c0"), case.states)}
    zeros = torch.zeros(model.rnn2.num_directions, batch, model.rnn2.hidden_size)
    return found | {f"rnn2.{n}": zeros for n, _ in zip(("h0", "c0"), range(model.rnn2.cell.n_states))}


@given(case=chains(), given_state=st.booleans())
def test_the_contract(case: Case, given_state: bool) -> None:
    """Every form gives the same answer and the same last states."""
    exported = Exported(case.small, states=True)
    state = case.state if given_state else None
    expected = case.answer(case.x, state)
    torch.testing.assert_close(case.answer(case.x, state, masked=True), expected, **CLOSE)
    got = exported(case.x, states_of(case, given_state))
    torch.testing.assert_close(got["y"], expected, **CLOSE)
    if not given_state:
        torch.testing.assert_close(gw.Engine(case.small)(case.x)[0], expected, **CLOSE)
    if case.model.o["gate_activation"] == "sigmoid":  # the reference knows no other activation
        torch.testing.assert_close(
            exported.reference(case.x, states_of(case, given_state)), expected, **CLOSE
        )
    if case.model.o["take"] == "all":
        with torch.no_grad():
            _, last = case.small(case.x, state)
        prefix = "rnn." if case.model.rnn2 is not None else ""
        for name, part in zip(("hn", "cn"), last if isinstance(last, tuple) else (last,)):
            torch.testing.assert_close(got[prefix + name], part, **CLOSE)


@given(case=packed_chains(), lengths=three_lengths)
def test_packing(case: Case, lengths: Tensor) -> None:
    """A forward() that packs: its lengths are an input, and answer and last states are its own."""
    with torch.no_grad():
        expected = case.small(case.x, lengths, case.state)
    got = Exported(case.small, states=True)(case.x, states_of(case), lengths)
    if case.model.o["take"] != "all":
        torch.testing.assert_close(got["y"], expected, **CLOSE)
        return
    torch.testing.assert_close(got["y"], expected[0], **CLOSE)
    prefix = "rnn." if case.model.rnn2 is not None else ""
    last = expected[1] if isinstance(expected[1], tuple) else (expected[1],)
    for name, part in zip(("hn", "cn"), last):
        torch.testing.assert_close(got[prefix + name], part, **CLOSE)


def test_lengths_can_be_left_out() -> None:
    """Then no sequence is padded, whatever forward() packs with."""
    case = build(0, PLAIN | {"packs": "cut"})
    exported = Exported(case.small, states=False, lengths=False)
    with torch.no_grad():
        expected, _ = case.small(case.x, torch.full((2,), 4))
    torch.testing.assert_close(exported(case.x, {})["y"], expected, **CLOSE)


def test_a_neuron_scale_of_zero_divides_nothing() -> None:
    """s = h / z_h is 0 / 0 where z_h = 0, and NaN would stay in that neuron, which its cell state keeps."""
    model = lstm_net(with_state).eval()
    gw.Variational(model, "W+G+N", n_train=10)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_log_sigma"):
                parameter.fill_(-9.0)
        model.rnn.neuron_scale_l0_log_sigma[:2] = 9.0
    with pytest.warns(UserWarning, match="keeps 2 neurons"):
        small = gw.compress(model)
    x, zeros = torch.randn(2, 5, 3), torch.zeros(1, 2, 4)
    with torch.no_grad():
        y, (h, c) = small(x)
    got = Exported(small, states=True)(x, {"h0": zeros, "c0": zeros})
    torch.testing.assert_close(got, {"y": y, "hn": h, "cn": c}, **CLOSE)


def with_state(model: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    y, state = model.rnn(x)
    return model.fc(y), state


def test_lengths_are_what_torch_has() -> None:
    """int64, as torch.tensor([3, 1]) is; ONNX's own nodes want int32."""
    exported = Exported(build(0, PLAIN | {"packs": "cut"}).small)
    kinds = {given.name: given.type.tensor_type.elem_type for given in exported.graph.input}
    assert kinds["lengths"] == onnx.TensorProto.INT64


@given(case=chains(bidirectional=False, take="all", layout="same", steps=4, second=False))
def test_streaming(case: Case) -> None:
    """One step at a time, last states fed back as they came out."""
    exported = Exported(case.small)
    states, parts = states_of(case), []
    for x in case.x.split(1, case.model.time):
        out = exported(x.contiguous(), states)
        parts.append(out["y"])
        states = {name: out[name[0] + "n"] for name in states}
    torch.testing.assert_close(torch.cat(parts, case.model.time), case.answer(case.x, case.state), **CLOSE)


@given(case=chains(steps=2, batch=2))
def test_a_layer_is_one_node(case: Case) -> None:
    """Fused nodes of their own width, one for each layer and direction that has neurons left; nothing decomposed."""
    graph = Exported(case.small).graph
    operators = Counter(node.op_type for node in graph.node)
    widths = {"LSTM": Counter(), "GRU": Counter()}
    for rnn in (case.small.rnn, case.small.rnn2):
        if rnn is not None:
            widths[rnn.cell.name].update(layer.kept for layer in rnn.layers if layer.kept)
    for cell, expected in widths.items():
        nodes = [node for node in graph.node if node.op_type == cell]
        sizes = Counter(a.i for node in nodes for a in node.attribute if a.name == "hidden_size")
        assert sizes == expected
        assert operators[cell] == expected.total()
    assert not operators & Counter(["Scan", "Loop", "If"])


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("empty", ["rnn.weight_ih_l1", "rnn.weight_hh_l0", "emb.weight", "fc.weight"])
def test_what_is_gone_leaves_constants(cell: str, empty: str) -> None:
    """A layer that nobody reads, or that reads nothing, down to a graph without a recurrent node."""
    case = emptied(3, {**PLAIN, "cell": cell}, empty)
    exported = Exported(case.small)
    assert any(node.op_type == cell for node in exported.graph.node) == (empty != "fc.weight")
    torch.testing.assert_close(
        exported(case.x, states_of(case))["y"], case.answer(case.x, case.state, masked=True), **CLOSE
    )


@pytest.mark.parametrize("opset", [18, 20, 21, 22, 23])
@pytest.mark.parametrize("take", ["all", *POOLS])
def test_opsets(opset: int, take: str) -> None:
    options = {"density": 0.6, "words": 0, "gate_activation": "hard_sigmoid", "take": take, "norm": "layer"}
    case = build(4, PLAIN | options)
    exported = Exported(case.small, opset=opset, states=True)
    torch.testing.assert_close(
        exported(case.x, states_of(case))["y"], case.answer(case.x, case.state), **CLOSE
    )


@pytest.mark.parametrize("take", POOLS)
@pytest.mark.parametrize("head", [True, False])
def test_a_negative_scale_turns_a_maximum_around(take: str, head: bool) -> None:
    """max(z s) is z min(s) where z < 0, so z_h must be multiplied in before."""
    case = build(1, {**PLAIN, "bayes": True, "take": take, "head": head})
    assert (case.small.rnn.layers[-1].neuron_scale < 0).any()
    expected = case.answer(case.x, masked=True)
    torch.testing.assert_close(gw.Engine(case.small)(case.x)[0], expected, **CLOSE)
    torch.testing.assert_close(Exported(case.small, states=False)(case.x, {})["y"], expected, **CLOSE)


def test_batch_and_time_are_free() -> None:
    case = build(5, {**PLAIN, "density": 0.6, "dead": 0.3})
    exported = Exported(case.small, states=False)
    for steps, batch in ((1, 1), (7, 1), (2, 9)):
        x = torch.randint(0, 5, (steps, batch))
        torch.testing.assert_close(exported(x, {})["y"], case.answer(x), **CLOSE)


def test_a_dense_model_is_compressed_first() -> None:
    case = build(6, {**PLAIN, "density": 0.4, "dead": 0.3})
    torch.testing.assert_close(
        Exported(case.model)(case.x, states_of(case))["y"], case.answer(case.x, case.state), **CLOSE
    )


def test_folders_are_made(tmp_path: Path) -> None:
    path = gw.export.to_onnx(nn.LSTM(2, 3), tmp_path / "a" / "b" / "model.onnx")
    assert path.is_file()


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written raises, leaves no file, and leaves the file that was there."""
    case = build(7, PLAIN)
    path = tmp_path / "model.onnx"
    path.write_text("the old one")
    for opset in (9, 17, 24):
        with pytest.raises(ValueError, match=f"opset={opset}: expected one from 18 to 23"):
            gw.export.to_onnx(case.small, path, opset=opset)
    with pytest.raises(ChainError, match=r"line \d+.*n\(m\.rnn.*accelerate"):
        gw.export.to_onnx(Net(lambda m, x: m.n(m.rnn(x)[0]), rnn=nn.LSTM(2, 2), n=nn.InstanceNorm1d(2)), path)

    def stuck(*_: Any) -> None:
        raise OSError("device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", stuck)
        with pytest.raises(OSError, match="busy"):
            gw.export.to_onnx(case.small, path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install gatewise\[onnx\]"):
        gw.export.to_onnx(case.small, path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "the old one"
