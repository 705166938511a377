/* Rows of a dense matrix times one vector on ARM's unit for single floats (Cortex-M4, M7, M33). One instruction loads
 * eight weights; compilers load them one by one, which takes as many instructions as the products. Part of gw.c. */
#ifndef GW_VFP_H
#define GW_VFP_H

#include <stddef.h>
#include <stdint.h>

#ifdef GW_VFP
enum { VFP_ROWS = 16 };

/* s0 .. s15 += X times the 16 weights at `at`, which then moves on to the next column. */
#define GW_VFP_8(X, A, B, C, D, E, F, G, H)                                                                 \
    "vfma.f32 s" #A ", " X ", s16\n vfma.f32 s" #B ", " X ", s17\n vfma.f32 s" #C ", " X ", s18\n"          \
    "vfma.f32 s" #D ", " X ", s19\n vfma.f32 s" #E ", " X ", s20\n vfma.f32 s" #F ", " X ", s21\n"          \
    "vfma.f32 s" #G ", " X ", s22\n vfma.f32 s" #H ", " X ", s23\n"
#define GW_VFP_COLUMN(X)                                                                                    \
    "vldmia %[at]!, {s16-s23}\n" GW_VFP_8(X, 0, 1, 2, 3, 4, 5, 6, 7)                                        \
    "vldmia %[at], {s16-s23}\n add %[at], %[at], %[skip]\n" GW_VFP_8(X, 8, 9, 10, 11, 12, 13, 14, 15)

/* to (16 * blocks) = from + w (cols, stride) transposed times x (cols); at least one block. */
static inline void vfp_rows(int32_t blocks, const float *w, ptrdiff_t stride, int32_t cols, const float *x,
                            const float *from, float *to) {
    const ptrdiff_t skip = (stride - VFP_ROWS / 2) * (ptrdiff_t)sizeof(float);
    const float *at, *entry;
    int32_t left;
    __asm__ volatile(
        "0: vldmia %[from]!, {s0-s15}\n"
        "mov %[at], %[w]\n"
        "mov %[entry], %[x]\n"
        "lsrs %[left], %[cols], #2\n"
        "beq 2f\n"
        "1: vldmia %[entry]!, {s24-s27}\n" GW_VFP_COLUMN("s24") GW_VFP_COLUMN("s25") GW_VFP_COLUMN("s26")
            GW_VFP_COLUMN("s27")
        "subs %[left], %[left], #1\n"
        "bne 1b\n"
        "2: ands %[left], %[cols], #3\n"
        "beq 4f\n"
        "3: vldmia %[entry]!, {s24}\n" GW_VFP_COLUMN("s24")
        "subs %[left], %[left], #1\n"
        "bne 3b\n"
        "4: vstmia %[to]!, {s0-s15}\n"
        "add %[w], %[w], #64\n"
        "subs %[blocks], %[blocks], #1\n"
        "bne 0b\n"
        : [blocks] "+r"(blocks), [w] "+r"(w), [from] "+r"(from), [to] "+r"(to), [at] "=&r"(at), [entry] "=&r"(entry),
          [left] "=&r"(left)
        : [x] "r"(x), [cols] "r"(cols), [skip] "r"(skip)
        : "cc", "memory", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14",
          "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27");
}
#endif

#endif
