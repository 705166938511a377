"""Masks and last steps of sequences that are padded and not packed: what forward() gives, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from chains import CLOSE, chain_of, check_answers
from masked import (
    LENGTHS,
    LOWEST,
    PAD,
    WORDS,
    E,
    H,
    MayTakeLengths,
    OfVectors,
    OfWords,
    Padded,
    inside,
    texts,
)

import gatewise as gw
from gatewise.runtime.chained import ChainError

CELLS = ["LSTM", "GRU"]


def cells_of(name: str) -> list[str]:
    """Some read the state as a GRU gives it."""
    return ["GRU"] if name == "a second layer that packs" else CELLS


def random_lengths(generator: torch.Generator) -> tuple[list[int], int]:
    steps = int(torch.randint(1, 8, (), generator=generator))
    batch = int(torch.randint(1, 5, (), generator=generator))
    return torch.randint(1, steps + 1, (batch,), generator=generator).tolist(), steps


@pytest.mark.parametrize(("name", "cell"), [(name, cell) for name in LENGTHS for cell in cells_of(name)])
def test_lengths(name: str, cell: str) -> None:
    """A layer that runs forward has read no padding where a sequence ends."""
    generator = torch.Generator().manual_seed(0)
    model = OfVectors(LENGTHS[name], cell, layers=2).eval()
    engine = gw.Engine(model)
    for _ in range(25):
        lengths, steps = random_lengths(generator)
        x = torch.randn(len(lengths), steps, E, generator=generator)
        with torch.no_grad():
            expected = model(x, torch.tensor(lengths))
        torch.testing.assert_close(engine(x, torch.tensor(lengths))[0], expected, **CLOSE)
        torch.testing.assert_close(engine(x, lengths=lengths)[0], expected, **CLOSE)
    with pytest.raises(ChainError):
        chain_of(model)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", WORDS)
def test_padded_texts(name: str, cell: str) -> None:
    """forward() finds the ends of texts by itself, and so does the engine, wherever padding lies."""
    generator = torch.Generator().manual_seed(0)
    model = OfWords(WORDS[name], cell).eval()
    engine = gw.Engine(model)
    for _ in range(25):
        x = texts(*random_lengths(generator))
        with torch.no_grad():
            expected = model(x)
        torch.testing.assert_close(engine(x)[0], expected, **CLOSE)
        torch.testing.assert_close(torch.from_numpy(engine(x.numpy())[0]), expected, **CLOSE)
    for text in ([1, PAD, 1, PAD, PAD], [PAD] * 5):
        x = texts([5, 4], 5)
        x[1] = torch.tensor(text)
        check_answers(model, x)
    with pytest.raises(
        TypeError, match=r"lengths is no argument .*; where sequences end early, pack them in"
    ):
        engine(x, lengths=[5, 4])


def test_texts_with_time_first() -> None:
    def forward(m: Any, x: Any) -> Any:
        mask = (x != PAD).unsqueeze(-1)
        return m.fc((m.rnn(m.emb(x))[0] * mask).sum(0) / mask.sum(0))

    model = OfWords(forward).eval()
    model.rnn.batch_first = False
    x = texts([5, 2, 1], 6).t()
    torch.testing.assert_close(gw.Engine(model)(x)[0], model(x).detach(), **CLOSE)


def test_lengths_that_can_be_left_out() -> None:
    """A mean of all steps is that of sequences as long as x, and so is the last step."""

    def mean(m: Any, x: Any, n: Any) -> Any:
        out = m.out(x)
        return out.mean(1) if n is None else (out * inside(x, n)[..., None]).sum(1) / n[:, None]

    def last(m: Any, x: Any, n: Any) -> Any:
        out = m.out(x)
        return m.fc(out[:, -1] if n is None else out[torch.arange(x.size(0)), n - 1])

    x, n = torch.randn(3, 5, E), torch.tensor([5, 2, 1])
    other = MayTakeLengths(lambda m, x, n: mean(m, x, n) if n is None else last(m, x, n)).eval()
    check_answers(other, x)
    check_answers(other, x, lengths=n)
    for model in (MayTakeLengths(mean).eval(), MayTakeLengths(last).eval()):
        engine = gw.Engine(model)
        torch.testing.assert_close(engine(x)[0], model(x).detach(), **CLOSE)
        torch.testing.assert_close(engine(x, lengths=n)[0], model(x, n).detach(), **CLOSE)


def masked(m: Any, x: Any, n: Any) -> Any:
    return m.out(x) * inside(x, n)[..., None]


def written(mask: Any) -> Any:
    mask.fill_(True)
    return mask


def zeros_by_index(m: Any, x: Any, n: Any) -> Any:
    out = m.out(x)
    out[~inside(x, n)] = 0
    return out.sum(1)


class InALoop(Padded):
    """A mask in every step of a loop, that keeps the state of those that are over."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.cell = torch.nn.GRUCell(E, H)

    def forward(self, x: Any, lengths: Any) -> Any:
        mask = torch.arange(x.size(1)) < lengths[:, None]
        h = x.new_zeros(x.size(0), H)
        for t in range(x.size(1)):
            h = torch.where(mask[:, t].unsqueeze(1), self.cell(x[:, t], h), h)
        return self.fc(h)


class OfOneStep(InALoop):
    def forward(self, x: Any, lengths: Any) -> Any:
        mask = torch.arange(x.size(1)) < lengths[:, None]
        h, outs = x.new_zeros(x.size(0), H), []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            outs.append(h * mask[:, t].unsqueeze(1))
        return self.fc(torch.stack(outs, 1).sum(1))


@pytest.mark.parametrize("kind", [InALoop, OfOneStep])
def test_a_mask_in_a_loop(kind: type[InALoop]) -> None:
    check_answers(kind().eval(), torch.randn(3, 5, E), lengths=torch.tensor([5, 2, 1]))


class DoesNotRead(Padded):
    def forward(self, x: Any, lengths: Any) -> Any:
        inside(x, lengths)
        return self.fc(self.out(x)[:, -1].to(lengths.device))


def test_lengths_that_forward_does_not_go_by(tmp_path: Path) -> None:
    """They are an argument as it is one of forward(), which may leave them unread."""
    model = DoesNotRead(lambda *_: None).eval()
    engine, x = gw.Engine(model), torch.randn(2, 3, E)
    torch.testing.assert_close(engine(x, [3, 1])[0], model(x, torch.tensor([3, 1])).detach(), **CLOSE)
    session = onnxruntime.InferenceSession(gw.export.to_onnx(model, tmp_path / "model.onnx", lengths=True))
    (got,) = session.run(None, {"x": x.numpy(), "lengths": np.array([3, 1])})
    torch.testing.assert_close(torch.from_numpy(got), model(x, torch.tensor([3, 1])).detach(), **CLOSE)


def test_one_number_for_a_step() -> None:
    """(B, T) without channels"""
    model = OfVectors(lambda m, x, n: m.fc(m.out(x)).squeeze(-1).gather(1, (n - 1)[:, None]).squeeze(1))
    model.fc = torch.nn.Linear(H, 1)
    x, n = torch.randn(3, 4, E), torch.tensor([4, 1, 2])
    torch.testing.assert_close(gw.Engine(model.eval())(x, lengths=n)[0], model(x, n).detach(), **CLOSE)


OTHERS: dict[str, Callable[..., Any]] = {
    "a mask as an argument": lambda m, x, n: m.fc((m.out(x) * n.unsqueeze(-1)).sum(1)),
    "one step more": lambda m, x, n: (m.out(x) * inside(x, n + 1)[..., None]).sum(1),
    "padding alone": lambda m, x, n: (m.out(x) * (~inside(x, n))[..., None]).sum(1),
    "~ of numbers": lambda m, x, n: (m.out(x) * (~inside(x, n).long())[..., None]).sum(1),
    "a mask over channels": lambda m, x, n: (m.out(x) * (torch.arange(x.size(2)) < n[:, None])[:, None]).sum(
        1
    ),
    "a mask without its axis": lambda m, x, n: (m.out(x) * inside(x, n)).sum(1),
    "a mask from the second step on": lambda m, x, n: (
        m.out(x) * (torch.arange(1, x.size(1)) < n[:, None])[..., None]
    ).sum(1),
    "a mask up to the longest": lambda m, x, n: (
        m.out(x) * (torch.arange(n.max()) < n[:, None])[..., None]
    ).sum(1),
    "a mask that is written to": lambda m, x, n: (m.out(x) * written(inside(x, n))[..., None]).sum(1),
    "a mask in float64": lambda m, x, n: (m.out(x) * inside(x, n)[..., None].double()).sum(1),
    "a mask of what is inside": lambda m, x, n: m.out(x).masked_fill(inside(x, n)[..., None], LOWEST).amax(1),
    "ones in padding": lambda m, x, n: m.out(x).masked_fill(~inside(x, n)[..., None], 1.0).sum(1),
    "-inf for a second layer": lambda m, x, n: (
        m.two(m.out(x).masked_fill(~inside(x, n)[..., None], LOWEST))[0] * inside(x, n)[..., None]
    ).sum(1),
    "the steps of x for the batch": lambda m, x, n: m.out(x)[torch.arange(x.size(dim=1)), n - 1],
    "an axis that is not there": lambda m, x, n: m.out(x.reshape(x.shape[0], -1, x.shape[3]))[:, -1],
    "the input": lambda m, x, n: m.out(x * inside(x, n)[..., None])[:, -1],
    "a list for the lengths": lambda m, x, n: masked(m, x, torch.tensor(n)).sum(1),
    "an index for a squeeze": lambda m, x, n: m.out(x).gather(1, (n - 1)[:, None, None].expand(-1, 1, H))[
        :, 0
    ],
    "a number that may be the maximum": lambda m, x, n: (
        m.fc(m.out(x)).masked_fill(~inside(x, n)[..., None], -1e9).amax(1)
    ),
    "-1 for a maximum": lambda m, x, n: m.out(x).masked_fill(~inside(x, n)[..., None], -1.0).amax(1),
    "zeros for a maximum": lambda m, x, n: masked(m, x, n).amax(1),
    "mean of zeros, too": lambda m, x, n: masked(m, x, n).mean(1),
    "no mask for the second layer": lambda m, x, n: m.two(masked(m, x, n))[0].sum(1) / n[:, None],
    "a mask that leads nowhere": lambda m, x, n: (masked(m, x, n).sum(1), m.out(x).mean(1))[1],
    "by the steps of x": lambda m, x, n: masked(m, x, n).sum(1) / x.size(1),
    "by almost the lengths": lambda m, x, n: masked(m, x, n).sum(1) / (n[:, None] + 1e-3),
    "a sum without a mask": lambda m, x, n: m.out(x).sum(1) / n[:, None],
    "the last column": lambda m, x, n: masked(m, x, n)[:, -1],
    "the last column of a second layer": lambda m, x, n: m.two(masked(m, x, n))[0][:, -1],
    "the last state": lambda m, x, n: (masked(m, x, n), m.rnn(x)[1][-1])[1],
    "the state beside the answer": lambda m, x, n: (
        (out := m.rnn(x))[0][torch.arange(x.size(0)), n - 1],
        out[1],
    ),
    "every answer": lambda m, x, n: m.fc(m.out(x)) * inside(x, n)[..., None],
    "a function behind the mask of answers": lambda m, x, n: (
        (m.fc(m.out(x)) * inside(x, n)[..., None]).relu().sum(1)
    ),
    "the step behind the last": lambda m, x, n: m.out(x)[torch.arange(x.size(0)), n],
    "gather of one channel": lambda m, x, n: m.out(x).gather(1, (n - 1)[:, None, None]).squeeze(1),
    "gather of another sequence": lambda m, x, n: (
        m.out(x).gather(0, (n - 1)[:, None, None].expand(-1, 1, H)).squeeze(1)
    ),
    "gather that squeezes the batch, too": lambda m, x, n: (
        m.out(x).gather(1, (n - 1)[:, None, None].expand(-1, 1, H)).squeeze()
    ),
    "attention": lambda m, x, n: (m.out(x) * m.fc(m.out(x)).softmax(1)).sum(1),
    "written by index": zeros_by_index,
    "the type of a tensor": lambda m, x, n: (
        m.out(x).masked_fill(~inside(x, n)[..., None], torch.finfo(x.dtype).min).amax(1)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_a_mask(name: str) -> None:
    """The kernels would pool over other steps, so it runs as a graph, or not at all."""
    check_answers(OfVectors(OTHERS[name]).eval(), torch.randn(3, 5, E), lengths=torch.tensor([5, 2, 1]))


@pytest.mark.parametrize("name", [*LENGTHS, *(f"words: {name}" for name in WORDS)])
def test_a_backward_direction_begins_in_the_padding(name: str) -> None:
    kind, rule = (OfVectors, LENGTHS[name]) if name in LENGTHS else (OfWords, WORDS[name[7:]])
    model = kind(rule, bidirectional=True).eval()
    if name in LENGTHS:
        check_answers(model, torch.randn(3, 5, E), lengths=torch.tensor([5, 2, 1]))
    else:
        check_answers(model, texts([5, 2, 1], 5))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: (m.out(m.emb(x)) * (x != PAD)[..., None]).sum(1) / (x != 0).sum(1)[:, None],
        lambda m, x: (m.out(m.emb(x)) * (x > 1)[..., None]).sum(1),
        lambda m, x: m.out(m.emb(x) * (x != PAD)[..., None])[:, -1],
        lambda m, x: m.out(m.emb(x) * (x != PAD)[..., None]),
        lambda m, x: (m.out(m.emb(x).masked_fill((x == PAD)[..., None], LOWEST)) * (x != PAD)[..., None]).sum(
            1
        ),
    ],
    ids=["two paddings", "a few words", "vectors alone", "vectors alone, every step", "-inf as vectors"],
)
def test_masks_of_words_that_are_no_padding(forward: Callable[..., Any]) -> None:
    check_answers(OfWords(forward).eval(), texts([5, 2, 1], 5))


def test_words_above_zero_are_those_that_are_not_zero() -> None:
    model = OfWords(lambda m, x: m.fc((m.out(m.emb(x)) * (x > 0)[..., None]).sum(1))).eval()
    x = texts([3, 5], 5, pad=0)
    torch.testing.assert_close(gw.Engine(model)(x)[0], model(x).detach(), **CLOSE)
