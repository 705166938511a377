"""forward() becomes a program: what people write is recorded as it is, or refused with its line and the reason."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from everyday import EVERYDAY
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatewise.program.sizes import Undecided, at, letter
from gatewise.program.stand_ins import Refused
from gatewise.program.ways import programs


class Written(nn.Module):
    """A GRU whose output goes through a function that a test writes."""

    def __init__(self, head: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)
        self.fc = nn.Linear(5, 3)
        self.head = head

    def forward(self, x: Tensor) -> Any:
        return self.head(self, self.rnn(x)[0])


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_models_are_recorded_without_an_example(name: str) -> None:
    """Every size is known or a letter, and every node but the inputs shows the line that wrote it."""
    model = EVERYDAY[name]()[0]
    for program in programs(model):
        assert program.results
        assert all(node.line is not None for node in program.nodes if node.op.name != "Input")
        assert program.opaque() is None


def test_a_program_reads_like_what_was_written() -> None:
    told = str(programs(Written(lambda m, y: m.fc(torch.relu(y[:, -1]))))[0])
    assert "Input(x) -> float(B, T, 4)" in told
    assert "Recurrent(%0, module=rnn) -> float(B, T, 5)" in told
    assert "Slice(%1, axis=1, start=T - 1, stop=T)" in told
    assert "test_recorder.py, line" in told


def last_three(model: Any, y: Tensor) -> Tensor:
    steps = [y[:, t] for t in range(y.size(1))]
    return torch.stack(steps, 1)


def by_value(model: Any, y: Tensor) -> Tensor:
    return y if y.sum() > 0 else -y


def by_length(model: Any, y: Tensor) -> Tensor:
    return y if y.size(1) > 5 else -y


def kept(model: Any, y: Tensor) -> Tensor:
    model.last = y
    return model.fc(y)


def out_of_date(model: Any, y: Tensor) -> Tensor:
    first = y[:, 0]
    y[:, 0] = 0.0
    return first


REFUSED = {
    "a loop over time": (last_three, "other than by a plain `for t in range"),
    "an if on a value": (by_value, "asks for a value"),
    "an if on a size": (by_length, "calls answer differently"),
    "a state that is kept": (kept, "stores a tensor of the call in last"),
    "an old view": (out_of_date, "another view of it later"),
    "a size as a number": (lambda m, y: y * math.sqrt(y.size(1)), "size as with a plain number"),
    "values of a tensor": (lambda m, y: y * y.max().item(), "item"),
    "as many as a mask says": (lambda m, y: y[y > 0], "mask is true"),
    "settings that no program has": (
        lambda m, y: y.round(decimals=2),
        "settings that a program does not have",
    ),
    "what no program has": (lambda m, y: torch.fft.rfft(y, dim=1).abs(), "not an operation"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_program_cannot_say_is_refused(why: str) -> None:
    head, reason = REFUSED[why]
    with pytest.raises(Refused, match=reason):
        programs(Written(head))


def test_hooks_are_refused_on_the_model_and_on_layers() -> None:
    """Nobody would call them later."""
    for place in ("", "rnn", "fc"):
        model = Written(lambda m, y: m.fc(y))
        model.get_submodule(place).register_forward_hook(lambda m, args, out: None)
        with pytest.raises(Refused, match="a hook on"):
            programs(model)


def test_a_forward_of_the_instance_is_followed() -> None:
    model = Written(lambda m, y: m.fc(y))
    model.forward = types.MethodType(lambda self, x: self.rnn(x)[0] * 2, model)  # type: ignore[method-assign]
    assert "Linear" not in str(programs(model)[0])


def test_parameters_that_forward_walks_through_are_in_the_program() -> None:
    model = Written(lambda m, y: m.fc(y) + sum(p.pow(2).sum() for p in m.rnn.parameters()))
    told = str(programs(model)[0])
    assert all(f"tensor=rnn.{name}" in told for name, _ in model.rnn.named_parameters())


def test_recording_changes_nothing() -> None:
    """Not the model, not torch, not Python; not even where it fails."""
    model, x = Written(kept), torch.randn(2, 3, 4)
    before, call = dict(vars(model)), nn.Module.__call__
    with pytest.raises(Refused):
        programs(model)
    assert vars(model).keys() == before.keys()
    assert nn.Module.__call__ is call
    assert isinstance(range(3), range)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
    assert packed.data.shape == (5, 4)


def test_an_example_says_how_many_axes_there_are() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.relu(x))

    assert [node.rank for node in programs(Flat(), torch.zeros(3, 4))[0].inputs] == [2]
    assert [node.rank for node in programs(Flat(), torch.zeros(3, 7, 4))[0].inputs] == [3]


def test_sizes_compute_like_numbers() -> None:
    """A polynomial in letters, evaluated, is what Python computes with the numbers."""
    rng = np.random.default_rng(0)
    b, t = letter("B"), letter("T")
    for _ in range(50):
        values = {"B": int(rng.integers(1, 9)), "T": int(rng.integers(4, 30))}
        for size, plain in (
            (2 * t + b * 3 - 1, 2 * values["T"] + 3 * values["B"] - 1),
            ((t - 3) // 2 + 1, (values["T"] - 3) // 2 + 1),
            (b * t * 6 // t, values["B"] * 6),
            (t % 4, values["T"] % 4),
        ):
            assert at(size, values) == plain
    assert t + 1 > 1
    assert t != t + 1
    with pytest.raises(Undecided):
        bool(t > 3)


class TimeFirst(nn.Module):
    """Words and states of layers that have their time first, packed and padded again before each."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.first = nn.LSTM(4, 5)
        self.second = nn.GRU(5, 3)

    def forward(self, ids: Tensor, lengths: Tensor, state: Any = None) -> Tensor:
        packed = pack_padded_sequence(self.emb(ids), lengths, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.first(packed, state)[0])
        packed = pack_padded_sequence(out.relu(), lengths, enforce_sorted=False)
        return pad_packed_sequence(self.second(packed)[0])[0]


def test_batch_and_time_are_called_what_the_layers_make_of_them() -> None:
    """An embedding takes ids of any layout; the layer behind it says which axis is time."""
    program, _ = programs(TimeFirst())
    shapes = {node.op.argument: str(node.shape) for node in program.inputs}
    assert shapes == {"ids": "(T, B)", "lengths": "(B,)", "state.0": "(1, B, 5)", "state.1": "(1, B, 5)"}


def test_the_first_unpacking_binds_the_longest_length() -> None:
    """The second one reads what the first gives, so that it cannot come before it."""
    program, _ = programs(TimeFirst())
    order = [node.op.name for node in program.nodes]
    assert order.index("Unpack") < order.index("Map") < len(order) - 1 - order[::-1].index("Unpack")


def test_counts_with_a_limit_of_floats_are_floats() -> None:
    (program,) = programs(Written(lambda m, y: (y > 0).sum(1).clamp(min=1e-9)))
    assert [node.kind for node in program.results] == ["float"]


def test_arguments_are_what_makes_likely_programs_of_them() -> None:
    """Static features and a mask are no sequences of their own, which would put the batch along two axes."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 4, batch_first=True)

        def forward(self, x: Tensor, static: Tensor, mask: Tensor) -> Tensor:
            out = self.rnn(x)[0] + static.unsqueeze(1)
            return out.masked_fill(~mask.unsqueeze(-1), 0.0)

    (program,) = programs(Beside())
    assert [str(node.shape) for node in program.inputs] == ["(B, T, 4)", "(B, 4)", "(B, T)"]


def test_an_example_shows_widths_and_leaves_time_free() -> None:
    """Without one, only their sum is known where two arguments stand side by side."""
    model, inputs = EVERYDAY["static repeated"]()
    known = {None: ["(B, T, C.x)", "(B, -1*C.x + 6)"], inputs: ["(B, T, 4)", "(B, 2)"]}
    for example, shapes in known.items():
        (program,) = programs(model, example)
        assert [str(node.shape) for node in program.inputs] == shapes
