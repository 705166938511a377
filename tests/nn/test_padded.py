"""A padded batch runs as packed sequences, and says what the plain scan over all of its steps says."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_padded_sequence

import gatewise as gw
from gatewise.nn import recurrence, recurrent
from gatewise.nn.padded import stretches_of


class Read(nn.Module):
    """A layer whose every output is read."""

    def __init__(self, cell: str, **options: Any) -> None:
        super().__init__()
        self.rnn = getattr(gw.nn, cell)(3, 4, **options)
        self.fc = nn.Linear(4 * self.rnn.num_directions, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.fc(self.rnn(x, mask=mask)[0])


def steps_apart(model: nn.Module, *given: Any, **named: Any) -> Any:
    """The same call, but for the way: one scan over all steps, padding too."""
    with mock.patch.object(recurrent, "stretches_of", return_value=None):
        return model(*given, **named)


def mask_of(first: list[int], lengths: list[int], steps: int) -> Tensor:  # (T, B)
    step, start = torch.arange(steps)[:, None], torch.tensor(first)
    return (step >= start) & (step < start + torch.tensor(lengths))


@st.composite
def masks(draw: Any) -> Tensor:
    """A stretch of real steps in every sequence, with padding before it and behind, or behind alone."""
    steps, front = draw(st.integers(1, 6)), draw(st.booleans())
    start = st.just(0) if front else st.integers(0, steps - 1)
    spans = draw(st.lists(st.tuples(start, st.integers(1, steps)), min_size=1, max_size=5))
    return mask_of([a for a, _ in spans], [min(n, steps - a) for a, n in spans], steps)


@given(
    mask=masks(),
    cell=st.sampled_from(["LSTM", "GRU"]),
    kind=st.sampled_from(["dense", "sequence noise", "batch noise", "compact"]),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    given_state=st.booleans(),
    gates=st.sampled_from(["sigmoid", "hard_sigmoid"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_as_the_scan_over_all_steps(
    mask: Tensor, cell: str, kind: str, layers: int, bidirectional: bool, batch_first: bool,
    given_state: bool, gates: str, seed: int
) -> None:  # fmt: skip
    """Outputs on real steps and on padding, last states, and all gradients."""
    torch.manual_seed(seed)
    options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first}
    model: nn.Module = Read(cell, gate_activation=gates, **options)
    if kind.endswith("noise"):
        gw.Variational(model, n_train=10, noise=kind.split()[0])
    elif kind == "compact":
        with torch.no_grad():
            model.rnn.weight_hh_l0[::3] = 0
            model.rnn.weight_ih_l0[::3] = 0
            model.fc.weight[:, 1] = 0
        model = gw.compress(model)
    assert stretches_of(mask) is not None
    x = torch.randn(*mask.shape, 3, requires_grad=True)
    given_x, given_mask = (x.transpose(0, 1), mask.T) if batch_first else (x, mask)
    hx = tuple(torch.randn(model.rnn.num_directions * layers, mask.shape[1], 4) for _ in range(2))
    start = (hx[0] if cell == "GRU" else hx) if given_state else None
    found = []
    for way in (nn.Module.__call__, steps_apart):
        torch.manual_seed(seed)  # of the noise
        output, last = way(model.rnn, given_x, start, mask=given_mask)
        parts = (output, last) if isinstance(last, Tensor) else (output, *last)
        total = sum((part * torch.linspace(-1, 2, part.numel()).view(part.shape)).sum() for part in parts)
        wanted = [x, *(p for p in model.rnn.parameters() if p.requires_grad)]
        found.append((parts, torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (torch.tensor([[True], [False], [True]]), "a gap"),
        (torch.tensor([[True, False], [True, False]]), "a sequence without a step"),
        (torch.ones(3, 0, dtype=torch.bool), "no sequence"),
    ],
)
def test_other_masks_are_left_to_the_scan(mask: Tensor, why: str) -> None:
    assert stretches_of(mask) is None, why
    layer, x = gw.nn.GRU(3, 4), torch.randn(*mask.shape, 3)
    torch.testing.assert_close(layer(x, mask=mask), steps_apart(layer, x, mask=mask))


def test_a_given_state_stands_before_the_first_step() -> None:
    """It is what the layer says on the padding in front."""
    layer, x, h = gw.nn.GRU(3, 4), torch.randn(3, 2, 3), torch.randn(1, 2, 4)
    mask = mask_of([2, 0], [1, 3], 3)
    output, last = layer(x, h, mask=mask)
    torch.testing.assert_close(output[:2, 0], h[:, 0].expand(2, 4))
    torch.testing.assert_close((output, last), steps_apart(layer, x, h, mask=mask))


def test_a_trace_is_right_for_other_lengths() -> None:
    """Lengths of the traced batch must not become constants."""
    model, x = Read("GRU").eval(), torch.randn(4, 2, 3)
    short, long = mask_of([2, 3], [2, 1], 4), mask_of([0, 1], [4, 3], 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of every check of a shape
        traced = torch.jit.trace(model, (x, short))
    torch.testing.assert_close(traced(x, long), model(x, long))


def test_torch_func_maps_over_weights_and_masks() -> None:
    layers, x = [gw.nn.GRU(3, 4) for _ in range(2)], torch.randn(4, 2, 3)
    masks = torch.stack([mask_of([2, 3], [2, 1], 4), mask_of([0, 1], [4, 3], 4)])
    stacked, _ = torch.func.stack_module_state(layers)

    def outputs(weights: dict[str, Tensor], mask: Tensor) -> Tensor:
        answer: Tensor = torch.func.functional_call(layers[0], weights, (x,), {"mask": mask})[0]
        return answer

    expected = [layer(x, mask=mask)[0] for layer, mask in zip(layers, masks)]
    torch.testing.assert_close(torch.func.vmap(outputs)(stacked, masks), torch.stack(expected))


def test_a_graph_of_the_operations_is_right_for_other_lengths() -> None:
    """make_fx follows the tensors, and has no values to read lengths from; nor has a fake tensor."""
    layer, x = gw.nn.LSTM(3, 4), torch.randn(4, 2, 3)
    short, long = mask_of([2, 3], [2, 1], 4), mask_of([0, 1], [4, 3], 4)
    followed = make_fx(lambda x, mask: layer(x, mask=mask)[0])(x, short)
    torch.testing.assert_close(followed(x, long), layer(x, mask=long)[0])
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        output, _ = layer(fake.from_tensor(x), mask=fake.from_tensor(short))
    assert output.shape == (4, 2, 4)


def test_another_default_device_is_not_that_of_the_batch() -> None:
    layer, x, mask = gw.nn.GRU(3, 4), torch.randn(4, 2, 3), mask_of([0, 1], [4, 3], 4)
    expected = layer(x, mask=mask)
    with torch.device("meta"):
        found = layer(x, mask=mask)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("kind", ["dense", "compact"])
def test_long_packed_sequences_are_trained_without_torchs_kernel(
    cell: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a size the scan is faster. It says the same, and is not taken where nothing is trained."""
    model: nn.Module = Read(cell, num_layers=2, bidirectional=True)
    model = gw.compress(model) if kind == "compact" else model
    x, fused = torch.randn(5, 3, 3), recurrence.fused_stack
    packed = pack_padded_sequence(x, torch.tensor([2, 5, 1]), enforce_sorted=False)
    found = []
    for most in (recurrence.MOST_PACKED, 0):
        monkeypatch.setattr(recurrence, "MOST_PACKED", most)
        with mock.patch.object(recurrence, "fused_stack", side_effect=fused) as kernel:
            monkeypatch.setattr(recurrent, "fused_stack", kernel)
            output = model.rnn(packed)[0].data
            assert kernel.called == (most > 0)
            with torch.no_grad():
                model.rnn(packed)
            assert kernel.called
        gradients = torch.autograd.grad(output.square().sum(), [*model.rnn.parameters()])
        found.append((output, gradients))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
