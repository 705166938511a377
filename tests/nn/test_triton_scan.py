"""The GPU recurrence against the plain scan in float64.

Without a GPU the kernels run in Triton's interpreter when it is asked for (TRITON_INTERPRET=1), on layers
that one program holds, since interpreted programs run one after the other and cannot meet.
"""

from __future__ import annotations

import copy
import random
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, INTERPRETED

import gatewise as gw
from gatewise.nn import triton_persistent, triton_scan, triton_step, triton_team
from gatewise.nn.cells import GRU, LSTM
from gatewise.nn.recurrence import Weights, replayed, say_once, scan

# The interpreter is NumPy, which tells of inf.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
WIDTHS = [1, 5, 16] if INTERPRETED else [1, 7, 16, 33, 128, 200, 256, 300, 512, 1000]
TOLERANCE = {"ieee": 2e-5, "tf32": 2e-2, "bf16": 5e-2}


@pytest.fixture(autouse=True)
def _setting(monkeypatch):
    torch.manual_seed(0)
    if INTERPRETED:
        room = SimpleNamespace(major=9, multi_processor_count=4, shared_memory_per_block_optin=2**17)
        monkeypatch.setattr(triton_persistent, "gpu", lambda device: room)
        monkeypatch.setattr(triton_team, "await_all", lambda counter, count: None)


def draw(seed: int, hidden: int, batch: int | None = None):
    """A layer of random kind: cell, sizes, scales, mask or packed lengths, direction, order in memory."""
    rng = random.Random(seed)

    def laid(x: Tensor | None) -> Tensor | None:
        """The same numbers, half of the time in another order in memory, as batch-first input has it."""
        turned = x is not None and x.dim() > 1 and rng.random() < 0.5
        return x.transpose(0, 1).contiguous().transpose(0, 1) if turned else x

    cell = rng.choice([LSTM, GRU])
    steps, width = rng.randint(1, 9), rng.randint(1, 30)
    batch = batch or rng.randint(1, 5 if INTERPRETED else 40)
    gates = cell.n_gates

    def scale(*shape: int) -> Tensor | None:
        kind = rng.choice(["none", "shared", "sequence", "sequence"])
        if kind == "none":
            return None
        z = 1 + 0.5 * torch.randn(*shape) if kind == "shared" else 1 + 0.5 * torch.randn(batch, *shape)
        return laid(torch.where(torch.rand_like(z) < 0.1, 0, z))  # some groups are gone

    bias = rng.random() < 0.8
    weights = Weights(
        laid(torch.randn(gates * hidden, width) / width**0.5),
        laid(torch.randn(gates * hidden, hidden) / hidden**0.5),
        torch.randn(gates * hidden) if bias else None,
        torch.randn(gates * hidden) if bias else None,
        scale(width),
        scale(gates, hidden),
        scale(hidden),
    )
    kind = rng.choice(["full", "mask", "packed"])
    x = laid(torch.randn(steps, batch, width))
    options = {"gate_activation": rng.choice(["sigmoid", "hard_sigmoid"]), "reverse": rng.random() < 0.5}
    if kind == "mask":
        options["mask"] = laid(torch.rand(steps, batch) < 0.7)
    if kind == "packed":
        lengths = sorted((rng.randint(1, steps) for _ in range(batch)), reverse=True)
        sizes = [sum(length > t for length in lengths) for t in range(lengths[0])]
        x = torch.randn(sum(sizes), width)
        options["batch_sizes"] = torch.tensor(sizes)
    state = tuple(laid(torch.randn(batch, hidden)) for _ in range(cell.n_states))
    return cell, x, state, weights, options


def answer(function, case, dtype=torch.float32, device=DEVICE, asked=True) -> dict[str, Tensor]:
    """Output, states and the gradients of everything, of one random number made from all of them."""
    cell, x, state, weights, options = case
    leaves = {"x": x, **{f"state{k}": part for k, part in enumerate(state)}}
    leaves |= {f.name: getattr(weights, f.name) for f in fields(weights)}
    leaves = {
        name: leaf.to(device, dtype).requires_grad_() for name, leaf in leaves.items() if leaf is not None
    }
    options = {
        key: value.to(device) if key == "mask" else value for key, value in options.items()
    }  # batch_sizes stay on the CPU, as in a PackedSequence
    output, last = function(
        cell,
        leaves["x"],
        tuple(leaves[f"state{k}"] for k in range(cell.n_states)),
        replace(weights, **{f.name: leaves.get(f.name) for f in fields(weights)}),
        **options,
    )
    result = {"output": output, **{f"last{k}": part for k, part in enumerate(last)}}
    if asked:
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (part * torch.randn(part.shape, generator=generator).to(part)).sum() for part in result.values()
        )
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        for (name, leaf), grad in zip(leaves.items(), grads):
            result["d " + name] = torch.zeros_like(leaf) if grad is None else grad
    return {name: part.detach().double().cpu() for name, part in result.items()}


def assert_near(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        error = (ours[name] - expected).norm() / expected.norm().clamp(min=1e-3)
        assert error <= tolerance, f"{name}: relative error {error:.2e}"  # NaN fails too


def set_precision(monkeypatch, precision: str) -> None:
    monkeypatch.setattr(triton_scan, "precision", lambda: precision)


@pytest.mark.parametrize("seed", range(3 if INTERPRETED else 4))
@pytest.mark.parametrize("hidden", WIDTHS)
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_it_computes_what_the_scan_computes(precision, hidden, seed, monkeypatch):
    """Two ways to run the same equations: the reference in double precision, and the kernels."""
    set_precision(monkeypatch, precision)
    case = draw(1000 * hidden + seed, hidden)
    expected = answer(scan, case, torch.float64, "cpu")
    assert_near(answer(triton_scan.device_scan, case), expected, TOLERANCE[precision])


@pytest.mark.parametrize("hidden", [5] if INTERPRETED else [33, 200, 512])
@pytest.mark.parametrize("cell", [LSTM, GRU], ids=lambda cell: cell.name)
def test_both_ways_to_run_it_agree(cell, hidden, monkeypatch):
    """One persistent kernel, or a product and a pointwise kernel a step, on the same TF32 layer."""
    set_precision(monkeypatch, "tf32")
    case = next(c for c in (draw(seed, hidden) for seed in range(100)) if c[0] is cell)
    fast = answer(triton_scan.device_scan, case)
    monkeypatch.setattr(triton_persistent, "fits", lambda tape: False)
    assert_near(fast, answer(triton_scan.device_scan, case), TOLERANCE["tf32"])


@pytest.mark.parametrize("batch", [65, 130])  # 4 multiprocessors: teams of 32 in one launch, in two
@pytest.mark.parametrize("seed", range(2))
def test_a_batch_of_more_sequences_than_run_at_once(seed, batch, monkeypatch):
    """The teams grow, and if that is not enough they run one after the other."""
    set_precision(monkeypatch, "tf32")
    case = draw(seed, 5 if INTERPRETED else 512, batch)
    expected = answer(scan, case, torch.float64, "cpu")
    assert_near(answer(triton_scan.device_scan, case), expected, TOLERANCE["tf32"])


@pytest.mark.skipif(INTERPRETED, reason="the interpreter multiplies no bfloat16")
@pytest.mark.parametrize("hidden", [128, 600])
def test_bfloat16_products(hidden, monkeypatch):
    """Autocast asks for bfloat16 products; their sums and the states stay float32."""
    set_precision(monkeypatch, "bf16")
    case = draw(7, hidden)
    expected = answer(scan, case, torch.float64, "cpu")
    assert_near(answer(triton_scan.device_scan, case), expected, TOLERANCE["bf16"])


@pytest.mark.parametrize("hidden", WIDTHS)
def test_the_same_answer_twice(hidden, monkeypatch):
    """Every sum has a fixed order, so repeating it changes no bit."""
    set_precision(monkeypatch, "tf32")
    case = draw(3, hidden)
    first, again = (answer(triton_scan.device_scan, case) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], again[name]), name


@pytest.mark.parametrize("hidden", [5] if INTERPRETED else [200, 600])
def test_scratch_memory_is_not_read_before_it_is_written(hidden, monkeypatch):
    """With every fresh buffer full of NaN the answer is the same."""
    set_precision(monkeypatch, "tf32")
    case = draw(11, hidden)
    clean = answer(triton_scan.device_scan, case)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        poisoned = answer(triton_scan.device_scan, case)
    finally:
        torch.use_deterministic_algorithms(False)
    for name in clean:
        assert torch.equal(clean[name], poisoned[name]), name


@pytest.mark.parametrize("hidden", [5] if INTERPRETED else [64, 600])
def test_a_nan_is_not_lost(hidden, monkeypatch):
    """Rounding and clipping must not turn a NaN into a number."""
    set_precision(monkeypatch, "tf32")
    weights = Weights(torch.randn(4 * hidden, 3), torch.randn(4 * hidden, hidden), None, None)
    x = torch.randn(4, 2, 3)
    x[1, 0, 0] = float("nan")
    state = (torch.zeros(2, hidden), torch.zeros(2, hidden))
    case = (LSTM, x, state, weights, {"gate_activation": "hard_sigmoid"})
    output = answer(triton_scan.device_scan, case, asked=False)["output"]
    assert output[1:, 0].isnan().all()
    assert output[:, 1].isfinite().all()
    assert output[0].isfinite().all()


@pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # the eager step beside the graph
@pytest.mark.parametrize("hidden", [128, 600])
def test_it_runs_in_a_cuda_graph(hidden, monkeypatch):
    """Captured once and replayed with new inputs, forward and backward give what eager calls give."""
    set_precision(monkeypatch, "tf32")
    batch, width = 40, 10
    x = torch.randn(6, batch, width, device=DEVICE, requires_grad=True)
    w = Weights(
        torch.randn(4 * hidden, width, device=DEVICE, requires_grad=True),
        torch.randn(4 * hidden, hidden, device=DEVICE, requires_grad=True),
        None,
        None,
        gate_scale=torch.randn(batch, 4, hidden, device=DEVICE, requires_grad=True),
    )
    state = tuple(torch.zeros(batch, hidden, device=DEVICE) for _ in range(2))
    leaves = (x, w.w_ih, w.w_hh, w.gate_scale)

    def step():
        output, _ = triton_scan.device_scan(LSTM, x, state, w)
        return output, *torch.autograd.grad(output.square().sum(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        for ours, expected in zip(captured, step()):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")
@pytest.mark.parametrize("layer", [gw.nn.LSTM, gw.nn.GRU])
@pytest.mark.parametrize("batch_first", [False, True])
def test_whole_layers_on_both_devices(layer, batch_first, monkeypatch):
    """Two bidirectional layers with hard gates and a mask: nothing cuDNN knows, so the kernels run."""
    set_precision(monkeypatch, "ieee")
    here = layer(6, 9, 2, bidirectional=True, gate_activation="hard_sigmoid", batch_first=batch_first)
    there = copy.deepcopy(here).cuda()
    x, mask = torch.randn(7, 3, 6), torch.rand(7, 3) < 0.7
    expected, _ = here(x, mask=mask)
    output, _ = there(x.cuda(), mask=mask.cuda())
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    output.square().sum().backward()
    for ours, theirs in zip(there.parameters(), here.parameters()):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")
def test_what_is_not_supported_falls_back_and_says_so_once():
    layer = gw.nn.LSTM(3, 4, gate_activation="hard_sigmoid", dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected, _ = layer(x)
    say_once.cache_clear()
    with pytest.warns(UserWarning, match="plain torch.*float64"):
        output, _ = layer.cuda()(x.cuda())
    torch.testing.assert_close(output.cpu(), expected)
    layer(x.cuda())  # a second warning would be an error here


def test_the_step_kernels_have_no_width_limit(monkeypatch):
    """Where a layer is too wide for the registers, or wants full float32, steps are launched one by one."""
    set_precision(monkeypatch, "ieee")
    seen = []
    forward = triton_step.forward
    monkeypatch.setattr(triton_step, "forward", lambda tape, inputs: (seen.append(1), forward(tape, inputs)))
    answer(triton_scan.device_scan, draw(5, 3))
    assert seen


@pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")
@pytest.mark.parametrize("layer", [gw.nn.LSTM, gw.nn.GRU])
def test_a_dense_layer_in_a_graph_gives_what_cudnn_gives(layer, monkeypatch):
    """Two layers: for a graph they train in our kernels, else in cuDNN's."""
    set_precision(monkeypatch, "tf32")
    rnn, x, seen = layer(30, 40, 2).cuda(), torch.randn(9, 20, 30).cuda(), []
    device_scan = triton_scan.device_scan
    monkeypatch.setattr(triton_scan, "device_scan", lambda *a, **k: (seen.append(1), device_scan(*a, **k))[1])

    def gradients() -> list[Tensor]:
        rnn.zero_grad()
        rnn(x)[0].square().sum().backward()
        return [parameter.grad.clone() for parameter in rnn.parameters()]

    expected = gradients()
    assert not seen
    with replayed():
        ours = gradients()
        assert len(seen) == 2
        with torch.no_grad():
            rnn(x)
        assert len(seen) == 2
    for got, wanted in zip(ours, expected):
        assert (got - wanted).norm() < TOLERANCE["tf32"] * wanted.norm()
