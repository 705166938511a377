"""masked == compressed == loaded, over random networks; and what can go is gone."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import pytest
import torch
from chains import CLOSE
from hypothesis import given
from hypothesis import strategies as st
from sparse_networks import METHODS, Case, Drawn, sparse_networks, weights_now
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import gatewise as gw
from gatewise.compact import CompactCell, CompactEmbedding, CompactLayer, CompactLinear, CompactRecurrent
from gatewise.nn.lookup import cell_of
from gatewise.structure import EmbeddingStructure, LinearStructure, RecurrentStructure, Structure


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@given(data=st.data())
def test_compression_keeps_the_function(cell: str, method: str, data: Any) -> None:
    """Only what cannot reach the output goes, so nothing may change but the order of sums; a file changes nothing."""
    case = data.draw(sparse_networks(cell=cell, method=method))
    before = weights_now(case.model)
    with torch.no_grad():
        expected = case.model(*case.inputs)
        small = compress(case.model)
        assert_same(small(*case.inputs), expected, small)
        assert_equal(reloaded(small, case)(*case.inputs), small(*case.inputs))
        assert_equal(case.model(*case.inputs), expected)  # and the argument is what it was
    assert_equal(weights_now(case.model), before)
    assert type(small) is type(case.model) or small.is_compact
    assert_cut(small, case.model)
    if case.seed % 4 == 0:
        again = compress(small)
        assert [p.shape for p in again.parameters()] == [p.shape for p in small.parameters()]
        assert gw.measure(small).fixed_point.neurons == gw.measure(case.model).fixed_point.neurons


@pytest.mark.parametrize("shape", ["stream", "two-readers", "norm"])
@given(data=st.data())
def test_streaming(shape: str, data: Any) -> None:
    """T calls of one step, state handed on, equal one call of T steps."""
    case = data.draw(sparse_networks(shape=shape, bidirectional=False, unbatched=False, steps=4))
    small = compress(case.model)
    x, state, _ = case.inputs
    with torch.no_grad():
        whole, last = small(x, state)
        parts = []
        for step in x.split(1, case.model.time):
            part, state = small(step, state)
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, case.model.time), whole, **CLOSE)
    torch.testing.assert_close(state, last, **CLOSE)


@given(data=st.data())
def test_gradients_of_single_steps(data: Any) -> None:
    """A step alone multiplies live rows only; in one call of all steps the matrices have their zero rows back."""
    case = data.draw(sparse_networks(shape="stream", bidirectional=False, unbatched=False, steps=3))
    small = compress(case.model)
    x, state, _ = case.inputs
    grads = []
    for lengths in (3, 1):
        outputs, now = [], state
        for steps in x.split(lengths, case.model.time):
            output, now = small(steps, now)
            outputs.append(output)
        answer = torch.cat(outputs, case.model.time)
        weight = torch.linspace(-1, 1, answer.numel()).view(answer.shape)
        loss = (answer * weight).sum() + 0 * sum(p.sum() for p in small.parameters())
        grads.append(torch.autograd.grad(loss, list(small.parameters())))
    torch.testing.assert_close(*grads, **CLOSE)


@given(case=sparse_networks())
def test_gradients(case: Case) -> None:
    """Fine-tuning starts where the masked network stands: kept parameters and inputs get the same gradients."""
    model = case.model
    small = compress(model)
    grads = []
    for net in (model, small):
        inputs = [x.clone().requires_grad_() if is_float(x) else x for x in case.inputs]
        answer = net(*inputs)
        answer = answer[0] if isinstance(answer, tuple) else answer
        weight = torch.linspace(-1, 1, answer.numel()).view(answer.shape)
        torch.autograd.backward((answer * weight).sum() + 0 * sum(p.sum() for p in net.parameters()))
        floats = [x for x in inputs if is_float(x)]
        grads.append([torch.zeros_like(x) if x.grad is None else x.grad for x in floats])
    torch.testing.assert_close(*grads, **CLOSE)
    # A compact weight is then a product of the masked one with z.
    folded = case.method in ("W", "W+N", "W+G+N")
    for name, part in small.named_modules():
        if isinstance(part, CompactLayer):
            check_layer_gradients(part, *owner_of(model, name), folded, case)
        elif isinstance(part, CompactLinear) and not folded and not shares(model):
            full = gradient(model.get_submodule(name), "weight")
            assert_gradient(part.weight, full[part.outputs][:, part.inputs], case)


@given(case=sparse_networks(words=0, shape="bare", unbatched=False, steps=5, batch=3, between="none"))
def test_packed_input_of_a_bare_layer(case: Case) -> None:
    """PackedSequence in, PackedSequence out, with states in the caller's order."""
    x, state = case.inputs
    lengths = torch.tensor([2, 5, 3])
    packed = pack_padded_sequence(x, lengths, batch_first=case.model.batch_first, enforce_sorted=False)
    small = compress(case.model)
    with torch.no_grad():
        expected, last = case.model(packed, state)
        got, small_last = small(packed, state)
    assert isinstance(got, PackedSequence)
    torch.testing.assert_close(got.batch_sizes, expected.batch_sizes)
    assert_same((got.data, small_last), (expected.data, last), small)


@given(data=st.data(), hidden=st.integers(1, 6), size=st.integers(1, 5), bias=st.booleans())
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_single_step_cells(kind: type[nn.Module], data: Any, hidden: int, size: int, bias: bool) -> None:
    """A cell in a loop, read by a Linear: the loop goes on working, with the states it knows."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    model = Loop(kind(size, hidden, bias), nn.Linear(hidden, 2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        for matrix in (model.cell.weight_ih, model.cell.weight_hh):
            matrix.mul_(torch.rand(matrix.shape, generator=generator) < 0.5)
            matrix[torch.rand(len(matrix), generator=generator) < 0.3] = 0
        dead = torch.rand(hidden, generator=generator) < 0.4
        model.cell.weight_hh[:, dead] = 0
        model.fc.weight[:, dead] = 0
        x = torch.randn(4, 3, size, generator=generator)
        small = compress(model)
        assert isinstance(small.cell, CompactCell)
        torch.testing.assert_close(small(x), model(x), **CLOSE)
        h = torch.randn(3, hidden, generator=generator)
        state = (h, h.flip(0)) if cell_of(model.cell).n_states == 2 else h
        alone, whole = small.cell(x[0], state), model.cell(x[0], state)
        kept = small.cell.layer.neurons
        for a, b in zip(as_tuple(alone), as_tuple(whole)):
            torch.testing.assert_close(a[:, kept], b[:, kept], **CLOSE)
        one = tuple(s[0] for s in as_tuple(state))
        unbatched = small.cell(x[0, 0], one if len(one) > 1 else one[0])
        torch.testing.assert_close(as_tuple(unbatched)[0], as_tuple(alone)[0][0], **CLOSE)


class Loop(nn.Module):
    def __init__(self, cell: nn.Module, fc: nn.Linear) -> None:
        super().__init__()
        self.cell, self.fc = cell, fc

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(4):
            state = self.cell(x[t], state)
        return self.fc(state[0] if self.cell_has_memory() else state)

    def cell_has_memory(self) -> bool:
        return cell_of(self.cell).n_states == 2


# The contract, piece by piece.


def compress(model: nn.Module) -> nn.Module:
    """compress(), whose only warning may be the one about neurons without known readers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small = gw.compress(model)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    assert len(said) <= 1
    assert all("that no known weight reads" in text for text in said), said
    return small


def reloaded(small: nn.Module, case: Case) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        gw.save(small, folder)
        if not isinstance(case.model, Drawn):
            return gw.load(folder)
        return gw.load(folder, into=case.fresh())


def assert_same(got: Any, expected: Any, small: nn.Module) -> None:
    """Outputs alike; states alike on kept neurons and zero on removed ones."""
    if isinstance(got, tuple):
        (got, states), (expected, expected_states) = got, expected
        rnn = small if isinstance(small, CompactRecurrent) else small.rnn
        kept = torch.zeros(len(rnn.layers), rnn.hidden_size, dtype=torch.bool)
        for place, layer in enumerate(rnn.layers):
            kept[place, layer.neurons] = True
        for part, whole in zip(as_tuple(states), as_tuple(expected_states)):
            keep = (kept if part.dim() == 2 else kept[:, None]).expand(part.shape)
            torch.testing.assert_close(part, torch.where(keep, whole, 0), **CLOSE)
        if rnn is small:
            last = kept[-rnn.num_directions :].flatten()
            expected = torch.where(last, expected, 0)
            assert (expected[..., ~last] == 0).all()
    torch.testing.assert_close(got, expected, **CLOSE)


def assert_equal(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def assert_cut(small: nn.Module, model: nn.Module) -> None:
    """What the plan says can go is gone, and no row or column that is stored is zero."""
    structure = Structure.from_weights(model, fixed_point=True)
    tied = shares(model)
    for name, layer in structure.layers.items():
        if isinstance(layer, RecurrentStructure):
            part = compact_layer(small, name)
            live, k = int(layer.keep_gates.sum()), int(layer.keep_neurons.sum())
            gates = len(layer.keep_gates)
            assert part.weight_ih.shape == (live, int(layer.keep_inputs.sum()))
            assert part.weight_hh.shape == (live, int(layer.keep_recurrent.sum()))
            n_bias = 0 if part.bias is None else gates * k + (k if gates == 3 else 0)
            assert (
                sum(p.numel() for p in part.parameters())
                == part.weight_ih.numel() + part.weight_hh.numel() + n_bias
            )
            assert ((part.weight_ih != 0).any(1) | (part.weight_hh != 0).any(1)).all()
            assert (part.weight_ih != 0).any(0).all()
            assert (part.weight_hh != 0).any(0).all()
        elif not tied:
            part = small.get_submodule(name)
            if isinstance(layer, LinearStructure):
                assert isinstance(part, CompactLinear)
                assert part.weight.shape == (int(layer.keep_outputs.sum()), int(layer.keep_inputs.sum()))
                assert (part.weight != 0).any(0).all()
            else:
                assert isinstance(layer, EmbeddingStructure)
                assert isinstance(part, CompactEmbedding)
                assert part.weight.shape == (int(layer.keep_words.sum()), int(layer.keep_components.sum()))
                assert (part.weight != 0).any(0).all()
                assert (part.weight != 0).any(1).all()


def compact_layer(small: nn.Module, block: str) -> CompactLayer:
    module, _, place = block.rpartition(".")
    rnn = small.get_submodule(module)
    number, reverse = place.removeprefix("l").removesuffix("_reverse"), place.endswith("_reverse")
    found = rnn.layer(int(number), int(reverse))
    assert isinstance(found, CompactLayer)
    return found


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The dense layer of a compact one `rnn.layers.3`, and the ending of its parameters."""
    module, _, place = (name if "." in name else "." + name).rpartition("layers.")
    rnn = model.get_submodule(module.strip("."))
    layer, reverse = divmod(int(place), 2 if rnn.bidirectional else 1)
    return rnn, f"_l{layer}" + ("_reverse" if reverse else "")


def check_layer_gradients(part: CompactLayer, rnn: nn.Module, end: str, folded: bool, case: Case) -> None:
    cell = part.cell
    split = {n: cell.split(gradient(rnn, n + end)) for n in ("weight_ih", "weight_hh")}
    gate, unit = part.slots // max(part.kept, 1), part.neurons[part.slots % max(part.kept, 1)]
    if not folded:
        assert_gradient(part.weight_ih, split["weight_ih"][gate, unit][:, part.inputs], case)
        columns = part.neurons[part.recurrent]
        assert_gradient(part.weight_hh, split["weight_hh"][gate, unit][:, columns], case)
    if part.bias is not None:
        bias = cell.split(gradient(rnn, "bias_ih" + end))[:, part.neurons]
        torch.testing.assert_close(part.bias.grad, bias, **CLOSE)
    if part.bias_gated is not None:
        gated = cell.split(gradient(rnn, "bias_hh" + end))[part.gated_gates()][:, part.neurons]
        torch.testing.assert_close(part.bias_gated.grad, gated, **CLOSE)


def assert_gradient(part: Tensor, expected: Tensor, case: Case) -> None:
    """torch.nn.utils.prune holds pruned weights at zero; in a compact layer zeros inside kept rows may grow again."""
    counted = part != 0 if case.method == "prune" else torch.ones_like(part)
    torch.testing.assert_close(part.grad * counted, expected * counted, **CLOSE)


def gradient(module: nn.Module, name: str) -> Tensor:
    pruned = hasattr(module, name + "_orig")
    grad: Tensor = getattr(module, name + "_orig" if pruned else name).grad
    return grad


def shares(model: nn.Module) -> bool:
    return len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.named_parameters()))


def as_tuple(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
