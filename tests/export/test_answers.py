"""forward() wraps its answer: in whatever it does so, every form answers as the masked network, or refuses."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from answers import CONTAINERS, Way
from test_drawn_models import Campaign, Drawn
from torch import Tensor, nn

import gatewise as gw
from gatewise.readers import find_readers


class Answering(nn.Module):
    """The layer's own output is the answer, or what a head reads of it."""

    def __init__(self, way: Way, cell: str, headed: bool) -> None:
        super().__init__()
        self.rnn = {"LSTM": nn.LSTM, "GRU": nn.GRU}[cell](3, 6, batch_first=True)
        self.fc = nn.Linear(6, 2) if headed else None
        self.way = way

    def forward(self, x: Tensor) -> Any:
        y, _ = self.rnn(x)
        return self.way.wrap(y if self.fc is None else self.fc(y))


def sparse(way: Way, cell: str, headed: bool) -> Answering:
    """Two neurons that nobody reads, unless the caller does."""
    torch.manual_seed(3)
    model = Answering(way, cell, headed).eval()
    with torch.no_grad():
        for layer in (model.rnn, model.fc):
            for name, weight in () if layer is None else layer.named_parameters():
                if name in ("weight_hh_l0", "weight"):
                    weight[:, 1:3] = 0
    return model


def test_answers(tmp_path: Path, kernels: list[Path], every: Any, campaign: Any) -> None:
    """Silence here once cost every neuron of a network: nobody was seen to read what an object held."""
    check = Campaign(tmp_path, kernels)
    x = torch.randn(2, 4, 3)
    kinds = [(cell, headed) for headed in (False, True) for cell in ("LSTM", "GRU")]
    cases = [(name, *kind) for name in CONTAINERS for kind in kinds]
    for name, cell, headed in every(cases, 5):  # four networks for a container, in turn
        way = CONTAINERS[name]
        model = sparse(way, cell, headed)

        def fresh(way: Way = way, cell: str = cell, headed: bool = headed) -> nn.Module:
            return Answering(way, cell, headed)

        check(Drawn(model, (x,), fresh, (name, cell, headed), way.unwrap))
    assert not check.refused["loaded"]
    assert not check.refused["accelerated"]
    assert check.same["C"] < check.models
    campaign(str(check).replace("drawn models", "ways to wrap an answer"))


@pytest.mark.parametrize("name", CONTAINERS)
def test_whatever_holds_a_neuron_reads_it(name: str) -> None:
    """The caller sees the layer's own output, and a head beside it sees the same neurons through its columns."""
    own, headed = (find_readers(sparse(CONTAINERS[name], "LSTM", headed)) for headed in (False, True))
    assert set(own.exposed) == {"rnn.l0"}
    assert set(headed.exposed) == {"fc"}


class Kept:
    found: Any = None


def in_a_class(m: Any, y: Tensor) -> Tensor:
    Kept.found = y
    return m.fc(y)


def in_a_default(m: Any, y: Tensor, kept: list[Any] = []) -> Tensor:  # noqa: B006
    kept[:] = [y]
    return m.fc(y)


class Stepwise(nn.Module):
    """forward() is a generator: nothing of it runs until somebody asks for a step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        y, _ = self.rnn(x)
        for t in range(2):
            yield self.fc(y[:, t])


class Hiding(nn.Module):
    def __init__(self, rule: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.rnn, self.fc, self.rule = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2), rule

    def forward(self, x: Tensor) -> Any:
        return self.rule(self, self.rnn(x)[0])


@pytest.mark.parametrize("rule", [in_a_class, in_a_default])
def test_what_lives_on_outside_of_the_model_is_read(rule: Any) -> None:
    """Whoever has it may look at every neuron; a back end would leave it as it was."""
    model = Hiding(rule).eval()
    assert "keeps it outside of the model" in find_readers(model).exposed["rnn.l0"]
    with pytest.raises(ValueError, match="keeps it outside of the model"):
        gw.Engine(gw.compress(model))


def circular(m: Any, y: Tensor) -> Tensor:
    ring: list[Any] = [y]
    ring.append(ring)
    return m.fc(y)


def test_what_only_refers_to_itself_is_not_read() -> None:
    """Python frees a circle when it likes; until then nobody has what is in it."""
    gc.disable()
    try:
        assert set(find_readers(Hiding(circular)).exposed) == {"fc"}
    finally:
        gc.enable()


def test_a_generator_is_followed_no_further() -> None:
    """Not even its first line has run when forward() is done."""
    model = Stepwise().eval()
    assert set(find_readers(model).exposed) == {"rnn.l0", "fc"}
    with torch.no_grad():
        model.fc.weight[:, 2] = 0
        model.rnn.weight_hh_l0[:, 2] = 0
    with pytest.warns(UserWarning, match="never calls it"):
        small = gw.compress(model)
    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(list(small(x)), list(model(x)))
