"""Numbers on their way into C: literals, the checksum of a weight file, and the scratch memory of a layer."""

from __future__ import annotations

import ctypes
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from compiled import VARIETY, run, variety

from gatewise.export.carrays import Arrays, literal
from gatewise.export.cmodel import layer_scratch, pack
from gatewise.runtime.bindings import _layer
from gatewise.runtime.narrow import Level, narrow_chain


@pytest.mark.parametrize("value", [0.0, -3.0, 1e10, 2.0**-30, 1e-45, 0.1, 1 / 3, 3.4028235e38])
def test_a_literal_is_its_float(value: float) -> None:
    """A number of C, which must have a point or an exponent before its f, and all digits of a float32."""
    text = literal(float(np.float32(value)))
    assert re.fullmatch(r"-?(\d+\.\d+(e[-+]\d+)?|\d+e[-+]\d+)f", text)
    assert np.float32(text[:-1]) == np.float32(value)


def test_the_checksum_is_of_every_byte() -> None:
    content = Arrays({"a": np.arange(5000, dtype=np.int32), "b": np.ones(3, np.int8)}).file()
    assert np.frombuffer(content, "<u4", 4)[2:].tolist() == [len(content), zlib.crc32(content[64:])]


def test_scratch_is_what_the_kernels_ask_for(kernels: list[Path], tmp_path: Path) -> None:
    run("gcc", "-shared", "-o", tmp_path / "gw.so", *kernels, "-lm")
    ask = ctypes.CDLL(str(tmp_path / "gw.so")).gw_layer_scratch
    ask.restype = ctypes.c_size_t
    for k in range(len(VARIETY)):
        for int8 in (False, True):
            for link in narrow_chain(variety(k).small).links:
                for r in link.directions if isinstance(link, Level) else ():
                    packed = pack(link, r, None, tight=True, int8=int8)
                    for steps in (1, 3, 4, 95, 96, 97, 500):
                        assert layer_scratch(packed, steps) == ask(ctypes.byref(_layer(packed)), steps, 1)
