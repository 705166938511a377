"""What models usually do with the output of a recurrent layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from networks import LanguageModel, Net
from patterns import (
    LENGTHS,
    B,
    E,
    H,
    Pattern,
    T,
    bidirectional,
    emb,
    head,
    ids,
    linear,
    lstm,
    made,
    numbers,
    words,
)
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw


class Here(Net):
    """A network whose forward() stands in this file: fx wraps the packing functions that a file imports."""

    def forward(self, x: Any, state: Any = None) -> Any:
        return super().forward(x, state)


def packed_last(m: Any, x: Any) -> Any:
    packed = pack_padded_sequence(m.emb(x), LENGTHS, enforce_sorted=False)
    out, _ = m.rnn(packed)
    padded, _ = pad_packed_sequence(out)
    return m.fc(padded[LENGTHS - 1, torch.arange(B)])


def packed_state(m: Any, x: Any) -> Any:
    _, (h_n, _) = m.rnn(pack_padded_sequence(m.emb(x), LENGTHS, enforce_sorted=False))
    return m.fc(h_n[-1])


def attention(m: Any, x: Any) -> Any:
    out, _ = m.rnn(m.emb(x))
    weights = F.softmax(m.att(out), dim=0)
    return m.fc((weights * out).sum(0))


def attention_by_product(m: Any, x: Any) -> Any:
    out, _ = m.rnn(m.emb(x))
    out = out.transpose(0, 1)  # (B, T, H)
    weights = torch.softmax(m.att(out), dim=1)
    return m.fc(torch.bmm(weights.transpose(1, 2), out).squeeze(1))


def residual(m: Any, x: Any) -> Any:
    first, _ = m.rnn(m.emb(x))
    second, _ = m.top(first)
    return m.fc(first + second)


def several_readers(m: Any, x: Any) -> Any:
    out, _ = m.rnn(m.emb(x))
    return torch.cat([m.fc(out), m.other(out[..., 1:])], -1)


def read_twice(m: Any, x: Any) -> Any:
    out, _ = m.rnn(m.emb(x))
    return m.fc(out) + m.fc(out.sigmoid())


def returned(m: Any, x: Any) -> Any:
    out, _ = m.rnn(m.emb(x))
    return m.fc(out), out


def masked_mean(out: Any) -> Any:  # (B, T, C) -> (B, C)
    inside = torch.arange(T)[None] < LENGTHS[:, None]
    return (out * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)


def batch_first(rule: Any, *exposed: str, width: int = H, **layers: Any) -> Pattern:
    """rnn -> rule(layers, output) -> fc, of texts (B, T, E)"""
    return numbers(
        lambda m, x: m.fc(rule(m, m.rnn(x)[0])),
        *exposed,
        x=lambda: torch.randn(B, T, E),
        rnn=partial(nn.GRU, E, H, batch_first=True),
        fc=linear(width),
        **layers,
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(H, 3), nn.ReLU(), nn.Linear(3, 3), nn.Sigmoid())


EVERYDAY = {
    "language model": Pattern(LanguageModel),
    "stacked layers": Pattern(lambda: LanguageModel(layers=3, cell="GRU")),
    "our layers": head(lambda out: out, rnn=lambda: gw.nn.GRU(E, H, 2)),
    "separate layers in a row": made(
        lambda m, x: m.fc(m.b(m.a(m.emb(x))[0])[0]),
        x=ids,
        emb=emb,
        a=lstm,
        b=partial(nn.GRU, H, 2),
        fc=linear(2),
    ),
    "numbers in, no embedding": numbers(lambda m, x: m.fc(m.rnn(x)[0][-1])),
    "a Linear before": numbers(
        lambda m, x: m.fc(m.rnn(m.pre(x).relu())[0][-1]), x=lambda: torch.randn(T, B, 2), pre=linear(2, E)
    ),
    "dropout": head(lambda out: F.dropout(out, 0.0)),
    "dropout module": words(
        lambda m, x: m.fc(m.drop(m.rnn(m.drop(m.emb(x)))[0])), drop=partial(nn.Dropout, 0.0)
    ),
    "relu": head(lambda out: F.relu(out)),
    "tanh": head(torch.tanh),
    "sigmoid": head(lambda out: out.sigmoid()),
    "relu module": words(lambda m, x: m.fc(m.mlp(m.rnn(m.emb(x))[0])), mlp=mlp, fc=linear(3)),
    "transpose": head(lambda out: out.transpose(0, 1)),
    "permute and back": head(lambda out: out.permute(1, 2, 0).permute(0, 2, 1).contiguous()),
    "reshape": head(lambda out: out.reshape(-1, H)),
    "reshape by size": head(lambda out: out.contiguous().view(-1, out.size(2))),
    "reshape by shape": head(lambda out: out.reshape(-1, out.shape[-1])),
    "reshape by the last of three sizes": head(lambda out: out.reshape(-1, out.shape[2])),
    "flatten": head(lambda out: out.flatten(0, 1)),
    "last step": head(lambda out: out[-1]),
    "last step, batch first": head(lambda out: out.transpose(0, 1)[:, -1, :]),
    "chosen steps": head(lambda out: out[LENGTHS - 1, torch.arange(B)]),
    "gathered steps": head(
        lambda out: out.gather(0, (LENGTHS - 1).view(1, -1, 1).expand(1, -1, H)).squeeze(0)
    ),
    "packed, last step": words(packed_last, net=Here),
    "packed, last state": words(packed_state, net=Here),
    "bidirectional concatenation": head(lambda out: out, rnn=bidirectional, width=2 * H),
    "one half of a bidirectional output": head(lambda out: out[..., :H], rnn=bidirectional),
    "stacked bidirectional": head(
        lambda out: out, rnn=partial(nn.GRU, E, H, 2, bidirectional=True), width=2 * H
    ),
    "max pooling": head(lambda out: out.max(0)[0]),
    "max pooling, by name": head(lambda out: out.max(dim=0).values),
    "mean pooling": head(lambda out: out.mean(dim=0)),
    "a mean by its other name": head(lambda out: out.mean(axis=0)),
    "sum over length": head(lambda out: out.sum(0) / LENGTHS[:, None]),
    "masked mean": head(lambda out: (out * (torch.arange(T)[:, None] < LENGTHS)[..., None]).sum(0)),
    "masked max": head(
        lambda out: out.masked_fill((torch.arange(T)[:, None] >= LENGTHS)[..., None], -9.0).amax(0)
    ),
    "pooling module": head(lambda out: F.adaptive_max_pool1d(out.permute(1, 2, 0), 1).squeeze(2)),
    "sum over steps, batch first": batch_first(lambda m, out: out.sum(1) / out.size(1)),
    "sum over length, batch first": batch_first(lambda m, out: out.sum(1) / LENGTHS[:, None]),
    "masked mean, batch first": batch_first(lambda m, out: masked_mean(out)),
    "masked mean, and a function": batch_first(lambda m, out: masked_mean(out).relu()),
    "masked mean beside the last step": batch_first(
        lambda m, out: torch.cat([masked_mean(out), out[:, -1]], 1), width=2 * H
    ),
    "a share of all channels": batch_first(lambda m, out: out / out.sum(-1, keepdim=True).exp(), "rnn.l0"),
    "max pooling, by name, batch first": batch_first(lambda m, out: out.max(dim=1).values),
    "mean and max side by side, batch first": batch_first(
        lambda m, out: torch.cat([out.mean(1), out.max(1).values], -1), width=2 * H
    ),
    "pooling layer": batch_first(
        lambda m, out: m.pool(out.transpose(1, 2)).squeeze(-1), pool=partial(nn.AdaptiveAvgPool1d, 1)
    ),
    "pooling layer, flattened": batch_first(
        lambda m, out: m.pool(out.transpose(1, 2)).flatten(1), pool=partial(nn.MaxPool1d, T)
    ),
    "pooled to two steps, flattened": batch_first(
        lambda m, out: m.pool(out.transpose(1, 2)).flatten(1),
        "rnn.l0",
        pool=partial(nn.AdaptiveMaxPool1d, 2),
        width=2 * H,
    ),
    "pooled to two steps, flattened, half of it": batch_first(
        lambda m, out: m.pool(out.transpose(1, 2)).flatten(1)[:, :H],
        "rnn.l0",
        pool=partial(nn.AdaptiveMaxPool1d, 2),
    ),
    "flattened behind the channels": batch_first(
        lambda m, out: out.transpose(1, 2).unsqueeze(-1).flatten(2).amax(2)
    ),
    "flattened before the channels, and alone": head(
        lambda out: out.flatten(2)[..., 1:].flatten(0, 1), width=H - 1
    ),
    "pooling across channels": batch_first(
        lambda m, out: m.pool(out)[:, -1], "rnn.l0", pool=partial(nn.MaxPool1d, 3, 1, 1)
    ),
    "batch norm": batch_first(lambda m, out: m.norm(out[:, -1]), norm=partial(nn.BatchNorm1d, H)),
    "batch norm of a sequence": batch_first(
        lambda m, out: m.norm(out.transpose(1, 2)).amax(2), norm=partial(nn.BatchNorm1d, H)
    ),
    "batch norm of steps": batch_first(lambda m, out: m.norm(out)[:, -1], norm=partial(nn.BatchNorm1d, T)),
    "mean and max side by side": head(lambda out: torch.cat([out.mean(0), out.amax(0)], 1), width=2 * H),
    "channels side by side, by the other name": head(
        lambda out: torch.cat([out, out.tanh()], axis=-1), width=2 * H
    ),
    "several readers": words(several_readers, "other", other=linear(H - 1)),
    "one reader, two ways": words(read_twice),
    "residual sum": words(residual, top=partial(nn.GRU, H, H)),
    "attention pooling": words(attention, "att", att=linear(H, 1)),
    "attention by a matrix product": words(attention_by_product, att=linear(H, 1)),
    "layer norm": words(
        lambda m, x: m.fc(m.norm(m.rnn(m.emb(x))[0])), "rnn.l0", norm=partial(nn.LayerNorm, H)
    ),
    "softmax over neurons": head(lambda out: out.softmax(-1), "rnn.l0"),
    "norm of the neurons": head(lambda out: out / out.norm(dim=-1, keepdim=True), "rnn.l0"),
    "a single neuron": head(lambda out: out[..., 0].unsqueeze(-1).expand(-1, -1, H), "rnn.l0"),
    "where the largest are": numbers(
        lambda m, x: m.fc(m.rnn(x)[0].max(0)[0]) + m.fc(m.rnn(x)[0].max(0)[1].float())
    ),
    "returned output": words(returned, "rnn.l0"),
}
