"""Where the units are after operations that add, take, turn and mix axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from patterns import LENGTHS, TURNED, B, E, H, T, V, gru, head, linear, lstm, made, numbers
from torch import nn

CLASSES = torch.tensor([1, 6, 3])


def all_of_the_rnn(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda m, x: m.fc(rule(m.rnn(x)))


def valid_words(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda m, x: m.fc(rule(m.rnn(x)[0][x[..., 0] > -9]))


def attention_to_a_query(m: Any, x: Any) -> Any:
    weights = torch.bmm(m.rnn(x)[0], m.emb(CLASSES).unsqueeze(2)).softmax(1)
    return m.fc((weights * m.rnn(x)[0]).sum(1))


def swapped_documents(m: Any, x: Any) -> Any:
    turned = m.pre(x).transpose(1, 2)
    swapped = torch.cat([turned[..., 2:], turned[..., :2]], -1)
    return m.fc(swapped.transpose(1, 2)[..., None, :]) + m.rnn(x[0])[0].mean()


ONE_TEXT = {
    "the sum of its channels": lambda both: both[0][-1] * both[0][-1].sum(0),
    "its channels turned": lambda both: both[1][-1][TURNED],
    "its channels swapped": lambda both: torch.cat([both[0][-1][2:], both[0][-1][:2]], 0),
    "a mean that may be over time": lambda both: both[0] * both[0].mean(1).sigmoid().unsqueeze(1),
    "a matrix from the left": lambda both: torch.tanh(torch.eye(H)[TURNED] @ both[0][-1]),
}
VALID_WORDS = {
    "tanh": torch.tanh,
    "over the sum of channels": lambda words: words / words.sum(1)[:, None],
    "minus the mean of channels": lambda words: words - words.mean(1).unsqueeze(1),
    "channels turned": lambda words: words[:, TURNED],
    "channels swapped": lambda words: torch.cat([words[:, 2:], words[:, :2]], 1),
}
OTHER_AXIS = {
    "after a new one": lambda out: out[None].softmax(2),
    "after a new last but one": lambda out: out.unsqueeze(2).transpose(0, 2).softmax(1),
    "after a mean that keeps its own": lambda out: out.mean(0, keepdim=True).softmax(1),
    "after a variance that keeps its own": lambda out: out.var(0, False, True).softmax(1),
    "of a sum with a smaller tensor": lambda out: (out[-1] + out).softmax(1),
    "of a stack": lambda out: torch.stack([out, 2 * out], 1).softmax(2),
    "of a sum over two": lambda out: out[None].sum((0, 1)).softmax(0),
}
ACROSS = {
    "a Linear over time, scaled,": lambda out: 2 * out[:H].transpose(0, 2),
    "index_select()": lambda out: out.index_select(2, TURNED),
    "gather()": lambda out: out.gather(2, TURNED.expand(T, B, H)),
    "pooling": lambda out: F.max_pool1d(out, 3, 1, 1),
    "cat() of a turned half": lambda out: torch.cat([out[:H], out[:H].transpose(0, 2)], 1),
}

AXES = {
    **{
        f"one text, {what}": numbers(
            all_of_the_rnn(rule),
            *([] if "swapped" in what else ["rnn.l0"]),
            x=lambda: torch.randn(T, E),
        )
        for what, rule in ONE_TEXT.items()
    },
    **{
        f"valid words, {what}": numbers(
            valid_words(rule),
            *([] if what in ("tanh", "channels swapped") else ["rnn.l0"]),
        )
        for what, rule in VALID_WORDS.items()
    },
    "softmax over a proven axis": head(lambda out: out.reshape(T, B, H).softmax(1)),
    "softmax over an axis that may be the neurons'": head(
        lambda out: (9 * out[len(LENGTHS)]).softmax(1), "rnn.l0"
    ),
    # A softmax over another axis than the units' is harmless.
    **{
        f"softmax over another axis, {what}": head(lambda out, rule=rule: rule(out.reshape(T, B, H)))
        for what, rule in OTHER_AXIS.items()
    },
    **{
        f"{what} across channels": head(lambda out, rule=rule: rule(out.reshape(T, B, H)), "rnn.l0")
        for what, rule in ACROSS.items()
    },
    "flip() of channels, too": head(lambda out: out.flip(0, 2)),
    "reshape() of turned axes": head(lambda out: out.reshape(T, B, H).permute(2, 0, 1).reshape(T, B, -1)),
    "the larger of two behind the channels": head(lambda out: torch.stack([out, -out], 3).amax(3)),
    "a mean behind the channels": head(lambda out: out.transpose(1, 2).mean(2)),
    "a squeeze that may change nothing": numbers(
        lambda m, x: m.fc(m.rnn(x)[0].squeeze(0).roll(1, 0).transpose(0, 1)[:, [1, 0]].transpose(0, 1)),
        x=lambda: torch.randn(2, B, E),
    ),
    "softmax of a Linear, of texts or of words": made(
        lambda m, x: m.fc(m.pre(x).softmax(1) * m.rnn(x[None])[0][-1]),
        "pre",
        x=lambda: torch.randn(B, E),
        pre=linear(E, H),
        rnn=lstm,
        fc=linear(),
    ),
    "a Linear over time, as wide as the layer": made(
        lambda m, x: m.fc(m.pre(x).transpose(1, 2)) + m.fc(m.rnn(x)[0]),
        "pre",
        x=lambda: torch.randn(B, H, E),
        pre=linear(E, H),
        rnn=partial(nn.GRU, E, H, batch_first=True),
        fc=linear(),
    ),
    "documents of texts, channels swapped": made(
        swapped_documents,
        "rnn.l0",
        x=lambda: torch.randn(2, T, B, E),
        pre=linear(E, H),
        rnn=gru,
        fc=linear(),
    ),
    "attention to a query from one id a text": numbers(
        attention_to_a_query,
        "emb",
        "rnn.l0",
        x=lambda: torch.randn(B, T, E),
        rnn=partial(nn.GRU, E, H, batch_first=True),
        emb=partial(nn.Embedding, V, H),
    ),
    "one id a text, channels swapped": numbers(
        lambda m, x: m.fc(m.rnn(x)[0][-1] + torch.cat([m.emb(CLASSES)[:, 2:], m.emb(CLASSES)[:, :2]], 1)),
        emb=partial(nn.Embedding, V, H),
    ),
}
