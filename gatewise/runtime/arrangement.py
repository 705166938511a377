"""Matrices and layers in the arrangement that kernels/gw.h states.

Arranging happens once, when a network is loaded or exported; no step moves a weight. The result does not
depend on the instruction set, so the arrays that the engine runs are the arrays that an export writes.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.runtime.rounding import Codes, Weights, Words, joined, narrows, quantize, rounded
from gatewise.sizes import BLOCK as BLOCK
from gatewise.sizes import MOST_COLUMNS, form_bytes
from gatewise.sizes import SLICE as SLICE

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bits = NDArray[np.uint16]

LAYOUT, PANEL = 8, 64  # GW_LAYOUT, GW_PANEL; GW_SLICE and GW_BLOCK are SLICE and BLOCK
Form = Literal["dense", "sparse", "masked"]
# Density below which gathering nonzeros beats streaming all weights, measured with AVX-512: in cache, and out of it.
SPARSE_BELOW_SMALL, SPARSE_BELOW_LARGE, LARGE_BYTES = 0.04, 0.1, 1 << 20
MASKED_BELOW = 0.5  # the same for bits and nonzeros; out of cache, and where one instruction expands them

HUGE_PAGE, LARGE_ARRAY = 1 << 21, 1 << 19  # bytes; fewer bytes are read fast enough from small pages

# Numbered as in gw.h; of a cell, how many gates it has.
CELLS, SQUASHES = {"LSTM": 4, "GRU": 3}, ("sigmoid", "hard_sigmoid")


def aligned(array: ArrayLike, dtype: type[np.generic]) -> NDArray[Any]:
    """A copy that begins at a multiple of 64 bytes: a vector that crosses a cache line costs two reads.

    A large one has huge pages of its own: a step reads all of it, which small pages slow down by 3 to 10 %.
    """
    source = np.ascontiguousarray(array, dtype)
    large = source.nbytes >= LARGE_ARRAY and hasattr(mmap, "MADV_HUGEPAGE")
    room = _huge_pages(source.nbytes + 2 * HUGE_PAGE) if large else np.empty(source.nbytes + 64, np.uint8)
    start = -room.ctypes.data % (HUGE_PAGE if large else 64)
    copy = room[start : start + source.nbytes].view(dtype).reshape(source.shape)
    copy[...] = source
    return copy


def _huge_pages(nbytes: int) -> NDArray[np.uint8]:
    """Fresh memory of whole pages; huge ones, if the system has some. A page is there once something was written."""
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


@dataclass(frozen=True)
class ArrangedMatrix:
    """A matrix (rows, cols): dense in panels of rows, sparse or masked in slices of rows. See `gw_matrix`.

    With a scale, `values` are bytes: the weights of row i are values * scale[i]. Words hold several columns each.
    """

    rows: int
    cols: int
    last: int  # dense: distance between columns of the last panel
    values: Floats | Codes | Words
    start: Ints | None = None
    column: Bits | None = None
    row: Ints | None = None
    scale: Floats | None = None  # (rows)

    @property
    def form(self) -> Form:
        return "dense" if self.start is None else "masked" if self.row is None else "sparse"

    @property
    def nbytes(self) -> int:
        arrays = (self.values, self.start, self.column, self.row, self.scale)
        return sum(a.nbytes for a in arrays if a is not None)


def arrange_matrix(
    w: ArrayLike,  # (rows, cols)
    form: Form | None = None,  # None: what is expected to be fastest
    tight: bool = False,  # the fewest bytes: none for alignment, and the form that takes the fewest
    int8: bool = False,  # bytes and one scale per row; not for single columns, which would grow
    expands: bool = False,  # the kernels spread values to the set bits of a word in one instruction
    weights: Weights = "float32",  # for the engine: columns joined in words; a sparse matrix holds rounded floats
) -> ArrangedMatrix:
    dense = np.asarray(w, np.float32)
    if dense.ndim != 2:
        raise ValueError(f"a matrix has two dimensions, not {dense.ndim}")
    if int8 and dense.shape[1] > 1:
        codes, scale = quantize(dense)
        arranged = arrange_matrix(codes, form or (_smallest(codes, 1) if tight else None), tight)
        return replace(arranged, values=aligned(arranged.values, np.int8), scale=aligned(scale, np.float32))
    if narrows(dense, weights):
        form = form or _fastest(dense, False, 1)
        if form == "dense":
            words, scales = joined(dense)
            arranged = _arrange_dense(words, tight)
            return replace(arranged, cols=dense.shape[1], scale=aligned(scales, np.float32))
        dense = rounded(dense, weights)
    if form is None:
        form = _smallest(dense, 4) if tight else _fastest(dense, expands)
    if form == "sparse" and dense.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"a sparse matrix has at most {MOST_COLUMNS} columns, not {dense.shape[1]}; arrange it in another form"
        )
    if form == "dense":
        return _arrange_dense(dense, tight)
    return _arrange_sparse(dense) if form == "sparse" else _arrange_masked(dense)


def _fastest(w: Floats, expands: bool, weight_bytes: int = 4) -> Form:
    entries, large = int(_slice_lengths(w)[1].sum()) * SLICE, w.size * weight_bytes > LARGE_BYTES
    below = (SPARSE_BELOW_LARGE if large else SPARSE_BELOW_SMALL) * weight_bytes / 4
    if entries < below * w.size and w.shape[1] <= MOST_COLUMNS:
        return "sparse"
    return "masked" if large and expands and np.count_nonzero(w) < MASKED_BELOW * w.size else "dense"


def _smallest(w: Floats | Codes, weight_bytes: int) -> Form:
    sizes = form_bytes((w != 0).sum(axis=1), w.shape[1], weight_bytes)
    return cast(Form, min(sizes, key=sizes.__getitem__))


def _arrange_dense(w: Floats | Words, tight: bool) -> ArrangedMatrix:
    rows, cols = w.shape
    full, rest = rows - rows % PANEL, rows % PANEL
    # Vectors that cross a cache line cost two reads, which is more than a padded column. But a large matrix comes
    # from a farther cache, where every byte counts.
    last = rest if tight or w.nbytes >= LARGE_ARRAY else -(-rest // SLICE) * SLICE
    tail = np.zeros((cols, last), w.dtype)
    tail[:, :rest] = w[full:].T
    panels = w[:full].reshape(full // PANEL, PANEL, cols).transpose(0, 2, 1)
    values = np.concatenate([panels.ravel(), tail.ravel(), np.zeros(SLICE, w.dtype)])
    return ArrangedMatrix(rows, cols, last or PANEL, aligned(values, w.dtype.type))


def _slice_lengths(w: Floats | Codes) -> tuple[Ints, NDArray[np.int64]]:
    """Rows, most nonzeros first, and the number of entries of each slice: that of its first row."""
    nonzeros = (w != 0).sum(axis=1)
    row = np.argsort(-nonzeros, kind="stable").astype(np.int32)
    return row, nonzeros[row[::SLICE]]


def _arrange_sparse(w: Floats) -> ArrangedMatrix:
    row, lengths = _slice_lengths(w)
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.zeros((start[-1], SLICE), np.float32)
    column = np.zeros((start[-1], SLICE), np.uint16)
    for i, r in enumerate(row):
        (columns,) = np.nonzero(w[r])
        entries = start[i // SLICE] + np.arange(len(columns))
        values[entries, i % SLICE] = w[r, columns]
        column[entries, i % SLICE] = columns
    return ArrangedMatrix(
        rows=w.shape[0],
        cols=w.shape[1],
        last=0,
        values=aligned(values, np.float32),
        start=aligned(start, np.int32),
        column=aligned(column, np.uint16),
        row=aligned(row, np.int32),
    )


def _arrange_masked(w: Floats) -> ArrangedMatrix:
    rows, cols = w.shape
    slices = -(-rows // SLICE)
    padded = np.zeros((slices * SLICE, cols), np.float32)
    padded[:rows] = w
    blocks = padded.reshape(slices, SLICE, cols).transpose(0, 2, 1)  # (S, cols, 16), the order in memory
    there = blocks != 0
    return ArrangedMatrix(
        rows=rows,
        cols=cols,
        last=0,
        values=aligned(blocks[there], np.float32),
        start=aligned(np.concatenate([[0], np.cumsum(there.sum(axis=(1, 2)))]), np.int32),
        column=aligned(
            (there.astype(np.uint32) << np.arange(SLICE, dtype=np.uint32)).sum(axis=-1), np.uint16
        ),
    )


@dataclass(frozen=True)
class ArrangedLayer:
    """One compact layer and direction: see `gw_layer`."""

    cell: str
    squash: str
    n_units: int
    gate_start: tuple[int, ...]
    w_ih: ArrangedMatrix
    w_hh: ArrangedMatrix
    w_hn: ArrangedMatrix
    bias: Floats
    bias_hn: Floats
    live: Bits
    fixed: Floats
    fixed_hn: Floats
    inputs: Ints | None = None
    reads: Ints | None = None
    scale: Floats | None = None
    table: Floats | Codes | None = field(default=None, repr=False)
    table_scale: Floats | None = None  # (V') of a table of bytes


def arrange_layer(
    cell: str,  # "LSTM" or "GRU"
    w_ih: ArrayLike,  # (R, n_in) rows of live gates
    w_hh: ArrayLike,  # (R, n_rec)
    slot: ArrayLike,  # (R) gate * K + neuron of each row, in any order
    bias: ArrayLike,  # (G, K) of live and constant gates; for the GRU's candidate b_in
    bias_hn: ArrayLike | None = None,  # (K) GRU: b_hn, default 0
    *,
    squash: str = "sigmoid",
    inputs: ArrayLike | None = None,  # (n_in) entries of x that are read; None: the first n_in
    reads: ArrayLike | None = None,  # (n_rec) neurons that are read recurrently; None: all
    scale: ArrayLike | None = None,  # (K) z_h; None: 1
    embedding: ArrayLike | None = None,  # (V', I) to fold into the layer: it then reads words, not vectors
    form: Form | None = None,
    tight: bool = False,
    int8: bool = False,
    weights: Weights = "float32",  # of the matrices, for the engine; a table stays as it is
) -> ArrangedLayer:
    """Sorts rows by gate and neuron, turns constant gates into numbers, and folds an embedding into a table

    table[word] = bias + w_ih embedding[word], one row read in place of lookup and product.
    """
    if cell not in CELLS or squash not in SQUASHES:
        raise ValueError(
            f"cell {cell!r} with {squash!r}: expected one of {tuple(CELLS)} with one of {SQUASHES}"
        )
    all_bias = np.asarray(bias, np.float32)
    n_gates, n_units = all_bias.shape
    order = np.argsort(np.asarray(slot, np.int64), kind="stable")
    sorted_slot = np.asarray(slot, np.int64)[order]
    w_in, w_rec = np.asarray(w_ih, np.float32), np.asarray(w_hh, np.float32)
    b_hn = np.zeros(n_units, np.float32) if bias_hn is None else np.asarray(bias_hn, np.float32)
    _check_layer(cell, n_gates, n_units, sorted_slot, w_in, w_rec, b_hn, inputs, reads, scale)
    w_in, w_rec = w_in[order], w_rec[order]

    is_live = np.zeros(n_gates * n_units, bool)
    is_live[sorted_slot] = True
    rows_bias = all_bias.ravel()[sorted_slot]
    start = np.searchsorted(sorted_slot, np.arange(4) * n_units)
    n_apart = len(sorted_slot) - start[2] if cell == "GRU" else 0  # rows whose recurrent half stays apart
    n_joint = len(sorted_slot) - n_apart
    which = slice(None) if inputs is None else np.asarray(inputs, np.int64)
    table: Floats | Codes | None = None
    table_scale: Floats | None = None
    if embedding is not None:
        vectors = np.asarray(embedding, np.float32)[:, which][:, : w_in.shape[1]]
        table, w_in, inputs = vectors @ w_in.T + rows_bias, w_in[:, :0], None
        if int8 and table.shape[1] > 1:
            table, table_scale = quantize(table)

    return ArrangedLayer(
        cell,
        squash,
        n_units,
        tuple(int(s) for s in start),
        w_ih=arrange_matrix(w_in, form, tight, int8, weights=weights),
        w_hh=arrange_matrix(w_rec[:n_joint], form, tight, int8, weights=weights),
        w_hn=arrange_matrix(w_rec[n_joint:], form, tight, int8, weights=weights),
        bias=aligned(rows_bias, np.float32),
        bias_hn=aligned(b_hn[sorted_slot[n_joint:] % max(n_units, 1)], np.float32),
        live=_bits(is_live.reshape(n_gates, n_units)),
        fixed=_padded(_constants(cell, squash, all_bias)),
        fixed_hn=_padded(b_hn),
        inputs=None if inputs is None else aligned(inputs, np.int32),
        reads=None if reads is None else aligned(reads, np.int32),
        scale=None if scale is None else aligned(scale, np.float32),
        table=None if table is None else aligned(table, np.float32 if table_scale is None else np.int8),
        table_scale=None if table_scale is None else aligned(table_scale, np.float32),
    )


def _check_layer(
    cell: str,
    n_gates: int,
    n_units: int,
    slot: NDArray[np.int64],
    w_ih: Floats,
    w_hh: Floats,
    b_hn: Floats,
    inputs: ArrayLike | None,
    reads: ArrayLike | None,
    scale: ArrayLike | None,
) -> None:
    """What the kernels take on trust: a wrong index there is a read outside an array."""
    rows = len(slot)
    if n_gates != CELLS[cell]:
        raise ValueError(f"bias: a {cell} has {CELLS[cell]} gates, not {n_gates}")
    if w_ih.shape[:1] != (rows,) or w_hh.shape[:1] != (rows,):
        raise ValueError(f"slot has {rows} rows, w_ih {len(w_ih)} and w_hh {len(w_hh)}: expected as many")
    if rows and (slot[0] < 0 or slot[-1] >= n_gates * n_units or (np.diff(slot) == 0).any()):
        raise ValueError(f"slot: expected different numbers from 0 to {n_gates * n_units - 1}")
    n_rec = n_units if reads is None else np.size(reads)
    if w_hh.shape[1] != n_rec:
        raise ValueError(f"w_hh has {w_hh.shape[1]} columns, but {n_rec} neurons are read")
    if reads is not None and n_rec and not 0 <= np.min(reads) <= np.max(reads) < n_units:
        raise ValueError(f"reads: expected neurons from 0 to {n_units - 1}")
    if inputs is not None and np.shape(inputs) != (w_ih.shape[1],):
        raise ValueError(f"w_ih has {w_ih.shape[1]} columns, but {np.size(inputs)} inputs are read")
    if b_hn.shape != (n_units,) or (scale is not None and np.shape(scale) != (n_units,)):
        raise ValueError(f"bias_hn and scale: expected one number for each of {n_units} neurons")


def _constants(cell: str, squash: str, bias: Floats) -> Floats:  # (G, K) -> (G, K)
    """act(bias); the GRU's candidate keeps its bias, because it follows r even without a row."""
    b = bias.astype(np.float64)
    value = 0.5 + 0.5 * np.tanh(b / 2) if squash == "sigmoid" else np.clip(0.2 * b + 0.5, 0, 1)
    value[2] = np.tanh(b[2]) if cell == "LSTM" else b[2]
    return value.astype(np.float32)


def _padded(a: Floats) -> Floats:  # (..., K) -> (..., P)
    width = -(-a.shape[-1] // BLOCK) * BLOCK
    out = np.zeros((*a.shape[:-1], width), np.float32)
    out[..., : a.shape[-1]] = a
    return aligned(out, np.float32)


def _bits(live: NDArray[np.bool_]) -> Bits:  # (G, K) -> (G, P / 16)
    padded = _padded(live.astype(np.float32))
    words = padded.reshape(len(live), padded.shape[1] // BLOCK, BLOCK).astype(np.uint32)
    return aligned((words << np.arange(BLOCK, dtype=np.uint32)).sum(axis=-1), np.uint16)
