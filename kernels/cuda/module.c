/* module.c - see module.h. */
#include "kernels/cuda/module.h"

__attribute__((visibility("default"))) const cf_cuda_module *cf_cuda_module_get(
    void)
{
    static const cf_cuda_module module = {
        .version = CF_CUDA_MODULE_VERSION,
        .kernels_bytes = sizeof(cf_kernels),
        .backend_bytes = cf_cuda_backend_bytes,
        .open = cf_cuda_open,
        .close = cf_cuda_close,
        .alloc = cf_cuda_alloc,
        .free = cf_cuda_free,
        .upload = cf_cuda_upload,
        .download = cf_cuda_download,
    };

    return &module;
}
