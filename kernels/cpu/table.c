/* table.c - the op table of one variant. */
#include "kernels/cpu/gemm.h"

#if CF_DOUBLE
#define CF_TYPE_NAME "fp64"
#define CF_TYPE      CF_COMPUTE_FP64
#define CF_ADVICE    NULL
#elif CF_ACT_BF16
#define CF_TYPE_NAME "bf16"
#define CF_TYPE      CF_COMPUTE_BF16
#define CF_ADVICE                                                         \
    "bf16 is computed by the processor's fp32 units here: it takes less " \
    "memory, but --compute fp32 is faster"
#else
#define CF_TYPE_NAME "fp32"
#define CF_TYPE      CF_COMPUTE_FP32
#define CF_ADVICE    NULL
#endif

#if CF_VB == 64
#define CF_ISA_NAME "avx512"
#else
#define CF_ISA_NAME "avx2"
#endif

cf_status CF_CPU(status)(const cf_kernels *k)
{
    cf_onednn *library = onednn_of(k);

    /* Nothing here is launched, so nothing of ours fails later. */
    return library != NULL ? cf_onednn_status(library) : CF_OK;
}

void CF_CPU(table)(cf_kernels *kernels_p)
{
    *kernels_p = (cf_kernels){.name = "cpu " CF_TYPE_NAME " " CF_ISA_NAME,
                              .compute = CF_TYPE,
                              .advice = CF_ADVICE,
                              .act_bytes = sizeof(act),
                              .acc_bytes = sizeof(acc),
#define CF_CPU_FILL(op) .op = CF_CPU(op),
                              CF_CPU_OPS_MAP(CF_CPU_FILL)
#undef CF_CPU_FILL
    };
}
