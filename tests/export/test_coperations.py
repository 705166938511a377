"""Every operation of a program in C, against torch: all functions, axes, windows and lookups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import CompiledProgram
from test_cprogram import agree_in_pieces
from torch import Tensor, nn

from gatewise.export.c.golden_program import answers, from_example

POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "log1p"}
SMALL = {"asin", "acos"}
ONE = """
    sigmoid tanh exp exp2 log log2 log10 sin cos tan asin acos atan sinh cosh erf abs neg square sqrt rsqrt sign floor
    ceil round trunc expm1 log1p reciprocal isnan isinf
""".split()
ACTIVATIONS = [
    nn.ReLU(),
    nn.ReLU6(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SiLU(),
    nn.ELU(0.7),
    nn.SELU(),
    nn.CELU(1.3),
    nn.Hardswish(),
    nn.LeakyReLU(0.2),
    nn.Hardsigmoid(),
    nn.Mish(),
    nn.Softsign(),
    nn.Tanhshrink(),
    nn.Hardshrink(0.4),
    nn.LogSigmoid(),
    nn.Softshrink(0.3),
    nn.Softplus(2.0, 1.5),
    nn.Threshold(0.1, -2.0),
    nn.Hardtanh(-0.4, 0.9),
    nn.GLU(-1),
]


class Model(nn.Module):
    """Answers by name; the linear layer makes it one that can be compressed."""

    def __init__(self, function: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.function(self, self.fc(x))
        return found


def functions(m: Any, x: Tensor) -> dict[str, Tensor]:
    domain = {**dict.fromkeys(POSITIVE, x.abs() + 0.1), **dict.fromkeys(SMALL, torch.tanh(x))}
    found = {name: getattr(torch, name)(domain.get(name, x * 3)) for name in ONE}
    found |= {f"activation_{k}": part(x * 2) for k, part in enumerate(ACTIVATIONS)}
    return {name: answer.float() for name, answer in found.items()}


def pairs(m: Any, x: Tensor) -> dict[str, Tensor]:
    y, whole, other = x.flip(-1) + 0.3, (x * 5).round().long(), (x.flip(-1) * 4).round().long().abs() + 1
    of_two = {
        name: getattr(torch, name) for name in "add sub mul div maximum minimum remainder atan2".split()
    }
    compared = {name: getattr(torch, name) for name in "eq ne lt le gt ge".split()}
    found = {f"f_{name}": f(x, y) for name, f in of_two.items()}
    found |= {f"i_{name}": f(whole, other) for name, f in of_two.items() if name != "atan2"}
    found |= {f"c_{name}": f(whole, other) for name, f in compared.items()}
    low, high = x > -0.2, y > 0.1
    found |= {"and": low & high, "or": low | high, "xor": low ^ high, "not": ~low}
    found |= {
        "pow": x.abs() ** 1.5,
        "cube": x**3,
        "floor": x // 0.3,
        "whole": whole // other,
        "truth": low.float(),
    }
    return found | {
        "where": torch.where(low, y, -x),
        "clamp": x.clamp(min=-0.2),
        "most": torch.clamp(x, max=0.3),
    }


def reductions(m: Any, x: Tensor) -> dict[str, Tensor]:
    names = "sum mean amax amin prod argmax argmin logsumexp std var".split()
    found = {}
    for axis in (1, 2):
        found |= {f"{name}_{axis}": getattr(torch, name)(x, dim=axis) for name in names}
        found |= {
            f"norm_{p}_{axis}": torch.linalg.vector_norm(x, p, dim=axis) for p in (1, 2, 3, float("inf"))
        }
        found |= {f"any_{axis}": (x > 0.3).any(axis)}
        found |= {f"all_{axis}": (x > -0.9).all(axis), f"kept_{axis}": x.mean(axis, keepdim=True)}
        found |= {f"softmax_{axis}": x.softmax(axis), f"log_softmax_{axis}": x.log_softmax(axis)}
        found |= {f"cumulated_{axis}": x.cumsum(axis), f"whole_{axis}": (x * 9).long().amax(axis)}
    return found | {"both": x.sum((1, 2)), "unbiased": x.var(1, unbiased=False), "count": (x > 0).sum(1)}


def windows(m: Any, x: Tensor) -> dict[str, Tensor]:
    c = x.transpose(1, 2)
    pools = {
        "max": nn.MaxPool1d(3, 2, padding=1),
        "mean": nn.AvgPool1d(2),
        "dilated": nn.MaxPool1d(2, 1, dilation=2),
    }
    found = {name: pool(c) for name, pool in pools.items()}
    found |= {"own": F.avg_pool1d(c, 3, 2, padding=1, count_include_pad=False)}
    found |= {"padded": F.avg_pool1d(c, 3, 1, padding=1)}
    return found | {name: getattr(m, name)(c) for name in ("plain", "strided", "dilating", "grouped", "deep")}


def moves(m: Any, x: Tensor) -> dict[str, Tensor]:
    b, t, _ = x.shape
    order = torch.tensor([2, 0, -1])
    found = {
        "flat": x.reshape(b, -1),
        "split": x.view(b, t, 2, 2).transpose(1, 2),
        "turned": x.transpose(1, 2).flatten(1),
    }
    found |= {
        "some": x[:, ::2, 1:3],
        "last": x[:, -2:],
        "flipped": x.flip(1, 2),
        "padded": F.pad(x, (1, 0, 2, 1), value=0.5),
    }
    found |= {
        "index": x[:, :, order],
        "gather": x.gather(2, order.expand(b, t, 3) % 4),
        "rolled": torch.cat((x[:, 1:], x[:, :1]), 1),
    }
    found |= {
        "stacked": torch.stack((x, -x), 1),
        "outer": x @ x.transpose(1, 2),
        "einsum": torch.einsum("btc,bsc->bts", x, x),
    }
    found |= {
        "again": torch.tanh(x).transpose(1, 2).flip(1)[:, 1:],
        "repeated": torch.tanh(x[:, :1]).expand(b, t, 4),
    }
    return found | {
        "normed": F.layer_norm(x, (4,)),
        "zeros": torch.zeros_like(x),
        "numbers": torch.arange(t) * 2 + 1,
    }


CONVOLUTIONS = {
    "plain": nn.Conv1d(4, 3, 3),
    "strided": nn.Conv1d(4, 3, 3, stride=2, padding=2),
    "dilating": nn.Conv1d(4, 2, 2, dilation=3, bias=False),
    "grouped": nn.Conv1d(4, 6, 2, groups=2, padding=1),
    "deep": nn.Conv1d(4, 4, 1, groups=4),
}


@pytest.mark.parametrize("block", [None, 7])
@pytest.mark.parametrize("function", [functions, pairs, reductions, windows, moves])
def test_every_operation(function: Any, block: int | None, kernels: list[Path], tmp_path: Path) -> None:
    """One sequence through the compiled C, and through forward()."""
    torch.manual_seed(0)
    model = Model(function, **(CONVOLUTIONS if function is windows else {})).eval()
    x = torch.randn(1, 7, 4)
    compiled = CompiledProgram(model, tmp_path, kernels, (x,), block=block)
    given = from_example(compiled.program, model, (x,))
    expected = answers(compiled.program, model, given)
    assert len(expected) > 7
    found = compiled.run(compiled.instance(), given, expected)
    for name, got, wanted in zip(model(x), found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, 1e-4, 2e-5, err_msg=name)


def remembered(m: Any, x: Tensor) -> dict[str, Tensor]:
    """What goes on from piece to piece."""
    out, h = m.rnn(x)
    names = "sum mean amax amin prod logsumexp".split()
    found = {name: getattr(torch, name)(out, dim=1) for name in names}
    found |= {
        "any": (x > 0.9).any(1),
        "all": (x > -0.9).all(1),
        "count": (x > 0).sum(1),
        "both": out.sum((1, 2)),
    }
    found |= {"product": out.transpose(1, 2) @ x, "cumulated": x.cumsum(1), "steps": x.sum(1) / x.size(1)}
    found |= {
        "shifted": F.pad(x, (0, 0, 2, 0))[:, :-2],
        "numbers": torch.arange(x.size(1)) * x[..., 0],
        "last": h,
    }
    padded = F.pad(out.transpose(1, 2), (4, 0))
    return found | {
        "looks back": m.causal(padded).transpose(1, 2),
        "cut": m.wide(x.transpose(1, 2))[..., :-2].transpose(1, 2),
    }


@pytest.mark.parametrize("block", [1, 2, 7])
def test_pieces(block: int, kernels: list[Path], tmp_path: Path) -> None:
    """One step, two, then the rest; each answered as forward() answers all steps so far."""
    torch.manual_seed(1)
    layers = {
        "rnn": nn.GRU(4, 4, batch_first=True),
        "wide": nn.Conv1d(4, 2, 3, padding=2),
    }
    model = Model(remembered, causal=nn.Conv1d(4, 3, 3, dilation=2), **layers).eval()
    x = torch.randn(1, 7, 4)
    compiled = CompiledProgram(model, tmp_path, kernels, (x,), block=block)
    assert compiled.streams
    agree_in_pieces(compiled, model, from_example(compiled.program, model, (x,)))
