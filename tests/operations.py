"""Every operation of a program as forward() writes it, behind a recurrent layer: name -> rule(y, x)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from networks import Net
from torch import Tensor, nn

Rule = Callable[[Tensor, Tensor], Any]


def behind_a_layer(rule: Rule) -> Net:
    """A GRU over x (B, T, 6), and behind it what a rule makes of its output, (B, T, 6) as well, and of x.

    Two neurons of the layer are always zero: they are cut, and need not travel.
    """
    torch.manual_seed(0)
    model = Net(lambda m, x: rule(m.rnn(x)[0], x), rnn=nn.GRU(6, 6, batch_first=True)).eval()
    with torch.no_grad():
        for weight in model.rnn.parameters():
            weight.unflatten(0, (3, -1))[:, [1, 4]] = 0
    return model


def steep(function: Callable[[Tensor], Tensor]) -> Rule:
    return lambda y, x: function(3 * y)


def positive(function: Callable[[Tensor], Tensor]) -> Rule:
    return lambda y, x: function(y.abs() + 0.1)


def over(name: str, dims: Any) -> Rule:
    return lambda y, x: getattr(y, name)(dim=dims)


POINTWISE: dict[str, Rule] = {
    **{name: steep(getattr(F, name)) for name in (
        "relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "hardswish", "mish", "softsign",
        "tanhshrink", "hardshrink", "softshrink", "hardsigmoid", "softplus", "logsigmoid", "hardtanh",
    )},
    **{name: steep(getattr(torch, name)) for name in (
        "tanh", "sigmoid", "sin", "cos", "tan", "atan", "sinh", "cosh", "erf", "abs", "neg", "square", "sign",
        "floor", "ceil", "round", "trunc", "exp", "exp2", "expm1", "reciprocal", "isnan", "isinf",
    )},
    **{name: positive(getattr(torch, name)) for name in (
        "sqrt", "log", "log2", "log10", "log1p", "rsqrt",
    )},
    "asin, acos": lambda y, x: torch.asin(y) - torch.acos(y),
    "gelu by tanh": lambda y, x: F.gelu(y * 3, approximate="tanh"),
    "elu, celu, slope": lambda y, x: F.elu(y, 0.3) + F.celu(y, 0.7) + F.leaky_relu(y, 0.2),
    "softplus, steep": lambda y, x: F.softplus(9 * y, beta=2.5, threshold=3.0),
    "shrink": lambda y, x: F.hardshrink(y, 0.1) + F.softshrink(y, 0.2) + F.threshold(y, 0.1, -3.0),
    "clamp": lambda y, x: y.clamp(-0.1, 0.2) + y.clamp(min=0.05) + y.clamp(max=0.1),
    "glu": lambda y, x: F.glu(y, -1),
    "prelu": lambda y, x: F.prelu(y, torch.tensor([0.3])),
}  # fmt: skip
PAIRS: dict[str, Rule] = {
    "arithmetic": lambda y, x: (y + x) * (y - x) / (x.abs() + 1),
    "numbers": lambda y, x: 1 - y * 0.5 + 2 / (y + 3) + torch.rsub(y, x, alpha=0.3),
    "powers": lambda y, x: y**2 + y.abs() ** x + 2**y,
    "limits": lambda y, x: torch.maximum(y, x) - torch.minimum(y, x),
    "remainder": lambda y, x: y % 0.3 + torch.remainder(y, x) + (y // 0.3),
    "angle": lambda y, x: torch.atan2(y, x) + torch.atan2(0 * x.abs(), y) + torch.atan2(y, 0 * x.abs()),
    "compared": lambda y, x: (
        (y < x).float() + 2 * (y <= 0) + 4 * (y > x).int() + 8 * (y >= 0.1) + (y == x) + (y != 0)
    ),
    "logic": lambda y, x: ((y > 0) & (x > 0)) | ~(y < x) ^ (x < 0),
    "chosen": lambda y, x: torch.where(y > 0, x, 7.0) + torch.where(y > 0, y > 1, x > 0),
    "of whole numbers": lambda y, x: (
        torch.arange(6) // 4 + torch.arange(6) % 4 - (torch.arange(x.size(2)) - 3) // 2
    ),
    "of steps": lambda y, x: (
        torch.arange(x.size(1)).clamp(1, 3).neg().abs() * 2 + torch.arange(1, 2 * x.size(1), 2)
    ),
    "bits of counts": lambda y, x: torch.arange(x.size(1)) * (torch.arange(x.size(1)) < 3) / x.size(1),
    "kinds": lambda y, x: (y * 9).long() + (y > 0).long() + (y * 9).long().bool() + (y * 9).int().float(),
    "broadcast": lambda y, x: y + y[:, :1] * y[..., :1] - y[0],
}
ALONG: dict[str, Rule] = {
    **{f"{name} over {dims}": over(name, dims) for name in (
        "sum", "mean", "amax", "amin", "logsumexp", "std", "var", "norm",
    ) for dims in (1, 2, (0, 2))},
    "kept": lambda y, x: y.sum(1, keepdim=True) * y.std(2, keepdim=True) + y.amax((1, 2), keepdim=True),
    "where": lambda y, x: (y.argmax(1), y.argmin(2), y.max(1)[1], y.min(2)[0], y.max(2)),
    "all of them": lambda y, x: (y.sum(), y.mean(), y.max(), (y > 0).any(), (y > -9).all()),
    "asked": lambda y, x: ((y > 0.1).any(1), (y > 0.1).all(2), (y > 0).sum(1)),
    "products": lambda y, x: y.prod(1),
    "spread": lambda y, x: y.var(1, unbiased=False) + y.std(1, correction=2),
    "norms": lambda y, x: y.norm(1, dim=1) + y.norm(3, dim=1) + F.normalize(y, dim=1).sum(1),
    "largest norm": lambda y, x: torch.linalg.vector_norm(y, float("inf"), dim=1),
    "softmax": lambda y, x: y.softmax(1) + y.log_softmax(2) + F.softmax(y, dim=0),
    "running sums": lambda y, x: y.cumsum(1) + (y > 0).cumsum(1),
    "matrices": lambda y, x: y @ y.mT @ y + torch.bmm(y.transpose(1, 2), y).sum(1, keepdim=True),
    "einsum": lambda y, x: torch.einsum("btc,bsc->bts", y, y).sum(2),
    "layer norm": lambda y, x: F.layer_norm(y, (6,)) + F.layer_norm(x, (6,), torch.arange(6.0), torch.ones(6), 0.1),
    "convolved": lambda y, x: F.conv1d(y.mT, torch.ones(4, 3, 3) * 0.1, torch.ones(4), stride=2, padding=1, groups=2),
    "far apart": lambda y, x: F.conv1d(y.mT, torch.ones(4, 6, 2) * 0.1, dilation=2, padding="same"),
    "pools": lambda y, x: F.max_pool1d(y.mT, 3, 2, padding=1) + F.avg_pool1d(y.mT, 3, 2, padding=1),
    "pool inside": lambda y, x: F.avg_pool1d(y.mT, 3, 2, padding=1, count_include_pad=False),
}  # fmt: skip
PLACES: dict[str, Rule] = {
    "permuted": lambda y, x: y.permute(2, 0, 1) + y.transpose(0, 2).transpose(1, 2),
    "flat": lambda y, x: (
        y.reshape(-1, 6),
        y.flatten(1).sum(1),
        y.reshape(y.size(0), -1, 3).sum(1),
        y.unflatten(2, (2, 3)),
    ),
    "squares": lambda y, x: y.reshape(y.size(1), y.size(0) * 6),
    "repeated": lambda y, x: (
        y.repeat(2, 1, 3) + 0 * y.unsqueeze(1).expand(-1, 2, -1, -1).reshape(-1, y.size(1), 6).repeat(1, 1, 3)
    ),
    "parts": lambda y, x: y[:, 1:, 2:5] + y[:, -1:, ::2] - y[:, :-1, :3],
    "ends": lambda y, x: y[:, -1] + y[:, 0] + y[-1, -1] + y[:, -2:].sum(1),
    "every other": lambda y, x: y[:, ::2].sum(1) + y[:, 1::2].sum(1),
    "joined": lambda y, x: torch.cat([y, x, y], -1).sum(1) + torch.cat([y, x], 1).sum(1).repeat(1, 3),
    "stacked": lambda y, x: (
        torch.stack([y, x], 1).sum(2) + torch.stack([x, y], 0).permute(1, 0, 2, 3).mean(2)
    ),
    "backwards": lambda y, x: y.flip(1) + y.flip(2, 0),
    "padded": lambda y, x: F.pad(y, (1, 2), value=3.0).sum(-1) + F.pad(y, (0, 0, 2, 1))[:, 1:-2].sum(-1),
    "shifted": lambda y, x: F.pad(y, (0, 0, 1, -1)) + y.roll(1, 1),
    "picked": lambda y, x: y[:, :, [0, 2, -1]].sum(-1) + y.index_select(2, torch.tensor([1, 1])).sum(-1),
    "picked in pairs": lambda y, x: y[torch.arange(y.size(0)), (y.argmax(1) % y.size(1))[:, 0]],
    "picked inside": lambda y, x: y[:, torch.zeros(3, dtype=torch.long), torch.tensor([0, 3, -1])],
    "gathered": lambda y, x: y.gather(1, y.argmax(1, keepdim=True)) + y.gather(2, y.argmin(2, keepdim=True)),
    "filled": lambda y, x: y.new_zeros(y.size(0), 2) + y.new_full((y.size(0), 1), 3.0) + torch.ones(2),
    "written into": lambda y, x: torch.zeros_like(y).masked_fill(y > 0, 1.0) + torch.full_like(y, 0.5),
}
OPERATIONS = POINTWISE | PAIRS | ALONG | PLACES
