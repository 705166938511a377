"""The KL approximation against its integral and the published values; sampling and KL in one differentiable pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gatewise.sparsify import posterior
from gatewise.sparsify.posterior import kept, kl, kl_slope, log_alpha, sample_and_kl, total_kl

TABLE = {-8: 3.9701, -4: 1.9681, -2: 0.8676, 0: -0.2437, 1: -0.4937, 3: -0.6447, 6: -0.6688, 8: -0.6698}


def integral(value: float) -> float:
    """KL = E log|1 + sqrt(a) n| - log(a)/2 + (gamma + log 2)/2 for n ~ N(0, 1), by quadrature."""
    n = torch.linspace(-12, 12, 2_000_000, dtype=torch.float64)  # even: never exactly on the pole
    density = torch.exp(-n.square() / 2) / math.sqrt(2 * math.pi)
    mean_log = torch.trapezoid(torch.log((1 + math.exp(value / 2) * n).abs()) * density, n)
    return float(mean_log) - value / 2 + 0.6351814


@pytest.mark.parametrize("value", [-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
def test_kl_matches_its_integral(value: float) -> None:
    """The authors' is lower by a nearly constant 0.67."""
    point = torch.tensor(value, dtype=torch.float64)
    assert float(kl(point)) + 0.672 == pytest.approx(integral(value), abs=1.5e-2)


@pytest.mark.parametrize("value", TABLE)
def test_kl_has_the_known_values(value: int) -> None:
    """Over the clipped range."""
    point = torch.tensor(float(value), dtype=torch.float64)
    assert float(kl(point)) == pytest.approx(TABLE[value], abs=6e-5)


def test_slope_is_the_derivative_and_zero_outside() -> None:
    """Outside +-8 log alpha is clipped, so the KL does not pull there at all."""
    points = torch.linspace(-12, 12, 241, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(kl(points).sum(), points)
    inside = points.abs() < 8
    torch.testing.assert_close(kl_slope(points)[inside], slope[inside])
    assert not kl_slope(points)[points.abs() > 8].any()
    assert (kl_slope(points)[inside] < 0).all()


def test_kept_is_the_squared_ratio() -> None:
    """SNR = m^2 / sigma^2 against 0.05, not m / sigma; a mean of zero is always gone."""
    sigma = 0.5
    means = torch.tensor([0.0, 0.9, 1.1, -1.1]) * sigma * math.sqrt(0.05)
    assert kept(means, torch.full((4,), math.log(sigma)), 0.05).tolist() == [False, False, True, True]
    assert log_alpha(torch.tensor(0.0), torch.tensor(-3.0)) == math.inf


def pieces(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor]]:
    """Means far from, near and at zero, with sigmas that put log alpha inside and outside the bound."""
    means = [
        torch.tensor([[1.0, -0.4, 0.02], [-1e-4, 3.0, 0.7]], dtype=dtype),
        torch.tensor([1.0, 0.9], dtype=dtype),
    ]
    log_sigmas = [
        torch.tensor([[-3.0, -1.0, -2.0], [0.5, -9.0, 1.0]], dtype=dtype),
        torch.tensor([-3.0, 0.0], dtype=dtype),
    ]
    return [m.requires_grad_() for m in means], [s.requires_grad_() for s in log_sigmas]


@pytest.mark.parametrize("chunk", [1 << 16, 2])
def test_gradients_of_sample_and_kl(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both outputs at once, against finite differences with the noise held fixed, in any chunks."""
    monkeypatch.setattr(posterior, "CHUNK", chunk)
    means, log_sigmas = pieces()

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        samples, total = sample_and_kl(tensors[:2], tensors[2:])
        return (*samples, total)

    assert torch.autograd.gradcheck(run, (*means, *log_sigmas))
    assert torch.autograd.gradcheck(lambda *t: total_kl(t[:2], t[2:]), (*means, *log_sigmas))
    assert torch.autograd.gradcheck(lambda *t: run(*t)[0], (*means, *log_sigmas))


def test_total_is_the_sum_of_all_terms() -> None:
    """Chunked, drawn with samples or alone: the same number, in float32 too."""
    for dtype in (torch.float32, torch.float64):
        means, log_sigmas = pieces(dtype)
        expected = sum(kl(log_alpha(m, s)).sum() for m, s in zip(means, log_sigmas))
        torch.testing.assert_close(total_kl(means, log_sigmas), expected)
        torch.testing.assert_close(sample_and_kl(means, log_sigmas)[1], expected)


def test_large_tensors_in_chunks() -> None:
    """More than one chunk, and a rest."""
    mean, log_sigma = torch.randn(3, 50_001), torch.randn(3, 50_001) - 2
    samples, total = sample_and_kl([mean], [log_sigma])
    expected = kl(log_alpha(mean.double(), log_sigma.double())).sum()
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=0)
    assert samples[0].shape == mean.shape


def test_samples_have_the_right_moments() -> None:
    """w ~ N(m, sigma^2), and no two weights share their noise."""
    mean, log_sigma = torch.full((200_000,), 0.3), torch.full((200_000,), -1.0)
    (w,), _ = sample_and_kl([mean], [log_sigma])
    eps = (w - mean) / log_sigma.exp()
    assert eps.mean().abs() < 0.01
    assert (eps.std() - 1).abs() < 0.01
    assert len(w.unique()) > 150_000


def test_no_nan_at_zero() -> None:
    """m = 0 has an infinite log alpha: the KL is the clipped one, and it does not pull."""
    mean = torch.zeros(5, requires_grad=True)
    log_sigma = torch.full((5,), -3.0, requires_grad=True)
    (w,), total = sample_and_kl([mean], [log_sigma])
    assert total.item() == pytest.approx(5 * -0.6698, abs=1e-3)
    total.backward()
    assert torch.equal(mean.grad, torch.zeros(5))
    assert torch.equal(log_sigma.grad, torch.zeros(5))
    assert w.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-38, 1e30])
def test_no_nan_far_out(scale: float) -> None:
    """Squares under- and overflow; the terms are clipped and stay finite, and so do their slopes."""
    mean = torch.full((3,), scale, requires_grad=True)
    log_sigma = torch.full((3,), -3.0, requires_grad=True)
    total = total_kl([mean], [log_sigma])
    total.backward()
    assert total.isfinite()
    assert mean.grad.isfinite().all()
    assert not mean.grad.any()


def test_a_parameter_that_is_not_contiguous() -> None:
    """Gradients land in their places whatever the strides."""
    base, log_base = torch.randn(4, 3), torch.randn(4, 3) - 2
    grads = []
    for transpose in (False, True):
        mean, log_sigma = (
            (b.T if transpose else b.T.contiguous()).requires_grad_()
            for b in (base.clone(), log_base.clone())
        )
        torch.manual_seed(5)
        (w,), total = sample_and_kl([mean], [log_sigma])
        ((w * torch.arange(12.0).view(3, 4)).sum() + total).backward()
        grads.append((mean.grad, log_sigma.grad))
    torch.testing.assert_close(grads[1], grads[0])
