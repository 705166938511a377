"""Fused sampling and KL against a float64 reference and against the normal distribution."""

from __future__ import annotations

import math

import pytest
import torch
from triton_device import DEVICE, INTERPRETED

from gatewise.sparsify.triton_posterior import sample_and_kl

# The interpreter is NumPy, which tells of inf.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CONSTANTS = (0.64, 1.95, 1.5, -0.03)
SHAPES = [(1,), (3, 5), (1024,), (7, 300), (2, 4, 11), (1025,)]


def parameters(seed=0, device=DEVICE):
    torch.manual_seed(seed)
    means = [torch.randn(shape) * torch.randn(shape).mul(2).exp() for shape in SHAPES]
    log_sigmas = [torch.randn(shape) * 3 - 3 for shape in SHAPES]
    means[1][0, 0] = 0.0
    means[3][2] = 0.0
    return [[t.to(device).requires_grad_() for t in part] for part in (means, log_sigmas)]


def reference(means, log_sigmas, k1, k2, k3, constant):
    """The sum of KL in float64; a mean of zero counts as log alpha = 8."""
    total = torch.zeros((), dtype=torch.float64)
    for m, ls in zip(means, log_sigmas):
        square = torch.where(m == 0, torch.ones_like(m), m).square()
        raw = torch.where(m == 0, torch.full_like(m, 99.0), 2 * ls - square.log())
        la = raw.clamp(-8, 8)
        kl = 0.5 * torch.log1p(torch.exp(-la)) - k1 * torch.sigmoid(k2 + k3 * la) + constant
        total = total + kl.sum()
    return total


def test_kl_and_its_gradients():
    """Many tensors of odd sizes, means of zero and log alphas beyond the clip among them."""
    means, log_sigmas = parameters()
    _, kl = sample_and_kl(means, log_sigmas)
    grads = torch.autograd.grad(3 * kl, means + log_sigmas)
    exact = [[t.detach().double().cpu().requires_grad_() for t in part] for part in (means, log_sigmas)]
    expected = reference(*exact, *CONSTANTS)
    torch.testing.assert_close(kl.double().cpu(), expected, rtol=1e-5, atol=1e-3)
    for ours, theirs in zip(grads, torch.autograd.grad(3 * expected, exact[0] + exact[1])):
        torch.testing.assert_close(ours.double().cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_gradients_of_the_samples():
    """dm = dw and dlog sigma = dw (w - m): the noise of the way back is the noise of the way there."""
    means, log_sigmas = parameters()
    samples, _ = sample_and_kl(means, log_sigmas)
    heads = [torch.randn_like(w) for w in samples]
    grads = torch.autograd.grad(samples, means + log_sigmas, heads)
    for k, (m, ls, w, head) in enumerate(zip(means, log_sigmas, samples, heads)):
        torch.testing.assert_close(grads[k], head, rtol=1e-6, atol=1e-6)
        scale = ls.detach().exp() + m.detach().abs()  # w - m loses the digits that m has more
        error = (grads[len(means) + k] - head * (w - m).detach()).abs() / (scale * head.abs()).clamp(min=1e-9)
        assert error.max() < 1e-5


def test_samples_and_gradients_begin_where_vectors_can_be_loaded():
    """At multiples of 16 bytes, whatever the sizes before: a matrix that begins elsewhere is multiplied slowly."""
    means, log_sigmas = parameters()
    samples, kl = sample_and_kl(means, log_sigmas)
    grads = torch.autograd.grad(kl + sum(w.sum() for w in samples), means + log_sigmas)
    assert [t.storage_offset() % 4 for t in (*samples, *grads)] == [0] * 3 * len(means)


def test_a_mean_of_zero_gives_no_nan():
    m = torch.zeros(5, device=DEVICE, requires_grad=True)
    ls = torch.full((5,), -3.0, device=DEVICE, requires_grad=True)
    _, kl = sample_and_kl([m], [ls])
    for grad in torch.autograd.grad(kl, [m, ls]):
        assert torch.equal(grad, torch.zeros_like(grad))
    torch.testing.assert_close(kl, torch.full((), 5 * -0.6698, device=DEVICE), rtol=1e-3, atol=0)


def test_the_noise_is_standard_normal():
    """Mean, variance, tails and independence, each within five standard errors."""
    torch.manual_seed(0)
    n = 2**12 if INTERPRETED else 2**21
    means = [torch.zeros(n, device=DEVICE) for _ in range(2)]
    log_sigmas = [torch.zeros(n, device=DEVICE) for _ in range(2)]
    (a, b), _ = sample_and_kl(means, log_sigmas)
    (c, _), _ = sample_and_kl(means, log_sigmas)
    for x in (a, b, c):
        assert abs(x.mean()) < 5 / math.sqrt(n)
        assert abs(x.var() - 1) < 5 * math.sqrt(2 / n)
        for limit in (1, 2, 3, 4):
            share = math.erfc(limit / math.sqrt(2))
            assert abs((x.abs() > limit).double().mean() - share) < 5 * math.sqrt(share / n) + 1 / n
    for x, y in ((a, b), (a, c), (a[:-1], a[1:]), (a[: n // 2], a[n // 2 :]), (a[:-256], a[256:])):
        assert abs((x * y).mean()) < 5 / math.sqrt(len(x))
        assert abs(((x.square() - 1) * (y.square() - 1)).mean()) < 10 / math.sqrt(len(x))


def test_the_seed_is_torchs():
    means, log_sigmas = parameters()

    def draw(seed):
        torch.manual_seed(seed)
        samples, kl = sample_and_kl(means, log_sigmas)
        return [*samples, kl]

    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[3], other[3])


def test_unused_samples_and_views_that_move():
    """A sample nobody uses has only its KL gradient; parameters at new addresses get a new table."""
    for seed in range(2):
        means, log_sigmas = parameters(seed)
        samples, kl = sample_and_kl(means, log_sigmas)
        grads = torch.autograd.grad(samples[0].sum() + kl, means)
        alone = torch.autograd.grad(sample_and_kl(means, log_sigmas)[1], means)
        torch.testing.assert_close(grads[0], alone[0] + 1)
        torch.testing.assert_close(grads[1:], alone[1:])


def test_what_it_cannot_read_is_refused():
    m = torch.zeros(4, 6, device=DEVICE).mT
    with pytest.raises(ValueError, match="contiguous"):
        sample_and_kl([m], [m])
