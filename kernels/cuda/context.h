/* context.h - what the files of the backend share. */
#ifndef CF_CUDA_CONTEXT_H
#define CF_CUDA_CONTEXT_H

#include "kernels/cuda/backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lt.h"
#include "kernels/cuda/staging.h"

/* Results for the host that one copy brings. */
#define CF_CUDA_RESULTS_MAX ((size_t)65536)

typedef struct cf_cuda_context {
    cudaStream_t stream;
    cf_cuda_staging staging;
    cf_cuda_lt lt;
    void *workspace;
    double *results; /* device, [CF_CUDA_RESULTS_MAX] */
    double *results_host;
    cudaError_t error; /* the first one since status() */
    size_t n_refused;
} cf_cuda_context;

static inline cf_cuda_context *cf_cuda_context_of(const cf_kernels *k)
{
    return k->backend;
}

/* Remembers an error; and, for launches, the runtime's last one. */
void cf_cuda_note(cf_cuda_context *c, cudaError_t error);
void cf_cuda_launched(cf_cuda_context *c);

/* The array on the device; NULL, and noted, when it does not fit. */
const void *cf_cuda_staged(cf_cuda_context *c, const void *from, size_t bytes);

/* Brings the first n results to the host, when all ops so far are done. */
void cf_cuda_results_get(cf_cuda_context *c, size_t n, double *to);

/* By cuBLASLt, or by the plain kernel where that refuses. */
void cf_cuda_product_do(cf_cuda_context *c, const cf_cuda_product *p);

/* ---- ops with a file of their own ---- */

/* linear.c, head.c: as in kernels.h. */
size_t cf_cuda_weight_packed_bytes(const cf_kernels *k, size_t n_out,
                                   size_t n_in);
void cf_cuda_weight_pack(const cf_kernels *k, cf_weight *w);
size_t cf_cuda_linear_scratch_bytes(const cf_kernels *k, size_t n_tok,
                                    size_t n_out, size_t n_in);
void cf_cuda_linear_forward(const cf_kernels *k, const cf_weight *w,
                            size_t n_tok, const void *x, void *y,
                            void *scratch);
void cf_cuda_linear_forward_residual(const cf_kernels *k, const cf_weight *w,
                                     size_t n_tok, const void *x, void *y,
                                     void *scratch);
void cf_cuda_linear_forward_add(const cf_kernels *k, const cf_weight *w,
                                size_t n_tok, const void *x, void *y,
                                void *scratch);
void cf_cuda_linear_backward(const cf_kernels *k, const cf_weight *w,
                             size_t n_tok, const void *dy, const void *x,
                             void *dx, void *dw, void *db, void *scratch);

size_t cf_cuda_head_scratch_bytes(const cf_kernels *k, size_t n_rows,
                                  size_t n_vocab, size_t n_in);
void cf_cuda_head_forward(const cf_kernels *k, const cf_weight *w,
                          size_t n_rows, const void *x, const uint32_t *targets,
                          double *loss, void *scratch);
void cf_cuda_head_backward(const cf_kernels *k, const cf_weight *w,
                           size_t n_rows, const void *x,
                           const uint32_t *targets, double scale, double *loss,
                           void *dx, void *dw, void *scratch);

/* ops.c: the others, and all of them in the table. */
void cf_cuda_table_fill(cf_kernels *kernels);

#endif
