/* Products y = W x + b with the forms of a matrix that gw.h knows: dense panels, sparse slices, slices with a bit mask,
 * and all of them in int8. Part of gw.c, which is compiled once per instruction set. */
#ifndef GW_PRODUCTS_H
#define GW_PRODUCTS_H

#include "gw.h"

#include "vector.h"

#if defined(__clang__) && GW_LANES == 1
#define GW_UNROLL /* it unrolls what it can, and warns where it is told to and cannot */
#elif defined(__clang__)
#define GW_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define GW_UNROLL _Pragma("GCC unroll 8")
#else
#define GW_UNROLL
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

/* A lone vector of x: two runs at a time halve the starts and the reads of x, which a step waits for. Inline, as are
 * its callers up to a layer's step: networks of a few neurons notice every call. */
GW_INLINE void dense_product_one(const gw_matrix *w, const float *bias, const float *x, float *y, panel_range part) {
    enum { ROWS = RUN * GW_LANES };
    const int32_t from = part.from * GW_PANEL, end = part.to * GW_PANEL < w->rows ? part.to * GW_PANEL : w->rows;
    const int32_t pairs = (end - from + 2 * ROWS - 1) / (2 * ROWS);
    for (int32_t p = 0; p < pairs; p++) {
        const int32_t top = from + (part.backwards ? pairs - 1 - p : p) * 2 * ROWS, left = end - top;
        const run_of_rows a = run_at(w, bias, y, top);
        const run_of_rows b = left > ROWS ? run_at(w, bias, y, top + ROWS) : a;
        any_one_tile(left < 2 * ROWS ? (left + GW_LANES - 1) / GW_LANES : 2 * RUN, w->cols, x, &a, &b);
    }
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
        for (int32_t lane = 0; lane < width;) {
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

/* One vector of x: the lanes of a vector are rows of the matrix, each with its own entry of x. */
static void sparse_slice(const gw_matrix *w, int32_t slice, const float *x, float *sum) {
    for (int v = 0; v < GW_SLICE; v += GW_LANES) {
        vf acc = vf_all(0);
        for (int32_t e = w->start[slice]; e < w->start[slice + 1]; e++) {
            const ptrdiff_t at = (ptrdiff_t)e * GW_SLICE + v;
            acc += vf_load(w->values + at) * vf_gather(x, w->column + at);
        }
        vf_store(sum + v, acc);
    }
}

/* Sixteen vectors of x, transposed: the lanes of a vector are those, and a weight is broadcast to all. */
static void sparse_slice_transposed(const gw_matrix *w, int32_t slice, const float *xt, float *sum) {
    enum { PER = GW_SLICE / GW_LANES, ROWS = 4 };
    for (int lane = 0; lane < GW_SLICE; lane += ROWS) {
        vf acc[ROWS][PER];
        memset(acc, 0, sizeof acc);
        for (int32_t e = w->start[slice]; e < w->start[slice + 1]; e++) {
            const ptrdiff_t at = (ptrdiff_t)e * GW_SLICE + lane;
            GW_UNROLL
            for (int r = 0; r < ROWS; r++) {
                const float *from = xt + (ptrdiff_t)w->column[at + r] * GW_SLICE;
                for (int v = 0; v < PER; v++) acc[r][v] += w->values[at + r] * vf_load(from + v * GW_LANES);
            }
        }
        memcpy(sum + lane * GW_SLICE, acc, sizeof acc);
    }
}

enum { TRANSPOSE_FROM = 4 }; /* vectors of x from which the second form is faster */

static void sparse_product(const gw_matrix *w, int32_t m, const float *x, ptrdiff_t ldx, float *y, ptrdiff_t ldy,
                           float *xt) {
    const int32_t slices = (w->rows + GW_SLICE - 1) / GW_SLICE;
    for (int32_t top = 0; top < m; top += GW_SLICE, x += GW_SLICE * ldx, y += GW_SLICE * ldy) {
        const int32_t n = m - top < GW_SLICE ? m - top : GW_SLICE;
        const int transposed = n >= TRANSPOSE_FROM;
        if (transposed) {
            memset(xt, 0, sizeof(float) * GW_SLICE * (size_t)w->cols);
            for (int32_t r = 0; r < n; r++)
                for (int32_t j = 0; j < w->cols; j++) xt[j * GW_SLICE + r] = x[r * ldx + j];
        }
        for (int32_t slice = 0; slice < slices; slice++) {
            const int32_t left = w->rows - slice * GW_SLICE, lanes = left < GW_SLICE ? left : GW_SLICE;
            const int32_t *row = w->row + slice * GW_SLICE;
            float sum[GW_SLICE * GW_SLICE];
            if (transposed) {
                sparse_slice_transposed(w, slice, xt, sum);
                for (int32_t r = 0; r < n; r++)
                    for (int32_t l = 0; l < lanes; l++) y[r * ldy + row[l]] += sum[l * GW_SLICE + r];
            } else {
                for (int32_t r = 0; r < n; r++) {
                    sparse_slice(w, slice, x + r * ldx, sum);
                    for (int32_t l = 0; l < lanes; l++) y[r * ldy + row[l]] += sum[l];
                }
            }
        }
    }
}

/* y (lanes) = from + a slice times one vector of x. Where a block's entries begin follows from those before it, so two
 * sums take turns. */
static void masked_slice(const gw_matrix *w, int32_t slice, const float *x, const float *from, int lanes, float *y) {
    const uint16_t *bits = w->column + (ptrdiff_t)slice * w->cols;
    const float *value = w->values + w->start[slice];
    int32_t j = 0;
#if GW_LANES == GW_SLICE
    vf even = vf_load_first(from, lanes), odd = vf_all(0);
    for (; j + 1 < w->cols; j += 2) {
        const float *second = value + count_bits(bits[j]);
        even += x[j] * vf_expand(bits[j], value);
        odd += x[j + 1] * vf_expand(bits[j + 1], second);
        value = second + count_bits(bits[j + 1]);
    }
    if (j < w->cols) even += x[j] * vf_expand(bits[j], value);
    vf_store_first(y, even + odd, lanes);
#else
    float sum[GW_SLICE] = {0};
    for (; j < w->cols; j++)
        for (uint32_t left = bits[j]; left; left &= left - 1) sum[first_bit(left)] += x[j] * *value++;
    for (int l = 0; l < lanes; l++) y[l] = from[l] + sum[l];
#endif
}

/* to (cols, 64): a slice with its zeros. */
static void unmask(const gw_matrix *w, int32_t slice, float *to) {
    const uint16_t *bits = w->column + (ptrdiff_t)slice * w->cols;
    const float *value = w->values + w->start[slice];
    for (int32_t j = 0; j < w->cols; j++, to += GW_PANEL) {
#if GW_LANES == GW_SLICE
        vf_store(to, vf_expand(bits[j], value));
        value += count_bits(bits[j]);
#else
        for (int l = 0; l < GW_SLICE; l++) to[l] = bits[j] >> l & 1 ? *value++ : 0;
#endif
    }
}

/* A few vectors meet the bits; more are worth a dense panel at a time, made anew in every call. */
static void masked_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                           ptrdiff_t ldy, float *dense) {
    const panel_range one = {0, 1, 0};
    if (m < TRANSPOSE_FROM) {
        for (int32_t r = 0; r < m; r++, x += ldx, y += ldy)
            for (int32_t top = 0; top < w->rows; top += GW_SLICE) {
                const int32_t left = w->rows - top, lanes = left < GW_SLICE ? left : GW_SLICE;
                masked_slice(w, top / GW_SLICE, x, (bias ? bias : y) + top, lanes, y + top);
            }
        return;
    }
    for (int32_t top = 0; top < w->rows; top += GW_PANEL) {
        const int32_t left = w->rows - top, rows = left < GW_PANEL ? left : GW_PANEL;
        const gw_matrix panel = {.rows = rows, .cols = w->cols, .last = GW_PANEL, .values = dense};
        for (int32_t lane = 0; lane < rows; lane += GW_SLICE) unmask(w, (top + lane) / GW_SLICE, dense + lane);
        dense_product(&panel, bias ? bias + top : NULL, m, x, ldx, y + top, ldy, one);
    }
}

static void int8_masked(const gw_matrix *w, const float *bias, const float *x, float *y) {
    for (int32_t top = 0; top < w->rows; top += GW_SLICE) {
        const int32_t left = w->rows - top, lanes = left < GW_SLICE ? left : GW_SLICE, slice = top / GW_SLICE;
        const uint16_t *bits = w->column + (ptrdiff_t)slice * w->cols;
        const int8_t *code = w->codes + w->start[slice];
        float sum[GW_SLICE] = {0};
#if GW_LANES == GW_SLICE
        vf acc = vf_all(0);
        for (int32_t j = 0; j < w->cols; code += count_bits(bits[j++])) acc += x[j] * vf_expand_int8(bits[j], code);
        vf_store(sum, acc);
#else
        for (int32_t j = 0; j < w->cols; j++)
            for (uint32_t set = bits[j]; set; set &= set - 1) sum[first_bit(set)] += x[j] * *code++;
#endif
        for (int32_t l = 0; l < lanes; l++) y[top + l] = (bias ? bias : y)[top + l] + w->scale[top + l] * sum[l];
    }
}

/* y (rows) = from + scale * (nv vectors of rows of a panel) x; nv is a constant at every call. */
GW_INLINE void int8_rows(const int nv, const gw_matrix *w, int32_t top, const float *x, const float *from, float *y) {
    const int32_t panel = top / GW_PANEL * GW_PANEL, rows = w->rows - top;
    const ptrdiff_t stride = panel + GW_PANEL < w->rows ? GW_PANEL : w->last;
    const int8_t *code = w->codes + (ptrdiff_t)panel * w->cols + (top - panel);
    vf sum[RUN];
    GW_UNROLL
    for (int v = 0; v < nv; v++) sum[v] = vf_all(0);
    for (int32_t j = 0; j < w->cols; j++, code += stride) {
        const vf xj = vf_all(x[j]);
        GW_UNROLL
        for (int v = 0; v < nv; v++) sum[v] += xj * vf_load_int8(code + v * GW_LANES);
    }
    GW_UNROLL
    for (int v = 0; v < nv; v++) {
        const int32_t at = v * GW_LANES, left = rows - at, n = left < GW_LANES ? left : GW_LANES;
        vf_store_first(y + at, sum[v] * vf_load_first(w->scale + top + at, n) + vf_load_first(from + at, n), n);
    }
}

static void int8_dense(const gw_matrix *w, const float *bias, const float *x, float *y) {
    for (int32_t top = 0, rows; top < w->rows; top += rows) {
        const float *from = (bias ? bias : y) + top;
        rows = w->rows - top < RUN * GW_LANES ? GW_LANES : RUN * GW_LANES;
        if (rows > GW_LANES)
            int8_rows(RUN, w, top, x, from, y + top);
        else
            int8_rows(1, w, top, x, from, y + top);
    }
}

static void int8_sparse(const gw_matrix *w, const float *bias, const float *x, float *y) {
    if (bias) memcpy(y, bias, sizeof(float) * (size_t)w->rows);
    for (int32_t i = 0; i < w->rows; i += GW_LANES) {
        const int32_t slice = i / GW_SLICE, lane = i % GW_SLICE;
        float sum[GW_LANES];
        vf acc = vf_all(0);
        for (int32_t e = w->start[slice]; e < w->start[slice + 1]; e++) {
            const ptrdiff_t at = (ptrdiff_t)e * GW_SLICE + lane;
            acc += vf_load_int8(w->codes + at) * vf_gather(x, w->column + at);
        }
        vf_store(sum, acc);
        for (int32_t l = 0; l < GW_LANES && i + l < w->rows; l++) y[w->row[i + l]] += w->scale[w->row[i + l]] * sum[l];
    }
}

#ifdef GW_ISA /* the engine's alone: joined.h */
static void joined_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                           ptrdiff_t ldy, float *scratch, panel_range part);
#endif

GW_INLINE void product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                    ptrdiff_t ldy, float *scratch, panel_range part) {
    if (part.from >= part.to) return;
#ifdef GW_ISA
    if (w->joined) {
        joined_product(w, bias, m, x, ldx, y, ldy, scratch, part);
        return;
    }
#endif
    if (w->codes) {
        for (int32_t r = 0; r < m; r++)
            (!w->start ? int8_dense : w->row ? int8_sparse : int8_masked)(w, bias, x + r * ldx, y + r * ldy);
        return;
    }
    if (!w->start) {
        if (m == 1 && GW_LANES > 1)
            dense_product_one(w, bias, x, y, part);
        else
            dense_product(w, bias, m, x, ldx, y, ldy, part);
        return;
    }
    if (!w->row) {
        masked_product(w, bias, m, x, ldx, y, ldy, scratch);
        return;
    }
    if (bias)
        for (int32_t r = 0; r < m; r++) memcpy(y + r * ldy, bias, sizeof(float) * (size_t)w->rows);
    sparse_product(w, m, x, ldx, y, ldy, scratch);
}

#endif
