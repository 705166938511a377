"""A third cell is one file: the minimal gated unit of the docs runs through everything that reads a cell."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import gatewise as gw
from gatewise.layout import Cell, Squash, State
from gatewise.nn.assumptions import check_biases_add_up, check_neuron_scale_folds
from gatewise.nn.cells import GRU, LSTM

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
    assert len(blocks) == 6
    assert all(block.strip("\n") in code for block in blocks)


def test_it_is_compressed_and_saved_but_no_kernel_runs_it(tmp_path: Path) -> None:
    """What the page promises of a new cell, and what it says raises: by the name of the layer where it has one."""
    model, x = mgu.Tagger().eval(), torch.randn(5, 2, 3)
    small = gw.compress(model)
    torch.testing.assert_close(small(x), model(x))
    gw.save(small, tmp_path / "small")
    assert torch.equal(gw.load(tmp_path / "small", into=mgu.Tagger())(x), small(x))
    for run in (gw.Engine, gw.accelerate, lambda m: gw.export.to_c(m, tmp_path / "c")):
        with pytest.raises(ValueError, match=r"^rnn: there are no C kernels for the cell MGU"):
            run(small)
    with pytest.raises(ValueError, match="no node for the cell MGU"):
        gw.export.to_onnx(small, tmp_path / "model.onnx")


# What a wrong declaration says.


def tagger(**changes: Any) -> Any:
    """The example's model with another cell in it."""
    options = {"name": "OTHER", "gates": ("f", "n"), "tanh_gates": {"n"}, "n_states": 1, "step": mgu.mgu_step}

    class Other(gw.nn.Recurrent):
        cell = Cell(**(options | {"gated_recurrent": {"n": "f"}} | changes))

    model = mgu.Tagger()
    model.rnn = Other(3, 8)
    return model.eval()


def swapped_step(a: Tensor, b: Tensor, state: State, z: Tensor | float, squash: Squash) -> State:
    """h' = f * h + (1 - f) * n * z_h: the example with f and 1 - f exchanged, and no gated half."""
    f, n = (a + b).unbind(-2)
    return (squash(f) * state[0] + (1 - squash(f)) * n.tanh() * z,)


def scaled_whole_step(a: Tensor, b: Tensor, state: State, z: Tensor | float, squash: Squash) -> State:
    """h' = (f * h + (1 - f) * n) * z_h: the h that is carried over is multiplied at every step."""
    return (swapped_step(a, b, state, 1.0, squash)[0] * z,)


@pytest.mark.parametrize("kind", ["dense", "variational", "compact"])
def test_a_cell_that_was_declared_again_keeps_its_equations(kind: str, tmp_path: Path) -> None:
    """A notebook runs a declaration, corrects it and runs it again: both classes live, under one name."""

    def saved(model: Any) -> Any:
        if kind == "variational":
            gw.Variational(model, n_train=3)
        return (gw.compress(model) if kind == "compact" else model).eval()

    x = torch.randn(5, 2, 3)
    old, new = tagger(name="AGAIN"), tagger(name="AGAIN", step=swapped_step, gated_recurrent={})
    blank = {"old": copy.deepcopy(old), "new": copy.deepcopy(new)}
    for name, model in {"old": saved(old), "new": saved(new)}.items():
        gw.save(model, tmp_path / name)
        assert torch.equal(gw.load(tmp_path / name, into=blank[name]).eval()(x), model(x)), name
    gw.save(new.rnn, tmp_path / "layer")
    assert torch.equal(gw.load(tmp_path / "layer")(x)[0], new.rnn(x)[0])  # type: ignore[operator]


def test_another_class_of_the_lstm_does_not_take_its_place(tmp_path: Path) -> None:
    """The newest declaration counts, but what the package itself saves it also builds."""

    class Mine(gw.nn.Recurrent):
        cell = LSTM

    gw.save(gw.nn.LSTM(3, 4), tmp_path)
    assert type(gw.load(tmp_path)) is gw.nn.LSTM
    assert Mine(3, 4)(torch.randn(2, 3))[0].shape == (2, 4)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_the_name_of_a_kernel_is_taken(name: str) -> None:
    """Kernels are chosen by name, so its own equations would never run."""
    with pytest.raises(ValueError, match=f"Other: a cell named {name} runs in the kernels.*another name"):
        tagger(name=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gates": ("forget", "new"), "tanh_gates": frozenset("new")},
            r"tanh_gates names \['e', 'n', 'w'\].*letters",
        ),
        ({"tanh_gates": {"g"}}, r"tanh_gates names \['g'\], but the gates are \['f', 'n'\]"),
        ({"gated_recurrent": {"m": "f"}}, r"gated_recurrent names \['m'\]"),
        ({"gated_recurrent": {"n": "r"}}, r"gated_recurrent names \['r'\]"),
        ({"gates": "fn"}, r"gates='fn' must be a tuple of different names"),
        ({"gates": ("f", "f")}, r"must be a tuple of different names"),
        ({"n_states": 0}, r"n_states=0 must be 1 \(h\) or 2"),
    ],
)
def test_a_declaration_that_names_no_gate_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"OTHER: .*{message}"):
        tagger(**changes)


def test_a_layer_without_a_cell_is_refused() -> None:
    class Empty(gw.nn.Recurrent):
        pass

    with pytest.raises(TypeError, match=r"Empty: has no cell\. Declare one"):
        Empty(3, 4)


def test_compress_refuses_a_gated_half_that_is_not_declared() -> None:
    """It would add up b_in and b_hn, of which f multiplies only one. Without biases there is nothing to add up."""
    model = tagger(gated_recurrent={})
    with pytest.raises(
        ValueError, match=r"OTHER: the two biases of gate 'n'.*gated_recurrent=\{'n': \.\.\.\}"
    ):
        gw.compress(model)
    model.rnn, x = type(model.rnn)(3, 8, bias=False), torch.randn(5, 2, 3)
    torch.testing.assert_close(gw.compress(model)(x), model(x))


def test_a_neuron_scale_that_does_not_fold_is_refused() -> None:
    """compress() would compute s with h = s z_h, which these equations do not allow; without z_h there is no need."""
    model, x = tagger(step=scaled_whole_step, gated_recurrent={}), torch.randn(5, 2, 3)
    small = gw.compress(model)
    torch.testing.assert_close(small(x), model(x))
    torch.testing.assert_close(gw.compress(small)(x), model(x))
    with pytest.raises(ValueError, match=r"OTHER: z_h cannot be folded into the weights.*neuron_scale"):
        gw.Variational(model, n_train=3)
    gw.Variational(model, "W", n_train=3)


@pytest.mark.parametrize("cell", [LSTM, GRU, mgu.MGU_CELL], ids=lambda cell: cell.name)
def test_right_declarations_pass_and_no_random_number_is_drawn(cell: Cell) -> None:
    before = torch.get_rng_state()
    for check in (check_biases_add_up, check_neuron_scale_folds):
        check.cache_clear()
        check(cell)
    assert torch.equal(torch.get_rng_state(), before)
