/* gemm.h - the one form in which matrix products are asked for. */
#ifndef CF_CUDA_GEMM_H
#define CF_CUDA_GEMM_H

#include <stddef.h>
#include <stdint.h>

typedef enum cf_cuda_type {
    CF_CUDA_ACT, /* bf16 */
    CF_CUDA_ACC  /* float */
} cf_cuda_type;

/* A row-major act matrix as an operand: itself or its transpose. */
typedef struct cf_cuda_operand {
    const void *x;
    size_t stride; /* elements from one stored row to the next */
    int transposed;
} cf_cuda_operand;

/* c [m, n] = a [m, k] b [k, n], plus itself with add, plus bias in every row:
 * sums in fp32, each result rounded once.  c is dense. */
typedef struct cf_cuda_product {
    size_t m, n, k;
    cf_cuda_operand a, b;
    void *c;
    cf_cuda_type c_type;
    int add;
    const void *bias; /* act [n] or NULL */
} cf_cuda_product;

#endif
