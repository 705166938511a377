/* Vectors of GW_LANES floats, from one source for every machine.
 *
 * The compiler's vector extensions give arithmetic on SSE2, AVX2, AVX-512 and NEON; with GW_LANES 1 a "vector" is a
 * plain float. Only what those extensions cannot say well is written with intrinsics, each beside a portable form.
 * Compile with -ffp-contract=fast, so that a * b + c becomes one instruction where the machine has it.
 */
#ifndef GW_VECTOR_H
#define GW_VECTOR_H

#include <stdint.h>
#include <string.h>

#ifndef GW_LANES
#if defined(__AVX512F__)
#define GW_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define GW_LANES 8
#elif defined(__SSE2__) || defined(__ARM_NEON)
#define GW_LANES 4
#else
#define GW_LANES 1
#endif
#endif

/* ARM's unit for single floats: Cortex-M4, M7, M33. There gates read the table of cubics.h, which -DGW_NO_CUBICS leaves
 * out: 1.6 kB of flash less, and 60 % more instructions in a step of 16 neurons. */
#if GW_LANES == 1 && defined(__GNUC__) && defined(__thumb2__) && defined(__ARM_FEATURE_FMA) && defined(__ARM_FP) && \
    !defined(__ARM_NEON)
#if __ARM_FP & 4
#define GW_VFP
#endif
#endif
#if defined(GW_VFP) && !defined(GW_NO_CUBICS)
#define GW_CUBICS
#endif

#if GW_LANES >= 8
#include <immintrin.h>
#elif GW_LANES == 4 && defined(__SSE2__)
#include <emmintrin.h>
#elif GW_LANES == 4 && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define GW_INLINE static inline __attribute__((always_inline))
#else
#define GW_INLINE static inline
#endif

/* Of 16 bits. Without an instruction for it the compiler would call a function of its own. */
GW_INLINE int count_bits(uint32_t bits) {
#if defined(__POPCNT__)
    return __builtin_popcount(bits);
#else
    bits -= bits >> 1 & 0x5555;
    bits = (bits & 0x3333) + (bits >> 2 & 0x3333);
    bits = (bits + (bits >> 4)) & 0x0f0f;
    return (int)((bits + (bits >> 8)) & 0x1f);
#endif
}

/* The lowest bit that is set, of at least one. */
GW_INLINE int first_bit(uint32_t bits) {
#if defined(__GNUC__)
    return __builtin_ctz(bits);
#else
    int l = 0;
    while (!(bits >> l & 1)) l++;
    return l;
#endif
}

#if GW_LANES > 1
typedef float vf __attribute__((vector_size(4 * GW_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * GW_LANES)));
#else
typedef float vf;
typedef uint32_t vu;
#endif

/* Of a single float compilers would make a copy through other registers. */
GW_INLINE vf vf_load(const float *p) {
#if GW_LANES > 1
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
#else
    return *p;
#endif
}

/* Bytes as floats. Of a loop over the lanes compilers make one conversion after the other, at -O2 even of eight. */
GW_INLINE vf vf_load_int8(const int8_t *p) {
#if GW_LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif GW_LANES == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#elif GW_LANES == 4 && defined(__SSE2__)
    int32_t four;
    memcpy(&four, p, sizeof four);
    __m128i b = _mm_cvtsi32_si128(four);
    b = _mm_unpacklo_epi8(b, b); /* each byte to the top of its lane, from where its sign comes down */
    b = _mm_unpacklo_epi16(b, b);
    return (vf)_mm_cvtepi32_ps(_mm_srai_epi32(b, 24));
#elif GW_LANES == 4 && defined(__ARM_NEON)
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const int16x8_t half = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    return (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(half)));
#elif GW_LANES > 1
    float lane[GW_LANES];
    for (int l = 0; l < GW_LANES; l++) lane[l] = p[l];
    return vf_load(lane);
#else
    return *p;
#endif
}

/* n vectors, a constant at every call. Four short ones are one load, and share the first half of their way. */
GW_INLINE void vf_load_int8s(const int n, const int8_t *p, vf *to) {
#if GW_LANES == 4 && defined(__SSE2__)
    if (n == 4) {
        const __m128i b = _mm_loadu_si128((const __m128i *)p);
        const __m128i low = _mm_unpacklo_epi8(b, b), high = _mm_unpackhi_epi8(b, b);
        to[0] = (vf)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(low, low), 24));
        to[1] = (vf)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpackhi_epi16(low, low), 24));
        to[2] = (vf)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(high, high), 24));
        to[3] = (vf)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpackhi_epi16(high, high), 24));
        return;
    }
#elif GW_LANES == 4 && defined(__ARM_NEON)
    if (n == 4) {
        const int8x16_t b = vld1q_s8(p);
        const int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
        to[0] = (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
        to[1] = (vf)vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
        to[2] = (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
        to[3] = (vf)vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
        return;
    }
#endif
    for (int v = 0; v < n; v++) to[v] = vf_load_int8(p + v * GW_LANES);
}

/* Asks the cache for what lies `later` bytes after n vectors at p, which a walk over a panel reads soon. Processors do so
 * by themselves, but some too late: of 9 MB in its third level a Zen 5 then reads 105 GB/s instead of 140. */
GW_INLINE void fetch_later(const int n, const void *p, const int later) {
#if defined(__GNUC__) && GW_LANES > 1
    enum { LINE = 64 };
    for (int at = 0; at < n * (int)sizeof(vf); at += LINE) __builtin_prefetch((const char *)p + later + at);
#else
    (void)n, (void)p, (void)later;
#endif
}

GW_INLINE void vf_store(float *p, vf v) {
#if GW_LANES > 1
    memcpy(p, &v, sizeof v);
#else
    *p = v;
#endif
}

GW_INLINE vf vf_all(float x) {
#if GW_LANES > 1
    return x - (vf){0};
#else
    return x;
#endif
}

GW_INLINE vu vf_bits(vf v) {
    vu b;
    memcpy(&b, &v, sizeof b);
    return b;
}

GW_INLINE vf vf_from_bits(vu b) {
    vf v;
    memcpy(&v, &b, sizeof v);
    return v;
}

/* Integers as floats. */
GW_INLINE vf vf_from_ints(vu b) {
#if GW_LANES == 16
    return (vf)_mm512_cvtepi32_ps((__m512i)b);
#elif GW_LANES == 8
    return (vf)_mm256_cvtepi32_ps((__m256i)b);
#elif GW_LANES > 1
    float lane[GW_LANES];
    for (int l = 0; l < GW_LANES; l++) lane[l] = (float)(int32_t)b[l];
    return vf_load(lane);
#else
    return (float)(int32_t)b;
#endif
}

/* The first n lanes, 0 < n <= GW_LANES; the others are 0 and stay untouched in memory. Loops, because memcpy() would be
 * called for so few, and where sizes are constants gcc warns of copies on paths that no n takes. */
GW_INLINE vf vf_load_first(const float *p, int n) {
#if GW_LANES == 16
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif GW_LANES == 1
    (void)n;
    return *p;
#else
    vf v = vf_all(0);
    for (int l = 0; l < GW_LANES; l++) v[l] = l < n ? p[l] : 0;
    return v;
#endif
}

GW_INLINE void vf_store_first(float *p, vf v, int n) {
#if GW_LANES == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif GW_LANES == 1
    (void)n;
    *p = v;
#else
    for (int l = 0; l < GW_LANES && l < n; l++) p[l] = v[l];
#endif
}

/* Clamps, and keeps a NaN a NaN. */
GW_INLINE vf vf_clamp(vf v, float low, float high) {
#if GW_LANES == 16
    return (vf)_mm512_max_ps(_mm512_set1_ps(low), _mm512_min_ps(_mm512_set1_ps(high), (__m512)v));
#elif GW_LANES == 8
    return (vf)_mm256_max_ps(_mm256_set1_ps(low), _mm256_min_ps(_mm256_set1_ps(high), (__m256)v));
#elif GW_LANES > 1
    vu under = (vu)(v < vf_all(low)), over = (vu)(v > vf_all(high));
    return (vf)((vf_bits(v) & ~under & ~over) | (vf_bits(vf_all(low)) & under) | (vf_bits(vf_all(high)) & over));
#else
    return v < low ? low : v > high ? high : v;
#endif
}

/* The same between -size and size, where nearly all v are. */
GW_INLINE vf vf_within(vf v, float size) {
#if GW_LANES == 1 && defined(__GNUC__)
    if (__builtin_expect(__builtin_fabsf(v) <= size, 1)) return v;
#endif
    return vf_clamp(v, -size, size);
}

/* Lane l: a where bit l of `bits` is set, else b. */
GW_INLINE vf vf_select(uint32_t bits, vf a, vf b) {
#if GW_LANES == 16
    return (vf)_mm512_mask_blend_ps((__mmask16)bits, (__m512)b, (__m512)a);
#elif GW_LANES > 1
    vu lane = {0};
    for (int l = 0; l < GW_LANES; l++) lane[l] = 1u << l;
    const vu mask = (vu)((lane & bits) != 0);
    return (vf)((vf_bits(a) & mask) | (vf_bits(b) & ~mask));
#else
    return bits ? a : b;
#endif
}

#if GW_LANES == 16 && defined(__AVX512VPOPCNTDQ__)
#define GW_COUNTS_LANES
/* Lane l: how many bits below bit l are set. With it a permutation expands; processors of AMD take three times as long
 * for the instruction that does it all. */
GW_INLINE __m512i bits_below(uint32_t bits) {
    const __m512i below = _mm512_setr_epi32(0, 0x1, 0x3, 0x7, 0xf, 0x1f, 0x3f, 0x7f, 0xff, 0x1ff, 0x3ff, 0x7ff, 0xfff,
                                            0x1fff, 0x3fff, 0x7fff);
    return _mm512_popcnt_epi32(_mm512_and_si512(_mm512_set1_epi32((int)bits), below));
}
#endif

/* Lanes whose bit is set take the next float of p, in order; the others are undefined. May read p[number of bits]. */
GW_INLINE vf vf_expand(uint32_t bits, const float *p) {
#ifdef GW_COUNTS_LANES
    const __m512 packed = _mm512_maskz_loadu_ps((__mmask16)((1u << count_bits(bits)) - 1), p);
    return (vf)_mm512_maskz_permutexvar_ps((__mmask16)bits, bits_below(bits), packed);
#elif GW_LANES == 16
    return (vf)_mm512_maskz_expandloadu_ps((__mmask16)bits, p);
#elif GW_LANES > 1
    float lane[GW_LANES];
    for (int l = 0; l < GW_LANES; l++) {
        lane[l] = *p;
        p += bits >> l & 1;
    }
    return vf_load(lane);
#else
    (void)bits;
    return *p;
#endif
}

/* Lanes whose bit is set take the next lane of v, in order; the others that of `rest`. p is where v was loaded from:
 * narrow vectors are taken from there. */
GW_INLINE vf vf_spread(uint32_t bits, vf v, const float *p, vf rest) {
#if GW_LANES == 16
    (void)p;
    return (vf)_mm512_mask_expand_ps((__m512)rest, (__mmask16)bits, (__m512)v);
#elif GW_LANES == 8
    /* A lane takes as many steps as bits are set below it; a shuffle counts those of four bits. */
    const __m128i counts = _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i of_four = _mm256_broadcastsi128_si256(counts), low = _mm256_set1_epi32(15);
    const __m256i below = _mm256_and_si256(_mm256_set1_epi32((int)bits), _mm256_setr_epi32(0, 1, 3, 7, 15, 31, 63, 127));
    const __m256i taken = _mm256_add_epi32(_mm256_shuffle_epi8(of_four, _mm256_and_si256(below, low)),
                                           _mm256_shuffle_epi8(of_four, _mm256_srli_epi32(below, 4)));
    (void)p;
    return vf_select(bits, (vf)_mm256_permutevar8x32_ps((__m256)v, taken), rest);
#else
    (void)v;
    return vf_select(bits, vf_expand(bits, p), rest);
#endif
}

#if GW_LANES == 16
/* As vf_expand, of bytes, with zeros in the other lanes. Reads as many bytes as bits are set. */
GW_INLINE vf vf_expand_int8(uint32_t bits, const int8_t *p) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    const __m128i bytes = _mm_maskz_loadu_epi8((__mmask16)((1u << count_bits(bits)) - 1), p);
#else
    int8_t lane[16] = {0};
    memcpy(lane, p, (size_t)count_bits(bits));
    const __m128i bytes = _mm_loadu_si128((const __m128i *)lane);
#endif
    const __m512i packed = _mm512_cvtepi8_epi32(bytes);
#ifdef GW_COUNTS_LANES
    return (vf)_mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi32((__mmask16)bits, bits_below(bits), packed));
#else
    return (vf)_mm512_cvtepi32_ps(_mm512_maskz_expand_epi32((__mmask16)bits, packed));
#endif
}
#endif

/* Lane l: p[index[l]]. */
GW_INLINE vf vf_gather(const float *p, const uint16_t *index) {
#if GW_LANES == 16
    return (vf)_mm512_i32gather_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)index)), p, 4);
#elif GW_LANES == 8
    return (vf)_mm256_i32gather_ps(p, _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)index)), 4);
#elif GW_LANES > 1
    float lane[GW_LANES];
    for (int l = 0; l < GW_LANES; l++) lane[l] = p[index[l]];
    return vf_load(lane);
#else
    return p[*index];
#endif
}

/* 1 / b. The wide divider takes few at a time: a 14-bit estimate and one Newton step cost a third and are as good to
 * 1 ulp. */
GW_INLINE vf vf_inverse(vf b) {
#if GW_LANES == 16
    vf y = (vf)_mm512_rcp14_ps((__m512)b);
    return y + y * (1.0f - b * y);
#else
    return 1.0f / b;
#endif
}

GW_INLINE vf vf_max(vf a, vf b) {
#if GW_LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif GW_LANES > 1
    const vu more = (vu)(a > b);
    return (vf)((vf_bits(a) & more) | (vf_bits(b) & ~more));
#else
    return a > b ? a : b;
#endif
}

GW_INLINE float vf_largest(vf v) {
#if GW_LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#elif GW_LANES > 1
    float best = v[0];
    for (int l = 1; l < GW_LANES; l++) best = v[l] > best ? v[l] : best;
    return best;
#else
    return v;
#endif
}

GW_INLINE float vf_total(vf v) {
#if GW_LANES > 1
    float sum = v[0];
    for (int l = 1; l < GW_LANES; l++) sum += v[l];
    return sum;
#else
    return v;
#endif
}

/* a * b + c, rounded once whatever the compiler is told about contractions; where the machine has no such
 * instruction, or no vectors of it that we know, GW_FUSED is not defined. */
#if GW_LANES == 16
#define GW_FUSED
GW_INLINE vf vf_fused(vf a, float b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(b), (__m512)c); }
#elif GW_LANES == 8
#define GW_FUSED
GW_INLINE vf vf_fused(vf a, float b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), (__m256)c); }
#elif GW_LANES == 1 && defined(__GNUC__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
#define GW_FUSED
GW_INLINE vf vf_fused(vf a, float b, vf c) { return __builtin_fmaf(a, b, c); }
#endif

#endif
