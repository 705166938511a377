/* Products y = W x + b with any form of a matrix that gw.h knows. Part of gw.c. */
#ifndef GW_PRODUCTS_H
#define GW_PRODUCTS_H

#include "panels.h"
#include "slices.h"

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
