"""Masks and last steps of padded sequences, as people write them: (net, x, lengths) and (net, words)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

E, H, V, PAD = 3, 4, 9, 2
LOWEST = -float("inf")
Forward = Callable[..., Any]


class Padded(nn.Module):
    """Two layers that run forward over padding, too; the batch first."""

    def __init__(
        self, rule: Forward, cell: str = "GRU", layers: int = 1, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.rule, width = rule, 2 * H if bidirectional else H
        options = {"batch_first": True, "bidirectional": bidirectional}
        self.emb = nn.Embedding(V, E)
        self.rnn = getattr(nn, cell)(E, H, layers, **options)
        self.two = getattr(nn, cell)(width, H, **options)
        self.fc, self.norm = nn.Linear(width, 2), nn.LayerNorm(width)

    def out(self, x: Any) -> Any:
        return self.rnn(x)[0]


class OfVectors(Padded):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.rule(self, x, lengths)


class OfWords(Padded):
    def forward(self, x: Tensor) -> Any:
        return self.rule(self, x)


class MayTakeLengths(Padded):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Any:
        return self.rule(self, x, lengths)


def inside(x: Any, n: Any) -> Any:  # (B, T)
    return torch.arange(x.size(1), device=x.device)[None, :] < n[:, None]


def padded_again(m: Any, x: Any, n: Any) -> Any:
    packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(m.rnn(packed)[0], batch_first=True)


def mean_by_shape(m: Any, x: Any, n: Any) -> Any:
    b, t, _ = x.shape
    mask = torch.arange(t).expand(b, t) < n.unsqueeze(1)
    return m.fc((m.out(x) * mask.unsqueeze(2).to(x.dtype)).sum(1) / n.unsqueeze(1).float())


def mean_in_place(m: Any, x: Any, n: Any) -> Any:
    out, mask = m.out(x), inside(x, n).unsqueeze(-1).float()
    out *= mask
    total = out.sum(dim=1)
    total /= mask.sum(dim=1) + 1e-8
    return m.fc(total)


def last_by_gather(m: Any, x: Any, n: Any) -> Any:
    out = m.out(x)
    index = (n - 1).view(-1, 1).expand(len(n), out.size(2)).unsqueeze(1)
    return m.fc(out.gather(1, index).squeeze(1))


def packed_mean(m: Any, x: Any, n: Any) -> Any:
    out, same = padded_again(m, x, n)
    mask = (torch.arange(out.size(1))[None, :] < same[:, None]).unsqueeze(-1)
    return m.fc((out * mask).sum(1) / mask.sum(1))


def packed_maximum(m: Any, x: Any, n: Any) -> Any:
    out, same = padded_again(m, x, n)
    mask = torch.arange(out.size(1)) >= same[:, None]
    return m.fc(out.masked_fill(mask[..., None], LOWEST).max(1)[0])


def packed_gather(m: Any, x: Any, n: Any) -> Any:
    out, same = padded_again(m, x, n)
    return m.fc(out.gather(1, (same - 1).view(-1, 1, 1).expand(-1, 1, H)).squeeze(1))


def sum_of_norms(m: Any, x: Any, n: Any) -> Any:
    return m.fc((m.norm(m.out(x)) * inside(x, n).unsqueeze(-1)).sum(1))


def second_layer(m: Any, x: Any, n: Any) -> Any:
    mask = inside(x, n).unsqueeze(-1)
    return m.fc((m.two(m.out(x) * mask)[0] * mask).sum(1) / mask.sum(1))


def packed_then_padded(m: Any, x: Any, n: Any) -> Any:
    """The second layer reads what was cut to the longest sequence, and so does its mask."""
    out = m.two(padded_again(m, x, n)[0])[0]
    return m.fc(out * inside(out, n)[..., None])


LENGTHS: dict[str, Forward] = {
    "mean by shape": mean_by_shape,
    "mean in place": mean_in_place,
    "mean by mask": lambda m, x, n: m.fc(
        (m.out(x) * inside(x, n)[..., None]).sum(1) / inside(x, n).sum(1, keepdim=True)
    ),
    "mean, the mask first": lambda m, x, n: m.fc(
        torch.sum(inside(x, n).float()[:, :, None] * m.out(x), 1) / n.clamp(min=1).view(-1, 1)
    ),
    "mean by a mask as wide as channels": lambda m, x, n: m.fc(
        (m.out(x) * inside(x, n).unsqueeze(-1).expand_as(m.out(x)).float()).sum(1)
        / torch.clamp(inside(x, n).unsqueeze(-1).expand(-1, -1, H).sum(1), min=1e-9)
    ),
    "sum": lambda m, x, n: m.fc(m.out(x).masked_fill(~inside(x, n).unsqueeze(-1), 0).sum(1)),
    "sum of norms": sum_of_norms,
    "sum behind a function": lambda m, x, n: m.fc((m.out(x).tanh() * inside(x, n)[..., None]).relu().sum(1)),
    "sum of answers": lambda m, x, n: (m.fc(m.out(x)) * inside(x, n).unsqueeze(2)).sum(1),
    "maximum": lambda m, x, n: m.fc(m.out(x).masked_fill(~inside(x, n).unsqueeze(-1), LOWEST).max(1)[0]),
    "maximum by name": lambda m, x, n: m.fc(
        m.out(x).masked_fill((n[:, None] <= torch.arange(0, x.size(1)))[..., None], value=LOWEST).amax(1)
    ),
    "maximum above a low number": lambda m, x, n: m.fc(
        m.out(x).masked_fill(inside(x, n).logical_not().unsqueeze(-1), -1e9).max(dim=1).values
    ),
    "maximum of answers": lambda m, x, n: (
        m.fc(m.out(x)).masked_fill(~inside(x, n)[..., None], torch.finfo(torch.float32).min).amax(1)
    ),
    "maximum by where": lambda m, x, n: m.fc(torch.where(inside(x, n)[..., None], m.out(x), LOWEST).amax(1)),
    "maximum behind relu": lambda m, x, n: m.fc((m.out(x) * inside(x, n)[..., None]).relu().amax(1)),
    "last step": lambda m, x, n: m.fc(m.out(x)[torch.arange(x.size(0)), n - 1]),
    "last step, all channels": lambda m, x, n: m.fc(m.out(x)[range(len(x)), n.long() - 1, :]),
    "last step of answers": lambda m, x, n: m.fc(m.out(x).relu())[torch.arange(len(x)), n - 1],
    "last step by gather": last_by_gather,
    "last step by torch.gather": lambda m, x, n: m.fc(
        torch.gather(m.out(x), 1, (n - 1)[:, None, None].expand(-1, -1, m.out(x).size(-1))).squeeze(1)
    ),
    "last step by names": lambda m, x, n: m.fc(
        torch.gather(m.out(x), dim=1, index=(n - 1)[:, None, None].expand(-1, 1, m.out(x).size(dim=2))).squeeze(1)
    ),
    "every step": lambda m, x, n: m.fc(m.out(x) * inside(x, n)[..., None]),
    "a second layer": second_layer,
    "a second layer that packs": lambda m, x, n: m.fc(
        m.two(pack_padded_sequence(m.out(x), n, batch_first=True, enforce_sorted=False))[1][-1]
    ),
    "packed, mean by mask": packed_mean,
    "packed, maximum by mask": packed_maximum,
    "packed, last step by gather": packed_gather,
    "packed, every step of a second layer": packed_then_padded,
}  # fmt: skip


def counted(m: Any, x: Any) -> Any:
    n = (x != PAD).sum(1)
    return m.fc(m.out(m.emb(x))[torch.arange(x.size(0)), n - 1])


def counted_and_packed(m: Any, x: Any) -> Any:
    n = x.ne(PAD).long().sum(dim=-1).cpu()
    packed = pack_padded_sequence(m.emb(x), n, batch_first=True, enforce_sorted=False)
    return m.fc(pad_packed_sequence(m.rnn(packed)[0], batch_first=True)[0].sum(1) / n.unsqueeze(1))


def mean_of_words(m: Any, x: Any) -> Any:
    mask = (x != PAD).unsqueeze(-1)
    return m.fc((m.out(m.emb(x)) * mask).sum(1) / mask.sum(1))


def mean_as_of_sentences(m: Any, x: Any) -> Any:
    out = m.out(m.emb(x))
    mask = (x != PAD).unsqueeze(-1).expand(out.size()).float()
    return m.fc(torch.sum(out * mask, 1) / torch.clamp(mask.sum(1), min=1e-9))


def maximum_of_words(m: Any, x: Any) -> Any:
    return m.fc(m.out(m.emb(x)).masked_fill((x == PAD)[:, :, None], LOWEST).max(1)[0])


def masked_vectors(m: Any, x: Any) -> Any:
    mask = x.ne(PAD).unsqueeze(2).type_as(m.emb(x))
    return m.fc((m.out(m.emb(x) * mask) * mask).sum(1) / mask.sum(1))


WORDS: dict[str, Forward] = {
    "last step": counted,
    "packed": counted_and_packed,
    "mean": mean_of_words,
    "mean as of sentences": mean_as_of_sentences,
    "maximum": maximum_of_words,
    "masked vectors": masked_vectors,
}


def texts(lengths: list[int], steps: int, pad: int = PAD) -> Tensor:
    """Word ids (B, T), with padding behind the length of each."""
    ids = torch.randint(0, V - 1, (len(lengths), steps))
    ids += ids >= pad
    return torch.where(torch.arange(steps) < torch.tensor(lengths)[:, None], ids, pad)
