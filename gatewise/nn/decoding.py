"""Decoders that read their own answers: every step takes what the step before gave as the likeliest symbol."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

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
    all sequences have ended, or after `longest` steps. This is torch alone: `compress` follows it; engine, ONNX and C
    run the encoder and one step, around which a program loops.
    """
    parts = (state,) if isinstance(state, Tensor) else tuple(state)
    seen = () if attention is None else (attention.keys, attention.votes)
    if has_torch_function((*parts, *seen)):
        limits: dict[str, Any] = {"start": start, "end": end, "longest": longest, "attention": attention}
        return handle_torch_function(greedy_decode, (*parts, *seen), embedding, rnn, head, state, **limits)
    check_decoder(embedding, rnn, start, end, longest)
    with torch.no_grad():
        symbols = torch.full((parts[0].shape[-2],), start, dtype=torch.int64, device=parts[0].device)
        answer = symbols.new_full((len(symbols), longest), end)
        ended = torch.zeros_like(symbols, dtype=torch.bool)
        for k in range(longest):
            if ended.all():
                break
            symbols, state = decoded(embedding, rnn, head, symbols, state, attention)
            answer[:, k] = symbols = symbols.masked_fill(ended, end)
            ended |= symbols == end
    return answer


def decoded(
    embedding: nn.Module, rnn: Any, head: nn.Module, symbols: Tensor, state: Any, attention: Attention | None
) -> tuple[Tensor, Any]:
    """One step: the likeliest symbols (B) behind these, and the next state."""
    time = 1 if rnn.batch_first else 0
    output, state = rnn(embedding(symbols).unsqueeze(time), state)
    output = output.squeeze(time)
    scores = head(output)
    if attention is not None:
        scores = scores + attention(output.unsqueeze(1)).squeeze(1)
    return scores.argmax(-1), state


def check_decoder(embedding: nn.Embedding, rnn: Any, start: int, end: int, longest: int) -> None:
    """Refuse layers that no decoder can run, and symbols that there are not; other sizes torch compares."""
    if not isinstance(rnn, nn.GRU | nn.LSTM | Recurrent):
        raise TypeError(
            f"greedy_decode: rnn must be an LSTM or GRU, of torch.nn or gatewise.nn, got {type(rnn).__name__}."
        )
    if rnn.bidirectional:
        raise ValueError(
            "greedy_decode: rnn is bidirectional, but a decoder cannot read answers that it has yet to give. "
            "Use bidirectional=False."
        )
    words = embedding.num_embeddings
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
