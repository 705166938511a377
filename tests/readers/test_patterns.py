"""Who reads whom, for every way in which models hand neurons on: the reads are enough, no more is exposed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Classifier, LanguageModel, Net, answer, disturb, hide, twin
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.readers import find_readers

T, B, V, E, H = 5, 3, 7, 3, 4
LENGTHS = torch.tensor([5, 2, 4])
CLASSES = torch.tensor([1, 6, 3])
TURNED = torch.tensor([3, 0, 1, 2])


def ids() -> Tensor:
    return torch.randint(V, (T, B))


def emb() -> nn.Embedding:
    return nn.Embedding(V, E)


class Here(Net):
    """A network whose forward() stands in this file: fx wraps the packing functions that a file imports."""

    def forward(self, x: Any, state: Any = None) -> Any:
        return super().forward(x, state)


class Pattern(NamedTuple):
    build: Callable[[], nn.Module]
    exposed: set[str] = {"fc"}  # noqa: RUF012  (never changed)
    x: Callable[[], Any] = ids


def head(
    rule: Callable[[Tensor], Tensor], rnn: Callable[[], nn.Module] | None = None, width: int = H
) -> Pattern:
    """emb -> rnn -> rule(output) -> fc"""
    make = rnn or (lambda: nn.LSTM(E, H))
    return Pattern(
        lambda: Net(
            lambda m, x: m.fc(rule(m.rnn(m.emb(x))[0])), emb=emb(), rnn=make(), fc=nn.Linear(width, 2)
        )
    )


def state_head(rule: Callable[[Tensor], Tensor], rnn: Callable[[], nn.Module], width: int = H) -> Pattern:
    """emb -> rnn -> rule(h_n) -> fc"""

    def forward(m: Any, x: Any) -> Any:
        _, state = m.rnn(m.emb(x))
        return m.fc(rule(state[0] if isinstance(m.rnn, nn.LSTM | gw.nn.LSTM) else state))

    return Pattern(lambda: Net(forward, emb=emb(), rnn=rnn(), fc=nn.Linear(width, 2)))


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


def cell_loop(m: Any, x: Any) -> Any:
    e = m.emb(x)
    h, c = m.rnn(e[0])
    for t in range(1, T):
        h, c = m.rnn(e[t], (h, c))
    return m.fc(h)


def cell_loop_from_zeros(m: Any, x: Any) -> Any:
    h, c = torch.zeros(x.size(1), H), torch.zeros(x.shape[1], H, device=x.device)
    for t in range(T):
        h, c = m.rnn(m.emb(x)[t], (h, c))
    return m.fc(h)


def cell_state_read(m: Any, x: Any) -> Any:
    _, c = m.rnn(m.emb(x)[0])
    return m.fc(c)


def two_heads(rule: Callable[[Any, Any], Any], exposed: set[str] | None = None) -> Pattern:
    """rnn and top side by side, their outputs joined by a rule, read by fc"""
    return Pattern(
        lambda: Net(
            lambda m, x: m.fc(rule(m.rnn(x)[0], m.top(x)[0])),
            rnn=nn.LSTM(E, H),
            top=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        exposed or {"fc"},
        x=lambda: torch.randn(T, B, E),
    )


def add_in_place(a: Any, b: Any) -> Any:
    a.add_(b)
    return a


def add_to_another_name(a: Any, b: Any) -> Any:
    name = a
    a += b
    return name


def add_to_a_view(a: Any, b: Any) -> Any:
    a[:2].add_(b[:2])
    return a


def add_and_look_at_a_view(a: Any, b: Any) -> Any:
    view = a.transpose(0, 1)
    a.mul_(b)
    return view.transpose(0, 1)


def change_a_relu(a: Any, b: Any) -> Any:
    F.relu(a, inplace=True)
    return a + b


def two_calls(m: Any, x: Any) -> Any:
    _, state = m.rnn(m.emb(x))
    again, _ = m.rnn(m.emb(x), state)
    return m.fc(again)


def bidirectional() -> nn.Module:
    return nn.LSTM(E, H, bidirectional=True)


def gru2() -> nn.Module:
    return nn.GRU(E, H, 2)


PATTERNS = {
    "language model": Pattern(LanguageModel),
    "stacked layers": Pattern(lambda: LanguageModel(layers=3, cell="GRU")),
    "our layers": head(lambda out: out, lambda: gw.nn.GRU(E, H, 2)),
    "separate layers in a row": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.b(m.a(m.emb(x))[0])[0]),
            emb=emb(),
            a=nn.LSTM(E, H),
            b=nn.GRU(H, 2),
            fc=nn.Linear(2, 2),
        )
    ),
    "dropout": head(lambda out: F.dropout(out, 0.0)),
    "dropout module": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.drop(m.rnn(m.drop(m.emb(x)))[0])),
            emb=emb(),
            rnn=nn.LSTM(E, H),
            drop=nn.Dropout(0.0),
            fc=nn.Linear(H, 2),
        )
    ),
    "relu": head(lambda out: F.relu(out)),
    "tanh": head(torch.tanh),
    "sigmoid": head(lambda out: out.sigmoid()),
    "relu module": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.mlp(m.rnn(m.emb(x))[0])),
            emb=emb(),
            rnn=nn.LSTM(E, H),
            mlp=nn.Sequential(nn.Linear(H, 3), nn.ReLU(), nn.Linear(3, 3), nn.Sigmoid()),
            fc=nn.Linear(3, 2),
        )
    ),
    "transpose": head(lambda out: out.transpose(0, 1)),
    "permute and back": head(lambda out: out.permute(1, 2, 0).permute(0, 2, 1).contiguous()),
    "reshape": head(lambda out: out.reshape(-1, H)),
    "reshape by size": head(lambda out: out.contiguous().view(-1, out.size(2))),
    "reshape by shape": head(lambda out: out.reshape(-1, out.shape[-1])),
    "flatten": head(lambda out: out.flatten(0, 1)),
    "last step": head(lambda out: out[-1]),
    "last step, batch first": head(lambda out: out.transpose(0, 1)[:, -1, :]),
    "chosen steps": head(lambda out: out[LENGTHS - 1, torch.arange(B)]),
    "gathered steps": head(
        lambda out: out.gather(0, (LENGTHS - 1).view(1, -1, 1).expand(1, -1, H)).squeeze(0)
    ),
    "packed, last step": Pattern(lambda: Here(packed_last, emb=emb(), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))),
    "packed, last state": Pattern(
        lambda: Here(packed_state, emb=emb(), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    ),
    "h_n[-1]": state_head(lambda h: h[-1], gru2),
    "h_n squeezed": state_head(lambda h: h.squeeze(0), lambda: nn.LSTM(E, H)),
    "both directions of h_n": state_head(lambda h: torch.cat((h[-2], h[-1]), dim=1), bidirectional, 2 * H),
    "h_n flattened": state_head(lambda h: h.transpose(0, 1).flatten(1), bidirectional, 2 * H),
    "bidirectional concatenation": head(lambda out: out, bidirectional, 2 * H),
    "one half of a bidirectional output": head(lambda out: out[..., :H], bidirectional, H),
    "stacked bidirectional": head(lambda out: out, lambda: nn.GRU(E, H, 2, bidirectional=True), 2 * H),
    "max pooling": head(lambda out: out.max(0)[0]),
    "max pooling, by name": head(lambda out: out.max(dim=0).values),
    "mean pooling": head(lambda out: out.mean(dim=0)),
    "sum over length": head(lambda out: out.sum(0) / LENGTHS[:, None]),
    "masked mean": head(lambda out: (out * (torch.arange(T)[:, None] < LENGTHS)[..., None]).sum(0)),
    "masked max": head(
        lambda out: out.masked_fill((torch.arange(T)[:, None] >= LENGTHS)[..., None], -9.0).amax(0)
    ),
    "pooling module": head(lambda out: F.adaptive_max_pool1d(out.permute(1, 2, 0), 1).squeeze(2)),
    "mean and max side by side": head(lambda out: torch.cat([out.mean(0), out.amax(0)], 1), width=2 * H),
    "several readers": Pattern(
        lambda: Net(
            lambda m, x: (lambda out: torch.cat([m.fc(out), m.other(out[..., 1:])], -1))(m.rnn(m.emb(x))[0]),
            emb=emb(),
            rnn=nn.LSTM(E, H),
            fc=nn.Linear(H, 2),
            other=nn.Linear(H - 1, 2),
        ),
        {"fc", "other"},
    ),
    "one reader, two ways": Pattern(
        lambda: Net(
            lambda m, x: (lambda out: m.fc(out) + m.fc(out.sigmoid()))(m.rnn(m.emb(x))[0]),
            emb=emb(),
            rnn=nn.LSTM(E, H),
            fc=nn.Linear(H, 2),
        )
    ),
    "residual sum": Pattern(
        lambda: Net(residual, emb=emb(), rnn=nn.LSTM(E, H), top=nn.GRU(H, H), fc=nn.Linear(H, 2))
    ),
    "attention pooling": Pattern(
        lambda: Net(attention, emb=emb(), rnn=nn.LSTM(E, H), att=nn.Linear(H, 1), fc=nn.Linear(H, 2)),
        {"fc", "att"},
    ),
    "attention by a matrix product": Pattern(
        lambda: Net(
            attention_by_product, emb=emb(), rnn=nn.LSTM(E, H), att=nn.Linear(H, 1), fc=nn.Linear(H, 2)
        ),
        {"fc", "att"},
    ),
    "layer norm": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.norm(m.rnn(m.emb(x))[0])),
            emb=emb(),
            rnn=nn.LSTM(E, H),
            norm=nn.LayerNorm(H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "rnn.l0"},
    ),
    "softmax over neurons": Pattern(head(lambda out: out.softmax(-1)).build, {"fc", "rnn.l0"}),
    "norm of the neurons": Pattern(
        head(lambda out: out / out.norm(dim=-1, keepdim=True)).build, {"fc", "rnn.l0"}
    ),
    "a single neuron": Pattern(
        head(lambda out: out[..., 0].unsqueeze(-1).expand(-1, -1, H)).build, {"fc", "rnn.l0"}
    ),
    "returned output": Pattern(
        lambda: Net(
            lambda m, x: (lambda out: (m.fc(out), out))(m.rnn(m.emb(x))[0]),
            emb=emb(),
            rnn=nn.LSTM(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "rnn.l0"},
    ),
    "returned state that is not taken": Pattern(
        lambda: Net(
            lambda m, x: (lambda both: (m.fc(both[0]), both[1]))(m.rnn(m.emb(x))),
            emb=emb(),
            rnn=nn.LSTM(E, H, 2),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "rnn.l0", "rnn.l1"},
    ),
    "state of one layer starts another": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.b(m.emb(x), m.a(m.emb(x))[1])[0]),
            emb=emb(),
            a=nn.GRU(E, H),
            b=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "a.l0"},
    ),
    "state of one layer starts another, by name": Pattern(
        lambda: Net(
            lambda m, x: m.fc(input=m.b(input=x, hx=m.a(input=x)[1])[0]),
            a=nn.GRU(E, H),
            b=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "a.l0"},
        x=lambda: torch.randn(T, B, E),
    ),
    "the same layer goes on": Pattern(
        lambda: Net(two_calls, emb=emb(), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    ),
    "an unrolled cell": Pattern(lambda: Net(cell_loop, emb=emb(), rnn=nn.LSTMCell(E, H), fc=nn.Linear(H, 2))),
    "an unrolled cell that starts from zeros": Pattern(
        lambda: Net(cell_loop_from_zeros, emb=emb(), rnn=nn.LSTMCell(E, H), fc=nn.Linear(H, 2))
    ),
    "the memory of a cell": Pattern(
        lambda: Net(cell_state_read, emb=emb(), rnn=nn.LSTMCell(E, H), fc=nn.Linear(H, 2)), {"fc", "rnn"}
    ),
    "the memory of a layer": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(m.emb(x))[1][1][-1]), emb=emb(), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2)
        ),
        {"fc", "rnn.l0"},
    ),
    "a sum in place": two_heads(add_in_place),
    "a sum in place, under another name": two_heads(add_to_another_name),
    "a sum in place of a part": two_heads(add_to_a_view, {"fc", "rnn.l0", "top.l0"}),
    "a product in place, under a view": two_heads(add_and_look_at_a_view, {"fc", "rnn.l0", "top.l0"}),
    "relu in place": two_heads(change_a_relu),
    "operands by name": two_heads(lambda a, b: torch.add(a, other=b)),
    "the first operand by name": two_heads(lambda a, b: torch.tanh(input=a) + b),
    "an exponent": two_heads(lambda a, b: a.abs().pow(b), {"fc", "rnn.l0", "top.l0"}),
    "a bound": two_heads(lambda a, b: a.clamp(min=b), {"fc", "rnn.l0", "top.l0"}),
    "written into a third": two_heads(
        lambda a, b: torch.add(a.detach(), b.detach(), out=torch.empty_like(a)), {"fc", "rnn.l0", "top.l0"}
    ),
    "variance, unbiased": two_heads(lambda a, b: torch.cat([a.var(0, True), b.var(0, True)])),
    "softmax over an axis that may be the neurons'": Pattern(
        head(lambda out: (9 * out[len(LENGTHS)]).softmax(1)).build, {"fc", "rnn.l0"}
    ),
    "softmax of a Linear, of texts or of words": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.pre(x).softmax(1) * m.rnn(x[None])[0][-1]),
            pre=nn.Linear(E, H),
            rnn=nn.LSTM(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "pre"},
        x=lambda: torch.randn(B, E),
    ),
    **{
        f"one text, {what}": Pattern(
            lambda rule=rule: Net(lambda m, x: m.fc(rule(m.rnn(x))), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2)),
            {"fc"} if "swapped" in what else {"fc", "rnn.l0"},
            x=lambda: torch.randn(T, E),
        )
        for what, rule in {
            "the sum of its channels": lambda both: both[0][-1] * both[0][-1].sum(0),
            "its channels turned": lambda both: both[1][-1][TURNED],
            "its channels swapped": lambda both: torch.cat([both[0][-1][2:], both[0][-1][:2]], 0),
            "a mean that may be over time": lambda both: both[0] * both[0].mean(1).sigmoid().unsqueeze(1),
            "a matrix from the left": lambda both: torch.tanh(torch.eye(H)[TURNED] @ both[0][-1]),
        }.items()
    },
    **{
        f"valid words, {what}": Pattern(
            lambda rule=rule: Net(
                lambda m, x: m.fc(rule(m.rnn(x)[0][x[..., 0] > -9])), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2)
            ),
            {"fc"} if what in ("tanh", "channels swapped") else {"fc", "rnn.l0"},
            x=lambda: torch.randn(T, B, E),
        )
        for what, rule in {
            "tanh": torch.tanh,
            "over the sum of channels": lambda words: words / words.sum(1)[:, None],
            "minus the mean of channels": lambda words: words - words.mean(1).unsqueeze(1),
            "channels turned": lambda words: words[:, TURNED],
            "channels swapped": lambda words: torch.cat([words[:, 2:], words[:, :2]], 1),
        }.items()
    },
    "attention to a query from one id a text": Pattern(
        lambda: Net(
            lambda m, x: m.fc(
                (torch.bmm(m.rnn(x)[0], m.emb(CLASSES).unsqueeze(2)).softmax(1) * m.rnn(x)[0]).sum(1)
            ),
            rnn=nn.GRU(E, H, batch_first=True),
            emb=nn.Embedding(V, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "emb", "rnn.l0"},
        x=lambda: torch.randn(B, T, E),
    ),
    "one id a text, channels swapped": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(x)[0][-1] + torch.cat([m.emb(CLASSES)[:, 2:], m.emb(CLASSES)[:, :2]], 1)),
            rnn=nn.GRU(E, H),
            emb=nn.Embedding(V, H),
            fc=nn.Linear(H, 2),
        ),
        x=lambda: torch.randn(T, B, E),
    ),
    "a squeeze that may change nothing": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(x)[0].squeeze(0).roll(1, 0).transpose(0, 1)[:, [1, 0]].transpose(0, 1)),
            rnn=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "rnn.l0"},
        x=lambda: torch.randn(2, B, E),
    ),
    "a Linear over time, as wide as the layer": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.pre(x).transpose(1, 2)) + m.fc(m.rnn(x)[0]),
            pre=nn.Linear(E, H),
            rnn=nn.GRU(E, H, batch_first=True),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "pre"},
        x=lambda: torch.randn(B, H, E),
    ),
    "documents of texts, channels swapped": Pattern(
        lambda: Net(
            lambda m, x: (
                m.fc(
                    (lambda t: torch.cat([t[..., 2:], t[..., :2]], -1))(m.pre(x).transpose(1, 2)).transpose(
                        1, 2
                    )[..., None, :]
                )
                + m.rnn(x[0])[0].mean()
            ),
            pre=nn.Linear(E, H),
            rnn=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "rnn.l0"},
        x=lambda: torch.randn(2, T, B, E),
    ),
    "where the largest are": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(x)[0].max(0)[0]) + m.fc(m.rnn(x)[0].max(0)[1].float()),
            rnn=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        {"fc", "rnn.l0"},
        x=lambda: torch.randn(T, B, E),
    ),
    "softmax over a proven axis": head(lambda out: out.reshape(T, B, H).softmax(1)),
    # Where the units are after an operation that adds, takes or turns axes: a softmax over another one is harmless.
    **{
        f"softmax over another axis, {what}": head(lambda out, rule=rule: rule(out.reshape(T, B, H)))
        for what, rule in {
            "after a new one": lambda out: out[None].softmax(2),
            "after a new last but one": lambda out: out.unsqueeze(2).transpose(0, 2).softmax(1),
            "after a mean that keeps its own": lambda out: out.mean(0, keepdim=True).softmax(1),
            "after a variance that keeps its own": lambda out: out.var(0, False, True).softmax(1),
            "of a sum with a smaller tensor": lambda out: (out[-1] + out).softmax(1),
            "of a stack": lambda out: torch.stack([out, 2 * out], 1).softmax(2),
            "of a sum over two": lambda out: out[None].sum((0, 1)).softmax(0),
        }.items()
    },
    "a mean by its other name": head(lambda out: out.mean(axis=0)),
    "channels side by side, by the other name": head(
        lambda out: torch.cat([out, out.tanh()], axis=-1), width=2 * H
    ),
    "the larger of two behind the channels": head(lambda out: torch.stack([out, -out], 3).amax(3)),
    "a mean behind the channels": head(lambda out: out.transpose(1, 2).mean(2)),
    "reshape by the last of three sizes": head(lambda out: out.reshape(-1, out.shape[2])),
    **{
        f"{what} across channels": Pattern(
            head(lambda out, rule=rule: rule(out.reshape(T, B, H))).build, {"fc", "rnn.l0"}
        )
        for what, rule in {
            "a Linear over time, scaled,": lambda out: 2 * out[:H].transpose(0, 2),
            "flip()": lambda out: out.flip(0, 2),
            "index_select()": lambda out: out.index_select(2, TURNED),
            "gather()": lambda out: out.gather(2, TURNED.expand(T, B, H)),
            "pooling": lambda out: F.max_pool1d(out, 3, 1, 1),
            "reshape()": lambda out: out.permute(2, 0, 1).reshape(T, B, -1),
            "cat() of a turned half": lambda out: torch.cat([out[:H], out[:H].transpose(0, 2)], 1),
        }.items()
    },
    "one text of h_n": Pattern(
        state_head(lambda h: h.permute(1, 0, 2)[0], bidirectional).build, {"fc", "rnn.l0", "rnn.l0_reverse"}
    ),
    "channels of h_n turned": Pattern(
        state_head(lambda h: h[0, :, TURNED], lambda: nn.LSTM(E, H)).build, {"fc", "rnn.l0"}
    ),
    "h_n flattened as it is": Pattern(
        state_head(lambda h: h.reshape(B, -1), bidirectional, 2 * H).build, {"fc", "rnn.l0", "rnn.l0_reverse"}
    ),
    "h_n of two texts flattened as it is": Pattern(
        state_head(lambda h: h.flatten(1), bidirectional, 2 * H).build,
        {"fc", "rnn.l0", "rnn.l0_reverse"},
        x=lambda: ids()[:, :2],
    ),
    "a squeeze of two layers": Pattern(
        state_head(lambda h: h.squeeze(0)[-1], gru2).build, {"fc", "rnn.l0", "rnn.l1"}
    ),
    "h_n turned by permute": state_head(lambda h: h.permute(1, 0, 2).reshape(B, -1), bidirectional, 2 * H),
    "c_n turned and flattened": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(x)[1][1].transpose(0, 1).flatten(1)),
            rnn=bidirectional(),
            fc=nn.Linear(2 * H, 2),
        ),
        {"fc", "rnn.l0", "rnn.l0_reverse"},
        x=lambda: torch.randn(T, B, E),
    ),
    "c_n permuted": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(x)[1][1].permute(1, 0, 2).reshape(B, -1)),
            rnn=bidirectional(),
            fc=nn.Linear(2 * H, 2),
        ),
        {"fc", "rnn.l0", "rnn.l0_reverse"},
        x=lambda: torch.randn(T, B, E),
    ),
    "c_n squeezed": Pattern(
        lambda: Net(lambda m, x: m.fc(m.rnn(x)[1][1].squeeze(0)), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2)),
        {"fc", "rnn.l0"},
        x=lambda: torch.randn(T, B, E),
    ),
    "the sum of two layers at different times": two_heads(lambda a, b: torch.cat([a, b], 1)),
    "numbers in, no embedding": Pattern(
        lambda: Net(lambda m, x: m.fc(m.rnn(x)[0][-1]), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2)),
        x=lambda: torch.randn(T, B, E),
    ),
    "a Linear before": Pattern(
        lambda: Net(
            lambda m, x: m.fc(m.rnn(m.pre(x).relu())[0][-1]),
            pre=nn.Linear(2, E),
            rnn=nn.GRU(E, H),
            fc=nn.Linear(H, 2),
        ),
        x=lambda: torch.randn(T, B, 2),
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_exposed_is_what_cannot_be_named(name: str) -> None:
    """Exactly the layers whose readers nobody can list are exposed; more would cost compression."""
    model = PATTERNS[name].build()
    graph = find_readers(model)
    assert set(graph.exposed) == PATTERNS[name].exposed
    assert all(graph.exposed.values())


@pytest.mark.parametrize("name", PATTERNS)
def test_reads_are_enough(name: str) -> None:
    """Zero the columns that are said to read a unit, and the answer no longer knows what the unit does."""
    pattern = PATTERNS[name]
    model = pattern.build().eval()
    graph, x = find_readers(model), pattern.x()
    for block in graph.blocks.values():
        if block.name in graph.exposed:
            continue
        for unit in range(block.width):
            quiet, changed = twin(model), twin(model)
            disturb(changed, block, unit)
            for network in (quiet, changed):
                hide(network, graph, block.name, unit)
            torch.testing.assert_close(answer(quiet(x)), answer(changed(x)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PATTERNS)
def test_reads_are_needed(name: str) -> None:
    """Without zeroing anything a disturbed unit shows, so the test above is not empty."""
    pattern = PATTERNS[name]
    model = pattern.build().eval()
    graph, x = find_readers(model), pattern.x()
    block = next(block for block in graph.blocks.values() if block.place is not None)
    changed = twin(model)
    disturb(changed, block, 0)
    assert not torch.allclose(answer(model(x)), answer(changed(x)))


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


def test_a_call_that_forward_refuses_is_no_way() -> None:
    class Either(Ways):
        def forward(self, x: Any, a: Any = None, b: Any = None) -> Any:
            if a is None and b is None:
                raise ValueError("give a or b")
            out, _ = self.rnn(x)
            return self.fc(out)

    assert set(find_readers(Either()).exposed) == {"fc"}


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


def test_a_reader_that_is_never_called_leaves_nothing_proven() -> None:
    """It may be called in a branch that was not taken, or from outside."""

    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        return m.fc(out) if isinstance(x, Tensor) else m.other(out)

    model = Net(forward, rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2), other=nn.Linear(H, 2))
    assert "fc, which forward() never calls, may read it" in find_readers(model).exposed["rnn.l0"]


def test_a_cell_state_that_is_returned_and_not_taken_is_seen() -> None:
    def forward(m: Any, x: Any) -> Any:
        out, (_, c) = m.rnn(x)
        return m.fc(out), c

    graph = find_readers(Net(forward, rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2)))
    assert graph.memory == {"rnn.l0"}


@pytest.mark.parametrize(("padding", "keeps"), [(0.0, True), (1.0, False)])
def test_padding_may_move_zero(padding: float, keeps: bool) -> None:
    """A neuron that is always zero is 1 in the padding, if that is what it is padded with."""

    def forward(m: Any, x: Any) -> Any:
        packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        return m.fc(pad_packed_sequence(m.rnn(packed)[0], padding_value=padding)[0])

    model = Here(forward, rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    assert [read.keeps_zero for read in find_readers(model).reads_by("fc.weight")] == [keeps]


def own_forward(layer: nn.Linear) -> nn.Linear:
    plain = layer.forward
    layer.forward = lambda x: 3 * plain(x)  # type: ignore[method-assign]
    return layer


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("change", [own_forward, nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_layer_that_is_not_what_its_class_says_stays(change: Callable[[nn.Module], nn.Module]) -> None:
    """Its forward() was replaced, or its weight is made by a hook: it may read anything, and compress() leaves it."""
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.LSTM(E, H), fc=change(nn.Linear(H, 2))).eval()
    with torch.no_grad():
        model.rnn.weight_hh_l0[:, 0] = 0
        with pytest.warns(UserWarning, match=r"rnn\.l0 keeps 1 neurons .*fc"):
            small = gw.compress(model)
        x = torch.randn(T, B, E)
        torch.testing.assert_close(small(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("use", [gw.compress, gw.measure, gw.Engine, find_readers])
def test_a_scripted_module_is_refused(use: Callable[[nn.Module], Any]) -> None:
    model = Net(lambda m, x: m.fc(m.rnn(x)[0]), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    with pytest.raises(ValueError, match="the model it was made from"):
        use(torch.jit.trace(model, torch.randn(T, B, E)))


def test_a_hook_exposes_its_layer() -> None:
    """A hook may see or change what a layer takes and gives, and nobody can follow it."""
    model = PATTERNS["language model"].build()
    model.rnn.register_forward_hook(lambda module, given, out: (out[0].flip(-1), out[1]))
    graph = find_readers(model)
    assert set(graph.exposed) == {"emb", "rnn.l0", "rnn.l1", "fc"}
    assert graph.memory == {"rnn.l0", "rnn.l1"}
    assert "rnn.weight_ih_l0" in graph.outside


def test_a_hook_of_torch_prune_is_known() -> None:
    """It only puts the masked weight in its place."""
    model = PATTERNS["dropout"].build()
    nn.utils.prune.random_unstructured(model.fc, "weight", 0.5)
    assert set(find_readers(model).exposed) == {"fc"}


@pytest.mark.parametrize("act", [nn.Hardtanh(0.2, 1.0), nn.Hardtanh()])
def test_hardtanh_may_move_zero(act: nn.Module) -> None:
    model = Net(lambda m, x: m.fc(m.act(m.rnn(x)[0])), rnn=nn.LSTM(E, H), act=act, fc=nn.Linear(H, 2))
    assert [read.keeps_zero for read in find_readers(model).reads_by("fc.weight")] == [False]


def test_zero_stays_zero_or_not() -> None:
    """A unit that is always zero reaches a reader as zero through relu, and as 0.5 through a sigmoid."""
    for name, keeps in [
        ("relu", True),
        ("tanh", True),
        ("sigmoid", False),
        ("masked max", False),
        ("max pooling", True),
        ("one reader, two ways", False),
        ("residual sum", False),
    ]:
        graph = find_readers(PATTERNS[name].build())
        assert {read.keeps_zero for read in graph.reads_by("fc.weight")} == {keeps}, name


def test_a_column_that_reads_in_two_ways_is_one_read() -> None:
    """Otherwise the group lasso would count its weights twice."""
    graph = find_readers(PATTERNS["one reader, two ways"].build())
    assert len(graph.reads_by("fc.weight")) == 1


def test_tied_softmax_is_read_by_columns_and_shared() -> None:
    """fc reads the neurons with the embedding's own matrix: the graph names both parameters."""
    model = LanguageModel(width=4, tied=True)
    graph = find_readers(model)
    assert [read.block for read in graph.reads_by("fc.weight")] == ["rnn.l1"]
    assert [read.matrix for read in graph.reads_of("emb")] == ["rnn.weight_ih_l0"]


def test_a_state_taken_and_handed_back_is_no_reader() -> None:
    """A stateful language model returns its state only to get it back; the softmax is the reader."""
    graph = find_readers(LanguageModel())
    assert set(graph.exposed) == {"fc"}
    assert {read.matrix for read in graph.reads_of("rnn.l1")} == {"rnn.weight_hh_l1", "fc.weight"}


def test_two_states_in_one_argument() -> None:
    """Each layer gets its own part of the state and hands it back."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        a, b = state
        x, a = m.a(m.emb(x), a)
        x, b = m.b(x, b)
        return m.fc(x), (a, b)

    model = Net(forward, emb=emb(), a=nn.GRU(E, H), b=nn.GRU(H, H), fc=nn.Linear(H, 2))
    assert set(find_readers(model).exposed) == {"fc"}


def test_a_state_that_is_also_looked_at_is_exposed() -> None:
    """If forward() reads the state it is given, a caller who hands it back lets that reader see every neuron."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.rnn(m.emb(x), state)
        return m.fc(out) + m.look(state), new

    model = Net(forward, emb=emb(), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2), look=nn.Linear(H, 2))
    assert "rnn.l0" in find_readers(model).exposed


@pytest.mark.parametrize(
    "look",
    [
        lambda m, x, state: m.fc(state[0][-1]),
        lambda m, x, state: m.fc(state[0].detach()),
        lambda m, x, state: m.b(x, (state[0], state[1]))[0].mean(),
    ],
)
def test_a_state_is_looked_at_in_part_detached_or_by_another_layer(look: Callable[..., Any]) -> None:
    """Each of them sees what the caller hands back of the first layer."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.a(x, hx=(state[0], state[1]))
        return m.fc(out).mean() + look(m, x, state).mean(), new

    model = Net(forward, a=nn.LSTM(E, H), b=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    assert find_readers(model).exposed["a.l0"].startswith("forward() returns its last state")


def test_a_part_of_a_state_is_not_what_the_layer_takes_back() -> None:
    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.rnn(x, hx=state)
        return m.fc(out), new[m.part]

    model = Net(forward, rnn=nn.GRU(E, H, 2), fc=nn.Linear(H, 2))
    for model.part, exposed in ((slice(1), {"fc", "rnn.l0"}), (slice(1, 2), {"fc", "rnn.l1"})):
        assert set(find_readers(model).exposed) == exposed


def test_more_arguments_than_are_named_are_no_other_way() -> None:
    class Any_(Ways):
        def forward(self, x: Tensor, *more: Any, **named: Any) -> Tensor:
            return self.fc(self.rnn(x)[0])

    assert set(find_readers(Any_()).exposed) == {"fc"}


def test_a_model_in_data_parallel_is_followed_inside() -> None:
    assert set(find_readers(nn.DataParallel(LanguageModel())).exposed) == {"module.fc"}


def test_asking_for_the_shape_of_a_state_is_harmless() -> None:
    def forward(m: Any, x: Any, state: Any) -> Any:
        out, new = m.rnn(m.emb(x), state)
        return m.fc(out) * (state[0].size(1) > 0), new

    model = Net(forward, emb=emb(), rnn=nn.LSTM(E, H), fc=nn.Linear(H, 2))
    assert set(find_readers(model).exposed) == {"fc"}


def test_a_bare_layer_is_its_own_answer() -> None:
    graph = find_readers(nn.LSTM(E, H))
    assert set(graph.exposed) == {"l0"}


def test_a_layer_that_forward_never_calls_is_exposed() -> None:
    model = Net(
        lambda m, x: m.fc(m.rnn(m.emb(x))[0]), emb=emb(), rnn=nn.GRU(E, H), fc=nn.Linear(H, 2), spare=emb()
    )
    exposed = find_readers(model).exposed
    assert "never calls" in exposed["spare"]
    assert "rnn.l0" not in exposed  # an embedding reads nothing


class Loop(nn.Module):
    """A forward() with a loop over the data, which no tracer can unroll."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = emb(), nn.LSTMCell(E, H), nn.Linear(H, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in self.emb(x).unbind(0):
            state = self.rnn(step, state)
        assert state is not None
        return self.fc(state[0])


def test_an_untraceable_forward_exposes_everything_with_the_reason() -> None:
    graph = find_readers(Loop())
    assert set(graph.exposed) == {"emb", "rnn", "fc"}
    assert all("could not be traced" in why for why in graph.exposed.values())
    assert "rnn" in graph.memory


def test_stated_readers_replace_the_trace() -> None:
    """What the user says of a layer holds; the others stay as they were found."""
    graph = find_readers(Loop(), {"rnn": ["fc"], "emb": ["rnn"]})
    assert set(graph.exposed) == {"fc"}
    assert {read.matrix for read in graph.reads_of("rnn")} == {"rnn.weight_hh", "fc.weight"}
    assert {read.matrix for read in graph.reads_of("emb")} == {"rnn.weight_ih"}
    assert "rnn" not in graph.memory


def test_stated_readers_of_both_directions() -> None:
    """The reverse direction is read by the second half of the columns."""
    model = Classifier(bidirectional=True)
    stated = find_readers(model, {"rnn": ["fc"]})
    found = find_readers(model)
    assert set(stated.reads) == set(found.reads)


@pytest.mark.parametrize(
    ("readers", "message"),
    [
        ({"nobody": ["fc"]}, "'nobody' is not a layer with units; the model has emb, fc, rnn"),
        ({"rnn": ["emb"]}, "'emb', stated as a reader of 'rnn', is not a layer that can read it"),
        ({"rnn": ["typo"]}, "'typo'"),
        ({"rnn": "fc"}, "must map to a list of names"),
        ({"emb": ["fc"]}, "'fc' takes 4 inputs, but 'emb' has 3 outputs"),
    ],
)
def test_stated_readers_are_checked(readers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_readers(Classifier(), readers)


def test_readers_of_a_bare_layer_cannot_be_stated() -> None:
    with pytest.raises(ValueError, match=r"the model is a single layer, GRU, .* Put it in a module"):
        find_readers(nn.GRU(E, H), {"": ["fc"]})


def test_parameters_used_past_their_layer_are_noted() -> None:
    model = Net(
        lambda m, x: F.linear(m.rnn(m.emb(x))[0], m.emb.weight),
        emb=emb(),
        rnn=nn.GRU(E, E),
        fc=nn.Linear(E, 2),
    )
    graph = find_readers(model)
    assert graph.raw == {"emb.weight"}
    assert "rnn.l0" in graph.exposed


class AsksForTypes(nn.Module):
    """A forward() that looks at types, and packs through the full name of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn, self.fc = emb(), nn.LSTM(E, H), nn.Linear(H, V)

    def forward(self, x: Any, lengths: Any) -> Any:
        vectors = self.emb(x)
        if not isinstance(vectors, Tensor | torch.fx.Proxy):  # raises where Tensor is no longer a type
            raise TypeError("vectors")
        packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])
        return self.fc(out)


def test_tracing_leaves_the_names_of_a_file_alone() -> None:
    """Only the packing functions are wrapped: a file's own `Tensor` is still a type while forward() is traced."""
    graph = find_readers(AsksForTypes())
    assert set(graph.exposed) == {"fc"}
    assert [read.matrix for read in graph.reads_of("rnn.l0")] == ["fc.weight", "rnn.weight_hh_l0"]


@pytest.mark.parametrize("name", "zeros ones empty rand randn".split())
def test_a_factory_takes_sizes_of_the_input_one_by_one(name: str) -> None:
    """A new tensor carries no units, however its size is written; afterwards torch is as it was."""
    make = getattr(torch, name)
    model = Net(
        lambda m, x: m.fc(m.rnn(x)[0] * getattr(torch, name)(x.size(0), x.size(1), H)),
        rnn=nn.LSTM(E, H),
        fc=nn.Linear(H, 2),
    )
    assert set(find_readers(model).exposed) == {"fc"}
    assert getattr(torch, name) is make


@pytest.mark.parametrize(
    ("rule", "keeps"),
    [
        (lambda h: 2 * h, True),
        (lambda h: h / 3, True),
        (lambda h: 3 / (h + 2), False),
        (lambda h: 3 / h, False),
        (lambda h: h.logsumexp(0), False),
        (lambda h: h.softmax(0), False),
        (lambda h: h.clamp(0.5, 1), False),
        (lambda h: h.cos(), False),
        (lambda h: h.masked_fill(h > 9, 0.0), True),
        (lambda h: h.masked_fill(h > 9, 1.0), False),
        (lambda h: h.amax(0), True),
    ],
)
def test_only_factors_and_dividends_keep_zero(rule: Callable[[Any], Any], keeps: bool) -> None:
    """A neuron that is always zero may be dropped from what multiplies it, never from what divides by it."""
    model = Net(lambda m, x: m.fc(rule(m.rnn(x)[0])), rnn=nn.LSTM(E, H), fc=nn.Linear(H, V))
    assert [read.keeps_zero for read in find_readers(model).reads if read.matrix == "fc.weight"] == [keeps]


def one_more(m: Any, h: Any) -> Any:
    name = h
    h += 1
    return name


@pytest.mark.parametrize(
    "rule",
    [
        one_more,
        lambda m, h: (h.sigmoid_(), h)[1],
        lambda m, h: (m.act(h), h)[1],
        lambda m, h: (F.hardtanh(h, 0.2, 1.0, inplace=True), h)[1],
        lambda m, h: (h.clamp_(0.2, 1.0), h)[1],
    ],
)
def test_what_is_written_in_place_shows_under_the_old_name(rule: Callable[[Any, Any], Any]) -> None:
    act = nn.Hardtanh(0.2, 1.0, inplace=True)
    model = Net(lambda m, x: m.fc(rule(m, m.rnn(x)[0])), rnn=nn.LSTM(E, H), act=act, fc=nn.Linear(H, 2))
    assert [read.keeps_zero for read in find_readers(model).reads_by("fc.weight")] == [False]


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.Identity(), nn.Dropout1d(0.0)])
def test_what_a_layer_hands_on_in_evaluation_is_its_argument(layer: nn.Module) -> None:
    """To write into it is to write into the output of the recurrent layer, which is read afterwards."""

    def forward(m: Any, x: Any) -> Any:
        out, _ = m.rnn(x)
        m.layer(out).sigmoid_()
        return m.fc(out)

    model = Net(forward, rnn=nn.LSTM(E, H), layer=layer, fc=nn.Linear(H, 2))
    assert "another view" in find_readers(model).exposed["rnn.l0"]
