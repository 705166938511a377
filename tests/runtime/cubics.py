"""gatewise/runtime/kernels/cubics.h: tanh(t / 8) as a cubic on every interval k <= |t| < k + 1.

python tests/runtime/cubics.py        writes it
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HEADER = Path(__file__).parents[2] / "gatewise" / "runtime" / "kernels" / "cubics.h"
MIDDLE = 64
FRAME = """\
/* tanh(t / 8) = a0 + a1 t + a2 t^2 + a3 t^3 on every interval k <= |t| < k + 1, from t = -64 to 63: 2 kB of flash.
 * Written by tests/runtime/cubics.py. */
#ifndef GW_CUBICS_H
#define GW_CUBICS_H

enum { GW_CUBICS_MIDDLE = %d };

static const float gw_cubics[][4] = {
%s
};

#endif
"""


def cubic(k: int) -> NDArray[np.float64]:  # a0 .. a3
    """Equal to tanh(t / 8) at the zeros of a Chebyshev polynomial, which leaves an error that is nearly the least."""
    if k == 0:  # -1 < t < 1; odd, so that it is 0 at 0
        t = np.cos(np.array([1, 3]) * np.pi / 10)
        a1, a3 = np.linalg.solve(np.stack([t, t**3], 1), np.tanh(t / 8))
        return np.array([0, a1, 0, a3])
    if abs(k) >= MIDDLE - 1:
        return np.array([np.sign(k), 0, 0, 0])
    t = abs(k) + 0.5 + 0.5 * np.cos((np.arange(4) + 0.5) * np.pi / 4)
    a = np.polynomial.Polynomial.fit(t, np.tanh(t / 8), 3).convert().coef
    return np.array(a * (np.sign(k), 1, np.sign(k), 1))


def table() -> NDArray[np.float32]:  # (128, 4)
    return np.float32([cubic(k) for k in range(-MIDDLE, MIDDLE)])


def text() -> str:
    rows = [", ".join(f"{np.format_float_scientific(a, 8, False)}f" for a in row) for row in table()]
    return FRAME % (MIDDLE, "\n".join(f"    {{{row}}}," for row in rows))


if __name__ == "__main__":
    HEADER.write_text(text())
