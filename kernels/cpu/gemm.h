/* gemm.h - the libraries' matrix products for this element type.
 *
 * OpenBLAS's, of acc; and oneDNN's, of act with a packed weight, where the
 * backend has it (onednn.h).  Call them from outside parallel regions: they bring
 * their own threads.
 */
#ifndef CF_CPU_GEMM_H
#define CF_CPU_GEMM_H

#include <assert.h>
#include <cblas.h>
#include <limits.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/onednn.h"

/* ---- OpenBLAS ---- */

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

/* ---- oneDNN ---- */

/* act, in its words; double it has not. */
#if CF_ACT_BF16
#define CF_GEMM_ACT CF_GEMM_BF16
#else
#define CF_GEMM_ACT CF_GEMM_FP32
#endif

/* The library, or NULL. */
static inline cf_onednn *onednn_of(const cf_kernels *k)
{
    return CF_DOUBLE ? NULL : k->backend;
}

/* A weight is packed twice: as what x is multiplied by, then as what dy is. */
static inline size_t packed_forward_bytes(cf_onednn *library, size_t n_out,
                                          size_t n_in)
{
    return cf_onednn_packed_bytes(library, CF_GEMM_ACT, n_in, n_out, 1, n_in);
}

static inline size_t packed_backward_bytes(cf_onednn *library, size_t n_out,
                                           size_t n_in)
{
    return cf_onednn_packed_bytes(library, CF_GEMM_ACT, n_out, n_in, n_in, 1);
}

static inline const void *packed_backward(cf_onednn *library,
                                          const cf_weight *w)
{
    return (const char *)w->packed +
           packed_forward_bytes(library, w->n_out, w->n_in);
}

/* y [n_rows, n_out] = x W^T. */
static inline cf_product forward_product(const cf_weight *w, size_t n_rows,
                                         cf_gemm_type out)
{
    return (cf_product){.m = n_rows,
                        .n = w->n_out,
                        .k = w->n_in,
                        .a_row = w->n_in,
                        .a_col = 1,
                        .b_row = 1,
                        .b_col = w->n_in,
                        .c_row = w->n_out,
                        .in = CF_GEMM_ACT,
                        .out = out,
                        .packed = true};
}

/* dx [n_rows, n_in] = dy W. */
static inline cf_product input_product(const cf_weight *w, size_t n_rows)
{
    return (cf_product){.m = n_rows,
                        .n = w->n_in,
                        .k = w->n_out,
                        .a_row = w->n_out,
                        .a_col = 1,
                        .b_row = w->n_in,
                        .b_col = 1,
                        .c_row = w->n_in,
                        .in = CF_GEMM_ACT,
                        .out = CF_GEMM_ACT,
                        .packed = true};
}

#endif
