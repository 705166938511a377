"""Every way to call forward() counts, and one that cannot be followed leaves nothing proven."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from networks import Net
from patterns import E, H, emb
from torch import Tensor, nn
from torch.nn import functional as F

import gatewise as gw
from gatewise.program.ways import recordings
from gatewise.readers import find_readers


class TwoWays(nn.Module):
    """Another reader in training, and another when a second argument is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.LSTM(E, H), nn.Linear(H, 2)
        self.train_fc, self.more_fc = nn.Linear(H, 2), nn.Linear(H, 2)

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        out, _ = self.rnn(x)
        if more is not None:
            return self.more_fc(out) + more
        return self.train_fc(out) if self.training else self.fc(out)


@pytest.mark.parametrize(
    "rule",
    [
        lambda out, x: out.transpose(0, x.size(0)),
        lambda out, x: out.flatten(0, x.size(0)),
    ],
    ids=["transpose", "flatten"],
)
def test_a_dimension_that_only_a_call_knows_may_be_any(rule: Any) -> None:
    model = Net(lambda m, x: m.fc(rule(m.rnn(x)[0], x)), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    assert "may mix its channels" in find_readers(model).exposed["rnn.l0"]


@pytest.mark.parametrize("training", [False, True])
def test_every_way_to_call_forward_counts(training: bool) -> None:
    """Whatever the mode while it is followed: a neuron that one way reads has a reader."""
    model = TwoWays().train(training)
    found = {read.matrix for read in find_readers(model).reads_of("rnn.l0")}
    assert found == {"rnn.weight_hh_l0", "fc.weight", "train_fc.weight", "more_fc.weight"}
    assert model.training is training


class Flags(nn.Module):
    """Flags steer which layer reads; a number multiplies, and one decides."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc, self.wide, self.deep = nn.LSTM(E, H), *(nn.Linear(H, 2) for _ in range(3))

    def forward(self, x: Tensor, wide: bool = False, factor: float = 2.0, depth: int = 1) -> Tensor:
        out = self.rnn(x)[0] * factor
        if wide:
            return self.wide(out)
        return self.deep(out) if depth > 1 else self.fc(out)


def test_both_values_of_a_flag_count() -> None:
    """A number that decides has its default: no other can be tried, so nothing is proven."""
    graph = find_readers(Flags())
    found = {read.matrix for read in graph.reads_of("rnn.l0")}
    assert found == {"rnn.weight_hh_l0", "fc.weight", "wide.weight"}
    assert "never calls" in graph.exposed["deep"]
    assert "not every call of forward() could be traced" in graph.exposed["rnn.l0"]


class Ways(nn.Module):
    """An answer of `rnn` itself in one way to call forward(), of `fc` in all others."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(E, H), nn.Linear(H, 2)


class Mode(Ways):
    def forward(self, x: Tensor, mode: str = "scores") -> Tensor:
        out, _ = self.rnn(x)
        return out if mode == "features" else self.fc(out)


class Layer(Ways):
    def forward(self, x: Tensor, layer: int = -1) -> Tensor:
        out, _ = self.rnn(x)
        return out if layer == 0 else self.fc(out)


class NoneAllowed(Ways):
    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        out, _ = self.rnn(x, state)
        return out if state is None else self.fc(out)


class SevenOptions(Ways):
    def forward(
        self, x: Any, a: Any = None, b: Any = None, c: Any = None, d: Any = None, e: Any = None, f: Any = None,
        raw: bool = False,
    ) -> Any:  # fmt: skip
        out, _ = self.rnn(x)
        return out if a is None and raw else self.fc(out)


class Skips(Ways):
    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return out if self.training and random.random() < 0.3 else self.fc(out)


class SkipsByNumPy(Ways):
    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return out if self.training and np.random.rand() < 0.3 else self.fc(out)  # noqa: NPY002


@pytest.mark.parametrize("kind", [Mode, Layer, NoneAllowed, SevenOptions, Skips, SkipsByNumPy])
def test_a_way_that_may_read_more_leaves_nothing_proven(kind: type[Ways]) -> None:
    """Whether it was followed, could not be, or is one of too many: the neurons may be the answer."""
    graph = find_readers(kind())
    assert "rnn.l0" in graph.exposed
    assert ("rnn.l0" in graph.memory) == ("not every call" in graph.exposed["rnn.l0"])


def test_other_data_for_a_tensor_leaves_nothing_proven() -> None:
    """`out.data = ...` sets an attribute, which no graph shows: fc reads other channels than it seems to."""

    class Moves(Ways):
        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.rnn(x)
            out.data = out.flip(-1)
            return self.fc(out)

    assert "it gives a tensor other data" in find_readers(Moves()).exposed["rnn.l0"]


def test_a_call_that_forward_refuses_is_no_way() -> None:
    class Either(Ways):
        def forward(self, x: Any, a: Any = None, b: Any = None) -> Any:
            if a is None and b is None:
                raise ValueError("give a or b")
            out, _ = self.rnn(x)
            return self.fc(out)

    assert set(find_readers(Either()).exposed) == {"fc"}


class Prepared(nn.Module):
    """Something is done to the input before any layer sees it."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule, self.gain = rule, nn.Parameter(torch.ones(E))
        self.rnn, self.fc = nn.LSTM(E, H), nn.Linear(H, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(self.rule(x, self.gain))[0])


@pytest.mark.parametrize(
    "rule",
    [
        lambda x, gain: x * gain,
        lambda x, gain: F.layer_norm(x, (E,), gain),
        lambda x, gain: torch.matmul(x, torch.diag(gain.detach())),
        lambda x, gain: torch.cat([torch.relu(x), x * gain], dim=-1)[..., :E],
        lambda x, gain: F.conv1d(x.mT, gain.view(E, 1, 1), groups=E).mT,
        lambda x, gain: F.prelu(x.transpose(0, 1), gain[:1]).transpose(0, 1),
    ],
    ids=["product", "layer norm", "matrix", "joined", "convolution", "prelu"],
)
def test_none_in_place_of_a_tensor_is_no_way(rule: Any) -> None:
    """torch itself would raise: no way to call forward() is missing."""
    made, missing = recordings(Prepared(rule))
    assert made
    assert missing is None


def test_more_arguments_than_are_named_are_no_other_way() -> None:
    class Any_(Ways):
        def forward(self, x: Tensor, *more: Any, **named: Any) -> Tensor:
            return self.fc(self.rnn(x)[0])

    assert set(find_readers(Any_()).exposed) == {"fc"}


def test_many_optional_arguments() -> None:
    """All combinations of five are tried."""

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.heads = nn.LSTM(E, H), nn.ModuleList(nn.Linear(H, 2) for _ in range(6))

        def forward(
            self, x: Any, a: Any = None, b: Any = None, c: Any = None, d: Any = None, e: Any = None
        ) -> Any:
            out = self.rnn(x)[0]
            given = [one is not None for one in (a, b, c, d, e)]
            missing = given.index(False) if False in given else 5
            return self.heads[missing](out)

    found = {read.matrix for read in find_readers(Many()).reads_of("rnn.l0")}
    assert found == {"rnn.weight_hh_l0", *(f"heads.{k}.weight" for k in range(6))}


def test_looking_draws_no_random_numbers() -> None:
    def drawn() -> tuple[Any, ...]:
        return random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    models = Skips(), SkipsByNumPy()
    seed()
    for model in models:
        find_readers(model)
    after = drawn()
    seed()
    assert after == drawn()


def test_a_reader_that_is_never_called_leaves_nothing_proven() -> None:
    """It may be called in a branch that was not taken, or from outside."""

    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        return m.fc(out) if isinstance(x, Tensor) else m.other(out)

    model = Net(forward, rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2), other=nn.Linear(H, 2))
    assert "other, which forward() never calls, may read it" in find_readers(model).exposed["rnn.l0"]


def test_a_layer_that_forward_never_calls_is_exposed() -> None:
    model = Net(
        lambda m, x: m.fc(m.rnn(m.emb(x))[0]), emb=emb(), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2), spare=emb()
    )
    exposed = find_readers(model).exposed
    assert "never calls" in exposed["spare"]
    assert "rnn.l0" not in exposed  # an embedding reads nothing


class StatesInAList(nn.Module):
    """One state for every layer, in a list that forward() takes and gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.rnns, self.fc = nn.ModuleList([nn.LSTM(E, H), nn.LSTM(H, H)]), nn.Linear(H, 2)

    def forward(self, x: Tensor, states: Any = None) -> tuple[Tensor, list[Any]]:
        after = []
        for k, rnn in enumerate(self.rnns):
            x, state = rnn(x, None if states is None else states[k])
            after.append(state)
        return self.fc(x), after


def test_states_of_single_layers_may_come_in_a_list() -> None:
    """They are handed back, and nobody looks at them."""
    model = StatesInAList()
    assert set(find_readers(model).exposed) == {"fc"}
    engine, x = gw.Engine(model.eval()), torch.randn(5, 3, E)
    with torch.no_grad():
        first, states = model(x)
        second, _ = model(x, states)
    y, state = engine(x)
    torch.testing.assert_close(y, first, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(engine(x, state=state)[0], second, rtol=1e-4, atol=1e-5)


class Convolving(nn.Module):
    """A model that begins with a convolution, which torch refuses to do with None."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.rnn, self.fc = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(self.conv(x).transpose(1, 2))[0])


def test_a_required_argument_that_torch_refuses_as_none_is_none_no_more() -> None:
    """Whether forward() takes None is tried; that torch does not is no reason to keep a neuron."""
    assert set(find_readers(Convolving()).exposed) == {"fc"}
