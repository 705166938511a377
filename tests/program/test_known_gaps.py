"""What recording cannot do yet: each test says what holds once it can."""

from __future__ import annotations

import builtins
import threading
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import gatewise as gw
from gatewise.program.ways import programs
from gatewise.runtime.chained import ChainError


class Folding(nn.Module):
    """Rows of six features, one after another, as tabular models take them."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x.reshape(len(x), 6, -1).permute(0, 2, 1))
        return self.fc(y[:, -1])


def session(model: nn.Module, folder: Path, **options: Any) -> Any:
    path = gw.export.to_onnx(model, folder / "model.onnx", **options)
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.xfail(strict=True, reason="a size that follows from others by division becomes a number")
def test_a_size_of_the_example_is_not_baked_in(tmp_path: Path) -> None:
    """The example has five steps, a call may have seven."""
    model = gw.compress(Folding().eval())
    made = session(model, tmp_path, example=torch.randn(2, 30))
    for steps in (5, 7):
        x = torch.randn(3, 6 * steps)
        (found,) = made.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-4, atol=1e-5)


class Starting(nn.Module):
    """forward() writes the zeros that a layer starts from."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x, x.new_zeros(1, x.size(0), 5))[0])


@pytest.mark.xfail(strict=True, reason="zeros that forward() writes count as a state that is given")
def test_a_graph_that_gives_its_last_state_takes_the_first(tmp_path: Path) -> None:
    """Otherwise nobody can go on from it."""
    made = session(gw.compress(Starting().eval()), tmp_path, states=True)
    assert [given.name for given in made.get_inputs()] == ["x", "h0"]
    assert [given.name for given in made.get_outputs()] == ["y", "hn"]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.norm, self.fc = nn.GRU(3, 6, batch_first=True), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.rnn(x)[0].transpose(1, 2)).transpose(1, 2))


@pytest.mark.xfail(
    strict=True, reason="whether numbers are far from zero is asked of channels that went, too"
)
def test_channels_that_went_do_not_part_a_network() -> None:
    """A neuron that is almost constant has a variance near zero; removed, it is none of the engine's business."""
    model = Normed().eval()
    with torch.no_grad():
        for weight in (model.rnn.weight_hh_l0, model.fc.weight):
            weight[:, 1:3] = 0
        model.norm.running_var[1:3], model.norm.running_mean[1:3] = 1e-30, 0.3
    small = gw.compress(model)
    assert small.rnn.layers[0].kept == 4
    assert len(gw.Engine(small).stages) == 1


@pytest.mark.xfail(
    strict=True, reason="builtins are replaced for the whole process while forward() is recorded"
)
def test_other_threads_keep_their_builtins() -> None:
    """A data loader runs beside it."""
    seen: list[Any] = []

    def look() -> None:
        seen.append((type(builtins.range(3)) is builtins.range, builtins.len is length))

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            return self.rnn(x)[0]

    length = builtins.len
    programs(Looking())
    assert seen
    assert all(one == (True, True) for one in seen)


def test_a_list_as_long_as_a_size_is_refused_at_once() -> None:
    """It has thousands of parts while sizes have stand-ins, and joining them took minutes."""

    class Repeating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.fc = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)
            self.first = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            first = torch.stack([self.first] * x.size(0))
            return self.fc(self.rnn(x + first.unsqueeze(1))[0])

    model = Repeating().eval()
    with pytest.raises(ChainError, match="a list as long as an input says"):
        gw.Engine(model)
    assert gw.compress(model).rnn.layers[0].kept == 4


@pytest.mark.xfail(strict=True, reason="what Python says of a stand-in is passed on")
def test_a_refusal_speaks_of_forward() -> None:
    """Nobody who wrote a model knows what a stand-in is called inside."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            return self.rnn(x)[0].nobody_has_this

    with pytest.raises(ValueError, match="nobody_has_this") as refused:
        programs(Written())
    assert "'Recorded' object" not in str(refused.value)
