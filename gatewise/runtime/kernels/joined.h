/* Products with weights of one byte, four columns of a row joined in one word: `joined` in gw.h. For the engine only.
 * What a weight stands for is exact; sums are floats, or integers that are as good (see dots below). */
#ifndef GW_JOINED_H
#define GW_JOINED_H

#include "products.h"

#if GW_LANES > 1
typedef int32_t vi __attribute__((vector_size(4 * GW_LANES)));
#else
typedef int32_t vi;
#endif

GW_INLINE vu vu_load(const uint32_t *p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}

GW_INLINE vf vf_from_signed(vi v) {
#if GW_LANES > 1
    return __builtin_convertvector(v, vf);
#else
    return (float)v;
#endif
}

/* Column k of the rows in a vector of words: a byte is a code + 128, and those of columns 1 and 2 have changed places. */
GW_INLINE vf column_of(vu word, int k) {
    return vf_from_signed((vi)((word ^ 0x80808080u) << (k == 3 ? 0 : k == 0 ? 24 : 8 * k)) >> 24);
}

/* Rows that lie side by side in a panel, as words. */
typedef struct {
    const uint32_t *words; /* (words of a row, stride) */
    ptrdiff_t stride;
    int32_t rows;
} word_run;

static word_run words_at(const gw_matrix *w, int32_t top) {
    const int32_t panel = top / GW_PANEL * GW_PANEL, left = w->rows - top;
    const word_run run = {
        .words = w->joined + (ptrdiff_t)panel * ((w->cols + 3) / 4) + (top - panel),
        .stride = panel + GW_PANEL < w->rows ? GW_PANEL : w->last,
        .rows = left,
    };
    return run;
}

/* y (rows) = from + scale * sum, of vector v. */
GW_INLINE void finish(const gw_matrix *w, int32_t top, int v, int32_t rows, vf sum, const float *from, float *y) {
    const int32_t at = v * GW_LANES, left = rows - at, n = left < GW_LANES ? left : GW_LANES;
    vf_store_first(y + at, sum * vf_load_first(w->scale + top + at, n) + vf_load_first(from + at, n), n);
}

/* The sums of up to SIDE vectors of rows live in registers, as many as hide the latency of the adder. */
#if GW_LANES == 16
enum { SIDE = 4, SUMS = 2 };
#else
enum { SIDE = 8, SUMS = 1 };
#endif
enum { WORDS_LATER = 2048 }; /* bytes; weights that are fewer stay nearer */

/* sum += a word of each row times its columns of x; nv is a constant at every call. */
GW_INLINE void add_words(const int nv, const uint32_t *words, const float *x, vf sum[SUMS][SIDE]) {
    vu word[SIDE];
    GW_UNROLL
    for (int v = 0; v < nv; v++) word[v] = vu_load(words + v * GW_LANES);
    GW_UNROLL
    for (int k = 0; k < 4; k++) {
        const vf xk = vf_all(x[k]);
        GW_UNROLL
        for (int v = 0; v < nv; v++) sum[k % SUMS][v] += xk * column_of(word[v], k);
    }
}

GW_INLINE void joined_rows(const int nv, const gw_matrix *w, int32_t top, const float *x, const float *from, float *y) {
    const word_run run = words_at(w, top);
    const uint32_t *words = run.words;
    const int32_t whole = w->cols / 4;
    vf sum[SUMS][SIDE];
    memset(sum, 0, sizeof sum);
    for (int32_t j = 0; j < whole; j++, words += run.stride, x += 4) {
        fetch_later(nv, words, WORDS_LATER);
        add_words(nv, words, x, sum);
    }
    if (w->cols % 4) {
        float last[4] = {0};
        memcpy(last, x, sizeof(float) * (size_t)(w->cols % 4));
        add_words(nv, words, last, sum);
    }
    GW_UNROLL
    for (int v = 0; v < nv; v++) {
        if (SUMS > 1) sum[0][v] += sum[SUMS - 1][v];
        finish(w, top, v, run.rows, sum[0][v], from, y);
    }
}

/* Products of bytes with whole numbers, several with their sum in one instruction: 4 with bytes, 2 with 16 bits. So x
 * is written in digits of 8 or 12 bits with a sign:
 *
 *     x[j] = step * (d0 + d1 * base + d2 * base^2 + ...)    to half a step
 *
 * A step is 1.2e-7 of the largest entry, or 5e-10 of it where that is above 8. Sums over digits are exact, so that a
 * sum is as good as one of floats, in which the largest entries have that error, too. Entries above 256 and what is no
 * number have no digits: those are left to floats. */
#if defined(__AVX512VNNI__)
#define GW_DOTS
enum { DIGIT_BITS = 8, FEW = 3, DIGITS = 4, DOT_SIDE = 4, DOT_COLUMNS = 1 << 16 };
typedef int8_t digit;
#elif (GW_LANES == 4 || GW_LANES == 8) && defined(__SSE2__)
#define GW_DOTS
enum { DIGIT_BITS = 12, FEW = 2, DIGITS = 3, DOT_SIDE = 2, DOT_COLUMNS = 1 << 12 };
typedef int16_t digit;
#else
enum { DIGITS = 0 };
typedef int8_t digit;
#endif
enum { DOTS_FROM = 1 << 12 }; /* weights from which the digits of x are worth making */

/* Digits between two of them of the same column. */
static size_t digits_room(int32_t cols) { return (size_t)(cols + 63) / 64 * 64; }

#ifdef GW_DOTS
typedef struct {
    int n; /* digits, or 0: none */
    float step;
    int32_t less[DIGITS]; /* 128 * sum of the digits: bytes of weights are codes + 128 */
    size_t room;
    const digit *of; /* (n, room) */
} number;

/* A vector of x, of which `left` entries are there; zeros for the others. */
GW_INLINE vf load_entries(const float *x, int32_t left) {
    return left >= GW_LANES ? vf_load(x) : left > 0 ? vf_load_first(x, left) : vf_all(0);
}

/* The largest entry of x by size, or a negative number if one has no digits. */
static float largest_entry(int32_t cols, const float *x) {
    vf most = vf_all(0);
    vu strange = {0};
    for (int32_t j = 0; j < cols; j += GW_LANES) {
        const vf v = load_entries(x + j, cols - j);
        const vf size = vf_from_bits(vf_bits(v) & 0x7fffffffu);
        strange |= ~(vu)(size <= 256.0f);
        most = vf_max(most, size);
    }
    return vf_largest(vf_from_bits(strange & vf_bits(vf_all(1)))) > 0 ? -1 : vf_largest(most);
}

/* n, as in d, is a constant at every call. */
#if defined(__AVX512VNNI__)
GW_INLINE void write_digits(const int n, number *d, int32_t cols, const float *x, float steps, digit *to) {
    /* With 128 added to every digit, digits are the bytes of the sum. */
    const __m512i middle = _mm512_set1_epi32(n == FEW ? 0x00808080 : (int)0x80808080u);
    const __m128i swapped = _mm_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
    const __m512i by_digit = _mm512_broadcast_i32x4(swapped);
    const __m512i together = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i sums = _mm512_setzero_si512();
    int32_t sum[16];
    for (int32_t j = 0; j < (int32_t)d->room; j += GW_LANES) {
        const __m512 v = (__m512)(load_entries(x + j, cols - j) * steps);
        const __m512i q = _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m512i digits = _mm512_xor_si512(_mm512_add_epi32(q, middle), middle);
        const __m512i of_all = _mm512_permutexvar_epi32(together, _mm512_shuffle_epi8(digits, by_digit));
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), of_all);
        _mm_storeu_si128((__m128i *)(to + j), _mm512_castsi512_si128(of_all));
        _mm_storeu_si128((__m128i *)(to + d->room + j), _mm512_extracti32x4_epi32(of_all, 1));
        _mm_storeu_si128((__m128i *)(to + 2 * d->room + j), _mm512_extracti32x4_epi32(of_all, 2));
        if (n > 3) _mm_storeu_si128((__m128i *)(to + 3 * d->room + j), _mm512_extracti32x4_epi32(of_all, 3));
    }
    _mm512_storeu_si512(sum, sums);
    for (int k = 0; k < n; k++) d->less[k] = 128 * (sum[4 * k] + sum[4 * k + 1] + sum[4 * k + 2] + sum[4 * k + 3]);
}
#else
GW_INLINE void write_digits(const int n, number *d, int32_t cols, const float *x, float steps, digit *to) {
    typedef digit narrow __attribute__((vector_size(sizeof(digit) * GW_LANES)));
    const int32_t base = 1 << DIGIT_BITS, half = base / 2;
    vi sums[DIGITS] = {{0}};
    for (int32_t j = 0; j < (int32_t)d->room; j += GW_LANES) {
        const vf v = load_entries(x + j, cols - j) * steps;
        const vf nearer = vf_from_bits((vf_bits(v) & 0x80000000u) | vf_bits(vf_all(0.5f)));
        vi q = __builtin_convertvector(v + nearer, vi);
        GW_UNROLL
        for (int k = 0; k < n; k++) {
            const vi one = ((q + half) & (base - 1)) - half;
            const narrow few = __builtin_convertvector(one, narrow);
            sums[k] += one;
            memcpy(to + (size_t)k * d->room + j, &few, sizeof few);
            q = (q - one) >> DIGIT_BITS;
        }
    }
    for (int k = 0; k < n; k++)
        for (int l = 0; l < GW_LANES; l++) d->less[k] += 128 * sums[k][l];
}
#endif

static number make_digits(int32_t cols, const float *x, digit *to) {
    number d = {.room = digits_room(cols), .of = to};
    const float largest = largest_entry(cols, x);
    if (largest < 1e-30f) return d; /* a step would be denormal */
    d.n = largest <= 8.0f ? FEW : DIGITS;
    const float limit = d.n == FEW ? 8355000.0f : 2139000000.0f; /* below 127 in every digit of 8 bits */
    d.step = largest / limit;
    if (d.n == FEW)
        write_digits(FEW, &d, cols, x, limit / largest, to);
    else
        write_digits(DIGITS, &d, cols, x, limit / largest, to);
    return d;
}

/* Four digits in every lane, as a product takes them: in one vector of bytes, or in two of 16 bits. */
typedef struct {
    vi part[4 * sizeof(digit) / 4];
} four_digits;

GW_INLINE four_digits digits_everywhere(const digit *from) {
    four_digits four;
    for (size_t i = 0; i < sizeof four.part / sizeof *four.part; i++) {
        int32_t word;
        memcpy(&word, (const char *)from + 4 * i, sizeof word);
        four.part[i] = word - (vi){0};
    }
    return four;
}

/* sum + bytes of each word times four digits. */
GW_INLINE vi dot(vi sum, vu word, const four_digits *x) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)word, (__m512i)x->part[0]);
#elif GW_LANES == 8
    const __m256i even = _mm256_and_si256((__m256i)word, _mm256_set1_epi16(255));
    const __m256i odd = _mm256_srli_epi16((__m256i)word, 8);
    return sum + (vi)_mm256_madd_epi16(even, (__m256i)x->part[0]) + (vi)_mm256_madd_epi16(odd, (__m256i)x->part[1]);
#else
    const __m128i even = _mm_and_si128((__m128i)word, _mm_set1_epi16(255)), odd = _mm_srli_epi16((__m128i)word, 8);
    return sum + (vi)_mm_madd_epi16(even, (__m128i)x->part[0]) + (vi)_mm_madd_epi16(odd, (__m128i)x->part[1]);
#endif
}

/* n and nv are constants at every call. */
GW_INLINE void dots_run(const int nv, const int n, const gw_matrix *w, int32_t top, const number *x, const float *from,
                        float *y) {
    const word_run run = words_at(w, top);
    const uint32_t *words = run.words;
    vi sum[DIGITS][DOT_SIDE];
    memset(sum, 0, sizeof sum);
    for (int32_t j = 0; j < w->cols; j += 4, words += run.stride) {
        four_digits four[DIGITS];
        fetch_later(nv, words, WORDS_LATER);
        GW_UNROLL
        for (int k = 0; k < n; k++) four[k] = digits_everywhere(x->of + (size_t)k * x->room + j);
        GW_UNROLL
        for (int v = 0; v < nv; v++) {
            const vu word = vu_load(words + v * GW_LANES);
            GW_UNROLL
            for (int k = 0; k < n; k++) sum[k][v] = dot(sum[k][v], word, &four[k]);
        }
    }
    GW_UNROLL
    for (int v = 0; v < nv; v++) {
        vf total = vf_all(0);
        GW_UNROLL
        for (int k = n - 1; k >= 0; k--)
            total = total * (float)(1 << DIGIT_BITS) + vf_from_signed(sum[k][v] - x->less[k]);
        finish(w, top, v, run.rows, total * x->step, from, y);
    }
}

GW_INLINE void dots_rows(const int nv, const gw_matrix *w, int32_t top, const number *x, const float *from, float *y) {
    if (x->n == FEW)
        dots_run(nv, FEW, w, top, x, from, y);
    else
        dots_run(nv, DIGITS, w, top, x, from, y);
}

/* Rows from .. end - 1 of a product whose x has digits; says whether it did it. */
static int dots_product(const gw_matrix *w, const float *bias, const float *x, float *y, float *scratch, int32_t from,
                        int32_t end, int backwards) {
    enum { ROWS = DOT_SIDE * GW_LANES };
    if (!w->scale || (int64_t)w->rows * w->cols < DOTS_FROM || w->cols > DOT_COLUMNS) return 0;
    const number number_x = make_digits(w->cols, x, (digit *)scratch);
    const int32_t runs = (end - from + ROWS - 1) / ROWS;
    for (int32_t p = 0; number_x.n && p < runs; p++) {
        int32_t top = from + (backwards ? runs - 1 - p : p) * ROWS;
        const int32_t stop = top + ROWS < end ? top + ROWS : end;
        if (stop - top > ROWS - GW_LANES)
            dots_rows(DOT_SIDE, w, top, &number_x, (bias ? bias : y) + top, y + top);
        else
            for (; top < stop; top += GW_LANES) dots_rows(1, w, top, &number_x, (bias ? bias : y) + top, y + top);
    }
    return number_x.n;
}
#else
static int dots_product(const gw_matrix *w, const float *bias, const float *x, float *y, float *scratch, int32_t from,
                        int32_t end, int backwards) {
    (void)w, (void)bias, (void)x, (void)y, (void)scratch, (void)from, (void)end, (void)backwards;
    return 0;
}
#endif

static void joined_one(const gw_matrix *w, const float *bias, const float *x, float *y, float *scratch,
                       panel_range part) {
    enum { ROWS = SIDE * GW_LANES };
    const int32_t from = part.from * GW_PANEL, end = part.to * GW_PANEL < w->rows ? part.to * GW_PANEL : w->rows;
    const int32_t runs = (end - from + ROWS - 1) / ROWS;
    if (dots_product(w, bias, x, y, scratch, from, end, part.backwards)) return;
    for (int32_t p = 0; p < runs; p++) {
        int32_t top = from + (part.backwards ? runs - 1 - p : p) * ROWS;
        const int32_t stop = top + ROWS < end ? top + ROWS : end;
        if (stop - top > ROWS - GW_LANES)
            joined_rows(SIDE, w, top, x, (bias ? bias : y) + top, y + top);
        else
            for (; top < stop; top += GW_LANES) joined_rows(1, w, top, x, (bias ? bias : y) + top, y + top);
    }
}

/* Up to 64 rows as floats, (cols, 64). */
static void part_words(const gw_matrix *w, int32_t top, float *dense) {
    const int32_t left = w->rows - top, rows = left < GW_PANEL ? left : GW_PANEL;
    const word_run run = words_at(w, top);
    for (int32_t lane = 0; lane < rows; lane += GW_LANES) {
        const int n = rows - lane < GW_LANES ? rows - lane : GW_LANES;
        const vf scale = vf_load_first(w->scale + top + lane, n);
        const uint32_t *words = run.words + lane;
        float *to = dense + lane;
        for (int32_t j = 0; j < w->cols; j += 4, words += run.stride) {
            const vu word = vu_load(words);
            for (int k = 0; k < 4 && j + k < w->cols; k++, to += GW_PANEL) vf_store(to, scale * column_of(word, k));
        }
    }
}

/* A few vectors meet the words; more are worth a dense panel at a time, made anew in every call. */
static void joined_product(const gw_matrix *w, const float *bias, int32_t m, const float *x, ptrdiff_t ldx, float *y,
                           ptrdiff_t ldy, float *scratch, panel_range part) {
    const panel_range one = {0, 1, 0};
    if (m < TRANSPOSE_FROM) {
        for (int32_t r = 0; r < m; r++) joined_one(w, bias, x + r * ldx, y + r * ldy, scratch, part);
        return;
    }
    for (int32_t p = part.from; p < part.to; p++) {
        const int32_t top = (part.backwards ? part.from + part.to - 1 - p : p) * GW_PANEL, left = w->rows - top;
        const gw_matrix panel = {
            .rows = left < GW_PANEL ? left : GW_PANEL, .cols = w->cols, .last = GW_PANEL, .values = scratch};
        part_words(w, top, scratch);
        dense_product(&panel, bias ? bias + top : NULL, m, x, ldx, y + top, ldy, one);
    }
}

static size_t joined_scratch(const gw_matrix *w, int32_t m) {
    if (m >= TRANSPOSE_FROM) return (size_t)w->cols * GW_PANEL;
    return digits_room(w->cols) * DIGITS * sizeof(digit) / sizeof(float);
}

#endif
