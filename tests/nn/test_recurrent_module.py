"""What a layer must survive as a module: copies, checkpoints, autocast, other processes, wrong calls."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from networks import CELLS, OURS, TORCH, tagger
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_sequence

import gatewise as gw
from gatewise.nn.cells import SQUASHES

close = torch.testing.assert_close


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


DYNAMO_LOOKS = "ignore:The .grad attribute"  # at tensors that are no leaves, and hides it from users


@pytest.mark.filterwarnings(DYNAMO_LOOKS)
@pytest.mark.parametrize("layer", [gw.nn.LSTM(3, 4, 2), gw.nn.GRU(3, 4), gw.compress(nn.LSTM(3, 4))])
def test_compiled_layers_train(layer: nn.Module) -> None:
    """torch.compile breaks off at the recurrence, as at nn.LSTM, and must come back with the gradients."""
    x, found = torch.randn(5, 2, 3), {}
    for name, run in (("eager", layer), ("compiled", torch.compile(layer, backend="aot_eager"))):
        layer.zero_grad()
        output, _ = run(x)
        output.square().sum().backward()
        found[name] = output, [p.grad for p in layer.parameters()]
    close(found["compiled"], found["eager"])


@pytest.mark.filterwarnings(DYNAMO_LOOKS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", ["dense", "hard", "variational", "per batch", "compact"])
def test_what_is_compiled_does_not_grow_with_the_steps(cell: str, kind: str) -> None:
    """Followed by dynamo, a recurrence would be compiled step by step, which takes minutes.

    Where dynamo is told to take nn.LSTM, that is; else it leaves a model alone that has one.
    """
    nodes: list[int] = []

    def count(graph: Any, _: Any) -> Any:
        nodes[-1] += len(graph.graph.nodes)
        assert cell.lower() not in str(graph.graph)  # torch's own kernel would be taken apart step by step
        return graph.forward

    model: Any = tagger(OURS[cell](3, 4, gate_activation="hard_sigmoid" if kind == "hard" else "sigmoid"))
    if kind in ("variational", "per batch"):
        gw.Variational(model, n_train=10, noise="batch" if kind == "per batch" else "sequence")
    model = gw.compress(model) if kind == "compact" else model
    for steps in (4, 9):
        nodes.append(0)
        torch._dynamo.reset()
        with torch._dynamo.config.patch(allow_rnn=True):
            torch.compile(model, backend=count, dynamic=False)(torch.randn(steps, 2, 3))
    assert 0 < nodes[0] == nodes[1]


@pytest.mark.parametrize("cell", CELLS)
def test_the_copies_of_data_parallel_run(cell: str) -> None:
    """On every device it makes a module without parameters, with tensors under their names."""
    layer = OURS[cell](3, 4, num_layers=2)
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer.named_parameters():
        setattr(replica, name, parameter.detach())
    assert not list(replica.parameters())
    x = torch.randn(5, 2, 3)
    close(replica(x), layer(x))


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
        (
            torch.zeros(5, 2, 3).double(),
            None,
            r"is torch.float64, the weights are torch.float32; .*input.to\(",
        ),
        (torch.zeros(5, 2, 3).long(), None, "is torch.int64"),
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
