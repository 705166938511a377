"""Rivals that look at the processor for themselves are kept to AVX2 by benchmarks/avx2_alone.py."""

import ctypes
import platform
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SOURCE = r"""
unsigned answer(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low & 255;
}
unsigned alike(void) {
    unsigned number;
    __asm__ volatile("movl $0x00d0010f, %0" : "=r"(number));
    return number;
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="XGETBV is an instruction of x86")
@pytest.mark.skipif(
    not all(map(shutil.which, ("cc", "objdump", "readelf"))), reason="needs binutils and a C compiler"
)
def test_a_library_sees_no_avx512_and_is_otherwise_unchanged(tmp_path):
    """XGETBV says that registers of AVX2 are saved, and no more; its bytes inside another instruction stay."""
    without_avx512 = runpy.run_path(str(BENCHMARKS / "avx2_alone.py"))["without_avx512"]
    (tmp_path / "library.c").write_text(SOURCE)
    library = tmp_path / "library.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "library.c"), "-o", str(library)], check=True)
    before = library.read_bytes()
    assert before.count(b"\x0f\x01\xd0") == 2
    assert without_avx512(library) == 1
    after = library.read_bytes()
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 3
    found = ctypes.CDLL(str(library))
    assert found.answer() == 7
    assert found.alike() == 0x00D0010F
