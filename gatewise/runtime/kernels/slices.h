/* Products with a sparse or masked matrix, whose rows lie in slices, and with both in int8. Part of gw.c. */
#ifndef GW_SLICES_H
#define GW_SLICES_H

#include "panels.h"

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
        vf even = vf_all(0), odd = vf_all(0);
        int32_t j = 0;
        for (; j + 1 < w->cols; j += 2) {
            const int8_t *second = code + count_bits(bits[j]);
            even += x[j] * vf_expand_int8(bits[j], code);
            odd += x[j + 1] * vf_expand_int8(bits[j + 1], second);
            code = second + count_bits(bits[j + 1]);
        }
        if (j < w->cols) even += x[j] * vf_expand_int8(bits[j], code);
        vf_store(sum, even + odd);
#else
        for (int32_t j = 0; j < w->cols; j++)
            for (uint32_t set = bits[j]; set; set &= set - 1) sum[first_bit(set)] += x[j] * *code++;
#endif
        for (int32_t l = 0; l < lanes; l++) y[top + l] = (bias ? bias : y)[top + l] + w->scale[top + l] * sum[l];
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

#endif
