/* cuda_open.c - see cuda_open.h. */
#include "tests/cuda/cuda_open.h"

#include <check.h>
#include <stdlib.h>

#include "kernels/cuda/module.h"

cf_kernels cuda_open(size_t staging_bytes)
{
    const cf_cuda_config config = {.staging_bytes = staging_bytes,
                                   .workspace_bytes = 1 << 10};
    const cf_cuda_module *module = cf_cuda_module_get();
    void *room = malloc(module->backend_bytes());
    const char *why = "";
    cf_kernels k;

    ck_assert_ptr_nonnull(room);
    ck_assert_uint_eq(module->version, CF_CUDA_MODULE_VERSION);
    ck_assert_uint_eq(module->kernels_bytes, sizeof(cf_kernels));
    ck_assert_msg(module->open(room, &config, &k, &why) == CF_OK, "%s", why);
    return k;
}
