"""gatewise.nn computes what torch.nn does, step by step, masked, with dropout and other activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import CELLS, OURS, TORCH
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.nn.cells import SQUASHES

close = torch.testing.assert_close
sizes = st.integers(1, 5)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Constructor options, input and state of a random call."""
    return {
        "cell": draw(st.sampled_from(CELLS)),
        "options": {
            "input_size": draw(sizes),
            "hidden_size": draw(sizes),
            "num_layers": draw(st.integers(1, 3)),
            "bias": draw(st.booleans()),
            "batch_first": draw(st.booleans()),
            "bidirectional": draw(st.booleans()),
            "dtype": draw(st.sampled_from([torch.float32, torch.float64])),
        },
        "lengths": draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)),
        "form": draw(st.sampled_from(["batched", "unbatched", "packed", "packed sorted"])),
        "with_state": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**20)),
    }


def twins(cell: str, **options: Any) -> tuple[Any, Any]:
    """The torch layer and ours, with the same parameters."""
    theirs, ours = TORCH[cell](**options), OURS[cell](**options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def call(layer: Any, x: Any, hx: Any) -> tuple[list[Tensor], Any]:
    """Everything a call returns, as a flat list, and the output as it came."""
    output, state = layer(x, hx)
    tensors = [output.data if hasattr(output, "batch_sizes") else output]
    return tensors + (list(state) if isinstance(state, tuple) else [state]), output


@given(case=cases())
def test_equals_torch_nn(case: dict[str, Any]) -> None:
    """Same call, same numbers: outputs, states and gradients of input, state and parameters."""
    torch.manual_seed(case["seed"])
    options, lengths, form = case["options"], case["lengths"], case["form"]
    theirs, ours = twins(case["cell"], **options)
    dtype, n, width = options["dtype"], len(lengths), options["input_size"]
    if form == "packed sorted":
        lengths = sorted(lengths, reverse=True)
    rows = options["num_layers"] * (2 if options["bidirectional"] else 1)
    shape = (rows, options["hidden_size"]) if form == "unbatched" else (rows, n, options["hidden_size"])
    raw = torch.randn(max(lengths), n, width, dtype=dtype)
    parts = [torch.randn(shape, dtype=dtype) for _ in range(2 if case["cell"] == "LSTM" else 1)]
    answers, slopes = [], []
    for layer in (theirs, ours):
        leaf = raw.clone().requires_grad_()
        states = [part.clone().requires_grad_() for part in parts]
        hx = (tuple(states) if case["cell"] == "LSTM" else states[0]) if case["with_state"] else None
        if form == "unbatched":
            x: Any = leaf[:, 0]
        elif form == "batched":
            x = leaf.transpose(0, 1) if options["batch_first"] else leaf
        else:
            x = pack_padded_sequence(leaf, torch.tensor(lengths), enforce_sorted=form == "packed sorted")
        tensors, output = call(layer, x, hx)
        if form.startswith("packed"):
            padded, seen = pad_packed_sequence(output)
            assert seen.tolist() == lengths
            tensors.append(padded)
        torch.manual_seed(case["seed"] + 1)
        sum((t * torch.randn_like(t)).sum() for t in tensors).backward()
        answers.append(tensors)
        leaves = [
            leaf,
            *(states if case["with_state"] else []),
            *(p for _, p in sorted(layer.named_parameters())),
        ]
        slopes.append([p.grad for p in leaves])
    close(answers[1], answers[0])
    close(slopes[1], slopes[0])


def naive(layer: Any, x: Tensor, squash: Any) -> Tensor:  # (T, I) -> (T, H); one layer, one direction
    """The textbook cell, one neuron at a time."""
    p = {k: v.detach() for k, v in layer.named_parameters()}
    hidden = layer.hidden_size
    h, c, out = [torch.tensor(0.0)] * hidden, [torch.tensor(0.0)] * hidden, []
    for x_t in x:
        before = torch.stack(h)
        pre_i = p["weight_ih_l0"] @ x_t + p["bias_ih_l0"]
        pre_h = p["weight_hh_l0"] @ before + p["bias_hh_l0"]
        for j in range(hidden):
            at = [k * hidden + j for k in range(len(pre_i) // hidden)]
            if layer.cell.name == "LSTM":
                i, f, g, o = (pre_i[k] + pre_h[k] for k in at)
                c[j] = squash(f) * c[j] + squash(i) * torch.tanh(g)
                h[j] = squash(o) * torch.tanh(c[j])
            else:
                r, u = (squash(pre_i[k] + pre_h[k]) for k in at[:2])
                n = torch.tanh(pre_i[at[2]] + r * pre_h[at[2]])
                h[j] = (1 - u) * n + u * before[j]
        out.append(torch.stack(h))
    return torch.stack(out)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("activation", list(SQUASHES))
def test_gate_activations_against_a_loop(cell: str, activation: str) -> None:
    """The authors' classifiers use clip(0.2 x + 0.5, 0, 1), which has another slope than torch's hardsigmoid."""
    layer = OURS[cell](3, 4, gate_activation=activation)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=2.0)  # wide enough to saturate
    x = torch.randn(6, 3)
    squash = (
        torch.sigmoid if activation == "sigmoid" else lambda v: min(max(0.2 * v + 0.5, 0.0 * v), 0 * v + 1)
    )
    close(layer(x)[0], naive(layer, x, squash))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_mask_equals_slicing(cell: str, bidirectional: bool, batch_first: bool) -> None:
    """A left-padded batch with a mask computes each sequence as if it were alone."""
    layer = OURS[cell](3, 4, num_layers=2, bidirectional=bidirectional, batch_first=batch_first)
    lengths, steps = [5, 2, 1], 5
    x = torch.randn(steps, len(lengths), 3)
    mask = torch.stack([torch.arange(steps) >= steps - n for n in lengths], 1)  # (T, B)
    given_x, given_mask = (x.transpose(0, 1), mask.T) if batch_first else (x, mask)
    output, state = layer(given_x, mask=given_mask)
    output = output.transpose(0, 1) if batch_first else output
    for b, n in enumerate(lengths):
        alone, end = layer(x[steps - n :, b])
        close(output[steps - n :, b], alone)
        if cell == "LSTM":
            close([part[:, b] for part in state], list(end))
        else:
            close(state[:, b], end)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_single_sequence_may_have_a_mask(batch_first: bool) -> None:
    layer = gw.nn.GRU(3, 4, batch_first=batch_first)
    x = torch.randn(5, 3)
    output, end = layer(x, mask=torch.arange(5) >= 2)
    alone = layer(x[2:])
    close((output[2:], end), alone)


@pytest.mark.parametrize("cell", CELLS)
def test_streaming_equals_one_call(cell: str) -> None:
    """T calls of one step, handing the state on, equal one call of T steps."""
    layer = OURS[cell](3, 4, num_layers=2)
    x = torch.randn(6, 2, 3)
    whole, end = layer(x)
    state, steps = None, []
    for x_t in x:
        y, state = layer(x_t[None], state)
        steps.append(y)
    close(torch.cat(steps), whole)
    close(state, end)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("activation", list(SQUASHES))
def test_dropout_acts_between_layers_in_training_only(cell: str, activation: str) -> None:
    """With p = 1 the second layer sees zeros while training, and the whole input in evaluation; the first always."""
    layer = OURS[cell](3, 4, num_layers=2, dropout=1.0, gate_activation=activation)
    plain = OURS[cell](3, 4, num_layers=2, gate_activation=activation)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(5, 2, 3)
    trained, expected = (call(net, x, None)[0] for net in (layer, plain))
    close(trained[0], layer(torch.randn(5, 2, 3))[0])
    close([state[0] for state in trained[1:]], [state[0] for state in expected[1:]])
    close(call(layer.eval(), x, None)[0], expected)
