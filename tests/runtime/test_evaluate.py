"""The reference evaluator of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from everyday import EVERYDAY, compressed
from networks import tagger
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatewise.program import Node, Program
from gatewise.program import operations as ops
from gatewise.program.graph import mapped
from gatewise.program.sizes import letter
from gatewise.program.ways import programs
from gatewise.runtime.evaluate import evaluate

B, T, L = letter("B"), letter("T"), letter("L1")


def test_a_packed_stack_of_both_directions() -> None:
    """Lengths stop each sequence in each direction, states start it, and the longest length cuts the answer."""
    torch.manual_seed(0)
    model = tagger(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True))
    x = Node(ops.Input("x"), (), (B, T, 3))
    lengths = Node(ops.Input("lengths"), (), (B,), "int")
    first = [Node(ops.Input(f"state.{k}"), (), (4, B, 4)) for k in range(2)]
    rnn = Node(ops.Recurrent("rnn", True, 2), (x, lengths, *first), (B, T, 8))
    h, c = (Node(ops.LastState(part), (rnn,), (4, B, 4)) for part in "hc")
    cut = Node(ops.Unpack(-1.0), (rnn, lengths), (B, L, 8))
    y = Node(ops.Linear("fc"), (cut,), (B, L, 2))
    program = Program({"x": x, "lengths": lengths, "state": tuple(first)}, {"y": y, "state": (h, c)})

    given = {"x": torch.randn(3, 6, 3), "lengths": torch.tensor([2, 5, 1])}
    given["state"] = (torch.randn(4, 3, 4), torch.randn(4, 3, 4))
    packed = pack_padded_sequence(given["x"], given["lengths"], True, enforce_sorted=False)
    out, state = model.rnn(packed, given["state"])
    expected = model.fc(pad_packed_sequence(out, True, -1.0)[0])
    answer = evaluate(program, model, given)
    close(answer["y"], expected)
    close(answer["state"], state)


def test_arguments_are_checked_by_name() -> None:
    x, other = Node(ops.Input("x"), (), (B, T, 3)), Node(ops.Input("other"), (), (B, 3))
    program = Program({"x": x, "other": other}, Node(ops.Reduce("sum", (1,)), (x,), (B, 3)))
    fits = {"x": np.zeros((2, 5, 3)), "other": np.zeros((2, 3))}
    for wrong, message in [
        ({"other": np.zeros((4, 3))}, r"other: expected shape \(B, 3\), got \(4, 3\); .* it is \(2, 3\)"),
        ({"other": np.zeros((2, 3, 1))}, r"other: expected shape \(B, 3\), got \(2, 3, 1\)"),
        ({"x": np.zeros((2, 0, 3))}, r"x: expected shape \(B, T, 3\), got \(2, 0, 3\), which is empty"),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate(program, nn.Identity(), fits | wrong)
    with pytest.raises(TypeError, match="x: expected numbers, got bool"):
        evaluate(program, nn.Identity(), fits | {"x": np.zeros((2, 5, 3), bool)})
    with pytest.raises(TypeError, match="other: forward\\(\\) needs it"):
        evaluate(program, nn.Identity(), {"x": fits["x"]})


def close(answer: Any, expected: Any) -> None:
    if isinstance(answer, tuple):
        for a, e in zip(answer, expected, strict=True):
            close(a, e)
    else:
        np.testing.assert_allclose(answer, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_models(name: str) -> None:
    """A program says what forward() computes, on a model with compact layers."""
    small, inputs = compressed(name)
    (program, *_) = programs(small, inputs)
    with torch.no_grad():
        expected = small(*inputs)
    answer = evaluate(program, small, dict(zip(program.arguments, inputs, strict=True)))
    torch.testing.assert_close(
        mapped(torch.as_tensor, answer), expected, rtol=1e-4, atol=1e-5, check_dtype=False
    )
