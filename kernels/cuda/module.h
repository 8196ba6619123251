/* module.h - chunkflow_cuda.so as the main program sees it.
 *
 * The program links nothing of CUDA: it loads this module where there is a driver,
 * and asks for the one symbol below.
 */
#ifndef CF_CUDA_MODULE_H
#define CF_CUDA_MODULE_H

#include "kernels/cuda/backend.h"

/* Changes with anything that is declared here, in backend.h or in kernels.h. */
#define CF_CUDA_MODULE_VERSION 1

typedef struct cf_cuda_module {
    uint32_t version;
    uint32_t kernels_bytes; /* of cf_kernels, as a second look */
    size_t (*backend_bytes)(void);
    cf_status (*open)(void *room, const cf_cuda_config *config,
                      cf_kernels *kernels_p, const char **why_p);
    void (*close)(cf_kernels *kernels);
    cf_status (*alloc)(const cf_kernels *k, size_t bytes, void **at_p);
    void (*free)(const cf_kernels *k, void *at);
    void (*upload)(const cf_kernels *k, const void *from, size_t bytes,
                   void *to);
    void (*download)(const cf_kernels *k, const void *from, size_t bytes,
                     void *to);
} cf_cuda_module;

/* Static; never NULL. */
const cf_cuda_module *cf_cuda_module_get(void);

#endif
