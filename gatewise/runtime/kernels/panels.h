/* Products with a dense matrix, whose rows lie in panels: in tiles of registers, column by column for letters, and in
 * int8. Part of gw.c, which is compiled once per instruction set. */
#ifndef GW_PANELS_H
#define GW_PANELS_H

#include "gw.h"

#include "vector.h"
#include "vfp.h"

#if defined(__clang__) && GW_LANES == 1
#define GW_UNROLL /* it unrolls what it can, and warns where it is told to and cannot */
#elif defined(__clang__)
#define GW_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define GW_UNROLL _Pragma("GCC unroll 8")
#else
#define GW_UNROLL
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define GW_UNROLL_WIDE _Pragma("GCC unroll 16")
#else
#define GW_UNROLL_WIDE GW_UNROLL
#endif

/* Of columns: vectors of 32 bytes leave the decoder little room for counting. */
#if GW_LANES == 8 && defined(__clang__)
#define GW_UNROLL_COLUMNS _Pragma("clang loop unroll_count(4)")
#elif GW_LANES == 8 && defined(__GNUC__)
#define GW_UNROLL_COLUMNS _Pragma("GCC unroll 4")
#else
#define GW_UNROLL_COLUMNS
#endif

/* A tile holds the sums of up to TILE_ROWS vectors of x with TILE_VECTORS vectors of matrix rows in registers. A lone
 * vector of x meets up to two runs of RUN vectors at a time; few vectors get 2 to SETS independent sums each, which hide
 * the latency of the adder. */
#if GW_LANES == 16
enum { TILE_ROWS = 6, TILE_VECTORS = 4, RUN = 4, SETS = 4 };
#elif GW_LANES == 8
enum { TILE_ROWS = 6, TILE_VECTORS = 2, RUN = 4, SETS = 2 };
#elif GW_LANES == 4 && defined(__ARM_NEON)
enum { TILE_ROWS = 6, TILE_VECTORS = 4, RUN = 4, SETS = 4 };
#elif GW_LANES == 4
enum { TILE_ROWS = 3, TILE_VECTORS = 3, RUN = 4, SETS = 2 };
#else
enum { TILE_ROWS = 1, TILE_VECTORS = 8, RUN = 4, SETS = 2 };
#endif

typedef struct {
    const float *w;  /* (cols, stride): vectors of one panel */
    ptrdiff_t stride;
    int32_t cols;
    int32_t lanes;   /* rows of the matrix in the last vector of the tile */
    const float *x;  /* (m, ldx) */
    ptrdiff_t ldx;
    const float *bias;
    float *y;        /* (m, ldy) */
    ptrdiff_t ldy;
} tile_args;

/* m and nv are constants at every call, so that `sum` lives in registers. */
GW_INLINE void tile(const int m, const int nv, const int sets, const tile_args *a) {
    const float *w = a->w, *x = a->x;
    const ptrdiff_t stride = a->stride, ldx = a->ldx;
    const int32_t cols = a->cols;
    vf sum[2][TILE_ROWS][TILE_VECTORS];
    GW_UNROLL
    for (int r = 0; r < m; r++) {
        const float *from = a->bias ? a->bias : a->y + r * a->ldy;
        GW_UNROLL
        for (int v = 0; v < nv; v++) {
            sum[0][r][v] = v < nv - 1 || a->lanes == GW_LANES ? vf_load(from + v * GW_LANES)
                                                               : vf_load_first(from + v * GW_LANES, a->lanes);
            GW_UNROLL
            for (int q = 1; q < sets; q++) sum[q][r][v] = vf_all(0);
        }
    }
    int32_t j = 0;
    GW_UNROLL_COLUMNS
    for (; j + sets <= cols; j += sets) {
        GW_UNROLL
        for (int q = 0; q < sets; q++) {
            vf column[TILE_VECTORS];
            GW_UNROLL
            for (int v = 0; v < nv; v++) column[v] = vf_load(w + q * stride + v * GW_LANES);
            GW_UNROLL
            for (int r = 0; r < m; r++) {
                const vf xr = vf_all(x[r * ldx + q]);
                GW_UNROLL
                for (int v = 0; v < nv; v++) sum[q][r][v] += xr * column[v];
            }
        }
        x += sets;
        w += sets * stride;
    }
    for (; sets > 1 && j < cols; j++, x++, w += stride) {
        GW_UNROLL
        for (int r = 0; r < m; r++) {
            GW_UNROLL
            for (int v = 0; v < nv; v++) sum[0][r][v] += vf_all(x[r * ldx]) * vf_load(w + v * GW_LANES);
        }
    }
    GW_UNROLL
    for (int r = 0; r < m; r++) {
        GW_UNROLL
        for (int v = 0; v < nv; v++) {
            float *to = a->y + r * a->ldy + v * GW_LANES;
            GW_UNROLL
            for (int q = 1; q < sets; q++) sum[0][r][v] += sum[q][r][v];
            if (v < nv - 1 || a->lanes == GW_LANES)
                vf_store(to, sum[0][r][v]);
            else
                vf_store_first(to, sum[0][r][v], a->lanes);
        }
    }
}

/* Vectors of a tile where `left` are to do. Single floats have full tiles and single ones only: less code. */
GW_INLINE int tile_vectors(int32_t left) {
    return left >= TILE_VECTORS ? TILE_VECTORS : GW_LANES > 1 ? left : 1;
}

/* The branch is decided at compile time: sizes that do not fit the registers make no code. */
#define TILE(M, V)                                                                               \
    case (M) * 16 + (V):                                                                         \
        if ((M) <= TILE_ROWS && (V) <= TILE_VECTORS && (V) == tile_vectors(V))                   \
            tile(M, V, (M) * (V) > 4 ? 1 : 2, a);                                                \
        break;
#define TILES(M) TILE(M, 1) TILE(M, 2) TILE(M, 3) TILE(M, 4) TILE(M, 8)

static void any_tile(int m, int nv, const tile_args *a) {
    switch (m * 16 + nv) { TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) }
}

/* Up to RUN vectors of rows that lie side by side in a panel. */
typedef struct {
    const float *w;    /* (cols, stride) */
    ptrdiff_t stride;
    const float *from; /* (rows) what the sums begin with */
    float *to;         /* (rows) */
    int32_t rows;
} run_of_rows;

/* One vector of x with na vectors of a and nb of b, which are constants at every call. */
GW_INLINE void one_tile(const int na, const int nb, const int sets, int32_t cols, const float *x, const run_of_rows *a,
                        const run_of_rows *b) {
    const float *wa = a->w, *wb = b->w;
    const ptrdiff_t stride_a = a->stride, stride_b = b->stride;
    const int n = na + nb;
    vf sum[SETS][2 * RUN];
    GW_UNROLL
    for (int v = 0; v < n; v++) {
        const run_of_rows *run = v < na ? a : b;
        const int32_t at = (v < na ? v : v - na) * GW_LANES, left = run->rows - at;
        sum[0][v] = v < n - 1 || left >= GW_LANES ? vf_load(run->from + at) : vf_load_first(run->from + at, left);
        GW_UNROLL
        for (int q = 1; q < sets; q++) sum[q][v] = vf_all(0);
    }
    int32_t j = 0;
    for (; j + sets <= cols; j += sets) {
        GW_UNROLL
        for (int q = 0; q < sets; q++) {
            const vf xj = vf_all(x[j + q]);
            GW_UNROLL
            for (int v = 0; v < n; v++) sum[q][v] += xj * vf_load(v < na ? wa + v * GW_LANES : wb + (v - na) * GW_LANES);
            wa += stride_a;
            wb += stride_b;
        }
    }
    for (; sets > 1 && j < cols; j++, wa += stride_a) {
        GW_UNROLL
        for (int v = 0; v < n; v++) sum[0][v] += vf_all(x[j]) * vf_load(wa + v * GW_LANES);
    }
    GW_UNROLL
    for (int v = 0; v < n; v++) {
        const run_of_rows *run = v < na ? a : b;
        const int32_t at = (v < na ? v : v - na) * GW_LANES, left = run->rows - at;
        GW_UNROLL
        for (int q = 1; q < sets; q++) sum[0][v] += sum[q][v];
        if (v < n - 1 || left >= GW_LANES)
            vf_store(run->to + at, sum[0][v]);
        else
            vf_store_first(run->to + at, sum[0][v], left);
    }
}

GW_INLINE void any_one_tile(int nv, int32_t cols, const float *x, const run_of_rows *a, const run_of_rows *b) {
    switch (nv) {
        case 1: one_tile(1, 0, SETS, cols, x, a, a); break;
        case 2: one_tile(2, 0, SETS, cols, x, a, a); break;
        case 3: one_tile(3, 0, SETS, cols, x, a, a); break;
        case 4: one_tile(4, 0, SETS, cols, x, a, a); break;
        case 5: one_tile(4, 1, 1, cols, x, a, b); break;
        case 6: one_tile(4, 2, 1, cols, x, a, b); break;
        case 7: one_tile(4, 3, 1, cols, x, a, b); break;
        case 8: one_tile(4, 4, 1, cols, x, a, b); break;
    }
}

/* A walk over the panels from .. to - 1 of a matrix, the last one first if backwards. */
typedef struct {
    int32_t from, to;
    int backwards;
} panel_range;

/* Only a dense matrix is walked in parts, and not one of bytes. */
static int32_t n_panels(const gw_matrix *w) {
    return w->start || w->codes ? 1 : (w->rows + GW_PANEL - 1) / GW_PANEL;
}

static run_of_rows run_at(const gw_matrix *w, const float *bias, float *y, int32_t top) {
    const int32_t panel = top / GW_PANEL * GW_PANEL, left = w->rows - top;
    const run_of_rows run = {
        .w = w->values + (ptrdiff_t)panel * w->cols + (top - panel),
        .stride = panel + GW_PANEL < w->rows ? GW_PANEL : w->last,
        .from = bias ? bias + top : y + top,
        .to = y + top,
        .rows = left < RUN * GW_LANES ? left : RUN * GW_LANES,
    };
    return run;
}

#if GW_LANES >= 8
/* Whole panels that a lone vector of x meets at a time. Of weights that the caches hold it is one, and columns are asked
 * for LATER bytes ahead; half of that is too late where other data went through the third level before. More than NEAR
 * come from memory, which is faster if nobody asks and reads several panels better; their sums must fit the registers. */
enum { SEVERAL = GW_LANES == 16 ? 4 : 1, NEAR = 1 << 21, LATER = 4096 };

/* n and ask are constants at every call: the compiler knows all distances but that between panels. */
GW_INLINE void whole_panels(const int n, const int ask, const gw_matrix *w, const float *bias, const float *x, float *y,
                            int32_t top) {
    enum { PER = GW_PANEL / GW_LANES };
    const ptrdiff_t apart = (ptrdiff_t)GW_PANEL * w->cols;
    const float *column = w->values + (ptrdiff_t)top * w->cols, *from = (bias ? bias : y) + top;
    vf sum[SEVERAL * PER];
    GW_UNROLL_WIDE
    for (int v = 0; v < n * PER; v++) sum[v] = vf_load(from + v * GW_LANES);
    for (int32_t j = 0; j < w->cols; j++, column += GW_PANEL) {
        const vf xj = vf_all(x[j]);
        if (ask) fetch_later(PER, column, LATER);
        GW_UNROLL_WIDE
        for (int v = 0; v < n * PER; v++) sum[v] += xj * vf_load(column + v / PER * apart + v % PER * GW_LANES);
    }
    GW_UNROLL_WIDE
    for (int v = 0; v < n * PER; v++) vf_store(y + top + v * GW_LANES, sum[v]);
}
#endif

/* Rows from .. end - 1, of which the first begins a panel. Two runs at a time halve the starts and the reads of x, which
 * a step waits for. */
GW_INLINE void narrow_tiles(const gw_matrix *w, const float *bias, const float *x, float *y, int32_t from, int32_t end,
                            int backwards) {
    enum { ROWS = RUN * GW_LANES };
    const int32_t pairs = (end - from + 2 * ROWS - 1) / (2 * ROWS);
    for (int32_t p = 0; p < pairs; p++) {
        const int32_t top = from + (backwards ? pairs - 1 - p : p) * 2 * ROWS, left = end - top;
        const run_of_rows a = run_at(w, bias, y, top);
        const run_of_rows b = left > ROWS ? run_at(w, bias, y, top + ROWS) : a;
        any_one_tile(left < 2 * ROWS ? (left + GW_LANES - 1) / GW_LANES : 2 * RUN, w->cols, x, &a, &b);
    }
}

/* A lone vector of x. Inline, as are its callers up to a layer's step: networks of a few neurons notice every call. */
GW_INLINE void dense_product_one(const gw_matrix *w, const float *bias, const float *x, float *y, panel_range part) {
    const int32_t from = part.from * GW_PANEL, end = part.to * GW_PANEL < w->rows ? part.to * GW_PANEL : w->rows;
#if GW_LANES >= 8
    const int near = (int64_t)w->rows * w->cols <= NEAR;
    const int32_t height = (near ? 1 : SEVERAL) * GW_PANEL, whole = (end - from) / height, rest = from + whole * height;
    if (part.backwards) narrow_tiles(w, bias, x, y, rest, end, 1);
    for (int32_t t = 0; t < whole; t++) {
        const int32_t top = from + (part.backwards ? whole - 1 - t : t) * height;
        if (near)
            whole_panels(1, 1, w, bias, x, y, top);
        else
            whole_panels(SEVERAL, 0, w, bias, x, y, top);
    }
    if (!part.backwards) narrow_tiles(w, bias, x, y, rest, end, 0);
#else
    narrow_tiles(w, bias, x, y, from, end, part.backwards);
#endif
}

/* Panel by panel, so that its weights are still near when the next vectors of x come. */
static void dense_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                          ptrdiff_t ldy, panel_range part) {
    const int32_t tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
    for (int32_t p = part.from; p < part.to; p++) {
        const int32_t top = (part.backwards ? part.from + part.to - 1 - p : p) * GW_PANEL;
        const int32_t width = w->rows - top < GW_PANEL ? w->rows - top : GW_PANEL;
        const float *panel = w->values + (ptrdiff_t)top * w->cols;
        const ptrdiff_t stride = top + GW_PANEL < w->rows ? GW_PANEL : w->last;
        int32_t lane = 0;
#ifdef GW_VFP
        for (int32_t r = 0; width >= VFP_ROWS && r < m; r++) {
            float *const to = y + r * ldy + top;
            vfp_rows(width / VFP_ROWS, panel, stride, w->cols, x + r * ldx, bias ? bias + top : to, to);
        }
        lane = width / VFP_ROWS * VFP_ROWS;
#endif
        while (lane < width) {
            const int32_t left = width - lane;
            const int nv = tile_vectors((left + GW_LANES - 1) / GW_LANES);
            const int32_t covered = left < nv * GW_LANES ? left : nv * GW_LANES;
            for (int32_t q = 0, r = 0; q < tiles; q++) { /* tiles of equal height, not full ones and a rest */
                const int32_t end = (int32_t)((int64_t)m * (q + 1) / tiles);
                const tile_args a = {
                    .w = panel + lane,
                    .stride = stride,
                    .cols = w->cols,
                    .lanes = covered - (nv - 1) * GW_LANES,
                    .x = x + r * ldx,
                    .ldx = ldx,
                    .bias = bias ? bias + top + lane : NULL,
                    .y = y + r * ldy + top + lane,
                    .ldy = ldy,
                };
                any_tile(end - r, nv, &a);
                r = end;
            }
            lane += covered;
        }
    }
}

enum { FEW_ENTRIES = 8, FEW_FROM = 4 * FEW_ENTRIES }; /* of a vector x that is nearly empty; columns from which that counts */

/* The entries of x that are not zero: how many, or FEW_ENTRIES + 1 if there are more. */
static int find_entries(int32_t cols, const float *x, int32_t *at) {
    int n = 0;
    for (int32_t j = 0; j < cols; j++)
        if (x[j] != 0) {
            if (n == FEW_ENTRIES) return n + 1;
            at[n++] = j;
        }
    return n;
}

/* y = bias + the n columns of w that x needs, at[0] and on: all that a letter as a vector of zeros and a one costs. */
static void add_columns(const gw_matrix *w, const float *bias, int n, const int32_t *at, const float *x, float *y) {
    for (int32_t top = 0; top < w->rows; top += RUN * GW_LANES) {
        const run_of_rows run = run_at(w, bias, y, top);
        for (int32_t lane = 0; lane < run.rows; lane += GW_LANES) {
            const int32_t left = run.rows - lane;
            vf sum = left < GW_LANES ? vf_load_first(run.from + lane, left) : vf_load(run.from + lane);
            for (int k = 0; k < n; k++) sum += x[at[k]] * vf_load(run.w + at[k] * run.stride + lane);
            if (left < GW_LANES)
                vf_store_first(run.to + lane, sum, left);
            else
                vf_store(run.to + lane, sum);
        }
    }
}

/* Does the product if all of x is nearly empty, as letters are, and says whether it did. */
static int letters_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                           ptrdiff_t ldy) {
    int32_t at[FEW_ENTRIES];
    if (w->start || !w->values || w->cols < FEW_FROM) return 0;
    for (int32_t r = 0; r < m; r++)
        if (find_entries(w->cols, x + r * ldx, at) > FEW_ENTRIES) return 0;
    for (int32_t r = 0; r < m; r++)
        add_columns(w, bias, find_entries(w->cols, x + r * ldx, at), at, x + r * ldx, y + r * ldy);
    return 1;
}

/* y (rows) = from + scale * (nv vectors of rows of a panel) x; nv and sets are constants at every call. */
GW_INLINE void int8_rows(const int nv, const int sets, const gw_matrix *w, int32_t top, const float *x, const float *from,
                         float *y) {
    const int32_t panel = top / GW_PANEL * GW_PANEL, rows = w->rows - top, cols = w->cols;
    const ptrdiff_t stride = panel + GW_PANEL < w->rows ? GW_PANEL : w->last;
    const int8_t *code = w->codes + (ptrdiff_t)panel * w->cols + (top - panel);
    vf sum[SETS][RUN];
    GW_UNROLL
    for (int q = 0; q < sets; q++) {
        GW_UNROLL
        for (int v = 0; v < nv; v++) sum[q][v] = vf_all(0);
    }
    int32_t j = 0;
    for (; j + sets <= cols; j += sets) {
        GW_UNROLL
        for (int q = 0; q < sets; q++, code += stride) {
            const vf xj = vf_all(x[j + q]);
            vf column[RUN];
            vf_load_int8s(nv, code, column);
            GW_UNROLL
            for (int v = 0; v < nv; v++) sum[q][v] += xj * column[v];
        }
    }
    for (; sets > 1 && j < cols; j++, code += stride) {
        GW_UNROLL
        for (int v = 0; v < nv; v++) sum[0][v] += vf_all(x[j]) * vf_load_int8(code + v * GW_LANES);
    }
    GW_UNROLL
    for (int v = 0; v < nv; v++) {
        const int32_t at = v * GW_LANES, left = rows - at, n = left < GW_LANES ? left : GW_LANES;
        GW_UNROLL
        for (int q = 1; q < sets; q++) sum[0][v] += sum[q][v];
        vf_store_first(y + at, sum[0][v] * vf_load_first(w->scale + top + at, n) + vf_load_first(from + at, n), n);
    }
}

/* Long vectors leave a rest of up to three, which run at once; short ones have full runs and single ones: less code. */
static void int8_dense(const gw_matrix *w, const float *bias, const float *x, float *y) {
    enum { LONG = GW_LANES >= 8, FEW = LONG ? SETS : 1, MANY = LONG ? 2 : 1 };
    for (int32_t top = 0, nv; top < w->rows; top += nv * GW_LANES) {
        const float *from = (bias ? bias : y) + top;
        const int32_t left = (w->rows - top + GW_LANES - 1) / GW_LANES;
        nv = left >= RUN ? RUN : LONG ? left : 1;
        if (nv == RUN)
            int8_rows(RUN, MANY, w, top, x, from, y + top);
        else if (!LONG || nv == 1)
            int8_rows(1, FEW, w, top, x, from, y + top);
        else if (nv == 2)
            int8_rows(2, FEW, w, top, x, from, y + top);
        else
            int8_rows(3, MANY, w, top, x, from, y + top);
    }
}

#endif
