/* Vectors that are normalised, for those who call it alone: a program without one has no code for it. */
#ifndef GW_NORM_H
#define GW_NORM_H

#include <math.h>
#include <stdint.h>

enum { GW_PARTS = 16 }; /* of a sum, which vectors add to at once */

/* y - mean(y) */
static inline void gw_centre(int32_t n, float *y) {
    float part[GW_PARTS] = {0}, mean = 0;
    int32_t j = 0;
    for (; j + GW_PARTS <= n; j += GW_PARTS)
        for (int32_t k = 0; k < GW_PARTS; k++) part[k] += y[j + k];
    for (; j < n; j++) mean += y[j];
    for (j = 0; j < GW_PARTS; j++) mean += part[j];
    mean /= (float)n;
    for (j = 0; j < n; j++) y[j] -= mean;
}

/* mean(y^2) */
static inline float gw_mean_square(int32_t n, const float *y) {
    float part[GW_PARTS] = {0}, mean = 0;
    int32_t j = 0;
    for (; j + GW_PARTS <= n; j += GW_PARTS)
        for (int32_t k = 0; k < GW_PARTS; k++) part[k] += y[j + k] * y[j + k];
    for (; j < n; j++) mean += y[j] * y[j];
    for (j = 0; j < GW_PARTS; j++) mean += part[j];
    return mean / (float)n;
}

/* (y - mean(y)) / sqrt(mean((y - mean(y))^2) + eps) along each of m rows of n, in place. */
static inline void gw_layer_norm(int32_t m, int32_t n, float eps, float *y) {
    for (; m > 0; m--, y += n) {
        gw_centre(n, y);
        gw_centre(n, y); /* what rounding left of a mean that is large beside the differences */
        const float scale = 1 / sqrtf(gw_mean_square(n, y) + eps);
        for (int32_t j = 0; j < n; j++) y[j] *= scale;
    }
}

#endif
