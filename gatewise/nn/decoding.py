"""Decoders that read their own answers: every step takes what the step before gave as the likeliest symbol."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from gatewise.nn.recurrent import Recurrent


class Attention(NamedTuple):
    """What a decoder looks at while it answers: T things, each with a key, and with votes for all symbols.

        attention(o)_k = sum_t a_kt votes_t      a_k = softmax over t of query(o_k) . keys_t

    Where the mask is False, a_kt = 0.
    """

    query: nn.Linear  # (H) -> (A)
    keys: Tensor  # (B, T, A)
    votes: Tensor  # (B, T, V)
    mask: Tensor | None = None  # (B, T) bool

    def __call__(self, output: Tensor) -> Tensor:  # (B, K, H) -> (B, K, V)
        scores = self.query(output) @ self.keys.mT
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask.unsqueeze(1), -torch.inf)
        votes: Tensor = scores.softmax(-1) @ self.votes
        return votes

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.keys, self.votes) if self.mask is None else (self.keys, self.votes, self.mask)


def greedy_decode(
    embedding: nn.Embedding,
    rnn: nn.GRU | nn.LSTM | Recurrent,
    head: nn.Linear,
    state: Tensor | tuple[Tensor, ...],  # as rnn takes it: h, or (h, c), each (L, B, H)
    *,
    start: int,
    end: int,
    longest: int,
    attention: Attention | None = None,
) -> Tensor:  # (B, longest) int64
    """The symbols that a decoder answers with when it reads its own answers.

        y_0 = start
        o_k, s_k = rnn(embedding(y_{k-1}), s_{k-1})      s_0 = state
        y_k = argmax head(o_k) [+ attention(o_k)]        the first one, if several are largest

    The answer is y_1, y_2, ... From the first `end` on, which is part of it, everything is `end`. Decoding stops when
    all sequences have ended, or after `longest` steps.
    """
    parts = (state,) if isinstance(state, Tensor) else tuple(state)
    seen = () if attention is None else attention.tensors()
    if has_torch_function((*parts, *seen)):
        limits = {"start": start, "end": end, "longest": longest}
        return handle_torch_function(
            greedy_decode, (*parts, *seen), embedding, rnn, head, state, **limits, attention=attention
        )
    check_decoder(embedding, rnn, head, start, end, longest, attention)
    check_states(rnn, parts)
    check_seen(parts[0].shape[1], head, attention)
    time = 1 if rnn.batch_first else 0
    with torch.no_grad():
        symbols = torch.full((parts[0].shape[1],), start, dtype=torch.int64, device=parts[0].device)
        answer = symbols.new_full((len(symbols), longest), end)
        ended = torch.zeros_like(symbols, dtype=torch.bool)
        for k in range(longest):
            if ended.all():
                break
            output, state = rnn(embedding(symbols).unsqueeze(time), state)
            output = output.squeeze(time)
            scores = head(output)
            if attention is not None:
                scores = scores + attention(output[:, None])[:, 0]
            symbols = scores.argmax(-1).masked_fill(ended, end)
            answer[:, k] = symbols
            ended |= symbols == end
    return answer


def check_decoder(
    embedding: nn.Module,
    rnn: nn.Module,
    head: nn.Module,
    start: int,
    end: int,
    longest: int,
    attention: Attention | None,
) -> None:
    """Refuse parts that do not fit together, and symbols that there are not."""
    query = head if attention is None else attention.query
    check_kinds(embedding, rnn, head, query)
    assert isinstance(embedding, nn.Embedding)
    assert isinstance(head, nn.Linear)
    assert isinstance(query, nn.Linear)
    assert isinstance(rnn, nn.RNNBase | Recurrent)
    words = embedding.num_embeddings
    for one, other, said in (
        (embedding.embedding_dim, rnn.input_size, "embedding has {} components, but rnn reads {}"),
        (rnn.hidden_size, head.in_features, "rnn has {} neurons, but head reads {}"),
        (rnn.hidden_size, query.in_features, "rnn has {} neurons, but attention.query reads {}"),
        (head.out_features, words, "head answers with one of {} symbols, but embedding has {}"),
    ):
        if one != other:
            raise ValueError(f"greedy_decode: {said.format(one, other)}; the two must be equal.")
    for name, number, low, high in (
        ("start", start, 0, words),
        ("end", end, 0, words),
        ("longest", longest, 1, None),
    ):
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise TypeError(f"greedy_decode: {name} must be an int, got {type(number).__name__}.")
        if number < low or (high is not None and number >= high):
            wanted = f"at least {low}" if high is None else f"one of the {high} symbols, 0 to {high - 1}"
            raise ValueError(f"greedy_decode: {name}={number} must be {wanted}.")


def check_kinds(embedding: nn.Module, rnn: nn.Module, head: nn.Module, query: nn.Module) -> None:
    """Refuse layers of other classes, and recurrent ones that no decoder can run."""
    for name, module, kinds, wanted in (
        ("embedding", embedding, nn.Embedding, "an nn.Embedding"),
        ("rnn", rnn, (nn.GRU, nn.LSTM, Recurrent), "an LSTM or GRU, of torch.nn or gatewise.nn"),
        ("head", head, nn.Linear, "an nn.Linear"),
        ("attention.query", query, nn.Linear, "an nn.Linear"),
    ):
        if not isinstance(module, kinds):
            raise TypeError(f"greedy_decode: {name} must be {wanted}, got {type(module).__name__}.")
    if rnn.bidirectional:
        raise ValueError(
            "greedy_decode: rnn is bidirectional, but a decoder cannot read answers that it has yet to give. "
            "Use bidirectional=False."
        )
    if rnn.proj_size:
        raise ValueError(f"greedy_decode: rnn has proj_size={rnn.proj_size}; use 0 and a wider head.")


def check_states(rnn: nn.RNNBase | Recurrent, parts: tuple[Tensor, ...]) -> None:
    """h, or h and c, of the same batch."""
    wanted = rnn.cell.n_states if isinstance(rnn, Recurrent) else 2 if isinstance(rnn, nn.LSTM) else 1
    if len(parts) != wanted:
        said = "one tensor h" if wanted == 1 else "a pair (h, c)"
        raise ValueError(f"greedy_decode: state must be {said}, as rnn takes it; got {len(parts)} tensors.")
    for part in parts:
        batch = part.shape[1] if part.dim() == 3 else "B"
        form = (rnn.num_layers, batch, rnn.hidden_size)
        if tuple(part.shape) != form or part.shape != parts[0].shape:
            raise ValueError(
                f"greedy_decode: every part of state must be (layers, B, neurons), here {form}, "
                f"got {tuple(part.shape)}."
            )


def check_seen(batch: int, head: nn.Linear, attention: Attention | None) -> None:
    """Keys, votes and mask of as many sequences, and of as many things."""
    if attention is None:
        return
    things = attention.keys.shape[1] if attention.keys.dim() == 3 else "T"
    for name, tensor, form in (
        ("keys", attention.keys, (batch, things, attention.query.out_features)),
        ("votes", attention.votes, (batch, things, head.out_features)),
        ("mask", attention.mask, (batch, things)),
    ):
        if tensor is not None and (tuple(tensor.shape) != form or things == 0):
            raise ValueError(
                f"greedy_decode: attention.{name} must be of at least one thing, here {form}, "
                f"got {tuple(tensor.shape)}."
            )
    if attention.mask is not None and attention.mask.dtype != torch.bool:
        raise TypeError(f"greedy_decode: attention.mask must be bool, got {attention.mask.dtype}.")
