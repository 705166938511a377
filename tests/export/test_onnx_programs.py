"""ONNX of models that are graphs: forward()'s inputs and outputs, in its order, with its answers."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from chains import CLOSE, PLAIN, build
from everyday import EVERYDAY, REFUSED, compressed
from networks import lstm_net
from operations import OPERATIONS, behind_a_layer
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.export.onnx import pointwise
from gatewise.export.onnx.program import RULES
from gatewise.program import operations
from gatewise.program.graph import Program, leaves
from gatewise.program.operations import Collect, Input, Opaque, Operation, Turn
from gatewise.program.sizes import Size
from gatewise.program.ways import programs
from gatewise.runtime.chained import ChainError


class Session:
    """A model in ONNX Runtime: tensors in, in forward()'s order, tensors out."""

    def __init__(self, model: nn.Module, folder: Path, **options: Any) -> None:
        path = gw.export.to_onnx(model, folder / "model.onnx", **options)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = 1, 4  # errors are raised, too
        self.graph = onnx.load(path).graph
        self.session = onnxruntime.InferenceSession(str(path), settings)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def __call__(self, *inputs: Any) -> list[Tensor]:
        given = [np.asarray(value) for value in leaves(inputs)]
        return [
            torch.from_numpy(y) for y in self.session.run(None, dict(zip(self.inputs, given, strict=True)))
        ]


def answers(model: nn.Module, inputs: Any) -> list[Tensor]:
    with torch.no_grad():
        return [leaf for leaf in leaves(model(*inputs)) if isinstance(leaf, Tensor)]


def resized(program: Program, inputs: Any, letters: dict[str, int]) -> tuple[Any, ...]:
    """The same call with another batch and time: rows and steps repeated or left out, lengths within them."""
    given = iter(leaves(inputs))
    made = []
    for node in program.inputs:
        x = next(given)
        for axis, size in enumerate(node.shape):
            if isinstance(size, Size) and str(size) in letters:
                x = x.index_select(axis, torch.arange(letters[str(size)]) % x.shape[axis])
        made.append(x.clamp(max=letters["T"]) if node.kind == "int" and node.rank == 1 else x)
    return tuple(made)


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_models(name: str, tmp_path: Path) -> None:
    """As cut models answer, so does their graph, with any number of sequences and of steps."""
    small, inputs = compressed(name)
    if name in REFUSED["onnx"]:
        with pytest.raises(ChainError, match=REFUSED["onnx"][name]):
            Session(small, tmp_path, example=inputs)
        return
    session = Session(small, tmp_path, example=inputs)
    torch.testing.assert_close(session(*inputs), answers(small, inputs), **CLOSE)
    program, *_ = programs(small, inputs)
    sizes = [n for node in program.inputs for n in node.shape if isinstance(n, Size)]
    if any(isinstance(value, tuple) for value in inputs) or any(str(n) not in "BTS" for n in sizes):
        return
    for batch, time in ((1, 6), (5, 9)):
        others = resized(program, inputs, {"B": batch, "T": time, "S": time + 1})
        torch.testing.assert_close(session(*others), answers(small, others), **CLOSE)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str, opset: int, tmp_path: Path) -> None:
    """What forward() computes behind a layer; half of the neurons are zero and do not travel."""
    model = behind_a_layer(OPERATIONS[name])
    small = gw.compress(model)
    session = Session(small, tmp_path, opset=opset)
    for batch, time in ((3, 5), (1, 4)):
        x = torch.randn(batch, time, 6)
        torch.testing.assert_close(session(x), answers(model, [x]), **CLOSE)


def test_every_operation_has_a_rule() -> None:
    """A new operation or function must not be found missing by a user's model."""
    known = {op for op in vars(operations).values() if isinstance(op, type) and issubclass(op, Operation)}
    only_analysed = {Opaque, Turn, Collect}  # programs() gives none of them
    assert set(RULES) == known - {Operation, Input} - only_analysed
    functions = operations.KEEPS_ZERO | operations.MOVES_ZERO
    assert functions == set(pointwise.OPERATORS) | set(pointwise.FUNCTIONS)


Heads = namedtuple("Heads", "logits value")
RETURNED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "one": (lambda m, x: m.fc(m.rnn(x)[0]), ["y"]),
    "a last state alone": (lambda m, x: m.rnn(x)[1][0], ["y"]),
    "several": (lambda m, x: (m.fc(m.rnn(x)[0]), x * 2), ["y0", "y1"]),
    "a dict": (
        lambda m, x: {"logits": m.fc(m.rnn(x)[0]), "all": (x, m.rnn(x)[0])},
        ["logits", "all.0", "all.1"],
    ),
    "a named tuple": (lambda m, x: Heads(m.fc(m.rnn(x)[0]), x), ["logits", "value"]),
    "its state": (lambda m, x: (m.fc(m.rnn(x)[0]), m.rnn(x)[1]), ["y", "hn", "cn"]),
    "what it was given": (lambda m, x: {"x": x, "y": m.fc(m.rnn(x)[0])}, ["x0", "y"]),
    "nothing else": (lambda m, x: (m.fc(m.rnn(x)[0]), None), ["y"]),
    "one value twice": (lambda m, x: [m.fc(m.rnn(x)[0])] * 2, ["y0", "y1"]),
}


@pytest.mark.parametrize("name", RETURNED)
def test_outputs_stand_in_the_order_of_forward(name: str, tmp_path: Path) -> None:
    rule, names = RETURNED[name]
    torch.manual_seed(0)
    model = lstm_net(rule).eval()
    session, x = Session(model, tmp_path), torch.randn(2, 5, 3)
    torch.testing.assert_close(session(x), answers(model, [x]), **CLOSE)
    assert session.outputs == names


class TwoLayers(nn.Module):
    """Of three layers' states it returns one; the decoder is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(3, 4, 2, batch_first=True)
        self.second = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        out, _ = self.first(x, state)
        y, h = self.second(out)
        again, _ = self.second(out.flip(1), h)
        return self.fc(y + again), h


def test_states_are_those_that_forward_takes_and_returns(tmp_path: Path) -> None:
    """Not those of other layers, of all layers, or of two calls side by side."""
    torch.manual_seed(0)
    model, x = TwoLayers().eval(), torch.randn(2, 5, 3)
    state = (torch.randn(2, 2, 4), torch.randn(2, 2, 4))
    session = Session(model, tmp_path)
    assert session.inputs == ["x", "state.0", "state.1"]
    assert session.outputs == ["y", "second.hn"]
    torch.testing.assert_close(session(x, state), answers(model, [x, state]), **CLOSE)
    without = Session(model, tmp_path, states=False)
    assert (without.inputs, without.outputs) == (["x"], ["y"])
    torch.testing.assert_close(without(x), answers(model, [x])[:1], **CLOSE)
    with pytest.raises(ValueError, match="calls second more than once"):
        Session(model, tmp_path, states=True)


def test_an_example_says_what_is_given_and_how_it_looks(tmp_path: Path) -> None:
    """Frames of pictures could as well be sequences of vectors; arrays of NumPy are as good as tensors."""
    small, (frames,) = compressed("frames of pictures")
    session = Session(small, tmp_path, example=frames.numpy())
    torch.testing.assert_close(session(frames), answers(small, [frames]), **CLOSE)
    x = torch.randn(2, 5, 3)
    assert Session(TwoLayers().eval(), tmp_path, example=x).inputs == ["x"]
    assert Session(TwoLayers().eval(), tmp_path, example=(x, None)).inputs == ["x"]


def test_a_neuron_scale_goes_into_the_matrix_that_reads_it(tmp_path: Path) -> None:
    """z_h costs a node only where something else reads the layer."""
    case = build(1, {**PLAIN, "bayes": True, "words": 0})
    scale = case.small.rnn.layers[-1].neuron_scale
    assert (scale != 1).any()
    session = Session(case.small, tmp_path, states=False)
    assert "Mul" not in {node.op_type for node in session.graph.node}
    torch.testing.assert_close(session(case.x), [case.answer(case.x, masked=True)], **CLOSE)


def test_states_beside_forward(tmp_path: Path) -> None:
    """states=True: every layer starts where the caller says, and its last state comes out."""
    small, inputs = compressed("residual sum")
    session = Session(small, tmp_path, states=True)
    assert len(session.inputs) == 1 + len(session.outputs[1:])
    (x,) = inputs
    zeros = [torch.zeros([n if n else len(x) for n in shape]) for shape in shapes_of(session)]
    y, *states = session(x[:, :2], *zeros)
    later, *_ = session(x[:, 2:], *states)
    torch.testing.assert_close([torch.cat([y, later], 1)], answers(small, inputs), **CLOSE)


def shapes_of(session: Session) -> list[list[int]]:
    """The shapes of the states; 0 for the batch."""
    return [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in session.graph.input[1:]]


REFUSALS: dict[str, tuple[Callable[..., Any], str]] = {
    "a branch": (
        lambda m, x: m.fc(m.rnn(x)[0]) * (2 if x.sum() > 0 else 3),
        r"line \d+.*an `if` or `while` asks",
    ),
    "an operation": (lambda m, x: m.fc(m.rnn(x)[0]).sort(1)[0], r"line \d+.*sort\(\) is not an operation"),
    "a layer": (lambda m, x: m.fc(m.odd(x)[0]), "^odd: RNN has no gates"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_written_says_where_and_why(name: str, tmp_path: Path) -> None:
    rule, why = REFUSALS[name]
    model = lstm_net(rule, odd=nn.RNN(3, 4, batch_first=True)) if name == "a layer" else lstm_net(rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what stays as it is
        with pytest.raises(ChainError, match=f"{why}.*accelerate"):
            gw.export.to_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_two_layers_that_pack(tmp_path: Path) -> None:
    """Each refuses a sequence of no step, by a node with a name of its own."""

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.above = nn.GRU(3, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)

        def forward(self, x: Any, n: Any, k: Any) -> Any:
            for layer, lengths in ((self.below, n), (self.above, k)):
                packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
                x = pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
            return x

    model, given = Packs().eval(), (torch.randn(2, 5, 3), torch.tensor([5, 3]), torch.tensor([5, 2]))
    (answer,) = Session(model, tmp_path, example=given)(*given)
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(answer), model(*given), rtol=1e-4, atol=1e-5)


class LikeOutputs(nn.Module):
    """Its second argument is called as a second answer would be."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, y1: Tensor) -> Any:
        z = self.fc(self.rnn(x)[0]) + y1
        return z, z.mean(1)


def test_outputs_are_named_unlike_inputs(tmp_path: Path) -> None:
    """ONNX knows one value by a name: two were called y1, and the file was refused."""
    x, y1 = torch.randn(2, 5, 3), torch.randn(2, 5, 2)
    model = gw.compress(LikeOutputs().eval())
    path = gw.export.to_onnx(model, tmp_path / "model.onnx", example=(x, y1))
    made = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    assert [known.name for known in made.get_outputs()] == ["y0", "y2"]
    found = made.run(None, {"x": x.numpy(), "y1": y1.numpy()})
    for one, other in zip(found, model(x, y1)):
        torch.testing.assert_close(torch.from_numpy(one), other, rtol=1e-4, atol=1e-5)
