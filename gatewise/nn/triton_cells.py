"""The equations of LSTM and GRU and their gradients, as functions that Triton kernels call.

Both cells are written over four slots, each a product with its own scale and bias:

    s_k = p_k * z_k + b_k           LSTM: i, f, g, o          GRU: n (input half), r, u, n (recurrent half)

With G gates the first G slots have an input product and the last G a recurrent one: all four in the LSTM; in
the GRU the candidate n has its two halves apart, because r multiplies one of them.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

N_SLOTS = 4


@triton.jit
def squash(x, HARD: tl.constexpr):
    """sigmoid(x), or clip(0.2 x + 0.5, 0, 1)."""
    if HARD:
        y = 0.2 * x + 0.5
        y = tl.where(y > 1, 1.0, tl.where(y < 0, 0.0, y))  # minimum and maximum would swallow NaN
    else:
        y = tl.sigmoid(x)
    return y


@triton.jit
def squash_slope(x, y, HARD: tl.constexpr):  # y = squash(x)
    if HARD:
        line = 0.2 * x + 0.5
        slope = tl.where((line < 0) | (line > 1), 0.0, 0.2)
    else:
        slope = y * (1 - y)
    return slope


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def cell_forward(s0, s1, s2, s3, h, c, z_h, GRU: tl.constexpr, HARD: tl.constexpr):
    """LSTM:  c' = f c + i g,   h' = o tanh(c') z_h.        GRU:  h' = u h + (1 - u) n z_h,   c' = c."""
    if GRU:
        r = squash(s1, HARD)
        u = squash(s2, HARD)
        n = tanh(s0 + r * s3)
        h_new = u * h + (1 - u) * n * z_h
        c_new = c
    else:
        c_new = squash(s1, HARD) * c + squash(s0, HARD) * tanh(s2)
        h_new = squash(s3, HARD) * tanh(c_new) * z_h
    return h_new, c_new


@triton.jit
def cell_backward(s0, s1, s2, s3, h, c, z_h, dh, dc, GRU: tl.constexpr, HARD: tl.constexpr):
    """Gradients of `cell_forward`, whose values are computed again from the slots.

    Returns those of the four slots, of h (without the way through the recurrent products), of c and of z_h.
    """
    if GRU:
        r = squash(s1, HARD)
        u = squash(s2, HARD)
        n = tanh(s0 + r * s3)
        d0 = dh * (1 - u) * z_h * (1 - n * n)
        d1 = d0 * s3 * squash_slope(s1, r, HARD)
        d2 = dh * (h - n * z_h) * squash_slope(s2, u, HARD)
        d3 = d0 * r
        dz_h = dh * (1 - u) * n
        dh_direct = dh * u
        dc_before = dc
    else:
        i = squash(s0, HARD)
        f = squash(s1, HARD)
        g = tanh(s2)
        o = squash(s3, HARD)
        out = tanh(f * c + i * g)
        dc_new = dc + dh * o * z_h * (1 - out * out)
        d0 = dc_new * g * squash_slope(s0, i, HARD)
        d1 = dc_new * c * squash_slope(s1, f, HARD)
        d2 = dc_new * i * (1 - g * g)
        d3 = dh * out * z_h * squash_slope(s3, o, HARD)
        dz_h = dh * o * out
        dh_direct = tl.zeros_like(dh)
        dc_before = dc_new * f
    return d0, d1, d2, d3, dh_direct, dc_before, dz_h
