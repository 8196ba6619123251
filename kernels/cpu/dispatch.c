/* dispatch.c - the variant for a type on this processor.  Compiled once, for
 * any x86-64. */
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

void cf_cpu_table_f32_avx2(cf_kernels *kernels_p);
void cf_cpu_table_f32_avx512(cf_kernels *kernels_p);
void cf_cpu_table_f64_avx2(cf_kernels *kernels_p);
void cf_cpu_table_f64_avx512(cf_kernels *kernels_p);
void cf_cpu_table_bf16_avx2(cf_kernels *kernels_p);
void cf_cpu_table_bf16_avx512(cf_kernels *kernels_p);

typedef enum isa {
    ISA_NONE,
    ISA_AVX2,
    ISA_AVX512
} isa;

static isa isa_of_processor(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return ISA_NONE;
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return ISA_AVX512;
    return ISA_AVX2;
}

static cf_status isa_to_use(isa *isa_p, const char **why_p)
{
    const char *forced = getenv("CF_CPU_ISA");
    isa best = isa_of_processor();
    isa wanted = best;

    if (best == ISA_NONE) {
        *why_p = "this processor lacks AVX2 or FMA";
        return CF_INVALID;
    }
    if (forced != NULL && strcmp(forced, "avx2") == 0) {
        wanted = ISA_AVX2;
    } else if (forced != NULL && strcmp(forced, "avx512") == 0) {
        wanted = ISA_AVX512;
    } else if (forced != NULL && forced[0] != '\0') {
        *why_p = "CF_CPU_ISA is neither avx2 nor avx512";
        return CF_INVALID;
    }
    if (wanted > best) {
        *why_p = "CF_CPU_ISA is avx512, which this processor lacks";
        return CF_INVALID;
    }
    *isa_p = wanted;
    return CF_OK;
}

cf_status cf_cpu_kernels(cf_compute compute, cf_kernels *kernels_p,
                         const char **why_p)
{
    isa chosen = ISA_NONE;
    cf_status status = isa_to_use(&chosen, why_p);

    if (status != CF_OK)
        return status;

    switch (compute) {
    case CF_COMPUTE_FP32:
        if (chosen == ISA_AVX512)
            cf_cpu_table_f32_avx512(kernels_p);
        else
            cf_cpu_table_f32_avx2(kernels_p);
        return CF_OK;
    case CF_COMPUTE_FP64:
        if (chosen == ISA_AVX512)
            cf_cpu_table_f64_avx512(kernels_p);
        else
            cf_cpu_table_f64_avx2(kernels_p);
        return CF_OK;
    case CF_COMPUTE_BF16:
        /* By widening to fp32. */
        if (chosen == ISA_AVX512)
            cf_cpu_table_bf16_avx512(kernels_p);
        else
            cf_cpu_table_bf16_avx2(kernels_p);
        return CF_OK;
    }
    *why_p = "not a compute type";
    return CF_INVALID;
}
