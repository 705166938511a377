"""One layer with scales: the fused path against the scan, sequences with scales of their own, and who runs it."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import CELLS, OURS
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.nn import recurrence
from gatewise.nn.recurrence import Weights, fused_layer, fusible, scan

close = torch.testing.assert_close
sizes = st.integers(1, 5)


@st.composite
def scaled_layers(draw: Any) -> dict[str, Any]:
    return {
        "cell": draw(st.sampled_from(CELLS)),
        "i": draw(sizes), "h": draw(sizes), "t": draw(sizes), "b": draw(st.integers(1, 4)),
        "bias": draw(st.booleans()),
        "which": draw(st.sets(st.sampled_from(["input", "gate", "neuron"]))),
        "per_sequence": draw(st.booleans()),
        "packed": draw(st.booleans()),
        "directions": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**20)),
    }  # fmt: skip


def draw_weights(case: dict[str, Any], per_sequence: bool) -> Weights:
    """Random weights with scales that are positive, negative and exactly zero."""
    cell, i, h = OURS[case["cell"]].cell, case["i"], case["h"]
    rows = cell.n_gates * h

    def scale(name: str, *shape: int) -> Tensor | None:
        if name not in case["which"]:
            return None
        z = torch.randn(case["b"], *shape) if per_sequence else torch.randn(*shape)
        return torch.where(torch.rand_like(z) < 0.3, 0.0, z + z.sign()).double()

    bias = [torch.randn(rows).double() if case["bias"] else None for _ in range(2)]
    return Weights(
        torch.randn(rows, i).double(), torch.randn(rows, h).double(), *bias,
        input_scale=scale("input", i), gate_scale=scale("gate", cell.n_gates, h), neuron_scale=scale("neuron", h),
    )  # fmt: skip


def with_grad(weights: Weights) -> tuple[Weights, list[Tensor]]:
    leaves = {k: None if v is None else v.clone().requires_grad_() for k, v in vars(weights).items()}
    return Weights(**leaves), [v for v in leaves.values() if v is not None]  # type: ignore[arg-type]


@given(case=scaled_layers())
def test_folded_kernel_equals_the_equations(case: dict[str, Any]) -> None:
    """z multiplied into rows and columns is z in the cell, for any sign, and for zero with a silent state."""
    torch.manual_seed(case["seed"])
    cell = OURS[case["cell"]].cell
    lengths = torch.randint(1, case["t"] + 1, (case["b"],)).sort(descending=True).values
    x = torch.randn(case["t"], case["b"], case["i"]).double()
    sizes = None
    if case["packed"]:
        x, sizes, *_ = pack_padded_sequence(x, lengths)
    weights = [draw_weights(case, per_sequence=False) for _ in range(case["directions"])]
    states = [
        tuple(torch.randn(case["b"], case["h"]).double() for _ in range(cell.n_states)) for _ in weights
    ]
    # Removed neurons count as zero on input: what the layer's `silence` does before either path runs.
    states = [
        (s[0] if w.neuron_scale is None else torch.where(w.neuron_scale == 0, 0.0, s[0]), *s[1:])
        for s, w in zip(states, weights)
    ]
    assert fusible(cell, weights, "sigmoid", None)
    slow, slow_leaves = zip(*(with_grad(w) for w in weights))
    runs = [
        scan(cell, x, s, w, batch_sizes=sizes, reverse=d == 1) for d, (s, w) in enumerate(zip(states, slow))
    ]
    expected = torch.cat([output for output, _ in runs], -1)
    fast, fast_leaves = zip(*(with_grad(w) for w in weights))
    output, last = fused_layer(cell, x, states, fast, sizes)
    close(output, expected)
    close(last, [state for _, state in runs])
    (output * output.detach().cos()).sum().backward()
    (expected * expected.detach().cos()).sum().backward()
    for mine, theirs in zip(chain(*fast_leaves), chain(*slow_leaves)):
        close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-8)


@given(case=scaled_layers())
def test_a_scale_per_sequence_is_one_run_per_sequence(case: dict[str, Any]) -> None:
    """With its own z every sequence is computed as if it were alone, packed or not, forward or reverse."""
    torch.manual_seed(case["seed"])
    cell = OURS[case["cell"]].cell
    weights = draw_weights(case, per_sequence=True)
    assert weights.per_sequence == bool(case["which"])
    reverse = case["directions"] == 2
    lengths = torch.randint(1, case["t"] + 1, (case["b"],)).sort(descending=True).values
    x = torch.randn(case["t"], case["b"], case["i"]).double()
    state = tuple(torch.randn(case["b"], case["h"]).double() for _ in range(cell.n_states))
    packed = pack_padded_sequence(x, lengths)
    output, last = scan(cell, packed.data, state, weights, batch_sizes=packed.batch_sizes, reverse=reverse)
    padded, _ = pad_packed_sequence(type(packed)(output, packed.batch_sizes))
    for b in range(case["b"]):
        alone = Weights(**{
            name: value[b] if name.endswith("scale") and value is not None else value
            for name, value in vars(weights).items()
        })  # fmt: skip
        n = int(lengths[b])
        one, end = scan(cell, x[:n, b : b + 1], tuple(s[b : b + 1] for s in state), alone, reverse=reverse)
        close(padded[:n, b], one[:, 0])
        close([part[b] for part in last], [part[0] for part in end])


@pytest.mark.parametrize(
    ("hidden", "batch", "grad", "graph", "ours"),
    [
        (200, 32, True, True, True),
        (200, 32, True, False, False),
        (200, 32, False, True, False),
        (200, 8, True, True, False),
        (1000, 64, True, True, True),
        (1500, 20, True, True, False),
    ],
)
def test_dense_layers_take_our_kernels_where_they_are_faster(hidden, batch, grad, graph, ours, monkeypatch):
    monkeypatch.setattr(recurrence, "no_kernel", lambda *of: None)
    rnn = gw.nn.LSTM(3, hidden)
    with torch.set_grad_enabled(grad), recurrence.replayed() if graph else nullcontext():
        found = recurrence.faster_unfused(rnn.cell, torch.ones(1), [rnn.weights(0, 0, batch)], batch)
    assert found == ours
    monkeypatch.setattr(recurrence, "no_kernel", lambda *of: "it is not on a GPU")
    assert not recurrence.faster_unfused(rnn.cell, torch.ones(1), [rnn.weights(0, 0, batch)], batch)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_widened_layer_is_the_same_layer(cell: str, bias: bool) -> None:
    """Neurons and inputs without weights add nothing: outputs, last states and gradients are those of the layer."""
    case = {"cell": cell, "i": 5, "h": 3, "t": 4, "b": 2, "bias": bias, "which": set()}
    torch.manual_seed(0)
    kind, weights = OURS[cell].cell, draw_weights(case, per_sequence=False)
    state = tuple(torch.randn(2, 3).double() for _ in range(kind.n_states))
    x = torch.randn(4, 2, 5).double().requires_grad_()
    expected, (last,) = fused_layer(kind, x, [state], [weights])
    answer, after = recurrence.widened_layer(kind, x, state, weights, to=8)
    close((answer, after), (expected, last))
    close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (answer, expected)))
