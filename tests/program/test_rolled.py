"""Greedy steps that forward() spells out are one operation, where nothing else depends on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Net
from torch import Tensor, nn

import gatewise as gw
from gatewise.program.ways import programs
from gatewise.runtime.evaluate import evaluate

STEPS = 4


def looped(forward: Callable[..., Any], **changed: nn.Module) -> Net:
    """An encoder, an embedding, a cell, a layer of two levels, and a head."""
    torch.manual_seed(0)
    layers = {
        "letters": nn.Embedding(9, 5),
        "encoder": nn.LSTM(5, 6, batch_first=True),
        "sounds": nn.Embedding(8, 4),
        "cell": nn.LSTMCell(4, 6),
        "rnn": nn.GRU(4, 6, 2, batch_first=True),
        "fc": nn.Linear(6, 7),
    }
    model = Net(forward, **(layers | changed)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.8)
    return model


def by_cell(m: Any, words: Tensor, keep: Callable[..., Any] = lambda y, h, scores: y) -> list[Any]:
    h, c = (state[0] for state in m.encoder(m.letters(words))[1])
    y, kept = words.new_full((words.shape[0],), 1), []
    for _ in range(STEPS):
        h, c = m.cell(m.sounds(y), (h, c))
        scores = m.fc(h)
        y = scores.argmax(-1)
        kept.append(keep(y, h, scores))
    return kept


def symbols_and_state(kept: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([y for y, _ in kept], 1), kept[-1][1]


def by_layer(m: Any, words: Tensor) -> Tensor:
    h = m.encoder(m.letters(words))[1][0].repeat(2, 1, 1)
    y, kept = torch.ones_like(words[:, :1]), []
    for _ in range(STEPS):
        out, h = m.rnn(m.sounds(y), h)
        y = m.fc(out[:, -1]).argmax(1, keepdim=True)
        kept.append(y)
    return torch.cat(kept, 1)


ROLLED: dict[str, Callable[..., Any]] = {
    "a cell": lambda m, words: torch.stack(by_cell(m, words), 1),
    "one below another": lambda m, words: torch.stack(by_cell(m, words)),
    "a layer": by_layer,
}
LEFT: dict[str, Callable[..., Any]] = {
    "scores": lambda m, words: torch.stack(by_cell(m, words, lambda y, h, scores: scores), 1),
    "symbols and a state": lambda m, words: symbols_and_state(by_cell(m, words, lambda y, h, scores: (y, h))),
    "backwards": lambda m, words: torch.stack(by_cell(m, words)[::-1], 1),
    "not all": lambda m, words: torch.stack(by_cell(m, words)[1:], 1),
}


@pytest.mark.parametrize("name", [*ROLLED, *LEFT])
def test_steps_are_rolled_where_nothing_else_reads_them(name: str) -> None:
    """Rolled or not, program, compact model and engine answer as forward() does; a head may know fewer symbols."""
    model = looped((ROLLED | LEFT)[name])
    words = torch.randint(9, (3, 5))
    program, *_ = programs(model)
    assert [node.op.name for node in program.nodes].count("Decode") == (name in ROLLED)
    with torch.no_grad():
        expected = model(words)
        torch.testing.assert_close(gw.compress(model)(words), expected)
    answer = evaluate(program, model, {"x": words.numpy()})
    torch.testing.assert_close(
        [torch.as_tensor(part) for part in (answer if isinstance(answer, tuple) else [answer])],
        list(expected) if isinstance(expected, tuple) else [expected],
        check_dtype=False,
    )
    torch.testing.assert_close(gw.Engine(model)(words)[0], expected)


def test_a_head_of_more_symbols_than_the_embedding_has_is_left_as_it_is() -> None:
    """Its answers may have no vector; forward() raises then, and so does the unrolled program."""
    model = looped(ROLLED["a cell"], fc=nn.Linear(6, 9))
    program, *_ = programs(model)
    assert "Decode" not in [node.op.name for node in program.nodes]
