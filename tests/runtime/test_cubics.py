"""tanh and sigmoid by a table of cubics, as a Cortex-M has them: compiled for this machine, and run by QEMU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cubics import HEADER, MIDDLE, table

CUBICS, SINGLE = "-DGW_CUBICS", "-DGW_LANES=1"
BOUNDS = {"sigmoid": 2.5e-7, "tanh": 4e-7}


def test_table_is_what_its_script_computes() -> None:
    """By what each term adds to tanh: where that is 1 but for 1e-7, the last digits of a fit are the machine's."""
    found = re.findall(r"[-\d.]+e[-+]\d+(?=f)", HEADER.read_text())
    largest = np.abs(np.arange(-MIDDLE, MIDDLE))[:, None] + 1.0  # |t| of each interval
    powers = largest ** np.arange(4)
    np.testing.assert_allclose(
        np.float32(found).reshape(-1, 4) * powers, table() * powers, rtol=1e-6, atol=1e-8
    )


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize(("function", "code"), [("sigmoid", 0), ("tanh", 2)])
def test_cubics_keep_their_error_bound(function: str, code: int, tmp_path: Path) -> None:
    """Far below the 1e-5 that outputs may be off, on a fine grid and at the ends of intervals; NaN stays NaN."""
    library = tmp_path / "cubics.so"
    flags = f"-std=c99 -O2 -ffp-contract=fast -shared -fPIC {CUBICS} {SINGLE}".split()
    subprocess.run(
        ["gcc", *flags, HEADER.with_name("gw.c"), HEADER.with_name("words.c"), "-o", library], check=True
    )
    ends = np.float32(np.arange(-70, 70) / (4 if function == "sigmoid" else 8))
    x = np.concatenate(
        [[0, 1e-40, 1e37, -1e37], np.linspace(-20, 20, 800_001), ends, np.nextafter(ends, np.float32(-99))]
    ).astype(np.float32)
    y = np.empty_like(x)
    apply = ctypes.CDLL(str(library)).gw_map
    apply(code, ctypes.c_size_t(len(x)), ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data))
    t = np.tanh(x.astype(np.float64) / (2 if function == "sigmoid" else 1))
    assert np.abs(y - (0.5 + 0.5 * t if function == "sigmoid" else t)).max() < BOUNDS[function]
    assert y[0] == (0.5 if function == "sigmoid" else 0)
    x[:2] = np.nan
    apply(code, ctypes.c_size_t(2), ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data))
    assert np.isnan(y[:2]).all()
