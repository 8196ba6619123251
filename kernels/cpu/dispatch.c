/* dispatch.c - the variant for a type on this processor.  Compiled once, for
 * any x86-64.
 *
 * AMX is no variant: its matrix products are oneDNN's (onednn.h), and everything
 * else is AVX-512's.
 */
#include <cpuid.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/onednn.h"
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
    ISA_AVX512,
    ISA_AMX
} isa;

/* Tiles, and products of bf16 in them; whether the system lets us use them,
 * oneDNN asks. */
static int has_amx(void)
{
    const unsigned bf16 = 1u << 22, tile = 1u << 24;
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bf16) != 0 &&
           (d & tile) != 0;
}

static isa isa_of_processor(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return ISA_NONE;
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return has_amx() ? ISA_AMX : ISA_AVX512;
    return ISA_AVX2;
}

/* *forced_p: somebody asked for it. */
static cf_status isa_to_use(isa *isa_p, int *forced_p, const char **why_p)
{
    static const struct {
        const char *name;
        isa isa;
    } names[] = {{"avx2", ISA_AVX2}, {"avx512", ISA_AVX512}, {"amx", ISA_AMX}};
    const char *forced = getenv("CF_CPU_ISA");
    isa best = isa_of_processor();
    isa wanted = best;

    if (best == ISA_NONE) {
        *why_p = "this processor lacks AVX2 or FMA";
        return CF_INVALID;
    }
    *forced_p = forced != NULL && forced[0] != '\0';
    if (*forced_p) {
        wanted = ISA_NONE;
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            if (strcmp(forced, names[i].name) == 0)
                wanted = names[i].isa;
    }
    if (wanted == ISA_NONE) {
        *why_p = "CF_CPU_ISA is none of avx2, avx512 and amx";
        return CF_INVALID;
    }
    if (wanted > best) {
        *why_p = wanted == ISA_AMX
                     ? "CF_CPU_ISA is amx, which this processor lacks"
                     : "CF_CPU_ISA is avx512, which this processor lacks";
        return CF_INVALID;
    }
    *isa_p = wanted;
    return CF_OK;
}

/* The products of a bf16 table by AMX; without them it only says why, unless
 * they were asked for. */
static cf_status amx_add(int forced, cf_kernels *kernels, const char **why_p)
{
    const char *why = NULL;
    cf_onednn *library = cf_onednn_open(CF_GEMM_BF16, &why);

    if (library != NULL) {
        kernels->backend = library;
        kernels->name = "cpu bf16 amx";
        kernels->advice = NULL;
        return CF_OK;
    }
    if (!forced) {
        kernels->advice = why;
        return CF_OK;
    }
    *why_p = why;
    return CF_INVALID;
}

cf_status cf_cpu_kernels(cf_compute compute, cf_kernels *kernels_p,
                         const char **why_p)
{
    isa chosen = ISA_NONE;
    int forced = 0;
    cf_status status = isa_to_use(&chosen, &forced, why_p);

    if (status != CF_OK)
        return status;

    switch (compute) {
    case CF_COMPUTE_FP32:
        if (chosen >= ISA_AVX512)
            cf_cpu_table_f32_avx512(kernels_p);
        else
            cf_cpu_table_f32_avx2(kernels_p);
        return CF_OK;
    case CF_COMPUTE_FP64:
        if (chosen >= ISA_AVX512)
            cf_cpu_table_f64_avx512(kernels_p);
        else
            cf_cpu_table_f64_avx2(kernels_p);
        return CF_OK;
    case CF_COMPUTE_BF16:
        if (chosen >= ISA_AVX512)
            cf_cpu_table_bf16_avx512(kernels_p);
        else
            cf_cpu_table_bf16_avx2(kernels_p);
        return chosen == ISA_AMX ? amx_add(forced, kernels_p, why_p) : CF_OK;
    }
    *why_p = "not a compute type";
    return CF_INVALID;
}
