/* The kernels of one instruction set as a table, and the choice among those this machine can run. */
#ifndef GW_DISPATCH_H
#define GW_DISPATCH_H

#include "gw.h"

typedef struct {
    const char *isa;
    void (*product)(const gw_matrix *, const float *, int32_t, const float *, ptrdiff_t, float *, ptrdiff_t, float *);
    size_t (*product_scratch)(const gw_matrix *, int32_t);
    void (*layer_ahead)(const gw_layer *, const gw_batch *, const gw_words *, const float *, float *);
    void (*layer_run)(const gw_layer *, const gw_batch *, const gw_const_steps *, const gw_words *, float *, float *,
                      const gw_steps *, float *);
    size_t (*layer_scratch)(const gw_layer *, int32_t, int32_t);
    void (*softmax)(int32_t, int32_t, float *);
    void (*layer_norm)(int32_t, int32_t, float, float *);
    void (*map)(int32_t, size_t, const float *, float *);
} gw_kernels;

/* Table number i of those this machine can run, fastest first; NULL past the last. */
const gw_kernels *gw_kernels_at(int i);

/* Whether the masked form is faster than zeros from a cache: values are spread to set bits in few cycles. */
int gw_expands_well(void);

#endif
