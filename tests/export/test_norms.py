"""Normalisations of what sensors give: numbers far from zero, in units of all sizes."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from chains import CLOSE
from compiled import Compiled
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.export.c.rounded import rounded_model
from gatewise.runtime.narrow import Affine, narrow_chain


def sensors(mean: Tensor, deviation: Tensor) -> tuple[Net, Tensor]:
    """A model that normalises what it is given, and something to give it."""
    torch.manual_seed(0)
    width = len(mean)
    model = Net(lambda m, x: m.fc(m.rnn(m.bn(x.transpose(1, 2)).transpose(1, 2))[0]), bn=nn.BatchNorm1d(width),
                rnn=nn.GRU(width, 16, batch_first=True), fc=nn.Linear(16, 4)).eval()  # fmt: skip
    model.bn.running_mean.copy_(mean)
    model.bn.running_var.copy_(deviation**2)
    return model, mean + deviation * torch.randn(2, 5, width)


@pytest.mark.parametrize("width", [3, 40])
@torch.no_grad()
def test_numbers_far_from_zero_keep_their_digits(width: int, kernels: list[Path], tmp_path: Path) -> None:
    """Pressure is 101325 Pa give or take 100: in the sums of a matrix such a mean would cost three digits of the
    rest, which forward() keeps, since it takes the mean away first."""
    model, x = sensors(torch.full((width,), 101325.0), torch.full((width,), 100.0))
    expected = model(x)
    torch.testing.assert_close(gw.Engine(model)(x)[0], expected, **CLOSE)
    session = onnxruntime.InferenceSession(gw.export.to_onnx(model, tmp_path / "m.onnx"))
    torch.testing.assert_close(torch.from_numpy(session.run(["y"], {"x": x.numpy()})[0]), expected, **CLOSE)
    compiled = Compiled(model, tmp_path, kernels)
    for b in range(len(x)):
        y = torch.from_numpy(compiled.run(compiled.instance(), x[b].numpy()))
        torch.testing.assert_close(y, expected[b], **CLOSE)


@torch.no_grad()
def test_int8_keeps_channels_of_all_sizes(kernels: list[Path], tmp_path: Path) -> None:
    """What is measured in thousands has small weights once a normalisation is folded in, and in the scale of a row
    that it shares with another in thousandths they would be rounded away."""
    model, x = sensors(torch.tensor([1e3, 0.0, 1e-3]), torch.tensor([1e3, 1.0, 3e-2]))
    assert not isinstance(narrow_chain(model).links[0], Affine)
    assert isinstance(narrow_chain(model, norms_apart=True).links[0], Affine)
    compiled = Compiled(model, tmp_path, kernels, weights="int8")
    expected, rounded = model(x), rounded_model(model)(x)
    torch.testing.assert_close(rounded, expected, rtol=0, atol=0.01)
    y = torch.from_numpy(compiled.run(compiled.instance(), x[0].numpy()))
    torch.testing.assert_close(y, rounded[0], **CLOSE)
