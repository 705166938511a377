"""What group lasso needs of its matrices: sums over rows and columns, slopes of groups, a gradient, a threshold.

Sums and threshold take all matrices in one launch, by a table of their tiles. Weights stay where they are, so a table
is built once. Gradients may lie elsewhere at every update, so these have a launch for each matrix.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gatewise.sparsify.plan import EPS, Plan

TILE_ROWS, TILE_COLS = 32, 128
PARTS, OUTPUTS = 32, 64  # of one program that adds up
GROUPS = 256  # of one program
WIDE = 4  # float32 values in one access, where every row of every matrix begins at a multiple of 16 bytes

Shape = tuple[int, int, int]  # address, rows, columns


@triton.jit
def tile_of(table, WIDTH: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """One row of the tile table, as the matrix's address, the tile's rows and columns, and the rest of it."""
    row = table + tl.program_id(0) * 8
    matrix = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 4 * WIDTH)
    rows = tl.load(row + 1)
    cols = tl.load(row + 2) // WIDTH * WIDTH  # which tells the compiler what divides it
    r = tl.load(row + 3) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    c = tl.load(row + 4) * TILE_COLS + tl.arange(0, TILE_COLS)
    ok = (r < rows)[:, None] & (c < cols)[None, :]
    return matrix, rows, cols, r, c, ok, row + 5


@triton.jit
def stats_kernel(table, partial, WIDTH: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """What one tile adds to the sums of w^2 of its rows and columns and to the sum of |w| of its matrix."""
    matrix, rows, cols, r, c, ok, places = tile_of(table, WIDTH, TILE_ROWS, TILE_COLS)
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


@triton.jit(do_not_specialize=["lines_each"])
def slopes_kernel(
    sums, groups, lines_each, n_groups, n_lines, group, factors, l1, l1_factor, n_matrices, slopes, values,
    EPS: tl.constexpr, GROUPS: tl.constexpr, MATRICES: tl.constexpr,
):  # fmt: skip
    """slope = lambda / n with n = sqrt(sum of w^2 + eps), and what the groups of one program add to the penalty."""
    g = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    ok = g < n_groups
    squares = tl.zeros((GROUPS,), dtype=tl.float32)
    k = lines_each * 0
    while k < lines_each:
        line = tl.load(groups + g * lines_each + k, mask=ok, other=n_lines)
        squares += tl.load(sums + line, mask=line < n_lines, other=0.0)
        k += 1
    norm = tl.sqrt_rn(squares + EPS)
    weight = group * tl.load(factors + g, mask=ok, other=0.0)
    tl.store(slopes + g, tl.div_rn(weight, norm), mask=g <= n_groups)  # the last one is 0
    value = tl.sum(weight * norm, axis=0)
    if tl.program_id(0) == 0:
        m = tl.arange(0, MATRICES)
        absolute = tl.load(sums + n_lines + m, mask=m < n_matrices, other=0.0)
        value += tl.load(l1_factor) * tl.sum(
            absolute * tl.load(l1 + m, mask=m < n_matrices, other=0.0), axis=0
        )
    tl.store(values + tl.program_id(0), value)


@triton.jit
def slope_of(lines, ok, members, slopes, MEMBERS: tl.constexpr):
    """The sum of the slopes of all groups of a line."""
    total = tl.zeros(lines.shape, dtype=tl.float32)
    for k in tl.static_range(MEMBERS):
        group = tl.load(members + lines * MEMBERS + k, mask=ok, other=0)
        total += tl.load(slopes + group, mask=ok, other=0.0)
    return total


@triton.jit(do_not_specialize=["first"])
def gradient_kernel(
    matrix, grad, rows, cols, first, members, slopes, l1, l1_factor, scale,
    ADD: tl.constexpr, MEMBERS: tl.constexpr,
    WIDTH: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr,
):  # fmt: skip
    """grad = scale (l1 sign(w) + w (slope of the row + slope of the column)), or grad + that."""
    cols = cols // WIDTH * WIDTH
    r = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    c = tl.program_id(1) * TILE_COLS + tl.arange(0, TILE_COLS)
    ok = (r < rows)[:, None] & (c < cols)[None, :]
    at = r[:, None] * cols + c[None, :]
    w = tl.load(matrix + at, mask=ok, other=0.0)
    sign = tl.where(w > 0, 1.0, tl.where(w < 0, -1.0, w))  # NaN stays NaN
    value = l1 * tl.load(l1_factor) * sign
    if MEMBERS > 0:
        of_row = slope_of(first + r, r < rows, members, slopes, MEMBERS)
        of_col = slope_of(first + rows + c, c < cols, members, slopes, MEMBERS)
        value += w * (of_row[:, None] + of_col[None, :])
    if scale is not None:
        value *= tl.load(scale)
    if ADD:
        value += tl.load(grad + at, mask=ok, other=0.0)
    tl.store(grad + at, value, mask=ok)


@triton.jit
def threshold_kernel(table, threshold, WIDTH: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLS: tl.constexpr):
    """w = 0 where |w| < threshold."""
    matrix, _, cols, r, c, ok, _ = tile_of(table, WIDTH, TILE_ROWS, TILE_COLS)
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
def tile_table(shapes: tuple[Shape, ...], device: torch.device) -> Tensor:
    return torch.tensor([(*shape, i, k, 0, 0, 0) for shape in shapes for i, k in tiles(shape)]).to(device)


def width_of(shapes: Sequence[Shape]) -> int:
    """How many values of a row may be read at once."""
    return WIDE if all(address % 16 == 0 and cols % WIDE == 0 for address, _, cols in shapes) else 1


def shapes_of(mats: Sequence[Tensor]) -> tuple[tuple[Shape, ...], torch.device]:
    for m in mats:
        if m.dim() != 2 or m.dtype != torch.float32 or not m.is_contiguous():
            raise ValueError(
                f"the lasso kernels need contiguous float32 matrices, got {m.dtype} {tuple(m.shape)} with "
                f"strides {m.stride()}."
            )
    return tuple((m.data_ptr(), *m.shape) for m in mats), mats[0].device


def line_sums(mats: Sequence[Tensor]) -> Tensor:
    """Sums of w^2 of the rows and columns of every matrix, one by one, then sum |w| of each. Two launches for all."""
    shapes, device = shapes_of(mats)
    tile_rows, sum_rows, used = stats_tables(shapes, device)
    partial = mats[0].new_empty(used)
    out = mats[0].new_empty(sum(sum(m.shape) for m in mats) + len(mats))
    stats_kernel[(len(tile_rows),)](tile_rows, partial, width_of(shapes), TILE_ROWS, TILE_COLS)
    add_kernel[(len(sum_rows),)](sum_rows, partial, out, PARTS=PARTS, OUTPUTS=OUTPUTS)
    return out


def matrix_stats(
    mats: Sequence[Tensor],  # each (rows, cols)
) -> tuple[list[Tensor], list[Tensor], Tensor]:  # (rows,) each, (cols,) each, (n,)
    """Per matrix: sum over columns of w^2, sum over rows of w^2, and sum |w|."""
    *sums, absolute = line_sums(mats).split([*(size for m in mats for size in m.shape), len(mats)])
    return sums[::2], sums[1::2], absolute


def value_and_slopes(plan: Plan, mats: Sequence[Tensor]) -> tuple[Tensor, Tensor]:  # (), (groups + 1,)
    """The penalty and lambda_g / n_g of all groups; the last is 0, of no group. Four launches."""
    sums, n = line_sums(mats), len(plan.factors)
    slopes, programs = sums.new_empty(n + 1), triton.cdiv(n + 1, GROUPS)
    values = sums.new_empty(programs)
    slopes_kernel[(programs,)](
        sums, plan.groups, plan.groups.shape[1], n, len(plan.members), plan.group, plan.factors,
        plan.weights, plan.l1_factor, len(mats), slopes, values,
        EPS=EPS, GROUPS=GROUPS, MATRICES=triton.next_power_of_2(len(mats)),
    )  # fmt: skip
    return values.sum(), slopes


def gradient(
    plan: Plan, k: int, w: Tensor, slopes: Tensor, scale: Tensor | None, added_to: Tensor | None
) -> Tensor:
    """scale (l1 sign(w) + w (slope of the row + slope of the column)) of matrix k, new or in place, in one launch."""
    grad = torch.empty_like(w) if added_to is None else added_to
    shapes, _ = shapes_of([w, grad])
    grid = triton.cdiv(w.shape[0], TILE_ROWS), triton.cdiv(w.shape[1], TILE_COLS)
    if w.numel():
        gradient_kernel[grid](
            w, grad, *w.shape, plan.lines[k].start, plan.members, slopes, plan.l1[k], plan.l1_factor, scale,
            ADD=added_to is not None, MEMBERS=plan.members.shape[1],
            WIDTH=width_of(shapes), TILE_ROWS=TILE_ROWS, TILE_COLS=TILE_COLS,
        )  # fmt: skip
        torch.autograd.graph.increment_version(grad)
    return grad


def threshold_(mats: Sequence[Tensor], t: float) -> None:
    """w[|w| < t] = 0, in place, in one launch."""
    shapes, device = shapes_of(mats)
    table = tile_table(shapes, device)
    threshold_kernel[(len(table),)](table, t, width_of(shapes), TILE_ROWS, TILE_COLS)
    for m in mats:
        torch.autograd.graph.increment_version(m)
