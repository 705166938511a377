"""The kernels from Python: arranged networks laid out as the structs of kernels/network.h, and a call that runs them.

The compiled module is loaded on first use, so that everything but the engine works without it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Sequence
from functools import cache
from numbers import Integral
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gatewise.runtime.arrangement import (
    BLOCK,
    CELLS,
    LAYOUT,
    SQUASHES,
    ArrangedLayer,
    ArrangedMatrix,
    aligned,
)
from gatewise.runtime.chained import POOLS

Floats = NDArray[np.float32]
FINAL = ("", "last_state", *POOLS)  # as in network.h


class NativeLibraryError(ImportError):
    """The C kernels were not built."""


class _Matrix(ctypes.Structure):
    """gw_matrix"""

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in ("rows", "cols", "last")),
        *(
            (name, ctypes.c_void_p)
            for name in ("values", "codes", "scale", "start", "column", "row", "joined")
        ),
    ]


class _Layer(ctypes.Structure):
    """gw_layer"""

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in ("cell", "squash", "n_units")),
        ("gate_start", ctypes.c_int32 * 4),
        *((name, ctypes.c_void_p) for name in ("inputs", "reads")),
        *((name, _Matrix) for name in ("w_ih", "w_hh", "w_hn")),
        *(
            (name, ctypes.c_void_p)
            for name in ("bias", "bias_hn", "live", "fixed", "fixed_hn", "scale", "table", "table_codes")
        ),
        ("table_scale", ctypes.c_void_p),
    ]


class _Kernels(ctypes.Structure):
    """gw_kernels, as far as Python calls it"""

    _fields_: ClassVar = [
        ("isa", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("product", "product_scratch", "layer_ahead", "layer_run")),
        ("layer_scratch", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
        ("softmax", ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)),
        (
            "layer_norm",
            ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p),
        ),
        ("map", ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)),
    ]


class _Network(ctypes.Structure):
    """gw_network"""

    _fields_: ClassVar = [
        ("kernels", ctypes.POINTER(_Kernels)),
        *((name, ctypes.c_int32) for name in ("n_in", "n_words")),
        *((name, ctypes.c_void_p) for name in ("remap", "embedding")),
        *((name, ctypes.c_int32) for name in ("n_levels", "n_directions")),
        ("layers", ctypes.POINTER(_Layer)),
        *((name, ctypes.c_int32) for name in ("final", "has_head", "softmax")),
        ("head", _Matrix),
        ("head_bias", ctypes.c_void_p),
    ]


def native() -> ModuleType:
    """The compiled module.

    Raises:
        NativeLibraryError: it was not built, or from other headers than this file knows.
    """
    try:
        module = importlib.import_module("gatewise.runtime._native")
    except ImportError as error:
        raise NativeLibraryError(
            f"the C kernels of gatewise are not built ({error}). They need a C compiler (gcc or clang), CMake and "
            "the Python headers; with these in place run `pip install --force-reinstall --no-deps gatewise`, or "
            "`pip install -e .` in a source tree. Training and compression work without them."
        ) from error
    expected = (LAYOUT, ctypes.sizeof(_Layer), ctypes.sizeof(_Network))
    if expected != tuple(getattr(module, name, 0) for name in ("LAYOUT", "LAYER_BYTES", "NETWORK_BYTES")):
        raise NativeLibraryError(
            "the C kernels were built from another version of gatewise: install it again"
        )
    return module


def check_threads(threads: int) -> None:
    if not isinstance(threads, Integral) or isinstance(threads, bool) or threads < 1:
        raise ValueError(f"threads={threads!r} must be a whole number from 1 on.")


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(native().__file__)


@cache
def kernels() -> dict[str, Any]:
    """Instruction sets that this machine can run, fastest first, with their tables."""
    at = library().gw_kernels_at
    at.restype = ctypes.POINTER(_Kernels)
    tables: dict[str, Any] = {}
    while table := at(len(tables)):
        tables[table.contents.isa.decode()] = table
    return tables


def kernels_of(isa: str | None) -> Any:
    """The table of an instruction set; without a name, of that in GATEWISE_ISA, or of the fastest."""
    isa, tables = isa or os.environ.get("GATEWISE_ISA") or None, kernels()
    if isa is not None and isa not in tables:
        raise ValueError(f"this machine cannot run {isa!r}: expected one of {tuple(tables)}")
    return tables[isa or next(iter(tables))]


def expands() -> bool:
    """Whether this machine takes the masked form well: with AVX-512 of Intel, which spreads values to set bits in few
    cycles. On AMD's a step of the word model is twice as fast with its zeros."""
    return bool(library().gw_expands_well()) and kernels_of(None).contents.isa in (b"vnni", b"avx512")


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _floats_or_codes(
    array: NDArray[Any] | None, scale: Floats | None
) -> tuple[int | None, int | None, int | None]:
    if scale is None:
        return _address(array), None, None
    return None, _address(array), _address(scale)


def _matrix(m: ArrangedMatrix) -> _Matrix:
    sparse = map(_address, (m.start, m.column, m.row))
    if m.values.dtype == np.uint32:
        return _Matrix(m.rows, m.cols, m.last, None, None, _address(m.scale), *sparse, _address(m.values))
    return _Matrix(m.rows, m.cols, m.last, *_floats_or_codes(m.values, m.scale), *sparse)


def _layer(p: ArrangedLayer) -> _Layer:
    return _Layer(
        tuple(CELLS).index(p.cell),
        SQUASHES.index(p.squash),
        p.n_units,
        (ctypes.c_int32 * 4)(*p.gate_start),
        *map(_address, (p.inputs, p.reads)),
        *map(_matrix, (p.w_ih, p.w_hh, p.w_hn)),
        *map(_address, (p.bias, p.bias_hn, p.live, p.fixed, p.fixed_hn, p.scale)),
        *_floats_or_codes(p.table, p.table_scale),
    )


class Network:
    """A chain of embedding, recurrent levels and linear head, ready to run.

    `run(x, state, y, steps, batch, batch_first, lengths, threads)` is the compiled function itself: x float32
    (T, B, n_in) or int64 ids (T, B), y float32 (T, B, width) or (B, width) if `final`, batch_first swaps T and B;
    state float32 (batch * state_size), read and overwritten; lengths int32 (B) or None. Arrays are anything with a
    buffer, or addresses, of which nothing is checked. Calls with different states may run at the same time.
    `step(x, how)` is one step with less around it, see bindings.c.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[ArrangedLayer]],  # one or two directions each
        n_in: int,  # width of x, or of the embedding
        *,
        n_words: int = 0,  # V; 0: the network reads vectors
        remap: NDArray[np.int32] | None = None,  # (V) row of embedding or table, -1: removed; None: all there
        embedding: Floats | None = None,  # (V', n_in); None with n_words: folded into the first level
        head: tuple[ArrangedMatrix, Floats] | None = None,  # (O, width), (O)
        softmax: bool = False,
        final: str = "",  # one output for a sequence: one of FINAL, of the top level
        isa: str | None = None,  # None: the fastest
    ) -> None:
        self.levels = [list(level) for level in levels]
        _check_chain(self.levels, n_in, n_words, remap, embedding, head)
        flat = [layer for level in self.levels for layer in level]
        layers = (_Layer * len(flat))(*map(_layer, flat))
        rows = None if remap is None else aligned(remap, np.int32)
        vectors = None if embedding is None else aligned(embedding, np.float32)
        bias = None if head is None else aligned(head[1], np.float32)
        struct = _Network(
            kernels_of(isa),
            n_in,
            n_words,
            *map(_address, (rows, vectors)),
            len(self.levels),
            len(self.levels[0]),
            layers,
            FINAL.index(final),
            head is not None,
            softmax,
            _Matrix() if head is None else _matrix(head[0]),
            _address(bias),
        )
        compiled = native().Network(ctypes.addressof(struct))
        self.run, self.step = compiled.run, compiled.step
        self.state_size: int = compiled.state_size
        self.width: int = compiled.width
        self._keep = (struct, layers, flat, rows, vectors, bias, head)  # `compiled` points into these

    def zero_state(self, batch: int) -> Floats:
        return aligned(np.zeros(batch * self.state_size, np.float32), np.float32)

    def states(self, state: NDArray[Any], batch: int) -> list[list[NDArray[Any]]]:
        """Views (B, K) into a state: [s] or [s, c] of every layer and direction in turn; h = s * scale."""
        views, at = [], 0
        for layer in (layer for level in self.levels for layer in level):
            padded = -(-layer.n_units // BLOCK) * BLOCK
            parts = []
            for _ in range(2 if layer.cell == "LSTM" else 1):
                parts.append(state[at : at + batch * padded].reshape(batch, padded)[:, : layer.n_units])
                at += batch * padded
            views.append(parts)
        return views


def _check_chain(
    levels: list[list[ArrangedLayer]],
    n_in: int,
    n_words: int,
    remap: NDArray[np.int32] | None,
    embedding: Floats | None,
    head: tuple[ArrangedMatrix, Floats] | None,
) -> None:
    """What the kernels take on trust: that every index stays inside the array it points into."""
    if not levels or len({len(level) for level in levels}) != 1 or len(levels[0]) not in (1, 2):
        raise ValueError("levels: expected at least one, all with one direction or all with two")
    table = embedding if embedding is not None else levels[0][0].table
    if n_words:
        if table is None or (embedding is None and any(layer.table is None for layer in levels[0])):
            raise ValueError("words need an embedding, or one folded into every layer of the first level")
        rows = np.arange(n_words) if remap is None else remap
        if len(rows) != n_words or rows.max(initial=-1) >= len(table) or rows.min(initial=0) < -1:
            raise ValueError(f"remap: expected {n_words} rows from -1 to {len(table) - 1}")
        if any(t is not None and len(t) != len(table) for t in (layer.table for layer in levels[0])):
            raise ValueError("the tables of the two directions do not have as many rows")
    if embedding is not None and embedding.shape[1] != n_in:
        raise ValueError(f"embedding: expected {n_in} columns, got {embedding.shape[1]}")
    width = n_in
    for i, level in enumerate(levels):
        for layer in level:
            if layer.table is not None and (i > 0 or not n_words or embedding is not None):
                raise ValueError(f"level {i} reads vectors, but its embedding is folded into a table")
            highest = layer.w_ih.cols if layer.inputs is None else int(layer.inputs.max(initial=-1)) + 1
            if highest > width or (layer.inputs is not None and layer.inputs.min(initial=0) < 0):
                raise ValueError(f"level {i} reads entry {highest - 1} of an input of {width}")
        width = sum(layer.n_units for layer in level)
    if head is not None and (head[0].cols != width or len(head[1]) != head[0].rows):
        raise ValueError(
            f"head: expected {width} columns and {head[0].rows} biases, got {head[0].cols}, {len(head[1])}"
        )


def softmax(y: Floats, isa: str | None = None) -> None:  # (..., n), in place
    kernels_of(isa).contents.softmax(y.size // max(y.shape[-1], 1), y.shape[-1], y.ctypes.data)


def layer_norm(y: Floats, eps: float, isa: str | None = None) -> None:  # (..., n), in place
    kernels_of(isa).contents.layer_norm(y.size // max(y.shape[-1], 1), y.shape[-1], eps, y.ctypes.data)


def _check_memory(name: str, array: Any, dtype: type[np.generic], items: int) -> None:
    """What Network.run checks of a buffer; a kernel that is called by address trusts it."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.c_contiguous:
        kind = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name}: expected {dtype.__name__} in one piece, got {kind}")
    if array.size != items:
        raise ValueError(f"{name}: expected {items} items, got {array.size}")


@cache
def _pool_kernel() -> Any:
    kernel = library().gw_pool
    pointer, stride = ctypes.c_void_p, ctypes.c_ssize_t
    kernel.argtypes = (*[ctypes.c_int32] * 4, pointer, stride, stride, pointer, pointer, pointer, stride)
    kernel.restype = None
    return kernel


def pool(
    name: str,  # one of POOLS
    x: Floats,  # (T, B, C), or with batch_first (B, T, C)
    state: Floats,  # (B * (1 + C)), read and overwritten
    y: Floats,  # (B, C)
    steps: int,
    batch_first: bool = False,
    lengths: NDArray[np.int32] | None = None,  # (B)
) -> None:
    """Mean, maximum or sum over the steps of every sequence, and over those of earlier calls, as in network.h."""
    batch, width = y.shape
    _check_memory("x", x, np.float32, steps * batch * width)
    _check_memory("state", state, np.float32, batch * (1 + width))
    if lengths is not None:
        _check_memory("lengths", lengths, np.int32, batch)
    strides = (width, steps * width) if batch_first else (batch * width, width)
    memory = map(_address, (lengths, state, y))
    _pool_kernel()(FINAL.index(name), steps, batch, width, _address(x), *strides, *memory, width)
