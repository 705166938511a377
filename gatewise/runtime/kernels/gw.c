/* Matrix products and recurrent layers; the contract is in gw.h. */

#include "gw.h"

#include "vector.h"

#if defined(__clang__)
#define GW_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define GW_UNROLL _Pragma("GCC unroll 8")
#else
#define GW_UNROLL
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
enum { TILE_ROWS = 1, TILE_VECTORS = 4, RUN = 4, SETS = 2 };
#endif

/* Rows of x whose input projections are computed as one product before the recurrence walks over them: enough for
 * full tiles, few enough for the projections to stay in the second-level cache. */
enum { CHUNK_ROWS = 96 };

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

/* The branch is decided at compile time: sizes that do not fit the registers make no code. */
#define TILE(M, V)                                                                               \
    case (M) * 8 + (V):                                                                          \
        if ((M) <= TILE_ROWS && (V) <= TILE_VECTORS) tile(M, V, (M) * (V) > 4 ? 1 : 2, a);       \
        break;
#define TILES(M) TILE(M, 1) TILE(M, 2) TILE(M, 3) TILE(M, 4)

static void any_tile(int m, int nv, const tile_args *a) {
    switch (m * 8 + nv) { TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) }
}

/* Up to RUN vectors of rows that lie side by side in a panel. */
typedef struct {
    const float *w;    /* (cols, stride) */
    ptrdiff_t stride;
    const float *from; /* (rows) what the sums begin with */
    float *to;         /* (rows) */
    int32_t rows;
} row_run;

/* One vector of x with na vectors of a and nb of b, which are constants at every call. */
GW_INLINE void one_tile(const int na, const int nb, const int sets, int32_t cols, const float *x, const row_run *a,
                        const row_run *b) {
    const float *wa = a->w, *wb = b->w;
    const ptrdiff_t stride_a = a->stride, stride_b = b->stride;
    const int n = na + nb;
    vf sum[SETS][2 * RUN];
    GW_UNROLL
    for (int v = 0; v < n; v++) {
        const row_run *run = v < na ? a : b;
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
        const row_run *run = v < na ? a : b;
        const int32_t at = (v < na ? v : v - na) * GW_LANES, left = run->rows - at;
        GW_UNROLL
        for (int q = 1; q < sets; q++) sum[0][v] += sum[q][v];
        if (v < n - 1 || left >= GW_LANES)
            vf_store(run->to + at, sum[0][v]);
        else
            vf_store_first(run->to + at, sum[0][v], left);
    }
}

GW_INLINE void any_one_tile(int nv, int32_t cols, const float *x, const row_run *a, const row_run *b) {
    switch (nv) {
        case 1: one_tile(1, 0, SETS, cols, x, a, a); break;
        case 2: one_tile(2, 0, SETS, cols, x, a, a); break;
        case 3: one_tile(3, 0, 2, cols, x, a, a); break;
        case 4: one_tile(4, 0, 2, cols, x, a, a); break;
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

/* Only a dense matrix of floats is walked in parts. */
static int32_t n_panels(const gw_matrix *w) {
    return w->start || w->codes ? 1 : (w->rows + GW_PANEL - 1) / GW_PANEL;
}

static row_run run_at(const gw_matrix *w, const float *bias, float *y, int32_t top) {
    const int32_t panel = top / GW_PANEL * GW_PANEL, left = w->rows - top;
    const row_run run = {
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
        const row_run a = run_at(w, bias, y, top);
        const row_run b = left > ROWS ? run_at(w, bias, y, top + ROWS) : a;
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
            const int32_t left = width - lane, vectors = (left + GW_LANES - 1) / GW_LANES;
            const int nv = vectors < TILE_VECTORS ? vectors : TILE_VECTORS;
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
        for (int l = 0; l < GW_SLICE; l++)
            if (bits[j] >> l & 1) sum[l] += x[j] * *value++;
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
        for (int32_t j = 0; j < w->cols; j++)
            for (int l = 0; l < GW_SLICE; l++)
                if (bits[j] >> l & 1) sum[l] += x[j] * *code++;
        for (int32_t l = 0; l < lanes; l++) y[top + l] = (bias ? bias : y)[top + l] + w->scale[top + l] * sum[l];
    }
}

static void int8_dense(const gw_matrix *w, const float *bias, const float *x, float *y) {
    for (int32_t top = 0; top < w->rows; top += GW_PANEL) {
        const int32_t left = w->rows - top, width = left < GW_PANEL ? left : GW_PANEL;
        const ptrdiff_t stride = left > GW_PANEL ? GW_PANEL : w->last;
        for (int32_t lane = 0; lane < width; lane += GW_LANES) {
            const int8_t *code = w->codes + (ptrdiff_t)top * w->cols + lane;
            const int32_t at = top + lane, n = width - lane < GW_LANES ? width - lane : GW_LANES;
            vf sum = vf_all(0);
            for (int32_t j = 0; j < w->cols; j++, code += stride) sum += x[j] * vf_load_int8(code);
            sum = sum * vf_load_first(w->scale + at, n) + vf_load_first(bias ? bias + at : y + at, n);
            vf_store_first(y + at, sum, n);
        }
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

GW_INLINE void product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                    ptrdiff_t ldy, float *scratch, panel_range part) {
    if (part.from >= part.to) return;
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

void gw_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                ptrdiff_t ldy, float *scratch) {
    const panel_range all = {0, n_panels(w), 0};
    product(w, bias, m, x, ldx, y, ldy, scratch, all);
}

size_t gw_product_scratch(const gw_matrix *w, int32_t m) {
    if (!w->start || w->codes || m < TRANSPOSE_FROM) return 0;
    return (size_t)w->cols * (w->row ? GW_SLICE : GW_PANEL);
}

/* The first n lanes, as bits. */
GW_INLINE uint32_t first_lanes(int32_t n) {
    return n <= 0 ? 0 : n >= GW_LANES ? (1u << GW_LANES) - 1 : (1u << n) - 1;
}

/* act(row) in place: rows of g through tanh, rows of n unchanged, all others through the sigmoid. Whole vectors only,
 * each read and written once: a load that overlaps the masked store before it would wait for that store. */
static void activate(const gw_layer *layer, float *pre) {
    const int32_t from = layer->gate_start[2], to = layer->gate_start[3], lstm = layer->cell == GW_LSTM;
    const int32_t end = lstm ? layer->w_ih.rows : from;
    for (int32_t j = 0; j < end; j += GW_LANES) {
        const vf v = vf_load(pre + j);
        const uint32_t others = first_lanes(to - j) & ~first_lanes(from - j);
        vf act = v;
        if (others != first_lanes(GW_LANES)) act = layer->squash == GW_SIGMOID ? vf_sigmoid(v) : vf_hard_sigmoid(v);
        if (others) act = vf_select(others, lstm ? vf_tanh(v) : v, act);
        vf_store(pre + j, act);
    }
}

/* One gate of all neurons in turn: where its rows go on, which neurons have one, and what the others hold. */
typedef struct {
    const float *row;
    const uint16_t *live;
    const float *fixed;
} gate_walk;

static gate_walk walk(const gw_layer *layer, int k, const float *row) {
    const ptrdiff_t padded = GW_PADDED(layer->n_units);
    const gate_walk g = {row, layer->live + k * (padded / GW_BLOCK), layer->fixed + k * padded};
    return g;
}

/* The gate of neurons unit .. unit + GW_LANES - 1. */
GW_INLINE vf next(gate_walk *g, int32_t unit) {
    const uint32_t all = (1u << GW_LANES) - 1, live = (uint32_t)g->live[unit / GW_BLOCK] >> unit % GW_BLOCK & all;
    const float *row = g->row;
    if (!live) return vf_load(g->fixed + unit);
    for (uint32_t bits = live; bits; bits &= bits - 1) g->row++;
    return live == all ? vf_load(row) : vf_select(live, vf_expand(live, row), vf_load(g->fixed + unit));
}

/* h = s * scale of neurons unit .. unit + GW_LANES - 1, as far as there are some. */
GW_INLINE void emit(const gw_layer *layer, int32_t unit, vf s, float *y) {
    const int32_t left = layer->n_units - unit;
    if (!y) return;
    if (left >= GW_LANES)
        vf_store(y + unit, layer->scale ? s * vf_load(layer->scale + unit) : s);
    else
        vf_store_first(y + unit, layer->scale ? s * vf_load_first(layer->scale + unit, left) : s, left);
}

/* pre: (R padded), overwritten, and GW_BLOCK readable floats after it; s, c: (P); y: (K) or NULL. */
static void lstm_gates(const gw_layer *layer, float *pre, float *s, float *c, float *y) {
    const int32_t *start = layer->gate_start;
    gate_walk i = walk(layer, 0, pre + start[0]), f = walk(layer, 1, pre + start[1]);
    gate_walk g = walk(layer, 2, pre + start[2]), o = walk(layer, 3, pre + start[3]);
    activate(layer, pre);
    for (int32_t unit = 0; unit < layer->n_units; unit += GW_LANES) {
        const vf cell = next(&f, unit) * vf_load(c + unit) + next(&i, unit) * next(&g, unit);
        const vf state = next(&o, unit) * vf_tanh(cell);
        vf_store(c + unit, cell);
        vf_store(s + unit, state);
        emit(layer, unit, state, y);
    }
}

/* pre as above; rec: (R_n), the recurrent half of the candidate, and GW_BLOCK readable floats after it. */
static void gru_gates(const gw_layer *layer, float *pre, const float *rec, float *s, float *y) {
    const int32_t *start = layer->gate_start;
    gate_walk r = walk(layer, 0, pre + start[0]), u = walk(layer, 1, pre + start[1]);
    gate_walk n = walk(layer, 2, pre + start[2]), n_rec = walk(layer, 2, rec);
    n_rec.fixed = layer->fixed_hn;
    activate(layer, pre);
    for (int32_t unit = 0; unit < layer->n_units; unit += GW_LANES) {
        const vf update = next(&u, unit), candidate = vf_tanh(next(&n, unit) + next(&r, unit) * next(&n_rec, unit));
        const vf state = candidate + update * (vf_load(s + unit) - candidate);
        vf_store(s + unit, state);
        emit(layer, unit, state, y);
    }
}

/* Which vector of a view belongs to step `step` of the walk over sequence b. */
GW_INLINE ptrdiff_t sequence_row(const gw_batch *batch, int32_t b) { return batch->order ? batch->order[b] : b; }

GW_INLINE int32_t sequence_length(const gw_batch *batch, int32_t b) {
    return batch->lengths ? batch->lengths[b] : batch->steps;
}

GW_INLINE ptrdiff_t sequence_time(const gw_batch *batch, int32_t b, int32_t step) {
    return batch->reverse ? sequence_length(batch, b) - 1 - step : step;
}

/* Lengths never rise, so the sequences still running are the first ones. */
GW_INLINE int32_t running(const gw_batch *batch, int32_t step) {
    int32_t n = batch->size;
    if (batch->lengths)
        while (n && batch->lengths[n - 1] <= step) n--;
    return n;
}

GW_INLINE void pick(const int32_t *which, int32_t n, const float *from, float *to) {
    if (!which)
        memcpy(to, from, sizeof(float) * (size_t)n);
    else
        for (int32_t j = 0; j < n; j++) to[j] = from[which[j]];
}

enum { WHOLE, AHEAD, LATE }; /* of a step's recurrent products: all, the first half of the walk, the second */

/* Half of the panels of two matrices that are walked one after the other. */
static void halve(panel_range *first, panel_range *second, int half) {
    const int32_t middle = (first->to + second->to) / 2, rest = middle - first->to;
    if ((half == AHEAD) == first->backwards) {
        first->from = middle < first->to ? middle : first->to;
        second->from = rest > 0 ? rest : 0;
    } else {
        first->to = middle < first->to ? middle : first->to;
        second->to = rest > 0 ? rest : 0;
    }
}

/* pre (n, R padded) += recurrent products of the n running sequences; rec (n, R_n): those of the GRU's candidate.
 * Weights larger than a cache are walked to and fro, so that a step begins with what the last one left there. */
static void recurrent_products(const gw_layer *layer, const gw_batch *batch, int32_t step, int32_t n, int half,
                               const float *s, float *pre, float *rec, float *scratch) {
    const int32_t n_rec = layer->w_hh.cols;
    const int gru = layer->cell == GW_GRU, backwards = (step + batch->phase) & 1;
    panel_range rows = {0, n_panels(&layer->w_hh), backwards};
    panel_range candidate = {0, gru ? n_panels(&layer->w_hn) : 0, backwards};
    ptrdiff_t lds = GW_PADDED(layer->n_units);
    float *picked = scratch;
    if (half != WHOLE) halve(&rows, &candidate, half);
    if (layer->reads || batch->order) {
        for (int32_t b = 0; b < n; b++) pick(layer->reads, n_rec, s + sequence_row(batch, b) * lds, picked + (ptrdiff_t)b * n_rec);
        s = picked;
        lds = n_rec;
        scratch += (ptrdiff_t)n * n_rec;
    }
    for (int k = !gru; k < 2; k++) {
        const int joint = !gru || k == backwards;
        product(joint ? &layer->w_hh : &layer->w_hn, joint ? NULL : layer->bias_hn, n, s, lds, joint ? pre : rec,
                joint ? GW_PADDED(layer->w_ih.rows) : layer->w_hn.rows, scratch, joint ? rows : candidate);
    }
}

/* pre (n, R padded) = what every step starts from: the bias, or the row of the table of its word. */
static void start_rows(const gw_layer *layer, const gw_batch *batch, const gw_words *words, int32_t step, float *pre) {
    const int32_t rows = layer->w_ih.rows;
    for (int32_t b = 0, n = running(batch, step); b < n; b++, pre += GW_PADDED(rows)) {
        int32_t word = -1;
        if (words)
            word = words->data[sequence_time(batch, b, step) * words->time + sequence_row(batch, b) * words->batch];
        if (word >= 0 && layer->table_codes)
            gw_embed_int8(layer->table_codes, layer->table_scale, rows, 1, &word, pre);
        else
            memcpy(pre, word < 0 ? layer->bias : layer->table + (ptrdiff_t)word * rows, sizeof(float) * (size_t)rows);
    }
}

/* Input projections of steps first .. end-1, (running sequences of each step, R padded), one after the other. Without
 * a bias they are added to what is there. */
static void input_projections(const gw_layer *layer, const gw_batch *batch, const gw_const_steps *x, const float *bias,
                              int32_t first, int32_t end, float *pre, float *scratch) {
    const gw_matrix *w = &layer->w_ih;
    const ptrdiff_t ld = GW_PADDED(w->rows);
    int32_t m = 0;
    if (!layer->inputs && !batch->order && !batch->lengths && !batch->reverse &&
        (batch->size == 1 || end - first == 1 || x->time == batch->size * x->batch)) {
        gw_product(w, bias, (end - first) * batch->size, x->data + first * x->time,
                   batch->size == 1 ? x->time : x->batch, pre, ld, scratch);
        return;
    }
    for (int32_t step = first; step < end; step++)
        for (int32_t b = 0, n = running(batch, step); b < n; b++, m++)
            pick(layer->inputs, w->cols,
                 x->data + sequence_time(batch, b, step) * x->time + sequence_row(batch, b) * x->batch,
                 scratch + (ptrdiff_t)m * w->cols);
    gw_product(w, bias, m, scratch, w->cols, pre, ld, scratch + (ptrdiff_t)m * w->cols);
}

static int32_t chunk_steps(int32_t steps, int32_t batch) {
    const int32_t most = batch >= CHUNK_ROWS ? 1 : CHUNK_ROWS / (batch > 0 ? batch : 1);
    return steps < most ? steps : most;
}

/* Scratch: pre (chunk rows, R padded) + block, rec (B, R_n) + block, then what one product at a time needs. It takes
 * the bound on the rows of a chunk, not their number, so that a smaller batch never needs more. */
size_t gw_layer_scratch(const gw_layer *layer, int32_t steps, int32_t batch) {
    const size_t b = (size_t)batch, all = (size_t)steps * b, most = batch > CHUNK_ROWS ? b : CHUNK_ROWS;
    const size_t m = all < most ? all : most;
    const size_t input = m * (size_t)layer->w_ih.cols + gw_product_scratch(&layer->w_ih, (int32_t)m);
    const size_t rec_rows = gw_product_scratch(&layer->w_hh, batch), rec_n = gw_product_scratch(&layer->w_hn, batch);
    const size_t recurrent = b * (size_t)layer->w_hh.cols + (rec_rows > rec_n ? rec_rows : rec_n);
    return m * (size_t)GW_PADDED(layer->w_ih.rows) + GW_BLOCK + b * (size_t)layer->w_hn.rows + GW_BLOCK +
           (input > recurrent ? input : recurrent);
}

/* The parts of the scratch; `rows` are those of a chunk. */
typedef struct {
    float *pre, *rec, *rest;
} layer_scratch;

static layer_scratch divide(const gw_layer *layer, int32_t rows, int32_t batch, float *scratch) {
    layer_scratch parts = {.pre = scratch};
    parts.rec = parts.pre + (ptrdiff_t)rows * GW_PADDED(layer->w_ih.rows) + GW_BLOCK;
    parts.rest = parts.rec + (ptrdiff_t)batch * layer->w_hn.rows + GW_BLOCK;
    return parts;
}

void gw_layer_ahead(const gw_layer *layer, const gw_batch *batch, const gw_words *words, const float *s,
                    float *scratch) {
    const layer_scratch to = divide(layer, batch->size, batch->size, scratch);
    start_rows(layer, batch, words, 0, to.pre);
    recurrent_products(layer, batch, 0, running(batch, 0), AHEAD, s, to.pre, to.rec, to.rest);
}

void gw_layer_run(const gw_layer *layer, const gw_batch *batch, const gw_const_steps *x, const gw_words *words,
                  float *s, float *c, const gw_steps *y, float *scratch) {
    const ptrdiff_t padded = GW_PADDED(layer->n_units), ld = GW_PADDED(layer->w_ih.rows);
    const int32_t chunk = chunk_steps(batch->steps, batch->size);
    const layer_scratch to = divide(layer, chunk * batch->size, batch->size, scratch);
    for (int32_t first = 0; first < batch->steps; first += chunk) {
        const int32_t end = batch->steps - first < chunk ? batch->steps : first + chunk;
        float *now = to.pre;
        if (!words && !batch->ahead) input_projections(layer, batch, x, layer->bias, first, end, now, to.rest);
        for (int32_t step = first; step < end; step++) {
            const int32_t n = running(batch, step);
            if (words && !batch->ahead) start_rows(layer, batch, words, step, now);
            recurrent_products(layer, batch, step, n, batch->ahead ? LATE : WHOLE, s, now, to.rec, to.rest);
            /* After both halves: which one is early changes from call to call, the order of a sum must not. */
            if (!words && batch->ahead) input_projections(layer, batch, x, NULL, first, end, now, to.rest);
            for (int32_t b = 0; b < n; b++, now += ld) {
                const ptrdiff_t at = sequence_row(batch, b);
                float *h = y->data ? y->data + sequence_time(batch, b, step) * y->time + at * y->batch : NULL;
                if (layer->cell == GW_LSTM)
                    lstm_gates(layer, now, s + at * padded, c + at * padded, h);
                else
                    gru_gates(layer, now, to.rec + b * (ptrdiff_t)layer->w_hn.rows, s + at * padded, h);
            }
        }
    }
    if (batch->lengths && y->data)
        for (int32_t b = 0; b < batch->size; b++)
            for (int32_t t = batch->lengths[b]; t < batch->steps; t++)
                memset(y->data + t * y->time + sequence_row(batch, b) * y->batch, 0,
                       sizeof(float) * (size_t)layer->n_units);
}

void gw_softmax(int32_t m, int32_t n, float *y) {
    for (; m > 0; m--, y += n) {
        const int32_t whole = n - n % GW_LANES;
        vf most = vf_all(y[0]), sum = vf_all(0);
        float top, total;
        int32_t j;
        for (j = 0; j < whole; j += GW_LANES) most = vf_max(most, vf_load(y + j));
        top = vf_largest(most);
        for (; j < n; j++) top = y[j] > top ? y[j] : top;
        for (j = 0; j < whole; j += GW_LANES) {
            const vf e = vf_exp(vf_load(y + j) - top);
            vf_store(y + j, e);
            sum += e;
        }
        total = vf_total(sum);
        if (j < n) {
            vf_store_first(y + j, vf_exp(vf_load_first(y + j, n - j) - top), n - j);
            for (; j < n; j++) total += y[j];
        }
        for (j = 0; j < whole; j += GW_LANES) vf_store(y + j, vf_load(y + j) * (1 / total));
        for (; j < n; j++) y[j] *= 1 / total;
    }
}

void gw_map(int32_t f, size_t n, const float *x, float *y) {
    for (size_t j = 0; j < n; j += GW_LANES) {
        const int lanes = n - j < GW_LANES ? (int)(n - j) : GW_LANES;
        const vf v = vf_load_first(x + j, lanes);
        const vf r = f == GW_F_SIGMOID        ? vf_sigmoid(v)
                     : f == GW_F_HARD_SIGMOID ? vf_hard_sigmoid(v)
                     : f == GW_F_TANH         ? vf_tanh(v)
                                              : vf_exp(v);
        vf_store_first(y + j, r, lanes);
    }
}

#ifdef GW_ISA
#include "dispatch.h"

#define GW_TEXT(isa) #isa
#define GW_QUOTE(isa) GW_TEXT(isa)

const gw_kernels GW_NAME(gw_kernels) = {
    .isa = GW_QUOTE(GW_ISA),
    .product = gw_product,
    .product_scratch = gw_product_scratch,
    .layer_ahead = gw_layer_ahead,
    .layer_run = gw_layer_run,
    .layer_scratch = gw_layer_scratch,
    .softmax = gw_softmax,
    .map = gw_map,
};
#endif
