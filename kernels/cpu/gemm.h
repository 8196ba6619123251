/* gemm.h - the library's matrix product for this element type.
 *
 * Call it from outside parallel regions: it brings its own threads.
 */
#ifndef CF_CPU_GEMM_H
#define CF_CPU_GEMM_H

#include <assert.h>
#include <cblas.h>
#include <limits.h>

#include "kernels/cpu/cpu_ops.h"

typedef struct gemm_shape {
    size_t m, n, k;
    size_t lda, ldb, ldc;
} gemm_shape;

/* c [m, n] = op(a) op(b) + beta c, all row-major. */
static inline void gemm(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b,
                        gemm_shape s, const acc *a, const acc *b, acc beta,
                        acc *c)
{
    assert(s.m <= INT_MAX && s.n <= INT_MAX && s.k <= INT_MAX);
    assert(s.lda <= INT_MAX && s.ldb <= INT_MAX && s.ldc <= INT_MAX);
#if CF_DOUBLE
    cblas_dgemm
#else
    cblas_sgemm
#endif
        (CblasRowMajor, op_a, op_b, (int)s.m, (int)s.n, (int)s.k, 1, a,
         (int)s.lda, b, (int)s.ldb, beta, c, (int)s.ldc);
}

/* y [n_tok, n_out] = x [n_tok, n_in] w^T + beta y. */
static inline void gemm_forward(size_t n_tok, size_t n_out, size_t n_in,
                                const acc *x, const acc *w, acc beta, acc *y)
{
    gemm_shape s = {n_tok, n_out, n_in, n_in, n_in, n_out};

    gemm(CblasNoTrans, CblasTrans, s, x, w, beta, y);
}

/* dx [n_tok, n_in] = dy [n_tok, n_out] w. */
static inline void gemm_backward_input(size_t n_tok, size_t n_out, size_t n_in,
                                       const acc *dy, const acc *w, acc *dx)
{
    gemm_shape s = {n_tok, n_in, n_out, n_out, n_in, n_in};

    gemm(CblasNoTrans, CblasNoTrans, s, dy, w, 0, dx);
}

/* dw [n_out, n_in] += dy^T x. */
static inline void gemm_backward_weight(size_t n_tok, size_t n_out, size_t n_in,
                                        const acc *dy, const acc *x, acc *dw)
{
    gemm_shape s = {n_out, n_in, n_tok, n_out, n_in, n_in};

    gemm(CblasTrans, CblasNoTrans, s, dy, x, 1, dw);
}

#endif
