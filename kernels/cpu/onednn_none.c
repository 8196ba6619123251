/* onednn_none.c - onednn.h in a build without oneDNN: there is no library, and so
 * no product. */
#include <assert.h>

#include "kernels/cpu/onednn.h"

cf_onednn *cf_onednn_open(cf_gemm_type type, const char **why_p)
{
    (void)type;
    *why_p =
        "bf16 on AMX needs oneDNN, and this build is without it: apt install "
        "libdnnl-dev and configure again; until then --compute fp32 is faster";
    return NULL;
}

cf_status cf_onednn_status(cf_onednn *library)
{
    (void)library;
    return CF_OK;
}

size_t cf_onednn_packed_bytes(cf_onednn *library, cf_gemm_type type, size_t k,
                              size_t n, size_t b_row, size_t b_col)
{
    (void)library, (void)type, (void)k, (void)n, (void)b_row, (void)b_col;
    return 0;
}

void cf_onednn_pack(cf_onednn *library, cf_gemm_type type, size_t k, size_t n,
                    size_t b_row, size_t b_col, const void *b, void *packed)
{
    (void)library, (void)type, (void)k, (void)n, (void)b_row, (void)b_col;
    (void)b, (void)packed;
    assert(!"there is a library");
}

bool cf_onednn_has(cf_onednn *library, const cf_product *product)
{
    (void)library, (void)product;
    return false;
}

void cf_onednn_multiply(cf_onednn *library, const cf_product *product,
                        const void *a, const void *b, const void *bias, void *c)
{
    (void)library, (void)product, (void)a, (void)b, (void)bias, (void)c;
    assert(!"there is a library");
}
