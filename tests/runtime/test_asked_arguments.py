"""A way to call forward() holds for the arguments it was found with, those that it only asks about, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import gatewise as gw


class Asking(nn.Module):
    """Other heads with a mask and without; `residual`: a graph; `beyond`: without a mask no back end can run it."""

    def __init__(self, residual: bool, beyond: bool) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 6, batch_first=True)
        self.masked, self.plain = nn.Linear(6, 2), nn.Linear(6, 2)
        self.residual, self.beyond = residual, beyond

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y, _ = self.rnn(x)
        y = y + y.mean(1, keepdim=True) if self.residual else y
        if mask is not None:
            return self.masked(y)
        z = self.plain(y)
        return torch.fft.rfft(z).abs() if self.beyond else z


X, MASK = torch.randn(2, 5, 3), torch.ones(2, 5)
KINDS = [(residual, beyond) for residual in (False, True) for beyond in (False, True)]


def small(residual: bool, beyond: bool) -> nn.Module:
    return gw.compress(Asking(residual, beyond).eval())


def session(model: nn.Module, folder: Path, **options: Any) -> Any:
    path = gw.export.to_onnx(model, folder / "model.onnx", **options)
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.filterwarnings("ignore")  # of readers that are not known
@pytest.mark.parametrize("example", [None, (X,), (X, MASK)])
@pytest.mark.parametrize(("residual", "beyond"), KINDS)
def test_an_engine_answers_no_call_for_another(residual: bool, beyond: bool, example: Any) -> None:
    """Without the mask it once gave the branch with one, wherever the right one could not be recorded."""
    model = small(residual, beyond)
    engine = gw.Engine(model, example=example)
    torch.testing.assert_close(engine(X, MASK)[0], model(X, MASK), rtol=1e-4, atol=1e-5)
    if beyond:
        with pytest.raises(TypeError, match=r"could not be recorded with x given, only with x, mask"):
            engine(X)
    else:
        torch.testing.assert_close(engine(X)[0], model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("residual", "beyond"), KINDS)
def test_a_file_is_of_the_call_that_is_shown(residual: bool, beyond: bool, tmp_path: Path) -> None:
    """Unasked it is of a call with nothing that is optional; a file of another one would not say so."""
    model = small(residual, beyond)
    (found,) = session(model, tmp_path, example=(X, MASK)).run(None, {"x": X.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(X, MASK), rtol=1e-4, atol=1e-5)
    for example in (None, (X,)):
        if beyond:
            with pytest.raises(ValueError, match="only with x, mask"):
                session(model, tmp_path, example=example)
            with pytest.raises(ValueError, match="only with x, mask"):
                gw.export.to_c(model, tmp_path / "c", example=example)
        else:
            (found,) = session(model, tmp_path, example=example).run(None, {"x": X.numpy()})
            torch.testing.assert_close(torch.from_numpy(found), model(X), rtol=1e-4, atol=1e-5)
            gw.export.to_c(model, tmp_path / "c", example=example)


class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor, scale: float = 1.0, squared: bool = False) -> Tensor:
        y, _ = self.rnn(x)
        z = self.fc(y + y.mean(1, keepdim=True)) * scale
        return z**2 if squared else z


@pytest.mark.parametrize("other", [{"scale": 2.0}, {"squared": True}, {"scale": torch.tensor(2.0)}])
def test_another_value_than_the_default_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    """Only the default was recorded; another value was read past."""
    model = gw.compress(Flagged().eval())
    engine = gw.Engine(model)
    torch.testing.assert_close(engine(X, 1.0, squared=False)[0], model(X), rtol=1e-4, atol=1e-5)
    (name,) = other
    with pytest.raises(TypeError, match=f"{name}: forward\\(\\) was recorded with its default"):
        engine(X, **other)
    example = (X, other.get("scale", 1.0), other.get("squared", False))
    for export in (gw.export.to_onnx, gw.export.to_c):
        with pytest.raises(ValueError, match=f"{name}: forward\\(\\) is recorded with its default only"):
            export(model, tmp_path / "model", example=example)


class Carrying(nn.Module):
    """A state that goes round, and a mask that is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.one, self.other = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor, state: Tensor | None = None, mask: Tensor | None = None) -> Any:
        y, state = self.rnn(x, state)
        y = y + y[..., :1]
        return (self.one(y) if mask is None else self.other(y)), state


def test_a_state_goes_on_with_calls_like_its_own() -> None:
    """The second piece may not lose the mask that the first one had."""
    model = gw.compress(Carrying().eval())
    engine = gw.Engine(model)
    _, state = engine(X, mask=MASK)
    _, before = model(X, mask=MASK)
    again = engine(X, state=state, mask=MASK)[0]
    torch.testing.assert_close(again, model(X, before, MASK)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="the state is of a call with"):
        engine(X, state=state)


class Handing(nn.Module):
    """Arguments that only come back: as they are, in part, in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor, ids: Tensor, kept: Tensor) -> Any:
        y, _ = self.rnn(x)
        return self.fc(y + y.mean(1, keepdim=True)), ids, ids.transpose(0, 1), kept[:, 1:]


HANDED = (X, torch.tensor([[3, 4], [5, 6]]), torch.tensor([[True, False], [False, True]]))


@pytest.mark.parametrize("example", [None, HANDED])
def test_what_is_handed_on_keeps_its_type(example: Any, tmp_path: Path) -> None:
    """Whole numbers came back as float32, large ones rounded."""
    model = gw.compress(Handing().eval(), example=HANDED)
    large = (X, HANDED[1] + 2**40, HANDED[2])
    for answer in (gw.Engine(model, example=example)(*large)[0], gw.Engine(model)(*large)[0]):
        torch.testing.assert_close(answer[1:], model(*large)[1:], rtol=0, atol=0)
        assert [part.dtype for part in answer] == [torch.float32, torch.int64, torch.int64, torch.bool]
    floats = (X, HANDED[1].float(), HANDED[2])
    assert gw.Engine(model)(*floats)[0][1].dtype == torch.float32
    types = [known.type for known in session(model, tmp_path, example=HANDED).get_outputs()]
    assert types == ["tensor(float)", "tensor(int64)", "tensor(int64)", "tensor(bool)"]
