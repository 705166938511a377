"""A third cell is one file: the minimal gated unit of the docs runs through everything that reads a cell."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import gatewise as gw

ROOT = Path(__file__).parents[1]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "minimal_gated_unit", ROOT / "examples" / "minimal_gated_unit.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mgu = example()


def naive(layer: torch.nn.Module, x: Tensor) -> Tensor:  # (T, I) -> (T, H)
    """The docstring's equations, one neuron at a time."""
    p = {k: v.detach() for k, v in layer.named_parameters()}
    hidden = p["weight_hh_l0"].shape[1]
    h, out = torch.zeros(hidden), []
    for x_t in x:
        pre_i = p["weight_ih_l0"] @ x_t + p["bias_ih_l0"]
        pre_h = p["weight_hh_l0"] @ h + p["bias_hh_l0"]
        new = []
        for j in range(hidden):
            f = torch.sigmoid(pre_i[j] + pre_h[j])
            n = torch.tanh(pre_i[hidden + j] + f * pre_h[hidden + j])
            new.append((1 - f) * h[j] + f * n)
        h = torch.stack(new)
        out.append(h)
    return torch.stack(out)


def test_the_layer_computes_its_equations() -> None:
    layer, x = mgu.MGU(3, 4), torch.randn(6, 3)
    torch.testing.assert_close(layer(x)[0], naive(layer, x))


def test_it_has_all_that_layers_have() -> None:
    """Several layers and directions, a batch, and the state of one call as the start of the next."""
    layer = mgu.MGU(3, 4, num_layers=2)
    x = torch.randn(6, 2, 3)
    whole, _ = layer(x)
    first, state = layer(x[:2])
    second, _ = layer(x[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert mgu.MGU(3, 4, bidirectional=True)(x)[0].shape == (6, 2, 8)
    with pytest.raises(ValueError, match="no MGU layer"):
        layer.to_dense()


@pytest.mark.parametrize("method", ["lasso", "bayes"])
def test_both_sparsifiers_remove_its_gates_and_neurons(method: str) -> None:
    """Training as in the example: the answers stay right and less than half of the gates is left."""
    model, accuracy = mgu.train(method, steps=300)
    report = gw.measure(model)
    assert accuracy > 0.98
    assert set(report.layers["rnn.l0"].gates or {}) == {"f", "n"}
    assert report.gates["rnn.l0"] < 8
    assert report.neurons["rnn.l0"] < 8


@pytest.mark.parametrize("noise", ["batch", "sequence"])
def test_variational_noise_reaches_it(noise: str) -> None:
    model = mgu.Tagger()
    gw.Variational(model, n_train=10, noise=noise)
    x = torch.randn(5, 2, 3)
    assert not torch.allclose(model(x), model(x))
    assert model.rnn.gate_scale_l0.shape == (2, 8)
    torch.testing.assert_close(model.eval()(x), model(x))
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


def test_a_candidate_that_moves_without_a_product() -> None:
    """n with a zero row still moves with f, by the declaration of `gated_recurrent`."""
    model = mgu.Tagger(hidden=2)
    with torch.no_grad():
        model.rnn.weight_ih_l0[2:] = 0
        model.rnn.weight_hh_l0[2:] = 0
    count = gw.measure(model).layers["rnn.l0"]
    assert count.gates == {"f": 2, "n": 0}
    assert count.varying == 2


def test_the_docs_show_the_same_code() -> None:
    """Every Python block of the page stands in the example, word for word."""
    code = (ROOT / "examples" / "minimal_gated_unit.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "new-cell.md").read_text(), re.S)
    assert len(blocks) == 4
    assert all(block.strip("\n") in code for block in blocks)
