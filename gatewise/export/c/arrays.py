"""Constant arrays as C: declarations in a source file, or places in one checked weight file."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES, ALIGNMENT, MAGIC, VERSION = 64, 64, 0x57574731, 1  # of the weight file; "1GWW"
C_TYPES = {
    "float32": "float",
    "int32": "int32_t",
    "uint16": "uint16_t",
    "int16": "int16_t",
    "int8": "int8_t",
}
PER_LINE = {"float32": 8, "int32": 16, "uint16": 16, "int16": 16, "int8": 24}


@dataclass
class Arrays:
    """Every constant array by its name."""

    found: dict[str, NDArray[Any]] = field(default_factory=dict)

    def add(self, name: str, array: NDArray[Any], finite: bool = True) -> str:
        if finite and not np.isfinite(array).all():
            raise ValueError(
                f"A constant of the C source would be {array[~np.isfinite(array)][0]}: weights this large overflow "
                "when folded. Scale them down, or use fold_embedding=False."
            )
        self.found[name] = array.reshape(-1) if array.size else np.zeros(1, array.dtype)
        return name

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.found.values())

    def offsets(self) -> dict[str, int]:
        """Where each array begins in the weight file."""
        at, places = HEADER_BYTES, {}
        for name, array in self.found.items():
            places[name] = at
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return places

    def declarations(self) -> str:
        return "".join(declaration(f"static const {{}} {name}", a) for name, a in self.found.items())

    def macros(self) -> str:
        return "".join(
            f"#define {name} ((const {C_TYPES[self.found[name].dtype.name]} *)(const void *)(weights + {at}))\n"
            for name, at in self.offsets().items()
        )

    def file(self) -> bytes:
        """Header of four little-endian words (magic, version, bytes in all, CRC-32 of the rest), then the arrays."""
        body = b"".join(
            array.astype(array.dtype.newbyteorder("<"))
            .tobytes()
            .ljust(-(-array.nbytes // ALIGNMENT) * ALIGNMENT, b"\0")
            for array in self.found.values()
        )
        words = np.array([MAGIC, VERSION, HEADER_BYTES + len(body), zlib.crc32(body)], "<u4")
        return words.tobytes().ljust(HEADER_BYTES, b"\0") + body


def declaration(head: str, array: NDArray[Any]) -> str:
    """`head` with a type in its braces, as an initialised array."""
    kind = array.dtype.name
    numbers = [literal(v) for v in array.tolist()] if kind == "float32" else list(map(str, array.tolist()))
    step = PER_LINE[kind]
    lines = ("    " + ", ".join(numbers[k : k + step]) for k in range(0, len(numbers), step))
    return f"{head.format(C_TYPES[kind])}[{len(array)}] = {{\n" + ",\n".join(lines) + "};\n\n"


def literal(value: float) -> str:
    """Nine digits name a float32 exactly."""
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    digits = f"{value:.9g}"
    return digits + ("f" if "." in digits or "e" in digits else ".0f")
