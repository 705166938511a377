"""Numbers on their way into C: literals, the checksum of a weight file, and the scratch memory of a layer."""

from __future__ import annotations

import ctypes
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled import VARIETY, run, variety
from networks import tagger
from torch import nn

import gatewise as gw
from gatewise.export.c.arrays import Arrays, literal
from gatewise.export.c.golden_program import GoldenProgram, chosen
from gatewise.export.c.structs import LAYER_BYTES, MATRIX_BYTES, layer_scratch
from gatewise.program.ways import programs
from gatewise.runtime.bindings import _layer
from gatewise.runtime.narrow import Level, narrow_chain
from gatewise.runtime.stages import arrange


@pytest.mark.parametrize("value", [0.0, -3.0, 1e10, 2.0**-30, 1e-45, 0.1, 1 / 3, 3.4028235e38])
def test_a_literal_is_its_float(value: float) -> None:
    """A number of C, which must have a point or an exponent before its f, and all digits of a float32."""
    text = literal(float(np.float32(value)))
    assert re.fullmatch(r"-?(\d+\.\d+(e[-+]\d+)?|\d+e[-+]\d+)f", text)
    assert np.float32(text[:-1]) == np.float32(value)


def test_golden_words_are_not_all_removed_ones() -> None:
    """Of a vocabulary with few kept words a draw would show the bias and little else."""
    emb = nn.Embedding(5000, 3)
    with torch.no_grad():
        emb.weight[20:] = 0
    small = gw.compress(tagger(nn.LSTM(3, 2), emb=emb))
    program = chosen(programs(small), small, None)
    (words,) = (given.reshape(-1) for given in GoldenProgram(program, small, 12).inputs.values())
    assert (words[::2] < 20).all()
    assert (words[1::2] >= 20).any()


def test_the_checksum_is_of_every_byte() -> None:
    content = Arrays({"a": np.arange(5000, dtype=np.int32), "b": np.ones(3, np.int8)}).file()
    assert np.frombuffer(content, "<u4", 4)[2:].tolist() == [len(content), zlib.crc32(content[64:])]


@pytest.mark.parametrize("k", range(len(VARIETY)))
def test_flash_is_every_constant_of_the_source(k: int, tmp_path: Path) -> None:
    """Arrays and the structs that point to them, of pointers of 4 bytes; in a weight file or not."""
    sizes = {"float": 4, "int32_t": 4, "uint16_t": 2, "int16_t": 2, "int8_t": 1}
    sizes |= {"gw_layer": LAYER_BYTES, "gw_matrix": MATRIX_BYTES}
    small, options = variety(k).small, {"weights": ("float32", "int8")[k % 2]}
    report = gw.export.to_c(small, tmp_path / "m", **options)
    source = (tmp_path / "m" / "model.c").read_text()
    found = re.findall(r"^static const (\w+) \w+(?:\[(\d+)\])? = ", source, re.M)
    assert report.flash_bytes == sum(sizes[kind] * int(n or 1) for kind, n in found)
    assert gw.export.to_c(small, tmp_path / "m", file_above=0, **options).flash_bytes == report.flash_bytes


def test_scratch_is_what_the_kernels_ask_for(kernels: list[Path], tmp_path: Path) -> None:
    run("gcc", "-shared", "-o", tmp_path / "gw.so", *kernels, "-lm")
    ask = ctypes.CDLL(str(tmp_path / "gw.so")).gw_layer_scratch
    ask.restype = ctypes.c_size_t
    for k in range(len(VARIETY)):
        for int8 in (False, True):
            for link in narrow_chain(variety(k).small).links:
                for r in link.directions if isinstance(link, Level) else ():
                    arranged = arrange(link, r, None, tight=True, int8=int8)
                    for steps in (1, 3, 4, 95, 96, 97, 500):
                        assert layer_scratch(arranged, steps) == ask(ctypes.byref(_layer(arranged)), steps, 1)
