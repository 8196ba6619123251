/* lt.h - products by cuBLASLt.
 *
 * The library works on column-major matrices; a row-major one is its transpose
 * there, so c = a b is asked for as c' = b' a'.
 *
 * (1) What a product needs is made once for its shape and kept: descriptors,
 *     layouts, and the algorithm that the library's heuristic answers first.  So
 *     equal products run the same algorithm.
 * (2) Sums are fp32, also those of a split k: schemes that round partial sums to
 *     the output's type are not allowed.  Equal products give equal bits.
 */
#ifndef CF_CUDA_LT_H
#define CF_CUDA_LT_H

#include <cublasLt.h>

#include "kernels/cuda/gemm.h"

enum {
    CF_CUDA_LT_KEPT = 128, /* shapes; more make the oldest go */
    CF_CUDA_LT_KEY = 12
};

typedef struct cf_cuda_lt_plan {
    uint64_t key[CF_CUDA_LT_KEY];
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b,
        c; /* of the product, not the library's a and b */
    cublasLtMatmulAlgo_t algo;
    int is_refused; /* the library has no algorithm */
} cf_cuda_lt_plan;

typedef struct cf_cuda_lt {
    cublasLtHandle_t handle;
    void *workspace; /* device */
    size_t workspace_bytes;
    cf_cuda_lt_plan plans[CF_CUDA_LT_KEPT];
    size_t n_plans, next;
    size_t n_made; /* plans, since it was opened */
} cf_cuda_lt;

/* Nonzero: the library does not start here.  The workspace is borrowed. */
int cf_cuda_lt_open(void *workspace, size_t workspace_bytes, cf_cuda_lt *lt);
void cf_cuda_lt_close(cf_cuda_lt *lt);

/* Queues the product; nonzero when the library refuses it. */
int cf_cuda_lt_run(cf_cuda_lt *lt, cudaStream_t stream,
                   const cf_cuda_product *p);

#endif
