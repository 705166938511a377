"""Functions of a program in NumPy, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.program.operations import ARITHMETIC, COMPARISONS, KEEPS_ZERO, MOVES_ZERO, REDUCTIONS, Map
from gatewise.runtime.functions import COMBINED, MAPPED, REDUCED, convolved, pooled

NAMED = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "not": lambda x: torch.logical_not(x),
    "threshold": lambda x, threshold, value: F.threshold(x, threshold, value),
    "softplus": lambda x, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold),
    "elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "celu": lambda x, alpha=1.0: F.celu(x, alpha),
}
SETTINGS: dict[str, tuple[float, ...]] = {
    "clamp": (-0.3, 0.7), "threshold": (0.2, -5.0), "elu": (0.5,), "celu": (0.7,), "leaky_relu": (0.2,),
    "softplus": (2.0, 3.0), "hardshrink": (0.4,), "softshrink": (0.4,),
}  # fmt: skip


def of_torch(name: str) -> Any:
    return NAMED.get(name) or getattr(F, name, None) or getattr(torch, name)


@pytest.mark.parametrize("name", sorted(KEEPS_ZERO | MOVES_ZERO))
def test_functions_of_one_value(name: str) -> None:
    """Types stay float32, settings mean what they mean in torch, and what the set says of zero is so."""
    x = torch.linspace(-4, 4, 33)
    expected = of_torch(name)(x, *SETTINGS.get(name, ()))
    with np.errstate(all="ignore"):
        answer = MAPPED[name](x.numpy(), *SETTINGS.get(name, ()))
        plain = MAPPED[name](x.numpy()) if name not in ("clamp", "threshold") else None
        zero = float(MAPPED[name](np.zeros(1, np.float32), *SETTINGS.get(name, ()))[0])
    close(answer, expected)
    if plain is not None:
        close(plain, of_torch(name)(x))
    assert (zero == 0) == Map(name, SETTINGS.get(name, ())).keeps_zero or name in ("not", "isnan", "isinf")


@pytest.mark.parametrize("name", sorted(ARITHMETIC | COMPARISONS))
def test_functions_of_two_values(name: str) -> None:
    a, b = torch.linspace(-3, 3, 12).view(3, 4), torch.tensor([2.0, -0.5, 1.0, 3.0])
    if name in ("and", "or", "xor"):
        a, b = a > 0, b > 0
    called = {"floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor")}
    called |= {n: getattr(torch, f"logical_{n}") for n in ("and", "or", "xor")}
    with np.errstate(all="ignore"):
        answer = COMBINED[name](a.numpy(), b.numpy())
    close(answer, called.get(name, getattr(torch, name, None))(a, b))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_reductions(name: str, keep: bool) -> None:
    x = torch.tensor(np.random.default_rng(0).normal(size=(3, 6, 4)), dtype=torch.float32)
    x = x > 0 if name in ("any", "all") else x
    alone = {
        "max": torch.amax,
        "min": torch.amin,
        "norm": lambda x, *a, **k: torch.linalg.vector_norm(x, 2, *a, **k),
    }
    close(
        REDUCED[name](x.numpy(), axis=(1,), keepdims=keep),
        first(alone.get(name, of_torch(name))(x, 1, keepdim=keep)),
    )
    for settings in {"std": [(0,)], "var": [(0,)], "norm": [(1,), (3,), (float("inf"),), (0,)]}.get(name, []):
        ours = REDUCED[name](x.numpy(), *settings, axis=(0, 2), keepdims=keep)
        call = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)
        said = {"ord" if name == "norm" else "correction": settings[0]}
        close(ours, call(x, dim=(0, 2), keepdim=keep, **said))


def test_the_place_of_the_largest_of_all() -> None:
    x = torch.tensor(np.random.default_rng(1).normal(size=(3, 5)), dtype=torch.float32)
    assert REDUCED["argmax"](x.numpy(), axis=(0, 1), keepdims=False) == x.argmax()
    assert REDUCED["median"](x.numpy(), axis=(0, 1), keepdims=False) == x.median()


@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "padding"), [(1, 1, 1, 0), (2, 1, 2, 1), (1, 3, 1, 3), (3, 2, 4, 2)]
)
def test_convolutions(stride: int, dilation: int, groups: int, padding: int) -> None:
    chance = np.random.default_rng(2)
    x, weight = (chance.normal(size=s).astype(np.float32) for s in ((2, 4, 11), (8, 4 // groups, 3)))
    expected = F.conv1d(*map(torch.from_numpy, (x, weight)), None, stride, padding, dilation, groups)
    close(convolved(x, weight, stride, dilation, groups, (padding, padding)), expected)


def test_pools() -> None:
    x = np.random.default_rng(3).normal(size=(2, 3, 11)).astype(np.float32)
    tensor = torch.from_numpy(x)
    close(pooled(x, "max", 3, 2, 2, (1, 1), True), F.max_pool1d(tensor, 3, 2, 1, 2))
    for counts in (True, False):
        close(pooled(x, "mean", 3, 2, 1, (1, 1), counts), F.avg_pool1d(tensor, 3, 2, 1, False, counts))


def first(answer: Any) -> Tensor:
    return answer[0] if isinstance(answer, tuple) else answer


def close(answer: Any, expected: Tensor) -> None:
    assert np.asarray(answer).dtype == expected.numpy().dtype
    np.testing.assert_allclose(answer, expected.numpy(), rtol=2e-6, atol=2e-6)
