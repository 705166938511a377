/* Word ids in, best guesses out; the contract is in gw.h. */

#include "gw.h"

#include <string.h>

#include "vector.h"

size_t gw_remap(const int32_t *remap, int64_t n_words, size_t n, const int64_t *ids, int32_t *words) {
    for (size_t j = 0; j < n; j++) {
        const int64_t id = ids[j]; /* read once: another thread may write meanwhile */
        if (id < 0 || id >= n_words) return j;
        words[j] = remap ? remap[id] : (int32_t)id;
    }
    return n;
}

void gw_embed(const float *embedding, int32_t dim, size_t n, const int32_t *words, float *y) {
    for (size_t j = 0; j < n; j++, y += dim) {
        if (words[j] < 0)
            memset(y, 0, sizeof(float) * (size_t)dim);
        else
            memcpy(y, embedding + (ptrdiff_t)words[j] * dim, sizeof(float) * (size_t)dim);
    }
}

static void dense_row(const gw_matrix *w, int32_t row, float *y) {
    const int32_t top = row / GW_PANEL * GW_PANEL;
    const ptrdiff_t stride = top + GW_PANEL < w->rows ? GW_PANEL : w->last;
    ptrdiff_t at = (ptrdiff_t)top * w->cols + (row - top);
    for (int32_t j = 0; j < w->cols; j++, at += stride) y[j] = w->codes ? w->scale[row] * w->codes[at] : w->values[at];
}

void gw_embed_matrix(const gw_matrix *w, size_t n, const int32_t *words, float *y) {
    for (size_t i = 0; i < n; i++, y += w->cols) {
        const int32_t word = words[i], slice = word / GW_SLICE, lane = word % GW_SLICE;
        memset(y, 0, sizeof(float) * (size_t)w->cols);
        if (word < 0) continue;
        if (!w->start) {
            dense_row(w, word, y);
            continue;
        }
        for (int32_t j = 0, at = w->start[slice]; j < w->cols; j++) {
            const uint32_t bits = w->column[(ptrdiff_t)slice * w->cols + j];
            const int32_t k = at + count_bits(bits & ((1u << lane) - 1));
            if (bits >> lane & 1) y[j] = w->codes ? w->scale[word] * w->codes[k] : w->values[k];
            at += count_bits(bits);
        }
    }
}

void gw_embed_int8(const int8_t *codes, const float *scale, int32_t dim, size_t n, const int32_t *words, float *y) {
    for (size_t j = 0; j < n; j++, y += dim) {
        if (words[j] < 0)
            memset(y, 0, sizeof(float) * (size_t)dim);
        else
            for (int32_t k = 0; k < dim; k++) y[k] = scale[words[j]] * codes[(ptrdiff_t)words[j] * dim + k];
    }
}
