"""What group lasso needs of all its matrices at once: sums over rows and columns, a gradient, a threshold."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ROWS, TILE_COLS = 32, 128
PARTS, OUTPUTS = 32, 64  # of one program that adds up

Shape = tuple[int, int, int]  # address, rows, columns


@triton.jit
def tile_of(table, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """One row of the tile table, as the matrix's address, the tile's rows and columns, and the rest of it."""
    row = table + tl.program_id(0) * 8
    matrix = tl.load(row).to(tl.pointer_type(tl.float32))
    rows = tl.load(row + 1)
    cols = tl.load(row + 2)
    r = tl.load(row + 3) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    c = tl.load(row + 4) * TILE_COLS + tl.arange(0, TILE_COLS)
    ok = (r < rows)[:, None] & (c < cols)[None, :]
    return matrix, rows, cols, r, c, ok, row + 5


@triton.jit
def stats_kernel(table, partial, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """What one tile adds to the sums of w^2 of its rows and columns and to the sum of |w| of its matrix."""
    matrix, rows, cols, r, c, ok, places = tile_of(table, TILE_ROWS, TILE_COLS)
    w = tl.load(matrix + r[:, None] * cols + c[None, :], mask=ok, other=0.0)
    tl.store(partial + tl.load(places) + r, tl.sum(w * w, axis=1), mask=r < rows)
    tl.store(partial + tl.load(places + 1) + c, tl.sum(w * w, axis=0), mask=c < cols)
    tl.store(partial + tl.load(places + 2), tl.sum(tl.sum(tl.abs(w), axis=1), axis=0))


@triton.jit
def add_kernel(table, partial, out, PARTS: tl.constexpr, OUTPUTS: tl.constexpr):
    """out[o] = sum over p of partial[p, o], always in the same order."""
    row = table + tl.program_id(0) * 5
    source = tl.load(row)
    parts = tl.load(row + 1)
    width = tl.load(row + 2)
    o = tl.load(row + 3) + tl.arange(0, OUTPUTS)
    p = tl.arange(0, PARTS)
    total = tl.zeros((PARTS, OUTPUTS), dtype=tl.float32)
    first = parts * 0
    while first < parts:
        at = first + p
        ok = (at < parts)[:, None] & (o < width)[None, :]
        total += tl.load(partial + source + at[:, None] * width + o[None, :], mask=ok, other=0.0)
        first += PARTS
    tl.store(out + tl.load(row + 4) + o, tl.sum(total, axis=0), mask=o < width)


@triton.jit
def gradient_kernel(table, coefficients, l1, scale, grads, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """grad = scale (l1 sign(w) + w (row coefficient + column coefficient))."""
    matrix, rows, cols, r, c, ok, places = tile_of(table, TILE_ROWS, TILE_COLS)
    at = r[:, None] * cols + c[None, :]
    w = tl.load(matrix + at, mask=ok, other=0.0)
    start = tl.load(places)
    of_row = tl.load(coefficients + start + r, mask=r < rows, other=0.0)
    of_col = tl.load(coefficients + start + rows + c, mask=c < cols, other=0.0)
    sign = tl.where(w > 0, 1.0, tl.where(w < 0, -1.0, w))  # NaN stays NaN
    value = tl.load(l1 + tl.load(places + 2)) * sign + w * (of_row[:, None] + of_col[None, :])
    if scale is not None:
        value *= tl.load(scale)
    tl.store(grads + tl.load(places + 1) + at, value, mask=ok)


@triton.jit
def threshold_kernel(table, threshold, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """w = 0 where |w| < threshold."""
    matrix, _, cols, r, c, ok, _ = tile_of(table, TILE_ROWS, TILE_COLS)
    at = matrix + r[:, None] * cols + c[None, :]
    small = tl.abs(tl.load(at, mask=ok, other=0.0)) < threshold
    tl.store(at, tl.zeros((TILE_ROWS, TILE_COLS), dtype=tl.float32), mask=ok & small)


# The tables say where everything lies. They are built once for a list of matrices and never dropped: a captured
# graph may still read them.


def tiles(shape: Shape) -> list[tuple[int, int]]:
    return [
        (i, k)
        for i in range(triton.cdiv(shape[1], TILE_ROWS))
        for k in range(triton.cdiv(shape[2], TILE_COLS))
    ]


@functools.cache
def stats_tables(shapes: tuple[Shape, ...], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Tiles, sums, and how many partial sums lie between them: per matrix those of rows, columns and |w|."""
    tile_rows: list[tuple[int, ...]] = []
    sum_rows: list[tuple[int, ...]] = []
    used = out = 0
    # The sums of |w| come after those of rows and columns.
    last = sum(rows + cols for _, rows, cols in shapes)
    for n, shape in enumerate(shapes):
        _, rows, cols = shape
        across, down = triton.cdiv(cols, TILE_COLS), triton.cdiv(rows, TILE_ROWS)
        by_row, by_col, by_tile = used, used + across * rows, used + across * rows + down * cols
        used = by_tile + across * down
        for i, k in tiles(shape):
            tile_rows.append((*shape, i, k, by_row + k * rows, by_col + i * cols, by_tile + i * across + k))
        for source, parts, width, to in (
            (by_row, across, rows, out),
            (by_col, down, cols, out + rows),
            (by_tile, across * down, 1, last + n),
        ):
            sum_rows += [(source, parts, width, o, to) for o in range(0, width, OUTPUTS)]
        out += rows + cols
    return torch.tensor(tile_rows).to(device), torch.tensor(sum_rows).to(device), used


@functools.cache
def gradient_table(shapes: tuple[Shape, ...], device: torch.device) -> Tensor:
    rows: list[tuple[int, ...]] = []
    coefficients = place = 0
    for n, shape in enumerate(shapes):
        rows += [(*shape, i, k, coefficients, place, n) for i, k in tiles(shape)]
        coefficients += shape[1] + shape[2]
        place += shape[1] * shape[2]
    return torch.tensor(rows).to(device)


@functools.cache
def constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to(device)


def shapes_of(mats: Sequence[Tensor]) -> tuple[tuple[Shape, ...], torch.device]:
    for m in mats:
        if m.dim() != 2 or m.dtype != torch.float32 or not m.is_contiguous():
            raise ValueError(
                f"the lasso kernels need contiguous float32 matrices, got {m.dtype} {tuple(m.shape)} with "
                f"strides {m.stride()}."
            )
    return tuple((m.data_ptr(), *m.shape) for m in mats), mats[0].device


def matrix_stats(
    mats: Sequence[Tensor],  # each (rows, cols)
) -> tuple[list[Tensor], list[Tensor], Tensor]:  # (rows,) each, (cols,) each, (n,)
    """Per matrix: sum over columns of w^2, sum over rows of w^2, and sum |w|. Two launches for all."""
    tile_table, sum_table, used = stats_tables(*shapes_of(mats))
    partial = mats[0].new_empty(used)
    widths = [size for m in mats for size in m.shape]
    out = mats[0].new_empty(sum(widths) + len(mats))
    stats_kernel[(len(tile_table),)](tile_table, partial, TILE_ROWS=TILE_ROWS, TILE_COLS=TILE_COLS)
    add_kernel[(len(sum_table),)](sum_table, partial, out, PARTS=PARTS, OUTPUTS=OUTPUTS)
    *sums, abs_sum = out.split([*widths, len(mats)])
    return sums[::2], sums[1::2], abs_sum


def lasso_grad(
    mats: Sequence[Tensor],
    l1: Tensor | Sequence[float],  # one per matrix
    row_coef: Sequence[Tensor],  # (rows,) each
    col_coef: Sequence[Tensor],  # (cols,) each
    scale: Tensor | None = None,  # (), of all: the gradient of the penalty
) -> list[Tensor]:
    """scale (l1 sign(w) + w (row_coef + col_coef)), for every matrix, in one launch."""
    table = gradient_table(*shapes_of(mats))
    coefficients = torch.cat([part for pair in zip(row_coef, col_coef, strict=True) for part in pair])
    if not isinstance(l1, Tensor):
        l1 = constants(tuple(l1), table.device)
    grads = mats[0].new_empty(sum(m.numel() for m in mats))
    gradient_kernel[(len(table),)](
        table, coefficients, l1.contiguous(), scale, grads, TILE_ROWS=TILE_ROWS, TILE_COLS=TILE_COLS
    )
    return [g.view(m.shape) for g, m in zip(grads.split([m.numel() for m in mats]), mats)]


def threshold_(mats: Sequence[Tensor], t: float) -> None:
    """w[|w| < t] = 0, in place, in one launch."""
    table = gradient_table(*shapes_of(mats))
    threshold_kernel[(len(table),)](table, t, TILE_ROWS=TILE_ROWS, TILE_COLS=TILE_COLS)
    for m in mats:
        torch.autograd.graph.increment_version(m)
