"""greedy_decode in torch: its equation, its ends, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gatewise as gw

KINDS = [nn.GRU, nn.LSTM, gw.nn.GRU, gw.nn.LSTM]


def parts(kind: Any = nn.GRU, words: int = 6, layers: int = 1, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(1)
    rnn = kind(4, 8, layers, **options)
    embedding, head = nn.Embedding(words, 4), nn.Linear(8, words)
    for p in (*embedding.parameters(), *rnn.parameters(), *head.parameters()):
        nn.init.normal_(p, std=0.8)
    return embedding, rnn, head


def states(rnn: Any, batch: int) -> Any:
    torch.manual_seed(2)
    h, c = torch.randn(2, rnn.num_layers, batch, rnn.hidden_size)
    return (h, c) if isinstance(rnn, nn.LSTM | gw.nn.LSTM) else h


def one_by_one(embedding: Any, rnn: Any, head: Any, state: Any, start: int, end: int, longest: int) -> Tensor:
    """The equation, one sequence at a time."""
    rows = []
    for b in range(len(state[0][0]) if isinstance(state, tuple) else state.shape[1]):
        own = tuple(s[:, b : b + 1] for s in state) if isinstance(state, tuple) else state[:, b : b + 1]
        row: list[int] = [start]
        while len(row) <= longest and end not in row[1:]:
            output, own = rnn(embedding(torch.tensor([[row[-1]]])), own)
            row.append(int(head(output.flatten()).argmax()))
        rows.append([*row[1:], *[end] * (longest + 1 - len(row))])
    return torch.tensor(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch_first", [True, False])
def test_it_is_the_equation(kind: Any, layers: int, batch_first: bool) -> None:
    """Sequences of a batch end by themselves, each as it would alone; some end early here, others not at all."""
    modules = parts(kind, layers=layers, batch_first=batch_first)
    state = states(modules[1], 9)
    ids = gw.nn.greedy_decode(*modules, state, start=1, end=2, longest=7)
    assert ids.shape == (9, 7)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, one_by_one(*modules, state, 1, 2, 7))
    assert len(ids.unique(dim=0)) > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_is_the_equation(kind: Any, batch_first: bool) -> None:
    """Each step adds what the things vote for, weighed by how their keys fit the query; masked ones have no vote."""
    embedding, rnn, head = parts(kind, batch_first=batch_first)
    query, state = nn.Linear(8, 3), states(rnn, 9)
    keys, votes = torch.randn(9, 4, 3), 3 * torch.randn(9, 4, 6)
    lengths = torch.arange(9) % 4 + 1
    mask = torch.arange(4) < lengths[:, None]
    attention = gw.nn.Attention(query, keys, votes, mask)
    ids = gw.nn.greedy_decode(embedding, rnn, head, state, start=1, end=2, longest=7, attention=attention)
    for b, n in enumerate(lengths):

        class Voted(nn.Module):
            def forward(self, o: Tensor, b: int = b, n: int = int(n)) -> Tensor:
                shares = torch.stack([query(o) @ key for key in keys[b, :n]]).exp()
                return head(o) + sum(s * v for s, v in zip(shares / shares.sum(), votes[b, :n]))

        own = tuple(s[:, b : b + 1] for s in state) if isinstance(state, tuple) else state[:, b : b + 1]
        assert torch.equal(ids[b : b + 1], one_by_one(embedding, rnn, Voted(), own, 1, 2, 7))
    assert len(ids.unique(dim=0)) > 2


def test_it_stops_when_all_have_ended() -> None:
    """Steps that no answer needs are not taken, and none is for an empty batch."""
    embedding, rnn, head = parts()
    nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor([0.0, 0, 1, 1, 0, 0])  # ties go to the first: 2
    seen: list[int] = []
    rnn.register_forward_hook(lambda *_: seen.append(1))
    ids = gw.nn.greedy_decode(embedding, rnn, head, states(rnn, 3), start=1, end=2, longest=5)
    assert ids.tolist() == [[2] * 5] * 3
    assert len(seen) == 1
    ids = gw.nn.greedy_decode(embedding, rnn, head, states(rnn, 0), start=1, end=2, longest=5)
    assert ids.shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 6}, "start=6 must be one of the 6 symbols, 0 to 5"),
        ({"end": -1}, "end=-1 must be one of"),
        ({"longest": 0}, "longest=0 must be at least 1"),
        ({"longest": 2.0}, "longest must be an int, got float"),
        ({"rnn": nn.RNN(4, 8)}, "rnn must be an LSTM or GRU"),
        ({"rnn": nn.GRU(4, 8, bidirectional=True)}, "rnn is bidirectional"),
    ],
)
def test_bad_input_is_one_sentence(change: dict[str, Any], message: str) -> None:
    embedding, rnn, head = parts()
    given: dict[str, Any] = {"embedding": embedding, "rnn": rnn, "head": head, "state": states(rnn, 3)}
    with pytest.raises((ValueError, TypeError), match=message):
        gw.nn.greedy_decode(**(given | {"start": 1, "end": 2, "longest": 4} | change))
