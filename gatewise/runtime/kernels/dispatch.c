#include "dispatch.h"

extern const gw_kernels gw_kernels_scalar;
#if defined(__x86_64__)
extern const gw_kernels gw_kernels_vnni, gw_kernels_avx512, gw_kernels_avx2, gw_kernels_sse2;
#elif defined(__aarch64__)
extern const gw_kernels gw_kernels_neon;
#endif

const gw_kernels *gw_kernels_at(int i) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && i-- == 0)
        return &gw_kernels_vnni;
    if (__builtin_cpu_supports("avx512f") && i-- == 0) return &gw_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && i-- == 0) return &gw_kernels_avx2;
    if (i-- == 0) return &gw_kernels_sse2;
#elif defined(__aarch64__)
    if (i-- == 0) return &gw_kernels_neon;
#endif
    return i == 0 ? &gw_kernels_scalar : NULL;
}

int gw_expands_well(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_is("intel");
#else
    return 0;
#endif
}
