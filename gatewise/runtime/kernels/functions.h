/* The functions of the gates on vectors, and exp. Part of gw.c. */
#ifndef GW_FUNCTIONS_H
#define GW_FUNCTIONS_H

#include "vector.h"

/* exp(k x) = scale * (1 + rest) with |k x - log(scale)| <= log(2) / 2, for -87 <= k x <= 88; k is 1, -1 or 2, and a
 * constant at every call. `rest` is a polynomial without a constant term, so exp(k x) - 1 keeps its relative accuracy
 * near 0. Without `fine` its relative error grows to 1.3e-8 |k x|, which the functions of gates do not notice. */
GW_INLINE void vf_exp_parts(const float k, const int fine, vf x, vf *scale, vf *rest) {
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum; 127 more make it an exponent. */
    const float shift = 12582912.0f + 127.0f, log2e = k * 1.44269502f;
    vf t = x * log2e + shift;
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
    vf less = vf_from_ints(vf_bits(vf_all(shift)) - vf_bits(t)); /* of shift - t it would make -x * log2e */
#else
    vf less = shift - t;
#endif
    /* The exponent less that integer, in powers of 2: exact where a product is not rounded before the sum. */
#ifdef GW_FUSED
    vf f = vf_fused(x, log2e, less);
    if (fine) f += x * (k * 1.92596299e-8f);
#else
    vf f = (x + less * (0.693145752f / k) + less * (1.42860677e-6f / k)) * log2e;
    (void)fine;
#endif
    /* Minimax on |f| <= 1 / 2: relative error of 2^f below 2e-8 before rounding. */
    vf f2 = f * f;
    vf high = f2 * 0.00015353311f + (f * 0.0013398939f + 0.00961843785f);
    vf low = f * 0.0555033199f + 0.240226477f;
    *rest = (f2 * high + low) * f2 + f * 0.693147182f;
    *scale = vf_from_bits(vf_bits(t) << 23);
}

GW_INLINE vf vf_exp(vf x) {
    vf scale, rest;
    vf_exp_parts(1, 1, vf_clamp(x, -87.0f, 88.0f), &scale, &rest);
    return scale * rest + scale;
}

#ifdef GW_CUBICS /* tests define it on any machine, with GW_LANES 1 */
#include "cubics.h"

/* tanh(x * eighths / 8) by the cubic of an interval: within 4e-7 of the truth. It takes a third of the instructions of a
 * quotient of exponentials, and no division. What is no number stays none; x beyond 4e37 becomes none. */
GW_INLINE float vf_cubic(float x, float eighths) {
#ifdef GW_VFP
    const float *a;
    float t;
    register float y __asm__("s12");
    __asm__("vmul.f32 %[t], %[x], %[eighths]\n"
            "vcvt.s32.f32 s12, %[t]\n"
            "vmov %[a], s12\n"
            "ssat %[a], #7, %[a]\n"
            "add %[a], %[middle], %[a], lsl #4\n"
            "vldmia %[a], {s12-s15}\n"
            "vfma.f32 s14, s15, %[t]\n"
            "vfma.f32 s13, s14, %[t]\n"
            "vfma.f32 s12, s13, %[t]\n"
            : "=t"(y), [a] "=&r"(a), [t] "=&t"(t)
            : [x] "t"(x), [eighths] "t"(eighths), [middle] "r"(gw_cubics[GW_CUBICS_MIDDLE])
            : "s13", "s14", "s15");
    return y;
#else
    const float t = x * eighths;
    const float *a = gw_cubics[GW_CUBICS_MIDDLE + (t >= 63 ? 63 : t <= -64 ? -64 : t == t ? (int)t : 0)];
    return ((a[3] * t + a[2]) * t + a[1]) * t + a[0];
#endif
}

GW_INLINE float vf_tanh(float x) { return vf_cubic(x, 8); }

/* 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2 */
GW_INLINE float vf_sigmoid(float x) { return 0.5f + 0.5f * vf_cubic(x, 4); }
#else
/* 1 / (1 + exp(-x)): within 1.5e-7 of the truth for every x. */
GW_INLINE vf vf_sigmoid(vf x) {
    vf scale, rest;
    vf_exp_parts(-1, 0, vf_within(x, 87), &scale, &rest);
    return vf_inverse(scale * rest + (scale + 1.0f));
}

/* tanh(x) = e / (e + 2) with e = exp(2 x) - 1: within 2e-7 of the truth for every x, and 4 ulp near 0. Steps of small
 * networks wait for one division here, which is sooner done than an estimate mended. */
GW_INLINE vf vf_tanh(vf x) {
    vf scale, rest;
    vf_exp_parts(2, 0, vf_within(x, 10), &scale, &rest);
    return (scale * rest + (scale - 1.0f)) / (scale * rest + (scale + 1.0f));
}
#endif

/* clip(0.2 x + 0.5, 0, 1) */
GW_INLINE vf vf_hard_sigmoid(vf x) { return vf_clamp(x * 0.2f + 0.5f, 0.0f, 1.0f); }

#endif
