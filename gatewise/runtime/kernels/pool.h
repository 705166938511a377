/* Mean, maximum and sum over the steps of a sequence, which may go on: one vector (n) that every step changes. */
#ifndef GW_POOL_H
#define GW_POOL_H

#include <stddef.h>
#include <stdint.h>

/* mean' = mean + (x - mean) / (done + 1), for steps vectors that begin ld floats apart. Returns how many were done, a
 * float: it stops counting at 2^24, and from there on a step weighs as much as that one, where a sum would fade. */
static inline float gw_pool_mean(float done, int32_t steps, int32_t n, const float *x, ptrdiff_t ld, float *mean) {
    for (; steps > 0; steps--, x += ld) {
        done += 1;
        const float weight = 1 / done;
        for (int32_t j = 0; j < n; j++) mean[j] += weight * (x[j] - mean[j]);
    }
    return done;
}

/* sum = done * mean. Added up in floats, a million steps of 0.1 would be off by a hundredth; their mean is not. */
static inline void gw_pool_sum(float done, int32_t n, const float *mean, float *sum) {
    for (int32_t j = 0; j < n; j++) sum[j] = done * mean[j];
}

/* top' = max(top, x); NaN stays. */
static inline void gw_pool_max(int32_t steps, int32_t n, const float *x, ptrdiff_t ld, float *top) {
    for (; steps > 0; steps--, x += ld)
        for (int32_t j = 0; j < n; j++) top[j] = x[j] > top[j] || x[j] != x[j] ? x[j] : top[j];
}

#endif
