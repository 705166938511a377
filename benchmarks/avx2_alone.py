"""Runs a benchmark as on a machine that has AVX2 and no AVX-512.

    python benchmarks/avx2_alone.py benchmarks/inference.py --logistic ...

Our kernels, torch and oneDNN can be told by a variable. ONNX Runtime, OpenVINO, MNN and ncnn look for themselves: a
library may use AVX-512 if the processor has it and the operating system saves its registers, and the second question
is the instruction XGETBV, whose answer has bits 5 to 7 for AVX-512. So the benchmark imports copies of those packages
in which every XGETBV is another instruction of three bytes that leaves the answer 7: the registers of AVX2 and no
more. What is installed stays as it is. C that a rival writes is compiled for AVX2; see rivals.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

PACKAGES = ("onnxruntime", "openvino", "MNN", "ncnn")
VARIABLES = {
    "GATEWISE_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
XGETBV = b"\x0f\x01\xd0"
# mov al, 7; nop. Bits from 8 on, which no test for AVX-512 reads, stay what they were; no memory is touched.
SEVEN = b"\xb0\x07\x90"


def without_avx512(library: Path) -> int:
    """Replaces every XGETBV of a shared library, in place, and returns how many there were.

    The same three bytes also occur inside other instructions and in tables: a disassembler says which are real.
    """
    code = bytearray(library.read_bytes())
    if XGETBV not in code:
        return 0
    listing = said("objdump", "-d", "-w", "--no-show-raw-insn", str(library))
    addresses = [int(at, 16) for at in re.findall(r"^\s*([0-9a-f]+):\s+xgetbv", listing, re.M)]
    for address in addresses:
        at = offset_in_file(library, address)
        assert code[at : at + 3] == XGETBV, f"{library.name}: no XGETBV at {address:#x}"
        code[at : at + 3] = SEVEN
    library.write_bytes(code)
    return len(addresses)


def offset_in_file(library: Path, address: int) -> int:
    for line in re.findall(r"^\s*LOAD\s+(.*)", said("readelf", "-lW", str(library)), re.M):
        offset, begin, _, size = (int(number, 16) for number in line.split()[:4])
        if begin <= address < begin + size:
            return offset + address - begin
    raise ValueError(f"{library.name}: {address:#x} is in no segment.")


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def copy_package(name: str, folder: Path) -> int:
    """Copies an installed package into `folder`; how many XGETBV were replaced there, 0 if it is not installed."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return 0
    replaced = 0
    for file in files:
        source, target = Path(str(file.locate())), folder / file
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue  # commands, and what Python makes anew
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if ".so" in file.name:
            replaced += without_avx512(target)
    return replaced


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        for name in PACKAGES:
            print(f"{name}: {copy_package(name, Path(folder))} XGETBV replaced", flush=True)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, **VARIABLES, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], env=variables).returncode)


if __name__ == "__main__":
    main()
