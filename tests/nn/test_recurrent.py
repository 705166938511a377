"""gatewise.nn against torch.nn, the fused path against the scan, and everything a layer must survive."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import nullcontext
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.nn import recurrence
from gatewise.nn.cells import SQUASHES, hard_sigmoid
from gatewise.nn.recurrence import Weights, fused_layer, fusible, scan

TORCH = {"LSTM": nn.LSTM, "GRU": nn.GRU}
OURS = {"LSTM": gw.nn.LSTM, "GRU": gw.nn.GRU}
CELLS = ["LSTM", "GRU"]
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


def test_hard_sigmoid_values() -> None:
    close(
        hard_sigmoid(torch.tensor([-3.0, -2.5, 0.0, 1.0, 2.5, 9.0])),
        torch.tensor([0.0, 0.0, 0.5, 0.7, 1.0, 1.0]),
    )


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


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "state_dict", "torch.save"])
def test_copies_compute_the_same(cell: str, how: str) -> None:
    """Layers are copied, pickled and checkpointed like any module."""
    layer = OURS[cell](3, 4, num_layers=2, bidirectional=True, gate_activation="hard_sigmoid")
    if how == "deepcopy":
        twin = copy.deepcopy(layer)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(layer))
    else:
        twin = OURS[cell](3, 4, num_layers=2, bidirectional=True, gate_activation="hard_sigmoid")
        state = layer.state_dict()
        if how == "torch.save":
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        twin.load_state_dict(state)
    x = torch.randn(4, 2, 3)
    close(twin(x), layer(x), rtol=0, atol=0)
    next(iter(twin.parameters())).data.add_(1)
    assert not torch.equal(twin(x)[0], layer(x)[0])


@pytest.mark.parametrize("cell", CELLS)
def test_checkpoints_go_both_ways(cell: str) -> None:
    """Names, shapes and their order are torch's, so a dense checkpoint loads and to_dense() goes back."""
    theirs, ours = TORCH[cell](3, 4, 2, bidirectional=True), OURS[cell](3, 4, 2, bidirectional=True)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 2, 3)
    close(theirs(x), ours(x))
    dense = ours.eval().to_dense()
    assert type(dense) is TORCH[cell]
    assert not dense.training
    close(dense(x), ours(x))
    dense.weight_ih_l0.data.zero_()
    assert ours.weight_ih_l0.abs().sum() > 0


@pytest.mark.parametrize("cell", CELLS)
def test_to_dense_takes_every_option_along(cell: str) -> None:
    options = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.25, "bidirectional": True}
    ours = OURS[cell](3, 4, **options, dtype=torch.float64)
    dense = ours.to_dense()
    assert repr(dense) == repr(TORCH[cell](3, 4, **options))
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    close(dense.eval()(x), ours.eval()(x))


def test_to_dense_refuses_what_torch_cannot_do() -> None:
    with pytest.raises(ValueError, match="hard_sigmoid"):
        gw.nn.LSTM(2, 3, gate_activation="hard_sigmoid").to_dense()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("activation", list(SQUASHES))
def test_autocast_runs_and_trains(cell: str, activation: str) -> None:
    """Under bfloat16 autocast both paths run, stay near float32, and give float32 gradients."""
    layer = OURS[cell](3, 4, num_layers=2, gate_activation=activation)
    x = torch.randn(5, 2, 3)
    expected = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x)
    close(output.float(), expected, rtol=0.05, atol=0.05)
    output.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


def test_distributed_training(tmp_path: Any) -> None:
    """A model with our layers trains under DistributedDataParallel, and is measured through it."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = nn.ModuleDict({"rnn": gw.nn.LSTM(3, 4)})
        layer = DistributedDataParallel(model["rnn"])
        layer(torch.randn(5, 2, 3))[0].sum().backward()
        assert all(p.grad is not None for p in layer.parameters())
        assert gw.measure(layer).neurons == {"module.l0": 4}
    finally:
        dist.destroy_process_group()


def test_proj_size_is_refused() -> None:
    with pytest.raises(ValueError, match="proj_size=2"):
        gw.nn.LSTM(3, 4, proj_size=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_activation": "relu"}, "gate_activation='relu'"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"dropout": 1.5}, "dropout=1.5"),
    ],
)
def test_constructor_errors_name_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.nn.GRU(**({"input_size": 3, "hidden_size": 4} | options))


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (torch.zeros(5, 2, 7), None, "input_size is 3"),
        (torch.zeros(5), None, "2-D"),
        (torch.zeros(0, 2, 3), None, "no time step"),
        (torch.zeros(5, 2, 3), torch.zeros(1, 2, 4), r"a pair \(h, c\)"),
        (torch.zeros(5, 2, 3), (torch.zeros(1, 2, 4), torch.zeros(1, 3, 4)), r"\(1, 2, 4\)"),
    ],
)
def test_bad_input_is_named(x: Tensor, hx: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gw.nn.LSTM(3, 4)(x, hx)


def test_bad_masks_and_packed_widths_are_named() -> None:
    layer = gw.nn.GRU(3, 4)
    with pytest.raises(ValueError, match="mask must be bool"):
        layer(torch.zeros(5, 2, 3), mask=torch.ones(5, 2))
    with pytest.raises(ValueError, match="mask must be bool"):
        layer(torch.zeros(5, 2, 3), mask=torch.ones(2, 5, dtype=torch.bool))
    packed = pack_sequence([torch.zeros(2, 3), torch.zeros(1, 3)])
    with pytest.raises(ValueError, match="needs no mask"):
        layer(packed, mask=torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="input_size is 3"):
        layer(pack_sequence([torch.zeros(2, 5), torch.zeros(1, 5)]))
    with pytest.raises(ValueError, match="one tensor h"):
        layer(torch.zeros(5, 2, 3), (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)))


def test_repr_says_what_is_unusual() -> None:
    assert repr(gw.nn.LSTM(3, 4, 2, bidirectional=True)) == "LSTM(3, 4, num_layers=2, bidirectional=True)"


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
